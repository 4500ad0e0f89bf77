//! Sends semaphore commands to whichever of several servers is alive.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use taskyard::Http;
use taskyard_core::{Command, Error, Execute, Reply};

/// The live servers: a client whose server was killed uses another one.
pub struct LiveServers {
    live: Mutex<Vec<Http>>,
    replies: AtomicUsize,
}

impl LiveServers {
    /// Two servers, of which the second one is killed.
    pub fn new(first: &Http, second: &Http) -> &'static Self {
        let live = Mutex::new(vec![first.clone(), second.clone()]);
        Box::leak(Box::new(LiveServers { live, replies: AtomicUsize::new(0) }))
    }

    /// Replaces the second server.
    pub fn replace_second(&self, http: &Http) {
        self.live.lock().expect("no client failed")[1] = http.clone();
    }

    /// Waits until there are this many replies in total.
    pub async fn wait_for_replies(&self, total: usize) {
        while self.replies.load(Ordering::Relaxed) < total {
            tokio::task::yield_now().await;
        }
    }
}

impl Execute for LiveServers {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
        loop {
            let index = fastrand::usize(..);
            let http = {
                let live = self.live.lock().expect("no client failed");
                live[index % live.len()].clone()
            };
            let replies = http.execute(commands.clone()).await;
            // Semaphore commands are idempotent and can be repeated.
            let lost = |reply: &Result<Reply, Error>| {
                matches!(
                    reply,
                    Err(Error::StoreUnavailable(_)
                        | Error::OutcomeUnknown(_)
                        | Error::ShuttingDown)
                )
            };
            if !replies.iter().any(lost) {
                self.replies.fetch_add(1, Ordering::Relaxed);
                return replies;
            }
            tokio::task::yield_now().await;
        }
    }
}

//! Sends commands that may be repeated to whichever of several servers is alive.

use std::time::Duration;

use taskyard::Http;
use taskyard_core::{Command, Error, Execute, Reply};
use tokio::sync::watch;
use tokio::time::timeout;

/// How long a client whose command failed waits for another server before it tries again.
const PAUSE: Duration = Duration::from_millis(20);

/// The live servers: a client whose server was killed uses another one. Clones share them.
#[derive(Clone)]
pub struct LiveServers {
    live: watch::Sender<Vec<Http>>,
    replies: watch::Sender<usize>,
}

impl LiveServers {
    /// These servers.
    pub fn new(servers: Vec<Http>) -> Self {
        LiveServers { live: watch::channel(servers).0, replies: watch::channel(0).0 }
    }

    /// Replaces the server at this position.
    pub fn replace(&self, position: usize, http: Http) {
        self.live.send_modify(|live| live[position] = http);
    }

    /// Waits until there are this many replies in total.
    pub async fn wait_for_replies(&self, total: usize) {
        let mut replies = self.replies.subscribe();
        replies.wait_for(|replies| *replies >= total).await.expect("this has the sender");
    }

    /// Waits for so many more replies.
    pub async fn wait_for_more(&self, more: usize) {
        let total = *self.replies.borrow() + more;
        self.wait_for_replies(total).await;
    }
}

impl Execute for LiveServers {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
        let mut live = self.live.subscribe();
        loop {
            let http = {
                let live = live.borrow_and_update();
                live[fastrand::usize(..live.len())].clone()
            };
            let replies = http.execute(commands.clone()).await;
            let failed = |reply: &Result<Reply, Error>| {
                reply.as_ref().is_err_and(|error| error.is_temporary())
            };
            if !replies.iter().any(failed) {
                self.replies.send_modify(|replies| *replies += 1);
                return replies;
            }
            let _ = timeout(PAUSE, live.changed()).await;
        }
    }
}

//! Until when a batch is its handler's, and what was lost of it meanwhile.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, Ordering};

use taskyard_core::Timestamp;
use tokio::sync::watch;

use super::context::Cancel;

/// What handler, store and processor of one batch know in common.
#[derive(Debug)]
pub(super) struct Hold {
    deadline_micros: AtomicI64,
    /// When the handler is cancelled, however long the worker could prolong the batch.
    run_until: Timestamp,
    losses: watch::Sender<Losses>,
    /// The worker wants its handlers to end.
    killed: watch::Receiver<bool>,
}

#[derive(Debug, Default)]
struct Losses {
    tasks: BTreeSet<u64>,
    /// Nothing is left that could be settled.
    all: bool,
    /// The handler ran longer than `run_max`.
    overrun: bool,
}

impl Hold {
    pub fn new(until: Timestamp, run_until: Timestamp, killed: watch::Receiver<bool>) -> Self {
        let deadline_micros = AtomicI64::new(until.as_micros());
        Hold { deadline_micros, run_until, losses: watch::Sender::default(), killed }
    }

    pub fn run_until(&self) -> Timestamp {
        self.run_until
    }

    pub fn deadline(&self) -> Timestamp {
        Timestamp::from_micros(self.deadline_micros.load(Ordering::Relaxed))
    }

    pub fn prolonged(&self, until: Timestamp) {
        self.deadline_micros.store(until.as_micros(), Ordering::Relaxed);
    }

    /// These are no longer the handler's.
    pub fn lose(&self, tasks: &[u64]) {
        self.losses.send_if_modified(|losses| {
            let before = losses.tasks.len();
            losses.tasks.extend(tasks);
            losses.tasks.len() > before
        });
    }

    /// Nothing is left that could be settled.
    pub fn lose_all(&self) {
        self.losses.send_modify(|losses| losses.all = true);
    }

    /// The handler ran longer than `run_max`.
    pub fn overrun(&self) {
        self.losses.send_modify(|losses| losses.overrun = true);
    }

    pub fn is_lost(&self, task: u64) -> bool {
        self.losses.borrow().tasks.contains(&task)
    }

    /// Ready when the task is no longer the handler's.
    pub async fn lost(&self, task: u64) {
        self.until(|losses| losses.tasks.contains(&task)).await;
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancel().is_some()
    }

    /// Why the handler is to end now, if it is.
    pub fn cancel(&self) -> Option<Cancel> {
        let losses = self.losses.borrow();
        match *losses {
            Losses { all: true, .. } => Some(Cancel::Lost),
            Losses { overrun: true, .. } => Some(Cancel::RunMax),
            _ => self.killed.borrow().then_some(Cancel::Stopping),
        }
    }

    /// Ready when the handler is to end now.
    pub async fn cancelled(&self) {
        let killed = async {
            // A worker that is gone cancels nothing any more.
            if self.killed.clone().wait_for(|killed| *killed).await.is_err() {
                std::future::pending().await
            }
        };
        tokio::select! {
            () = killed => {}
            () = self.until(|losses| losses.all || losses.overrun) => {}
        }
    }

    async fn until(&self, so: impl Fn(&Losses) -> bool) {
        // The sender is right here, so there is an end.
        let _ = self.losses.subscribe().wait_for(|losses| so(losses)).await;
    }
}

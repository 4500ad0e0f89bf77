//! What all parts of a worker share.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use taskyard_core::{
    Command, Error as Refusal, Execute, Finish, FinishItem, Holder, Span, Task, TubeName,
};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::desk::Desk;
use super::dispatcher::Handler;
use super::metrics::{Metrics, QueueMetrics, count};
use super::report::Load;
use super::scout::tasks_of;
use super::settings::Settings;
use super::store::Store;

/// What all parts of a worker share.
pub(super) struct Inner {
    pub name: Arc<str>,
    /// Who it is to a manager: another one for each worker.
    pub id: String,
    /// Whether it reports to the manager of its store.
    pub managed: bool,
    pub store: Store,
    pub lanes: Vec<Lane>,
    pub metrics: Metrics,
    pub settings: watch::Sender<Settings>,
    pub desk: Mutex<Desk>,
    /// Somebody may find something to do.
    pub wake: Notify,
    /// Those who wait at empty queues.
    pub scouts: Mutex<JoinSet<()>>,
    /// Take no more.
    pub stop: watch::Sender<bool>,
    /// Handlers are to end now.
    pub kill: watch::Sender<bool>,
    /// Handlers are left alone.
    pub abandon: watch::Sender<bool>,
    pub phase: watch::Sender<Phase>,
}

/// Where a worker is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    New,
    Ready,
    Running,
    Ended,
}

/// One queue of a worker.
pub(super) struct Lane {
    pub num: u32,
    pub tube: TubeName,
    /// What the tube was called before.
    pub was: Vec<TubeName>,
    pub handler: Option<Handler>,
    pub metrics: Arc<QueueMetrics>,
    /// The number of its tube in the store, known when the worker begins.
    pub number: AtomicU32,
    pub load: Mutex<Load>,
}

impl Inner {
    /// Ready when no more tasks are to be taken.
    pub async fn stopped(&self) {
        raised(&self.stop).await;
    }

    pub fn batch_of(&self, queue: usize) -> usize {
        self.settings.borrow().batch_of(self.lanes[queue].num)
    }

    /// Takes a batch of a queue; also says for how long it is the worker's, since the settings may change meanwhile.
    pub async fn take(&self, queue: usize, wait: Span) -> Result<(Vec<Task>, Span), Refusal> {
        let lease = self.settings.borrow().visibility_timeout.into();
        let take = taskyard_core::Take {
            tube: self.lanes[queue].tube.clone(),
            count: self.batch_of(queue),
            session: None,
            lease: Some(lease),
            wait,
        };
        let taken = tasks_of(self.store.execute(vec![Command::Take(take)]).await.pop());
        taken.map(|tasks| (tasks, lease))
    }

    /// A take failed: the queue is left alone for a while, the others go on.
    pub fn take_failed(&self, queue: usize, error: &Refusal) {
        let lane = &self.lanes[queue];
        count(&lane.metrics.store_errors, 1);
        let now = self.store.now();
        let chance = (now.as_micros() % 1000) as f64 / 1000.0;
        let until = self.desk().roster.failed(queue, now, chance);
        // Whoever is idle learns when to ask again.
        self.wake.notify_waiters();
        let pause = until.since(now).as_secs_f64();
        tracing::warn!(worker = &*self.name, queue = %lane.tube, %error, pause, "cannot take");
    }

    /// Gives tasks back as if they had never been taken.
    pub async fn give_back(&self, queue: usize, tasks: &[Task]) {
        let release = Finish::Release { delay: Span::ZERO, counted: false };
        let items = tasks.iter().map(|task| FinishItem {
            id: task.id,
            holder: task.lease.map_or(Holder::Any, Holder::Lease),
            finish: release,
        });
        let tube = self.lanes[queue].tube.clone();
        let finish = Command::Finish { tube, items: items.collect(), show: false };
        let reply = self.unless_abandoned(self.store.execute(vec![finish])).await;
        if let Some(Err(error)) = reply.and_then(|mut replies| replies.pop()) {
            let (queue, tasks) = (&self.lanes[queue].tube, tasks.len());
            tracing::warn!(%queue, tasks, %error, "not given back; they return by their time");
        }
    }

    /// Does something that may hang, unless nobody waits for it any longer.
    pub async fn unless_abandoned<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = raised(&self.abandon) => None,
        }
    }

    pub fn tube_number(&self, queue: usize) -> u32 {
        self.lanes[queue].number.load(Ordering::Relaxed)
    }
}

/// Ready when the signal is given.
pub(super) async fn raised(signal: &watch::Sender<bool>) {
    // The sender is right here, so there is an end.
    let _ = signal.subscribe().wait_for(|raised| *raised).await;
}

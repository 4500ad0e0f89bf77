//! The state that all parts of a worker share.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use taskyard_core::{
    Command, Error as Refusal, Execute, Finish, FinishItem, Holder, Span, Task, TubeName,
};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::batch_lease::WorkerSignals;
use crate::batch_queue::BatchQueue;
use crate::dispatcher::Handler;
use crate::idle_take::tasks_of;
use crate::metrics::{Metrics, QueueMetrics, count};
use crate::queue_report::LoadAverage;
use crate::settings::Settings;
use crate::signal::Signal;
use crate::slots::{Reservation, Slots};
use crate::store::Store;
use crate::worker_name::worker_name;

/// The state that all parts of a worker share.
pub(crate) struct WorkerState {
    pub name: Arc<str>,
    /// Identifies the worker to a manager; different for each worker, whatever its name.
    pub id: String,
    /// Whether it reports to the manager of its store.
    pub managed: bool,
    pub store: Store,
    pub queues: Vec<WorkerQueue>,
    pub metrics: Metrics,
    pub settings: watch::Sender<Settings>,
    pub batch_queue: Mutex<BatchQueue>,
    /// Wakes idle processors when there may be work.
    pub wake: Arc<Notify>,
    /// The slots of its functions, in a worker of functions.
    pub slots: Option<Arc<Slots>>,
    /// The takes that wait at empty queues.
    pub idle_takes: Mutex<JoinSet<()>>,
    /// Take no more tasks.
    pub stop: Arc<Signal>,
    /// Cancel all handlers.
    pub cancel_all: Arc<Signal>,
    /// Do not wait for handlers any longer.
    pub abandon: Signal,
    pub phase: watch::Sender<Phase>,
}

/// The phases of a worker's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    New,
    Ready,
    Running,
    Ended,
}

/// The tasks that a take returned.
pub(crate) struct TakenTasks {
    pub tasks: Vec<Task>,
    /// Whether it returned as many as it asked for.
    pub is_full: bool,
    /// The lease that it asked for, since the settings may change meanwhile.
    pub lease: Span,
    pub reservation: Option<Reservation>,
}

/// One queue of a worker.
pub(crate) struct WorkerQueue {
    pub num: u32,
    /// Whether `num` identifies its tube, as that of a contract does.
    pub is_numbered: bool,
    pub tube: TubeName,
    /// Earlier names of the tube.
    pub was: Vec<TubeName>,
    pub handler: Option<Handler>,
    pub metrics: Arc<QueueMetrics>,
    /// The number of its tube in the store, set by [`Worker::init`](crate::Worker::init).
    pub number: AtomicU32,
    pub load: Mutex<LoadAverage>,
}

impl WorkerState {
    /// Completes when the worker stops taking tasks.
    pub async fn stopped(&self) {
        self.stop.raised().await;
    }

    pub fn batch_size_of(&self, queue: usize) -> usize {
        self.settings.borrow().batch_size_of(self.queues[queue].num)
    }

    /// Whether a take may be sent: there are slots for more functions.
    pub fn may_take(&self) -> bool {
        self.slots.as_ref().is_none_or(|slots| !slots.is_full())
    }

    /// Takes a batch from a queue; `None` if there are no slots for its functions.
    pub async fn take(&self, queue: usize, wait: Span) -> Option<Result<TakenTasks, Refusal>> {
        let mut count = self.batch_size_of(queue);
        let reservation = match &self.slots {
            Some(slots) => Some(slots.reserve(count)?),
            None => None,
        };
        if let Some(reservation) = &reservation {
            count = reservation.count();
        }
        let lease = self.settings.borrow().visibility_timeout.into();
        let take = taskyard_core::Take {
            tube: self.queues[queue].tube.clone(),
            count,
            session: None,
            lease: Some(lease),
            worker: Some(worker_name()),
            wait,
        };
        let taken = tasks_of(self.store.execute(vec![Command::Take(take)]).await.pop());
        Some(taken.map(|tasks| {
            if let Some(reservation) = &reservation {
                reservation.keep(tasks.len());
            }
            TakenTasks { is_full: tasks.len() >= count, tasks, lease, reservation }
        }))
    }

    /// Handles a failed take: the worker pauses this queue, the others continue.
    pub fn take_failed(&self, queue: usize, error: &Refusal) {
        let worker_queue = &self.queues[queue];
        count(&worker_queue.metrics.store_errors, 1);
        let now = self.store.now();
        let jitter = (now.as_micros() % 1000) as f64 / 1000.0;
        let until = self.batch_queue().selector.mark_failed(queue, now, jitter);
        // Idle processors compute anew when to retry.
        self.wake.notify_waiters();
        let pause = until.since(now).as_secs_f64();
        let (worker, queue) = (&*self.name, &worker_queue.tube);
        tracing::warn!(worker, %queue, %error, pause, "take failed; retrying after the pause");
    }

    /// Returns tasks to the queue as if they had never been taken.
    pub async fn give_back(&self, queue: usize, tasks: &[Task]) {
        let release = Finish::Release { delay: Span::ZERO, counted: false };
        let items = tasks.iter().map(|task| FinishItem {
            id: task.id,
            holder: task.lease.map_or(Holder::Any, Holder::Lease),
            finish: release.clone(),
        });
        let tube = self.queues[queue].tube.clone();
        let finish = Command::Finish { tube, items: items.collect(), show: false };
        let reply = self.unless_abandoned(self.store.execute(vec![finish])).await;
        if let Some(Err(error)) = reply.and_then(|mut replies| replies.pop()) {
            let (queue, tasks) = (&self.queues[queue].tube, tasks.len());
            tracing::warn!(%queue, tasks, %error, "release failed; tasks return when their lease ends");
        }
    }

    /// Runs a future that may hang; `None` when the worker abandons its handlers first.
    pub async fn unless_abandoned<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.abandon.raised() => None,
        }
    }

    pub fn signals(&self) -> WorkerSignals {
        WorkerSignals { stop: self.stop.clone(), cancel_all: self.cancel_all.clone() }
    }

    pub fn tube_number(&self, queue: usize) -> u32 {
        self.queues[queue].number.load(Ordering::Relaxed)
    }
}

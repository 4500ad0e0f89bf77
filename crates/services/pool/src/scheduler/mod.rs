//! Decides which tasks run and which wait: one task of the runtime handles all events and informs clients.
//!
//! [`SchedulerState`] knows all tasks and applies the rules of the core; it has no channel and no clock. The actor
//! around it delivers events to it and performs its actions within this process.
//!
//! What a client holds releases itself when it is dropped: a [`QueuedTask`] leaves the queue, an [`Allocation`] frees
//! its backend. So nothing is kept for clients that are gone.

mod actor;
mod allocation;
mod backend_slots;
mod counts;
mod estimates;
mod state;
mod status;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use taskyard_core::Span;
use taskyard_core::classes::{LowerError, RunRequest, Ticket};
use tokio::sync::{mpsc, oneshot, watch};

use crate::config::Config;
use crate::protocol::QueuePosition;

pub use allocation::{Allocation, Control};
pub(crate) use allocation::{Release, Run};
pub use counts::{ClassCounts, Counts, EstimateCounts, WithinCounts};
pub(crate) use state::REQUEUES_MAX;
pub use state::{Action, FinishedRun, RunOutcome, SchedulerState};
pub use status::{ClassStatus, Status};

/// A handle to the scheduler's task.
#[derive(Clone, Debug)]
pub struct Scheduler {
    events: mpsc::UnboundedSender<SchedulerEvent>,
    state: SharedSchedulerState,
}

/// The state, which only the scheduler's task changes and others may read.
#[derive(Clone, Debug)]
struct SharedSchedulerState(Arc<Mutex<SchedulerState>>);

impl SharedSchedulerState {
    fn lock(&self) -> MutexGuard<'_, SchedulerState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An event for the scheduler.
#[derive(Debug)]
pub(crate) enum SchedulerEvent {
    Submit {
        ask: RunRequest,
        visible: Arc<AtomicBool>,
        client: ClientChannels,
        reply: oneshot::Sender<QueueEntry>,
    },
    ClientLeft(Ticket),
    Lower {
        ticket: Ticket,
        requested: Span,
        reply: oneshot::Sender<Result<(), LowerError>>,
    },
    RunFinished {
        backend: usize,
        finished: FinishedRun,
    },
    SetBackend {
        id: usize,
        alive: bool,
        done: oneshot::Sender<()>,
    },
    Pause {
        paused: bool,
        done: oneshot::Sender<()>,
    },
    Status(oneshot::Sender<Status>),
    Stop,
}

/// The channels from the scheduler to a client.
#[derive(Debug)]
pub(crate) struct ClientChannels {
    events: mpsc::UnboundedSender<TaskEvent>,
    position: watch::Sender<Option<QueuePosition>>,
}

/// What happens to a task.
#[derive(Debug)]
pub enum TaskEvent {
    /// It runs on this backend.
    Start(Allocation),
    /// It is denied.
    Deny(String),
    /// Its backend is gone and it does not run again.
    Lost,
}

/// A task of a client, from submission on. Dropping it removes the task.
#[derive(Debug)]
pub struct QueuedTask {
    /// What happens to it.
    pub events: mpsc::UnboundedReceiver<TaskEvent>,
    /// Its position in the queue.
    pub position: watch::Receiver<Option<QueuePosition>>,
    entry: QueueEntry,
}

/// Removes the task from the queue when dropped, also if it never reaches its client.
#[derive(Debug)]
pub(crate) struct QueueEntry {
    ticket: Ticket,
    scheduler: Scheduler,
}

/// The scheduler has ended, so the pool stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pool is stopping")]
pub struct PoolStopping;

impl Scheduler {
    /// Starts the scheduler's task; it ends when its last handle is dropped.
    pub fn start(config: &Config) -> Result<Self, crate::ConfigError> {
        let (events, inbox) = mpsc::unbounded_channel();
        let state = SharedSchedulerState(Arc::new(Mutex::new(SchedulerState::new(config)?)));
        let actor = actor::SchedulerActor::new(state.clone(), events.downgrade());
        tokio::spawn(actor.run(inbox));
        Ok(Scheduler { events, state })
    }

    /// Submits a task. `visible` says whether its client has seen any of its output.
    pub async fn submit(
        &self,
        ask: RunRequest,
        visible: Arc<AtomicBool>,
    ) -> Result<QueuedTask, PoolStopping> {
        let (events, event_receiver) = mpsc::unbounded_channel();
        let (position, position_receiver) = watch::channel(None);
        let (reply, entry) = oneshot::channel();
        let client = ClientChannels { events, position };
        self.send(SchedulerEvent::Submit { ask, visible, client, reply })?;
        let entry = entry.await.map_err(|_| PoolStopping)?;
        Ok(QueuedTask { events: event_receiver, position: position_receiver, entry })
    }

    /// Adds or removes a backend; returns when the scheduler knows it.
    pub async fn set_backend(&self, id: usize, alive: bool) -> Result<(), PoolStopping> {
        let (done, known) = oneshot::channel();
        self.send(SchedulerEvent::SetBackend { id, alive, done })?;
        known.await.map_err(|_| PoolStopping)
    }

    /// While paused nothing starts.
    pub async fn pause(&self, paused: bool) -> Result<(), PoolStopping> {
        let (done, known) = oneshot::channel();
        self.send(SchedulerEvent::Pause { paused, done })?;
        known.await.map_err(|_| PoolStopping)
    }

    /// Stops the scheduler: waiting tasks and running tasks end, each with a final frame.
    pub fn stop(&self) {
        // A scheduler that is gone has stopped already.
        let _ = self.send(SchedulerEvent::Stop);
    }

    /// The current status, without waiting for pending events.
    pub fn status_now(&self) -> Status {
        self.state.lock().status()
    }

    /// Whether the scheduler runs.
    pub fn is_running(&self) -> bool {
        !self.events.is_closed()
    }

    /// The status after all pending events.
    pub async fn status(&self) -> Result<Status, PoolStopping> {
        let (reply, status) = oneshot::channel();
        self.send(SchedulerEvent::Status(reply))?;
        status.await.map_err(|_| PoolStopping)
    }

    fn send(&self, event: SchedulerEvent) -> Result<(), PoolStopping> {
        self.events.send(event).map_err(|_| PoolStopping)
    }
}

impl QueuedTask {
    /// The task's number.
    pub fn ticket(&self) -> Ticket {
        self.entry.ticket
    }

    /// The client wants less time than it asked for.
    pub async fn lower(&self, requested: Span) -> Result<Result<(), LowerError>, PoolStopping> {
        let (reply, done) = oneshot::channel();
        self.entry.scheduler.send(SchedulerEvent::Lower {
            ticket: self.entry.ticket,
            requested,
            reply,
        })?;
        done.await.map_err(|_| PoolStopping)
    }
}

impl Drop for QueueEntry {
    fn drop(&mut self) {
        // A scheduler that is gone does not know the task any more.
        let _ = self.scheduler.send(SchedulerEvent::ClientLeft(self.ticket));
    }
}

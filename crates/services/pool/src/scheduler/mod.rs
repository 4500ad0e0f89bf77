//! Who runs and who waits: events go to one task, which asks the desk and tells everybody.
//!
//! The [`Desk`] knows all tasks and decides by the core's rules; it has no channel and no clock. The
//! task around it carries events in and orders out, within this process.
//!
//! What a client holds of it gives itself back when it is dropped: a [`Place`] in the queue leaves
//! it, an [`Allocation`] of a backend frees it. So nothing is kept for somebody who is gone.

mod actor;
mod allocation;
mod counts;
mod desk;
mod places;
mod status;
mod telling;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use taskyard_core::Span;
use taskyard_core::classes::{Ask, LowerError, Ticket};
use tokio::sync::{mpsc, oneshot, watch};

use crate::config::Config;
use crate::protocol::QueueNews;

pub use allocation::{Allocation, Control};
pub(crate) use allocation::{Release, Run};
pub use counts::{ClassCounts, Counts, Estimates};
pub(crate) use desk::PUT_BACK_MAX;
pub use desk::{Desk, Ended, Freed, Order};
pub use status::{ClassStatus, Status};

/// The way to the scheduler's task.
#[derive(Clone, Debug)]
pub struct Scheduler {
    events: mpsc::UnboundedSender<Event>,
    desk: SharedDesk,
}

/// The desk, which only the scheduler's task changes and others may look at.
#[derive(Clone, Debug)]
struct SharedDesk(Arc<Mutex<Desk>>);

impl SharedDesk {
    fn lock(&self) -> MutexGuard<'_, Desk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the scheduler is told.
#[derive(Debug)]
pub(crate) enum Event {
    Arrive { ask: Ask, visible: Arc<AtomicBool>, client: Client, reply: oneshot::Sender<Seat> },
    Left(Ticket),
    Lower { ticket: Ticket, wish: Span, reply: oneshot::Sender<Result<(), LowerError>> },
    Freed { backend: usize, freed: Freed },
    Backend { id: usize, alive: bool, done: oneshot::Sender<()> },
    Pause { paused: bool, done: oneshot::Sender<()> },
    Status(oneshot::Sender<Status>),
    Stop,
}

/// How a client hears from the scheduler.
#[derive(Debug)]
pub(crate) struct Client {
    moves: mpsc::UnboundedSender<Move>,
    news: watch::Sender<Option<QueueNews>>,
}

/// What happens to a task.
#[derive(Debug)]
pub enum Move {
    /// It runs on this backend.
    Start(Allocation),
    /// It is turned away.
    Deny(String),
    /// Its backend is gone and it does not run again.
    Lost,
}

/// A task of a client, from its arrival on. The task goes when this is dropped.
#[derive(Debug)]
pub struct Place {
    /// What happens to it.
    pub moves: mpsc::UnboundedReceiver<Move>,
    /// Where it stands in the queue.
    pub news: watch::Receiver<Option<QueueNews>>,
    seat: Seat,
}

/// What leaves the queue when it is dropped, also on the way to a client that is gone.
#[derive(Debug)]
pub(crate) struct Seat {
    ticket: Ticket,
    scheduler: Scheduler,
}

/// The scheduler is gone, so the pool stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pool is stopping")]
pub struct Stopping;

impl Scheduler {
    /// Starts the scheduler's task; it ends when nobody can reach it any more.
    pub fn start(config: &Config) -> Result<Self, crate::ConfigError> {
        let (events, inbox) = mpsc::unbounded_channel();
        let desk = SharedDesk(Arc::new(Mutex::new(Desk::new(config)?)));
        let actor = actor::Actor::new(desk.clone(), events.downgrade());
        tokio::spawn(actor.run(inbox));
        Ok(Scheduler { events, desk })
    }

    /// A task arrives. `visible` says whether its client has seen anything of it.
    pub async fn arrive(&self, ask: Ask, visible: Arc<AtomicBool>) -> Result<Place, Stopping> {
        let (moves, moved) = mpsc::unbounded_channel();
        let (news, told) = watch::channel(None);
        let (reply, seat) = oneshot::channel();
        let client = Client { moves, news };
        self.tell(Event::Arrive { ask, visible, client, reply })?;
        let seat = seat.await.map_err(|_| Stopping)?;
        Ok(Place { moves: moved, news: told, seat })
    }

    /// A backend comes or goes; ready when that is known.
    pub async fn set_backend(&self, id: usize, alive: bool) -> Result<(), Stopping> {
        let (done, known) = oneshot::channel();
        self.tell(Event::Backend { id, alive, done })?;
        known.await.map_err(|_| Stopping)
    }

    /// While paused nothing starts.
    pub async fn pause(&self, paused: bool) -> Result<(), Stopping> {
        let (done, known) = oneshot::channel();
        self.tell(Event::Pause { paused, done })?;
        known.await.map_err(|_| Stopping)
    }

    /// Ends the scheduler: who waits is sent away, and who runs is stopped, each with a word.
    pub fn stop(&self) {
        // One that is gone has stopped already.
        let _ = self.tell(Event::Stop);
    }

    /// How the pool is at this moment, without waiting for what it was told and has not done yet.
    pub fn glance(&self) -> Status {
        self.desk.lock().status()
    }

    /// Whether it still works.
    pub fn is_running(&self) -> bool {
        !self.events.is_closed()
    }

    /// How the pool is.
    pub async fn status(&self) -> Result<Status, Stopping> {
        let (reply, status) = oneshot::channel();
        self.tell(Event::Status(reply))?;
        status.await.map_err(|_| Stopping)
    }

    fn tell(&self, event: Event) -> Result<(), Stopping> {
        self.events.send(event).map_err(|_| Stopping)
    }
}

impl Place {
    /// The task's number.
    pub fn ticket(&self) -> Ticket {
        self.seat.ticket
    }

    /// The client wants less time than it asked for.
    pub async fn lower(&self, wish: Span) -> Result<Result<(), LowerError>, Stopping> {
        let (reply, done) = oneshot::channel();
        self.seat.scheduler.tell(Event::Lower { ticket: self.seat.ticket, wish, reply })?;
        done.await.map_err(|_| Stopping)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // A scheduler that is gone has forgotten the task already.
        let _ = self.scheduler.tell(Event::Left(self.ticket));
    }
}

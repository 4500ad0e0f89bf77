//! A backend that is held for a task.

use std::time::Duration;

use taskyard_core::classes::Ticket;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Event;

/// What a running task is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// It may run so long, counted from its start.
    Limit(Duration),
    /// It has to end now, and why.
    Halt(String),
}

/// How a task's time on a backend ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The program ended or was stopped, and its client knows how.
    Done,
    /// The program or its backend was killed.
    Lost,
    /// The program cannot be killed: the backend is of no use any more.
    Stuck,
}

/// A backend that is held for a task; it is free when this is dropped.
#[derive(Debug)]
pub struct Allocation {
    /// The task.
    pub ticket: Ticket,
    /// Which backend.
    pub backend: usize,
    /// How long the program may run; nothing for an interactive one.
    pub limit: Option<Duration>,
    /// What the task is told while it runs.
    pub control: mpsc::UnboundedReceiver<Control>,
    attempt: u64,
    started: Instant,
    /// Since when the program is being stopped.
    stopping: Option<Instant>,
    ended: Ended,
    events: mpsc::UnboundedSender<Event>,
}

/// What the scheduler is told about it.
#[derive(Debug)]
pub(crate) struct Freed {
    pub ticket: Ticket,
    pub backend: usize,
    pub attempt: u64,
    pub ended: Ended,
    /// How long the backend was held.
    pub took: Duration,
    /// How long it took to stop the program, if it had to be.
    pub stopping: Option<Duration>,
}

impl Allocation {
    pub(super) fn new(
        ticket: Ticket,
        backend: usize,
        attempt: u64,
        limit: Option<Duration>,
        events: mpsc::UnboundedSender<Event>,
    ) -> (Self, mpsc::UnboundedSender<Control>) {
        let (sender, control) = mpsc::unbounded_channel();
        let (started, stopping, ended) = (Instant::now(), None, Ended::Lost);
        let this = Allocation {
            ticket,
            backend,
            limit,
            control,
            attempt,
            started,
            stopping,
            ended,
            events,
        };
        (this, sender)
    }

    /// The program is being stopped from now on.
    pub fn stopping(&mut self) {
        self.stopping.get_or_insert_with(Instant::now);
    }

    /// Gives the backend back. Dropped without this, the task counts as lost.
    pub fn end(mut self, ended: Ended) {
        self.ended = ended;
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let freed = Freed {
            ticket: self.ticket,
            backend: self.backend,
            attempt: self.attempt,
            ended: self.ended,
            took: self.started.elapsed(),
            stopping: self.stopping.map(|since| since.elapsed()),
        };
        // A scheduler that is gone needs no backend back.
        let _ = self.events.send(Event::Freed(freed));
    }
}

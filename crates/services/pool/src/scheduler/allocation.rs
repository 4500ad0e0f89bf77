//! A backend that is held for a task.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use taskyard_core::classes::Ticket;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::desk::{Ended, Freed};

/// What a running task is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// It may run so long, counted from its start.
    Limit(Duration),
    /// It has to end now, and why.
    Halt(String),
}

/// One run of a task, as the desk ordered it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub ticket: Ticket,
    pub attempt: u64,
    pub limit: Option<Duration>,
    pub again: bool,
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
    again: bool,
    started: Instant,
    /// For how long the backend stood still: that says nothing about the program.
    stood: Duration,
    /// Since when the backend should have been free, if the program used up its time.
    stopping: Option<Instant>,
    ended: Ended,
    /// Whether the client has seen anything of the task.
    visible: Arc<AtomicBool>,
    release: Option<Release>,
}

/// What is done when a backend is free again.
pub(crate) struct Release(Box<dyn FnOnce(Freed) + Send + Sync>);

impl Release {
    pub fn new(what: impl FnOnce(Freed) + Send + Sync + 'static) -> Self {
        Release(Box::new(what))
    }
}

impl fmt::Debug for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Release")
    }
}

impl Allocation {
    pub(crate) fn new(
        run: Run,
        backend: usize,
        visible: Arc<AtomicBool>,
        release: Release,
    ) -> (Self, mpsc::UnboundedSender<Control>) {
        let (sender, control) = mpsc::unbounded_channel();
        let Run { ticket, attempt, limit, again } = run;
        let this = Allocation {
            ticket,
            backend,
            limit,
            control,
            attempt,
            again,
            started: Instant::now(),
            stood: Duration::ZERO,
            stopping: None,
            ended: Ended::Lost,
            visible,
            release: Some(release),
        };
        (this, sender)
    }

    /// Whether the task may run once more if this run is lost now.
    pub fn may_run_again(&self) -> bool {
        self.again && !self.visible.load(Ordering::Acquire)
    }

    /// The backend stood still for so long, whatever the program did meanwhile.
    pub fn note_standstill(&mut self, stood: Duration) {
        self.stood += stood;
    }

    /// The program is about to be stopped because it had so much time. Those who wait were told that the backend is
    /// free then, counted from the decision or from the moment when the time was lowered; what it takes to start the
    /// program is part of the delay.
    pub fn over(&mut self, limit: Duration, lowered: Option<Instant>) {
        let told = self.started + limit + self.stood;
        self.stopping = Some(lowered.map_or(told, |lowered| told.max(lowered)));
    }

    /// The client is about to see something of the program: it does not run again.
    pub fn show(&self) {
        self.visible.store(true, Ordering::Release);
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
            attempt: self.attempt,
            ended: self.ended,
            seen: self.visible.load(Ordering::Acquire),
            took: self.started.elapsed().saturating_sub(self.stood),
            stopping: self.stopping.map(|since| since.elapsed()),
        };
        if let Some(release) = self.release.take() {
            release.0(freed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A backend that was stopped for six seconds told that its programs take six seconds to end: all estimates had them on
    // top from then on.
    #[test]
    fn time_in_which_the_backend_stood_still_is_no_time_of_the_task() {
        let stood = Duration::from_secs(1_000);
        let run = Run { ticket: Ticket(1), attempt: 1, limit: Some(stood), again: false };
        let (sender, freed) = std::sync::mpsc::channel();
        let release = Release::new(move |freed| sender.send(freed).unwrap());
        let (mut allocation, _control) = Allocation::new(run, 0, Arc::default(), release);
        allocation.note_standstill(stood);
        allocation.over(Duration::ZERO, None);
        assert_eq!(allocation.stopping, Some(allocation.started + stood));
        allocation.end(Ended::Done);
        let freed = freed.recv().unwrap();
        assert_eq!((freed.took, freed.stopping), (Duration::ZERO, Some(Duration::ZERO)));
    }

    // The time that a program took to start was in no estimate: whoever waited behind one that used all its time was
    // late by it.
    #[test]
    fn what_a_task_takes_beyond_its_time_counts_from_the_decision() {
        let limit = Duration::from_secs(3);
        let run = Run { ticket: Ticket(1), attempt: 1, limit: Some(limit), again: false };
        let (mut allocation, _control) =
            Allocation::new(run, 0, Arc::default(), Release::new(drop));
        let at = |seconds| allocation.started + Duration::from_secs(seconds);
        let cases = [(None, at(3)), (Some(at(1)), at(3)), (Some(at(5)), at(5))];
        for (lowered, since) in cases {
            allocation.over(limit, lowered);
            assert_eq!(allocation.stopping, Some(since));
        }
    }
}

//! Represents a backend that is held for a task.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use taskyard_core::classes::Ticket;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::state::{FinishedRun, RunOutcome};

/// A command to a running task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// The new time limit, counted from its start.
    Limit(Duration),
    /// It has to end now, for this reason.
    Halt(String),
}

/// One run of a task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub ticket: Ticket,
    pub attempt: u64,
    pub limit: Option<Duration>,
    pub may_rerun: bool,
}

/// A backend that is held for a task; it is freed when this is dropped.
#[derive(Debug)]
pub struct Allocation {
    /// The task.
    pub ticket: Ticket,
    /// Which backend.
    pub backend: usize,
    /// Time limit of the program; none for an interactive one.
    pub limit: Option<Duration>,
    /// Commands to the running task.
    pub control: mpsc::UnboundedReceiver<Control>,
    attempt: u64,
    may_rerun: bool,
    started: Instant,
    /// How long the process of the backend was paused: that time does not count for the program.
    paused: Duration,
    /// Since when the backend should be free, if the program has used up its time.
    stopping: Option<Instant>,
    outcome: RunOutcome,
    /// Whether the client has seen any output of the task.
    visible: Arc<AtomicBool>,
    release: Option<Release>,
}

/// What is done when the backend is free again.
pub(crate) struct Release(Box<dyn FnOnce(FinishedRun) + Send + Sync>);

impl Release {
    pub fn new(what: impl FnOnce(FinishedRun) + Send + Sync + 'static) -> Self {
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
        let Run { ticket, attempt, limit, may_rerun } = run;
        let this = Allocation {
            ticket,
            backend,
            limit,
            control,
            attempt,
            may_rerun,
            started: Instant::now(),
            paused: Duration::ZERO,
            stopping: None,
            outcome: RunOutcome::Lost,
            visible,
            release: Some(release),
        };
        (this, sender)
    }

    /// Whether the task may run again if this run is lost now.
    pub fn may_rerun(&self) -> bool {
        self.may_rerun && !self.visible.load(Ordering::Acquire)
    }

    /// Notes that the process of the backend was paused for so long.
    pub fn note_pause(&mut self, paused: Duration) {
        self.paused += paused;
    }

    /// Notes that the program is about to be stopped because it has used up its time. According to the estimates the
    /// backend is free then, counted from the decision to start it or from the moment when the time was lowered; the
    /// time to start the program is part of the delay.
    pub fn note_time_limit(&mut self, limit: Duration, lowered: Option<Instant>) {
        let due = self.started + limit + self.paused;
        self.stopping = Some(lowered.map_or(due, |lowered| due.max(lowered)));
    }

    /// Notes that the client is about to see output of the program: from now on it does not run again.
    pub fn mark_seen(&self) {
        self.visible.store(true, Ordering::Release);
    }

    /// Frees the backend. If it is dropped without this call, the task counts as lost.
    pub fn finish(mut self, outcome: RunOutcome) {
        self.outcome = outcome;
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let finished = FinishedRun {
            ticket: self.ticket,
            attempt: self.attempt,
            outcome: self.outcome,
            seen: self.visible.load(Ordering::Acquire),
            took: self.started.elapsed().saturating_sub(self.paused),
            stopping: self.stopping.map(|since| since.elapsed()),
        };
        if let Some(release) = self.release.take() {
            release.0(finished);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A backend that was paused for six seconds reported that its programs take six seconds to end, and all later
    // estimates included them.
    #[test]
    fn time_in_which_the_backend_was_paused_does_not_count_for_the_task() {
        let paused = Duration::from_secs(1_000);
        let run = Run { ticket: Ticket(1), attempt: 1, limit: Some(paused), may_rerun: false };
        let (sender, finished) = std::sync::mpsc::channel();
        let release = Release::new(move |finished| sender.send(finished).unwrap());
        let (mut allocation, _control) = Allocation::new(run, 0, Arc::default(), release);
        allocation.note_pause(paused);
        allocation.note_time_limit(Duration::ZERO, None);
        assert_eq!(allocation.stopping, Some(allocation.started + paused));
        allocation.finish(RunOutcome::Done);
        let finished = finished.recv().unwrap();
        assert_eq!((finished.took, finished.stopping), (Duration::ZERO, Some(Duration::ZERO)));
    }

    // The time to start a program was in no estimate: tasks behind one that used all its time were late by it.
    #[test]
    fn time_beyond_the_limit_counts_from_the_decision() {
        let limit = Duration::from_secs(3);
        let run = Run { ticket: Ticket(1), attempt: 1, limit: Some(limit), may_rerun: false };
        let (mut allocation, _control) =
            Allocation::new(run, 0, Arc::default(), Release::new(drop));
        let at = |seconds| allocation.started + Duration::from_secs(seconds);
        let cases = [(None, at(3)), (Some(at(1)), at(3)), (Some(at(5)), at(5))];
        for (lowered, since) in cases {
            allocation.note_time_limit(limit, lowered);
            assert_eq!(allocation.stopping, Some(since));
        }
    }
}

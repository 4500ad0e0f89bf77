//! The events of a pool, and the decisions about its tasks.

use crate::classes::choice::Choice;
use crate::classes::queue::{Queue, Queued};
use crate::classes::running::{RunningTask, RunningTasks};
use crate::classes::{Decision, Denial, Load, Resumed, Rules, RunRequest, TaskKind, Ticket};
use crate::time::{Span, Timestamp};

/// Decides which tasks run, wait or yield.
///
/// After every event the whole queue is examined, so the returned decisions are complete. The same
/// events with the same seed give the same decisions.
#[derive(Clone, Debug)]
pub struct Classes {
    pub(super) rules: Rules,
    pub(super) backends: u32,
    pub(super) paused: bool,
    pub(super) load: Load,
    pub(super) queue: Queue,
    pub(super) running: RunningTasks,
    pub(super) choice: Choice,
}

/// Why a task's duration was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LowerError {
    /// It neither waits nor runs.
    #[error("there is no such task")]
    Missing,
    /// It would get more time than it has.
    #[error("the duration can only be lowered")]
    Raised,
    /// It has no duration.
    #[error("an interactive task has no duration")]
    Interactive,
}

impl Classes {
    /// A pool without backends. `seed` determines the random choices.
    pub fn new(rules: Rules, seed: u64) -> Self {
        let classes = rules.classes().len();
        Classes {
            load: Load::new(rules.limits(0)),
            queue: Queue::new(classes),
            running: RunningTasks::new(classes, rules.patient),
            choice: Choice::new(seed),
            backends: 0,
            paused: false,
            rules,
        }
    }

    /// The rules.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The number of running tasks, and the limits.
    pub fn load(&self) -> &Load {
        &self.load
    }

    /// The number of live backends.
    pub fn backends(&self) -> u32 {
        self.backends
    }

    /// The number of waiting tasks.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// The number of tasks that wait for a limit of this class; default tasks wait in the first.
    pub fn queued_in(&self, class: usize) -> usize {
        self.queue.count(class)
    }

    /// The number of running tasks, including those about to end.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// The number of running interactive tasks.
    pub fn interactive(&self) -> usize {
        self.running.interactive().len()
    }

    /// The kind of a running task; `None` for one that does not run.
    pub fn kind(&self, ticket: Ticket) -> Option<TaskKind> {
        self.running.get(ticket).map(|task| task.kind)
    }

    /// A task arrives. It starts, waits or is denied; tickets must grow.
    pub fn arrive(&mut self, now: Timestamp, ticket: Ticket, ask: RunRequest) -> Vec<Decision> {
        let mut out = Vec::new();
        let queued = match ask {
            RunRequest::Interactive => {
                self.arrive_interactive(now, ticket, &mut out);
                return out;
            }
            RunRequest::Timed(wish) => {
                let wish = wish.min(self.rules.longest());
                self.newcomer(now, TaskKind::Explicit, wish)
            }
            RunRequest::Default => self.newcomer(now, TaskKind::Default, self.rules.longest()),
        };
        if self.queue.len() >= self.rules.queue_max {
            return vec![Decision::Deny { ticket, why: Denial::QueueFull }];
        }
        self.queue.insert(ticket, queued);
        self.cycle(now, &mut out);
        out
    }

    /// Starts an interactive task on a free backend or denies it; a denial lowers one default task
    /// by one class.
    fn arrive_interactive(&mut self, now: Timestamp, ticket: Ticket, out: &mut Vec<Decision>) {
        if !self.paused && !self.load.is_full(0) {
            out.push(self.start_interactive(now, ticket));
            return;
        }
        out.push(Decision::Deny { ticket, why: Denial::Busy });
        let victim = self.pick_default(1);
        if let Some((victim, task)) = victim.and_then(|at| Some((at, self.running.get(at)?))) {
            self.lower_to(now, victim, task.class - 1, out);
            self.cycle(now, out);
        }
    }

    /// Removes a task: it ended and its backend is free, or its client left the queue.
    pub fn remove(&mut self, now: Timestamp, ticket: Ticket) -> Vec<Decision> {
        let mut out = Vec::new();
        if self.queue.remove(ticket).is_some() || self.release(ticket).is_some() {
            self.cycle(now, &mut out);
        }
        out
    }

    /// Adds a running task that another scheduler started: it counts from now on, whatever the
    /// limits are. One whose time is over is about to end, and counts in its class until then: the
    /// time of a program begins later than its task. Starts nothing.
    pub fn resume(&mut self, now: Timestamp, ticket: Ticket, task: Resumed) {
        let Resumed { kind, started, limit, wish, .. } = task;
        let over = kind != TaskKind::Interactive && started + limit <= now;
        let class = match kind {
            TaskKind::Interactive => 0,
            // The rules may have fewer classes than those under which it started.
            _ => task.class.min(self.rules.classes().len() as u8 - 1),
        };
        let stopping = over.then_some(now);
        let task = RunningTask { kind, class, started, limit, wish, stopping, spared: None };
        self.release(ticket);
        self.hold(ticket, task);
    }

    /// Queues a running task again that lost its backend before its client received any output: it
    /// keeps its place. An interactive one is removed.
    pub fn put_back(&mut self, now: Timestamp, ticket: Ticket) -> Vec<Decision> {
        let mut out = Vec::new();
        let Some(task) = self.release(ticket) else { return out };
        if task.kind != TaskKind::Interactive {
            self.queue.insert(ticket, self.newcomer(now, task.kind, task.wish));
        }
        self.cycle(now, &mut out);
        out
    }

    /// A task that begins to wait now.
    fn newcomer(&self, now: Timestamp, kind: TaskKind, wish: Span) -> Queued {
        let class = match kind {
            TaskKind::Explicit => self.rules.class_for(wish),
            _ => 0,
        };
        let until = self.rules.wait_max.map_or(Timestamp::NEVER, |wait| now + wait);
        Queued { kind, class, wish, until }
    }

    /// When the maximum wait of the first waiting task is over.
    pub fn next_expiry(&self) -> Option<Timestamp> {
        self.queue.next_deadline().map(|(moment, _)| moment)
    }

    /// Denies the tasks whose maximum wait is over.
    pub fn expire(&mut self, now: Timestamp) -> Vec<Decision> {
        let mut out = Vec::new();
        while let Some((moment, ticket)) = self.queue.next_deadline()
            && moment <= now
        {
            self.queue.remove(ticket);
            out.push(Decision::Deny { ticket, why: Denial::Overloaded });
        }
        if !out.is_empty() {
            self.cycle(now, &mut out);
        }
        out
    }

    /// Lowers the duration of a task at its client's request. A waiting task keeps its place,
    /// perhaps in a shorter class; a running one ends when the new time is over.
    pub fn lower(
        &mut self,
        now: Timestamp,
        ticket: Ticket,
        wish: Span,
    ) -> Result<Vec<Decision>, LowerError> {
        let mut out = Vec::new();
        if let Some(queued) = self.queue.get(ticket) {
            if wish > queued.wish {
                return Err(LowerError::Raised);
            }
            let class = match queued.kind {
                TaskKind::Explicit => self.rules.class_for(wish),
                _ => queued.class,
            };
            self.queue.remove(ticket);
            self.queue.insert(ticket, Queued { class, wish, ..queued });
        } else {
            self.lower_running(now, ticket, wish, &mut out)?;
        }
        self.cycle(now, &mut out);
        Ok(out)
    }

    fn lower_running(
        &mut self,
        now: Timestamp,
        ticket: Ticket,
        wish: Span,
        out: &mut Vec<Decision>,
    ) -> Result<(), LowerError> {
        let task = self.running.get(ticket).ok_or(LowerError::Missing)?;
        if task.kind == TaskKind::Interactive {
            return Err(LowerError::Interactive);
        }
        if wish > task.wish {
            return Err(LowerError::Raised);
        }
        self.release(ticket);
        let (class, limit) = (task.class.min(self.rules.class_for(wish)), task.limit.min(wish));
        let lowered = RunningTask { class, wish, limit, ..task };
        match (class, limit) == (task.class, task.limit) {
            // A running task has this time already; the request counts if it is queued again.
            true => self.hold(ticket, lowered),
            false => self.cut(now, ticket, lowered, out),
        }
        Ok(())
    }

    /// Sets the number of backends. Running tasks continue; a lost backend is reported separately
    /// for its task.
    pub fn set_backends(&mut self, now: Timestamp, backends: u32) -> Vec<Decision> {
        self.backends = backends;
        self.load.set_limits(self.rules.limits(backends));
        let mut out = Vec::new();
        self.cycle(now, &mut out);
        out
    }

    /// While paused nothing starts; running tasks continue.
    pub fn set_paused(&mut self, now: Timestamp, paused: bool) -> Vec<Decision> {
        self.paused = paused;
        let mut out = Vec::new();
        self.cycle(now, &mut out);
        out
    }
}

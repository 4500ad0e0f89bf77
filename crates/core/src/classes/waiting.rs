//! The reason and the estimated start of each waiting task.

use super::estimate::{Means, Occupant, Profile, Simulation, StartEstimate, Waiter};
use crate::classes::queue::Queued;
use crate::classes::running::RunningTask;
use crate::classes::{Classes, TaskKind, Ticket};
use crate::reason::Reason;
use crate::time::{Span, Timestamp};

/// The state of a waiting task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The task.
    pub ticket: Ticket,
    /// The number of tasks before it.
    pub ahead: usize,
    /// Why it does not run now.
    pub reason: Reason,
    /// When it will start; `None` while that depends on a new backend or the end of a pause.
    pub estimate: Option<StartEstimate>,
}

/// The expected future of the queue, so that a new task gets its estimate at once. It is valid
/// until anything else happens than that tasks arrive and wait.
#[derive(Clone, Debug)]
pub struct QueueForecast {
    since: Timestamp,
    worst: Profile,
    usual: Profile,
    ahead: usize,
    ending: Span,
    means: Means,
}

impl QueueForecast {
    /// Whether something that was expected by now has not happened, so that the forecast is
    /// invalid.
    pub fn is_overdue(&self, now: Timestamp) -> bool {
        self.worst.has_step(self.since, now)
    }
}

impl Classes {
    /// Why a waiting task of this class does not run now.
    fn reason(&self, class: u8) -> Reason {
        if self.paused {
            return Reason::PoolPaused;
        }
        if self.backends == 0 {
            return Reason::NoBackend;
        }
        match self.load.full_for(class) {
            Some(class) => Reason::LimitReached { class },
            None => Reason::WaitsForConsumer,
        }
    }

    /// Why this waiting task does not run now; `None` for one that does not wait.
    pub fn reason_of(&self, ticket: Ticket) -> Option<Reason> {
        self.queue.get(ticket).map(|task| self.reason(task.class))
    }

    /// The state of all waiting tasks, in the order of arrival. Each depends on earlier tasks
    /// alone: `max` holds if every task uses all its time and `ending` more to end, `expected`
    /// follows from the recent running times of each class.
    pub fn waiting(&self, now: Timestamp, ending: Span, means: &Means) -> Vec<Waiting> {
        let order = self.queue.in_order();
        let possible = !self.paused && self.backends > 0;
        let mut starts = [Vec::new(), Vec::new()];
        if possible {
            let full = |_: u8, limit: Span| limit + ending;
            let usual = |class: u8, limit: Span| means.usual(class, limit + ending);
            starts[0] = self.starts(now, &order, &full, ending);
            starts[1] = self.starts(now, &order, &usual, ending);
        }
        let [worst, usual] = starts;
        let waiting = order.iter().enumerate().map(|(ahead, (ticket, task))| {
            let max = worst.get(ahead).map(|start| start.since(now));
            let expected = usual.get(ahead).map(|start| start.since(now));
            let estimate = max.zip(expected).map(|(max, expected)| {
                // The expected start is no promise, and never later than the latest one.
                StartEstimate { max, expected: expected.min(max) }
            });
            Waiting { ticket: *ticket, ahead, reason: self.reason(task.class), estimate }
        });
        waiting.collect()
    }

    /// When each waiting task starts if each task runs as long as `time` says.
    fn starts(
        &self,
        now: Timestamp,
        order: &[(Ticket, Queued)],
        time: &dyn Fn(u8, Span) -> Span,
        ending: Span,
    ) -> Vec<Timestamp> {
        let fast = self.rules.duration(0);
        let limits = self.rules.limits(self.backends);
        let running =
            self.running.iter().filter_map(|(_, task)| occupant(now, task, fast, time, ending));
        let waiters = order.iter().map(|(_, task)| waiter(task, fast, time));
        Simulation::new(now, limits.as_slice(), running).starts(waiters)
    }

    /// The forecast without the waiting tasks; they are added by [`Classes::add_to_forecast`], in
    /// the order of arrival.
    pub fn forecast(&self, now: Timestamp, ending: Span, means: &Means) -> QueueForecast {
        let limits = self.rules.limits(self.backends);
        let profile = |time: &dyn Fn(u8, Span) -> Span| {
            let fast = self.rules.duration(0);
            let running = self.running.iter();
            let occupants = running.filter_map(|(_, task)| occupant(now, task, fast, time, ending));
            Profile::new(now, limits.as_slice(), occupants)
        };
        let worst = profile(&|_, limit| limit + ending);
        let usual = profile(&|class, limit| means.usual(class, limit + ending));
        QueueForecast { since: now, worst, usual, ahead: 0, ending, means: means.clone() }
    }

    /// Adds a waiting task to the forecast, behind all others, and returns its state.
    pub fn add_to_forecast(
        &self,
        now: Timestamp,
        ticket: Ticket,
        forecast: &mut QueueForecast,
    ) -> Option<Waiting> {
        let task = self.queue.get(ticket)?;
        let (ending, fast) = (forecast.ending, self.rules.duration(0));
        let worst = waiter(&task, fast, &|_, limit| limit + ending);
        let usual = |class, limit: Span| forecast.means.usual(class, limit + ending);
        let usual = waiter(&task, fast, &usual);
        let max = forecast.worst.add(now, worst).map(|start| start.since(now));
        let expected = forecast.usual.add(now, usual).map(|start| start.since(now));
        let estimate = max.zip(expected).filter(|_| !self.paused);
        let estimate =
            estimate.map(|(max, expected)| StartEstimate { max, expected: expected.min(max) });
        forecast.ahead += 1;
        let ahead = forecast.ahead - 1;
        Some(Waiting { ticket, ahead, reason: self.reason(task.class), estimate })
    }

    /// All waiting tasks, in the order of arrival.
    pub fn waiting_tickets(&self) -> impl Iterator<Item = Ticket> {
        self.queue.in_order().into_iter().map(|(ticket, _)| ticket)
    }
}

/// A waiting task, as later ones must expect it.
fn waiter(task: &Queued, fast: Span, time: &dyn Fn(u8, Span) -> Span) -> Waiter {
    let limit = match task.kind {
        TaskKind::Default => fast.min(task.wish),
        _ => task.wish,
    };
    Waiter { class: task.class, time: time(task.class, limit) }
}

/// A running task, as waiting ones must expect it, ending when `time` says and no later than its
/// limit. A default one is lowered as soon as that matters; an interactive one is halted, so it
/// does not count unless it is spared for a while.
fn occupant(
    now: Timestamp,
    task: &RunningTask,
    fast: Span,
    time: &dyn Fn(u8, Span) -> Span,
    ending: Span,
) -> Option<Occupant> {
    let (class, limit) = match task.kind {
        TaskKind::Interactive => {
            let end = (task.spared? + ending).max(now);
            return Some(Occupant { class: 0, end });
        }
        TaskKind::Explicit => (task.class, task.limit),
        TaskKind::Default => (0, fast.min(task.limit)),
    };
    let end = match task.stopping {
        Some(since) => (since + ending).max(now),
        None => {
            let certain = (task.started + limit).max(now) + ending;
            (task.started + time(class, limit)).max(now + ending).min(certain)
        }
    };
    Some(Occupant { class, end })
}

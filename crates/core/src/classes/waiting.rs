//! The reason and the estimated start of each waiting task.

use super::estimate::{
    Occupant, Profile, RunLengths, SimulatedRun, SimulatedStart, Simulation, StartEstimate,
    StartModel, Waiter,
};
use crate::classes::queue::Queued;
use crate::classes::running::RunningTask;
use crate::classes::{Classes, TaskKind, Ticket};
use crate::limits::CLASSES_MAX;
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

/// The simulated futures of the queue, so that a new task gets its estimate at once. They are valid
/// until anything else happens than that tasks arrive and wait.
#[derive(Clone, Debug)]
pub struct QueueForecast {
    since: Timestamp,
    longest: Profile,
    learned: Vec<Profile>,
    ahead: AheadCounts,
    ending: Span,
}

/// How many tasks were passed on the way through the queue.
#[derive(Clone, Copy, Debug, Default)]
struct AheadCounts {
    all: usize,
    /// Those that wait for each class or a longer one.
    from_class: [usize; CLASSES_MAX],
}

impl AheadCounts {
    /// Passes a task that waits for this class.
    fn pass(&mut self, class: u8) {
        self.all += 1;
        self.from_class[..=usize::from(class)].iter_mut().for_each(|count| *count += 1);
    }
}

impl QueueForecast {
    /// Whether something that was expected by now has not happened, so that the forecast is
    /// invalid.
    pub fn is_overdue(&self, now: Timestamp) -> bool {
        let mut futures = std::iter::once(&self.longest).chain(&self.learned);
        futures.any(|future| future.has_step(self.since, now))
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
    /// alone: `at_most` holds if every task uses all its time and `ending` more to end, the likely
    /// start follows from the recent run times of each class.
    pub fn waiting(&self, now: Timestamp, ending: Span, model: &StartModel) -> Vec<Waiting> {
        let order = self.queue.in_order();
        let (mut longest, mut learned) = (Vec::new(), Vec::new());
        if !self.paused && self.backends > 0 {
            longest = self.starts(now, &order, RunLengths::Longest, ending);
            let futures = RunLengths::learned(model, self.simulated());
            learned = futures.map(|future| self.starts(now, &order, future, ending)).collect();
        }
        let mut counts = AheadCounts::default();
        let waiting = order.iter().enumerate().map(|(place, (ticket, task))| {
            let at_most = longest.get(place).map(|start| start.since(now));
            let mut starts: Vec<Span> =
                learned.iter().filter_map(|starts| Some(starts.get(place)?.since(now))).collect();
            let estimate =
                at_most.map(|at_most| start_estimate(model, task, counts, at_most, &mut starts));
            let (ahead, reason) = (counts.all, self.reason(task.class));
            counts.pass(task.class);
            Waiting { ticket: *ticket, ahead, reason, estimate }
        });
        waiting.collect()
    }

    /// The number of tasks in a simulated future.
    fn simulated(&self) -> usize {
        self.queue.len() + self.running.len()
    }

    /// When each waiting task starts in one future.
    fn starts(
        &self,
        now: Timestamp,
        order: &[(Ticket, Queued)],
        lengths: RunLengths<'_>,
        ending: Span,
    ) -> Vec<Timestamp> {
        let fast = self.rules.duration(0);
        let limits = self.rules.limits(self.backends);
        let waiters =
            order.iter().map(|(ticket, task)| waiter(*ticket, task, fast, lengths, ending));
        Simulation::new(now, limits.as_slice(), self.occupants(now, lengths, ending))
            .starts(waiters)
    }

    /// The running tasks in one future.
    fn occupants(
        &self,
        now: Timestamp,
        lengths: RunLengths<'_>,
        ending: Span,
    ) -> impl Iterator<Item = Occupant> {
        let fast = self.rules.duration(0);
        let running = self.running.iter();
        running.filter_map(move |(ticket, task)| occupant(now, ticket, task, fast, lengths, ending))
    }

    /// The forecast without the waiting tasks; they are added by [`Classes::add_to_forecast`], in
    /// the order of arrival.
    pub fn forecast(&self, now: Timestamp, ending: Span, model: &StartModel) -> QueueForecast {
        let limits = self.rules.limits(self.backends);
        let profile =
            |lengths| Profile::new(now, limits.as_slice(), self.occupants(now, lengths, ending));
        let longest = profile(RunLengths::Longest);
        let learned = RunLengths::learned(model, self.simulated()).map(profile).collect();
        QueueForecast { since: now, longest, learned, ahead: AheadCounts::default(), ending }
    }

    /// Adds a waiting task to the forecast, behind all others, and returns its state. The model is the same as that
    /// of the forecast.
    pub fn add_to_forecast(
        &self,
        now: Timestamp,
        ticket: Ticket,
        forecast: &mut QueueForecast,
        model: &StartModel,
    ) -> Option<Waiting> {
        let task = self.queue.get(ticket)?;
        let (ending, fast) = (forecast.ending, self.rules.duration(0));
        let in_future = |lengths| waiter(ticket, &task, fast, lengths, ending);
        let at_most = forecast.longest.add(now, in_future(RunLengths::Longest));
        let futures = RunLengths::learned_again(model, forecast.learned.len());
        let mut starts: Vec<Span> = Vec::new();
        for (profile, lengths) in forecast.learned.iter_mut().zip(futures) {
            starts.extend(profile.add(now, in_future(lengths)).map(|start| start.since(now)));
        }
        let counts = forecast.ahead;
        let estimate = at_most
            .filter(|_| !self.paused)
            .map(|at_most| start_estimate(model, &task, counts, at_most.since(now), &mut starts));
        forecast.ahead.pass(task.class);
        Some(Waiting { ticket, ahead: counts.all, reason: self.reason(task.class), estimate })
    }

    /// All waiting tasks, in the order of arrival.
    pub fn waiting_tickets(&self) -> impl Iterator<Item = Ticket> {
        self.queue.in_order().into_iter().map(|(ticket, _)| ticket)
    }
}

/// The estimate of a task that starts after these times in simulated futures.
fn start_estimate(
    model: &StartModel,
    task: &Queued,
    counts: AheadCounts,
    at_most: Span,
    starts: &mut [Span],
) -> StartEstimate {
    starts.sort_unstable();
    let middle = match starts.len() {
        0 => return StartEstimate { at_most, likely: None },
        count => (starts[(count - 1) / 2].as_micros() + starts[count / 2].as_micros()) / 2,
    };
    let (kind, class) = (task.kind, task.class);
    let ahead = counts.from_class[usize::from(class)];
    let middle = Span::from_micros(middle).min(at_most);
    let start = SimulatedStart { kind, class, ahead, middle, at_most };
    StartEstimate { at_most, likely: Some(model.likely(&start)) }
}

/// A waiting task, as later ones must expect it.
fn waiter(
    ticket: Ticket,
    task: &Queued,
    fast: Span,
    lengths: RunLengths<'_>,
    ending: Span,
) -> Waiter {
    let limit = match task.kind {
        TaskKind::Default => fast.min(task.wish),
        _ => task.wish,
    };
    let (kind, class, age) = (task.kind, task.class, Span::ZERO);
    let run = SimulatedRun { ticket, kind, class, limit: limit + ending, age };
    Waiter { class, time: lengths.time(run) }
}

/// A running task, as waiting ones must expect it, ending no later than its limit. A default one is
/// lowered as soon as that matters; an interactive one is halted, so it does not count unless it is
/// spared for a while.
fn occupant(
    now: Timestamp,
    ticket: Ticket,
    task: &RunningTask,
    fast: Span,
    lengths: RunLengths<'_>,
    ending: Span,
) -> Option<Occupant> {
    let (kind, class, limit) = match task.kind {
        TaskKind::Interactive => {
            let end = (task.spared? + ending).max(now);
            return Some(Occupant { class: 0, end });
        }
        TaskKind::Explicit => (task.kind, task.class, task.limit),
        TaskKind::Default => (task.kind, 0, fast.min(task.limit)),
    };
    let end = match task.stopping {
        Some(since) => (since + ending).max(now),
        None => {
            let age = now.since(task.started);
            let certain = limit.max(age) + ending;
            task.started + lengths.time(SimulatedRun { ticket, kind, class, limit: certain, age })
        }
    };
    Some(Occupant { class, end })
}

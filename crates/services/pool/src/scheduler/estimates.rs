//! Publishes estimates to waiting tasks: at once when something changes, otherwise at intervals.

use taskyard_core::classes::estimate::{StartEstimate, StartModel};
use taskyard_core::classes::{Class, Ticket, Waiting};
use taskyard_core::estimate::{GivenEstimate, Held};
use taskyard_core::{Reason, Span, Timestamp};

use super::state::{Action, SchedulerState};
use crate::protocol::QueuePosition;
use crate::units::seconds;

/// Shortest time between two updates of all estimates.
const INTERVAL_MIN: Span = Span::from_micros(500_000);
/// The interval is at least this many times the duration of the last update.
const INTERVAL_FACTOR: i64 = 10;
/// After this time an estimate is repeated.
const REPEAT_AFTER: Span = Span::from_secs(5);
/// A change of less than this is not published.
const CHANGE_MIN: Span = Span::from_secs(1);

/// Up to this queue length a new task gets an estimate at once.
const IMMEDIATE_QUEUE_MAX: usize = 1_000;

/// The estimate that a client received last.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastEstimate {
    at: Timestamp,
    start: Option<Timestamp>,
}

/// The first estimate of a task: its latest start, and when it will probably start.
#[derive(Clone, Copy, Debug)]
pub(super) struct FirstEstimate {
    at_most: Timestamp,
    likely: Option<GivenEstimate>,
}

/// Difference between the start of a task and its first estimate.
#[derive(Clone, Copy, Debug)]
pub(super) struct EstimateError {
    pub early: Span,
    pub late: Span,
    /// Whether the likely start held, if there was one.
    pub held: Option<Held>,
}

impl FirstEstimate {
    fn new(now: Timestamp, estimate: StartEstimate) -> Self {
        let likely = estimate.likely.map(|likely| likely.given(now));
        FirstEstimate { at_most: now + estimate.at_most, likely }
    }

    /// Compares it with the start; the model learns from that.
    pub fn compare(self, start: Timestamp, class: usize, model: &mut StartModel) -> EstimateError {
        let held = self.likely.map(|given| model.start(start, class as u8, given));
        EstimateError { early: self.at_most.since(start), late: start.since(self.at_most), held }
    }
}

impl SchedulerState {
    /// Schedules the next update if tasks wait.
    pub fn schedule_estimates(&mut self, now: Timestamp) {
        if self.classes.queued() == 0 {
            self.next_estimates = None;
        } else if self.next_estimates.is_none() {
            let earliest = self.last_estimates.map_or(now, |last| last + INTERVAL_MIN);
            self.next_estimates = Some(earliest.max(now));
        }
    }

    /// Notes how long the last update took: a longer queue is updated less often.
    pub fn note_estimate_time(&mut self, took: Span) {
        let (Some(last), Some(next)) = (self.last_estimates, self.next_estimates) else { return };
        let pause = Span::from_micros(took.as_micros().saturating_mul(INTERVAL_FACTOR));
        self.next_estimates = Some(next.max(last + pause));
    }

    /// Estimates a new task at once, unless the queue is so long that it has to wait for the next update of all
    /// estimates.
    pub(super) fn estimate_new(&mut self, now: Timestamp, ticket: Ticket) -> Vec<Action> {
        let outlook = self.outlook.take().filter(|outlook| !outlook.is_overdue(now));
        let mut outlook = match outlook {
            Some(outlook) => outlook,
            None if self.classes.queued() > IMMEDIATE_QUEUE_MAX => return Vec::new(),
            None => {
                let ending = self.stop_delays.p95().into();
                let mut outlook = self.classes.forecast(now, ending, &self.model);
                for earlier in self.classes.waiting_tickets().filter(|one| *one < ticket) {
                    self.classes.add_to_forecast(now, earlier, &mut outlook, &self.model);
                }
                outlook
            }
        };
        let waiting = self.classes.add_to_forecast(now, ticket, &mut outlook, &self.model);
        self.outlook = Some(outlook);
        waiting.and_then(|waiting| self.estimate_action(now, &waiting)).into_iter().collect()
    }

    fn estimate_action(&mut self, now: Timestamp, waiting: &Waiting) -> Option<Action> {
        let task = self.tasks.get_mut(&waiting.ticket)?;
        let start = waiting.estimate.map(|estimate| now + estimate.at_most);
        if task.last_estimate.is_some_and(|last_estimate| !last_estimate.is_outdated(now, start)) {
            return None;
        }
        if task.last_estimate.is_none() {
            let first = waiting.estimate.map(|estimate| FirstEstimate::new(now, estimate));
            task.first_estimate = task.first_estimate.or(first);
        }
        task.last_estimate = Some(LastEstimate { at: now, start });
        let classes = self.classes.rules().classes();
        Some(Action::Estimate(waiting.ticket, position(waiting, classes)))
    }

    /// Publishes estimates that have changed to all waiting tasks.
    pub(super) fn update_estimates(&mut self, now: Timestamp) -> Vec<Action> {
        let ending = self.stop_delays.p95().into();
        let waiting = self.classes.waiting(now, ending, &self.model);
        let actions = waiting.iter().filter_map(|one| self.estimate_action(now, one)).collect();
        self.last_estimates = Some(now);
        self.next_estimates = (self.classes.queued() > 0).then(|| now + INTERVAL_MIN);
        actions
    }
}

impl LastEstimate {
    fn is_outdated(self, now: Timestamp, start: Option<Timestamp>) -> bool {
        if self.at + REPEAT_AFTER <= now {
            return true;
        }
        match (self.start, start) {
            (Some(last_estimate), Some(start)) => {
                let change = start.since(last_estimate) + last_estimate.since(start);
                let fifth = Span::from_micros(last_estimate.since(now).as_micros() / 5);
                change > CHANGE_MIN.max(fifth)
            }
            (last_estimate, start) => last_estimate != start,
        }
    }
}

fn position(waiting: &Waiting, classes: &[Class]) -> QueuePosition {
    let text = match waiting.reason {
        Reason::LimitReached { class: 0 } => "all backends are busy".into(),
        Reason::LimitReached { class } => {
            let class = &classes[usize::from(class)];
            let most = seconds(class.duration.into());
            format!("limit of class {} reached; its tasks take up to {most}", class.name)
        }
        other => other.to_string(),
    };
    let likely = waiting.estimate.and_then(|estimate| estimate.likely);
    QueuePosition {
        estimate: waiting.estimate.map(|estimate| estimate.at_most.as_secs_f64()),
        p50: likely.map(|likely| likely.p50().as_secs_f64()),
        p90: likely.map(|likely| likely.p90().as_secs_f64()),
        ahead: waiting.ahead,
        reason: waiting.reason.name().into(),
        text,
    }
}

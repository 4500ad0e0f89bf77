//! Replays a trace with other consumers, limits, rates and priorities, by the rules of the core.
//!
//! Every recorded put happens at its time. A consumer that is idle takes the next task at once and holds it as long as the
//! recorded delivery lasted. Start reading at `scenario` (what may differ), then `tube_replay`.

mod class_replay;
mod scenario;
mod tube_replay;
mod tube_state;

pub use scenario::{ConsumerRule, PriorityChange, Scenario, ScenarioError};

use crate::figures::{WaitCurve, WaitFigures};
use crate::tasks::{RecordedDelivery, Trace};

/// How often the progress is reported, in tasks.
const REPORT_EVERY: usize = 1 << 16;

/// What a replay shows.
#[derive(Debug, Default)]
pub struct Replayed {
    /// The tubes, in the order of the trace.
    pub tubes: Vec<ReplayedTube>,
    /// The duration classes, if there are any: name and figures of the waits.
    pub classes: Vec<(String, WaitFigures)>,
    /// Tasks that a pool with duration classes ended before their recorded run time.
    pub cut: u64,
    /// Tasks that the pool refused because too many waited.
    pub denied: u64,
    /// The time of the last event, in microseconds since the start of the trace.
    pub end: u64,
}

/// A tube in a replay.
#[derive(Debug, Default)]
pub struct ReplayedTube {
    /// The most tasks that could run at once; `None` if the consumers are those of the recording.
    pub consumers: Option<u32>,
    /// The waits of the deliveries that were recorded, too, in microseconds.
    pub waits: Vec<u64>,
    /// How they changed.
    pub curve: WaitCurve,
    /// How many deliveries began.
    pub started: u64,
    /// How many tasks still wait at the end, because nothing can take them.
    pub waiting: u64,
    /// The end of the last delivery, in microseconds since the start of the trace.
    pub last_end: u64,
}

impl ReplayedTube {
    /// Counts the start of a delivery.
    fn start(&mut self, now: i64, wait: i64, recorded: &RecordedDelivery) {
        self.started += 1;
        // A task that was never taken in the recording has nothing to be compared with.
        if recorded.wait >= 0 {
            let (now, wait) = (now.max(0).unsigned_abs(), wait.max(0).unsigned_abs());
            self.waits.push(wait);
            self.curve.add(now, wait);
        }
    }

    fn end(&mut self, now: i64) {
        self.last_end = self.last_end.max(now.max(0).unsigned_abs());
    }

    /// The figures of the waits.
    pub fn figures(&mut self) -> WaitFigures {
        WaitFigures::of(&mut self.waits)
    }
}

/// Replays a trace; `progress` gets the number of tasks that were put, from time to time.
pub fn replay(
    trace: &Trace,
    scenario: &Scenario,
    mut progress: impl FnMut(u64),
) -> Result<Replayed, ScenarioError> {
    scenario.check(trace)?;
    match &scenario.classes {
        Some(rules) => Ok(class_replay::run(trace, scenario, rules, &mut progress)),
        None => tube_replay::run(trace, scenario, &mut progress),
    }
}

#[cfg(test)]
mod tests;

//! Describes when a waiting task will run: its position in the queue, and what is expected from it.
//!
//! The rule of a position, which every store follows:
//!
//! - A task that is ready, delayed or waits for the semaphore of its tube has a position. A task whose
//!   time to live is over, and one in any other state, has none.
//! - `ahead` is the number of ready tasks of the tube with a smaller (priority, id), whichever their
//!   sub-queue; tasks whose time to live is over do not count. In a tube with sub-queues, those of its own are
//!   also counted separately.
//! - `delayed_ahead` counts the delayed tasks with a smaller (priority, id) that will be ready within one
//!   second, within two, four and so on.
//! - `gate_ahead` is the number of waiting members of the semaphore that get a grant first.
//! - The core counts exactly. Stores whose rules run in a database may be wrong by 5 % where more than
//!   [`AHEAD_COUNTED_MAX`](crate::limits::AHEAD_COUNTED_MAX) tasks are ahead, and say so. In a tube with sub-queues
//!   they may be wrong by 5 % of half the ready tasks. They count the first [`DELAYED_LOOKED_MAX`](crate::limits::DELAYED_LOOKED_MAX)
//!   delayed tasks that are due, and at most [`GATE_LOOKED_MAX`](crate::limits::GATE_LOOKED_MAX) members of a semaphore.

mod calibration;
mod departures;
mod run_times;
mod service;

use std::fmt;

use crate::error::{Error, Result};
use crate::limits::POSITIONS_MAX;
use crate::task::TaskId;
use crate::time::{Span, Timestamp};

pub use calibration::{Calibrated, Calibration, CorrectionPace, Corrections, GivenEstimate, Held};
pub use run_times::RunTimes;
pub use service::{GateNow, QueueNow, QueueSample, ServiceModel};

/// The number of periods in [`Position::delayed_ahead`]: the last one ends after 18 hours.
pub const DELAYED_PERIODS: usize = 17;

/// Where a waiting task is in the queue of its tube.
#[derive(Clone, Debug, PartialEq)]
pub struct Position {
    /// The task.
    pub id: TaskId,
    /// Its priority.
    pub pri: u64,
    /// When it will be ready, if it is delayed.
    pub due: Option<Timestamp>,
    /// Ready tasks that go first.
    pub ahead: u64,
    /// Delayed tasks that go first and will be ready within 1, 2, 4, … seconds, at most
    /// [`DELAYED_PERIODS`] numbers; a number that is not given is like the last one.
    pub delayed_ahead: Vec<u64>,
    /// Its place in its own sub-queue.
    pub subqueue: Option<SubqueuePosition>,
    /// Waiting members of the semaphore that get a grant first, if the task has none.
    pub gate_ahead: Option<u64>,
    /// Whether the numbers are exact.
    pub is_exact: bool,
    /// When it will run. Stores do not know; the engine adds this.
    pub estimate: Option<Forecast>,
}

/// The place of a task in its sub-queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubqueuePosition {
    /// Ready tasks of the sub-queue that go first.
    pub ahead: u64,
    /// Whether a task of the sub-queue runs.
    pub is_busy: bool,
}

impl Position {
    /// The position behind so many ready tasks, whatever their priority.
    pub const fn behind(ahead: u64) -> Self {
        Position {
            id: TaskId(u64::MAX),
            pri: 0,
            due: None,
            ahead,
            delayed_ahead: Vec::new(),
            subqueue: None,
            gate_ahead: None,
            is_exact: true,
            estimate: None,
        }
    }

    /// How many delayed tasks go first that will be ready within this time.
    pub fn delayed_within(&self, time: Span) -> u64 {
        let period = period_of(time);
        let last = self.delayed_ahead.last().copied().unwrap_or(0);
        self.delayed_ahead.get(period).copied().unwrap_or(last)
    }
}

/// The period of a delay, from 0; `None` if it ends after the last period.
pub fn delayed_period(delay: Span) -> Option<usize> {
    Some(period_of(delay)).filter(|period| *period < DELAYED_PERIODS)
}

fn period_of(time: Span) -> usize {
    let seconds = time.as_micros().unsigned_abs().div_ceil(1_000_000).max(1);
    seconds.next_power_of_two().trailing_zeros() as usize
}

/// The numbers of [`Position::delayed_ahead`] from the number of delayed tasks in each period.
pub(crate) fn delayed_ahead(mut counts: Vec<u64>) -> Vec<u64> {
    while counts.last() == Some(&0) {
        counts.pop();
    }
    let mut sum = 0;
    for count in &mut counts {
        sum += *count;
        *count = sum;
    }
    counts
}

/// The delayed tasks of a tube that are due first, by period; those of a period in the order of delivery.
#[derive(Debug, Default)]
pub struct DelayedTasks(Vec<Vec<(u64, TaskId)>>);

impl DelayedTasks {
    /// From the priority, the id and the due time of each.
    pub fn new(now: Timestamp, tasks: impl Iterator<Item = (u64, TaskId, Timestamp)>) -> Self {
        let mut periods = vec![Vec::new(); DELAYED_PERIODS];
        for (pri, id, due) in tasks {
            if let Some(period) = delayed_period(due.since(now)) {
                periods[period].push((pri, id));
            }
        }
        periods.iter_mut().for_each(|keys| keys.sort_unstable());
        DelayedTasks(periods)
    }

    /// The numbers of [`Position::delayed_ahead`] for a task with this priority and id.
    pub fn before(&self, pri: u64, id: TaskId) -> Vec<u64> {
        let count = |keys: &Vec<_>| keys.partition_point(|key| *key < (pri, id)) as u64;
        delayed_ahead(self.0.iter().map(count).collect())
    }
}

/// When a waiting task will run, counted from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Tasks that go first: ready ones and those that run.
    pub ahead: u64,
    /// Half of such tasks start within this time.
    pub p50: Span,
    /// Nine of ten such tasks start within this time.
    pub p90: Span,
    /// What decides it.
    pub basis: Basis,
}

/// An estimate, or why there is none.
pub type Forecast = std::result::Result<Estimate, NoEstimate>;

/// What decides when a task will start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// A consumer waits for tasks.
    IdleConsumer,
    /// How long tasks run, and the number of consumers.
    RunTimes,
    /// The tasks of its own sub-queue, of which one runs at a time.
    Subqueue,
    /// The rate limit of the tube.
    RateLimit,
    /// The semaphore of the tube.
    Semaphore,
    /// Its own delay.
    Delay,
}

/// Why there is no estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoEstimate {
    /// No task of the tube runs, and no consumer waits for one.
    NoConsumer,
    /// The tube is paused.
    TubePaused,
    /// No task of the tube has finished recently.
    NoHistory,
}

impl Basis {
    /// All of them.
    pub const ALL: [Basis; 6] = [
        Basis::IdleConsumer,
        Basis::RunTimes,
        Basis::Subqueue,
        Basis::RateLimit,
        Basis::Semaphore,
        Basis::Delay,
    ];

    /// The name in all interfaces.
    pub const fn name(self) -> &'static str {
        match self {
            Basis::IdleConsumer => "idle_consumer",
            Basis::RunTimes => "run_times",
            Basis::Subqueue => "subqueue",
            Basis::RateLimit => "rate_limit",
            Basis::Semaphore => "semaphore",
            Basis::Delay => "delay",
        }
    }

    /// The basis with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Basis::ALL.into_iter().find(|basis| basis.name() == name)
    }
}

impl NoEstimate {
    /// All of them.
    pub const ALL: [NoEstimate; 3] =
        [NoEstimate::NoConsumer, NoEstimate::TubePaused, NoEstimate::NoHistory];

    /// The name in all interfaces.
    pub const fn name(self) -> &'static str {
        match self {
            NoEstimate::NoConsumer => "no_consumer",
            NoEstimate::TubePaused => "tube_paused",
            NoEstimate::NoHistory => "no_history",
        }
    }

    /// The reason with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        NoEstimate::ALL.into_iter().find(|reason| reason.name() == name)
    }
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Basis::IdleConsumer => "a consumer waits for tasks",
            Basis::RunTimes => "run times and number of consumers",
            Basis::Subqueue => "the tasks of its sub-queue",
            Basis::RateLimit => "the rate limit of the tube",
            Basis::Semaphore => "the semaphore of the tube",
            Basis::Delay => "its own delay",
        })
    }
}

impl fmt::Display for NoEstimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NoEstimate::NoConsumer => "no consumer takes tasks of this tube",
            NoEstimate::TubePaused => "the tube is paused",
            NoEstimate::NoHistory => "no task of this tube has finished recently",
        })
    }
}

/// Refuses to show the positions of too many tasks at once. Stores whose rules run in
/// the database call this first.
pub fn check_positions(ids: &[TaskId]) -> Result<()> {
    if ids.len() <= POSITIONS_MAX {
        return Ok(());
    }
    Err(Error::TooLarge {
        what: "the number of tasks whose positions are asked for",
        size: ids.len(),
        limit: POSITIONS_MAX,
        advice: "ask for fewer at a time",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delayed_tasks_are_counted_by_periods() {
        let periods = [0.0, 0.5, 1.0, 1.5, 4.0, 65_536.0, 65_537.0]
            .map(|seconds| delayed_period(Span::from_secs_f64(seconds).expect("a good time")));
        let last = Some(DELAYED_PERIODS - 1);
        assert_eq!(periods, [Some(0), Some(0), Some(0), Some(1), Some(2), last, None]);
        assert_eq!(delayed_period(Span::FOREVER), None);
        assert_eq!(delayed_ahead(vec![3, 1, 0, 2, 0, 0]), [3, 4, 4, 6]);
        assert_eq!(delayed_ahead(vec![0; DELAYED_PERIODS]), Vec::<u64>::new());
    }

    #[test]
    fn a_time_within_a_period_counts_the_whole_period() {
        let position = Position {
            id: TaskId(1),
            pri: 0,
            due: None,
            ahead: 0,
            delayed_ahead: vec![1, 2, 7],
            subqueue: None,
            gate_ahead: None,
            is_exact: true,
            estimate: None,
        };
        let within = |micros| position.delayed_within(Span::from_micros(micros));
        assert_eq!([0, 1_000_000, 1_000_001, 3_000_000].map(within), [1, 1, 2, 7]);
        assert_eq!(position.delayed_within(Span::FOREVER), 7);
        assert_eq!(Position { delayed_ahead: vec![], ..position }.delayed_within(Span::ZERO), 0);
    }

    #[test]
    fn names_are_unique() {
        for basis in Basis::ALL {
            assert_eq!(Basis::from_name(basis.name()), Some(basis));
        }
        for reason in NoEstimate::ALL {
            assert_eq!(NoEstimate::from_name(reason.name()), Some(reason));
        }
    }
}

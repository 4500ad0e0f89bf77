//! The settings of a worker, which can change while it runs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use taskyard_core::limits::BATCH_TASKS_MAX;

/// The largest number of job processors of one worker.
pub const PROCESSORS_MAX: usize = 1024;

/// The default of `run_max`, in visibility timeouts.
const RUN_TIMEOUTS: u32 = 10;

/// The default target latency of a queue.
const TARGET_LATENCY: Duration = Duration::from_secs(1);

/// The settings of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How many batches may be processed at once.
    pub max_processors: usize,
    /// How long the lease of a batch lasts before it must be extended; a change applies to later takes.
    pub visibility_timeout: Duration,
    /// How long a handler may work on one batch: until then the lease is extended, then the handler is cancelled and its
    /// unsettled tasks return as failed. `None` is ten times the visibility timeout.
    pub run_max: Option<Duration>,
    /// How many tasks are taken at once from queues without an entry in `batch_sizes`.
    pub batch_size: usize,
    /// The batch size of single queues, by queue number.
    pub batch_sizes: BTreeMap<u32, usize>,
    /// How soon a ready task should be done, by queue number; the manager plans with it. One second for queues without
    /// an entry.
    pub target_latencies: BTreeMap<u32, Duration>,
    /// What to do with a task that cannot be decoded.
    pub poison: PoisonPolicy,
    /// A cycle that takes longer is counted and logged.
    pub slow_cycle: Duration,
}

/// What to do with a task that cannot be decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoisonPolicy {
    /// Try it again as the retry policy of its tube says, or with growing delays: a newer worker may be able to decode it.
    /// After its attempts it is buried with the error: `attempts_max` of the task or of its tube, or ten if neither has one.
    #[default]
    Retry,
    /// Remove it.
    Drop,
}

/// A setting that is out of range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {value}; use a number from {min} to {max}")]
pub struct SettingsError {
    /// The name of the setting.
    pub name: &'static str,
    /// The invalid value.
    pub value: String,
    /// The smallest valid value.
    pub min: u64,
    /// The largest valid value.
    pub max: u64,
}

/// The longest visibility timeout, in seconds: a day.
pub(crate) const VISIBILITY_SECONDS_MAX: u64 = 24 * 3600;
/// The longest `run_max`, in seconds: a year.
pub(crate) const RUN_SECONDS_MAX: u64 = 365 * 24 * 3600;

impl Default for Settings {
    fn default() -> Self {
        Settings {
            max_processors: 1,
            visibility_timeout: Duration::from_secs(60),
            run_max: None,
            batch_size: 10,
            batch_sizes: BTreeMap::new(),
            target_latencies: BTreeMap::new(),
            poison: PoisonPolicy::default(),
            slow_cycle: Duration::from_secs(10),
        }
    }
}

impl Settings {
    /// How many tasks are taken at once from this queue.
    pub fn batch_size_of(&self, queue_num: u32) -> usize {
        self.batch_sizes.get(&queue_num).copied().unwrap_or(self.batch_size)
    }

    /// How soon a ready task of this queue should be done.
    pub fn target_latency_of(&self, queue_num: u32) -> Duration {
        self.target_latencies.get(&queue_num).copied().unwrap_or(TARGET_LATENCY)
    }

    /// How long a handler may work on a batch that was taken with this visibility timeout.
    pub fn run_max_of(&self, visibility_timeout: Duration) -> Duration {
        self.run_max.unwrap_or_else(|| visibility_timeout.saturating_mul(RUN_TIMEOUTS))
    }

    /// The queues in these settings that the worker does not have.
    pub(crate) fn unknown_queues(&self, nums: &[u32]) -> Vec<u32> {
        let named = self.batch_sizes.keys().chain(self.target_latencies.keys());
        let unknown: BTreeSet<u32> = named.filter(|num| !nums.contains(num)).copied().collect();
        unknown.into_iter().collect()
    }

    /// Checks that every setting is in range.
    pub fn check(&self) -> Result<(), SettingsError> {
        check_count("max_processors", self.max_processors, PROCESSORS_MAX)?;
        for size in self.batch_sizes.values().chain([&self.batch_size]) {
            check_count("batch_size", *size, BATCH_TASKS_MAX)?;
        }
        check_duration("visibility_timeout", self.visibility_timeout, VISIBILITY_SECONDS_MAX)?;
        self.run_max.map_or(Ok(()), |run_max| check_duration("run_max", run_max, RUN_SECONDS_MAX))
    }
}

pub(crate) fn check_duration(
    name: &'static str,
    time: Duration,
    max: u64,
) -> Result<(), SettingsError> {
    if !time.is_zero() && time <= Duration::from_secs(max) {
        return Ok(());
    }
    let value = format!("{} seconds", time.as_secs_f64());
    Err(SettingsError { name, value, min: 1, max })
}

pub(crate) fn check_count(
    name: &'static str,
    value: usize,
    max: usize,
) -> Result<(), SettingsError> {
    if (1..=max).contains(&value) {
        return Ok(());
    }
    Err(SettingsError { name, value: value.to_string(), min: 1, max: max as u64 })
}

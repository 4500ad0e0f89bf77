//! What can be set about a worker, also while it runs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use taskyard_core::limits::BATCH_TASKS_MAX;

/// Most job processors of one worker.
pub const PROCESSORS_MAX: usize = 1024;

/// How many visibility timeouts a handler may take unless `run_max` says otherwise.
const RUN_TIMEOUTS: u32 = 10;

/// How soon a task should be done unless said otherwise.
const TARGET_LATENCY: Duration = Duration::from_secs(1);

/// What can be set about a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How many batches may be worked on at once.
    pub max_processors: usize,
    /// How long a batch is the worker's before it must be prolonged; applies to what is taken from now on.
    pub visibility_timeout: Duration,
    /// How long a handler may work on one batch: until then the batch is prolonged, then the handler is cancelled and its
    /// unsettled tasks return as failed. `None` is ten times the visibility timeout.
    pub run_max: Option<Duration>,
    /// How many tasks are taken at once, in queues that name no other number.
    pub batch_size: usize,
    /// The same for single queues, by their numbers.
    pub batch_sizes: BTreeMap<u32, usize>,
    /// How soon a task that is ready should be done, for whoever plans: a second unless said otherwise, by the
    /// numbers of the queues.
    pub target_latencies: BTreeMap<u32, Duration>,
    /// What to do with a task that cannot be read.
    pub poison: Poison,
    /// A cycle that takes longer is counted and logged.
    pub slow_cycle: Duration,
}

/// What to do with a task that cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Poison {
    /// Give it back and wait longer each time: a newer worker may understand it.
    #[default]
    Retry,
    /// Remove it.
    Drop,
}

/// A setting that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {value}; use a number from {least} to {most}")]
pub struct SettingsError {
    /// Which setting.
    pub name: &'static str,
    /// What it was to be.
    pub value: String,
    /// The least it may be.
    pub least: u64,
    /// The most it may be.
    pub most: u64,
}

/// The longest a batch may be the worker's without being prolonged, in seconds: a day.
pub(super) const VISIBILITY_SECONDS_MAX: u64 = 24 * 3600;
/// The longest `run_max`, in seconds: a year.
pub(super) const RUN_SECONDS_MAX: u64 = 365 * 24 * 3600;

impl Default for Settings {
    fn default() -> Self {
        Settings {
            max_processors: 1,
            visibility_timeout: Duration::from_secs(60),
            run_max: None,
            batch_size: 10,
            batch_sizes: BTreeMap::new(),
            target_latencies: BTreeMap::new(),
            poison: Poison::default(),
            slow_cycle: Duration::from_secs(10),
        }
    }
}

impl Settings {
    /// How many tasks of this queue are taken at once.
    pub fn batch_of(&self, queue_num: u32) -> usize {
        self.batch_sizes.get(&queue_num).copied().unwrap_or(self.batch_size)
    }

    /// How soon a task of this queue that is ready should be done.
    pub fn target_of(&self, queue_num: u32) -> Duration {
        self.target_latencies.get(&queue_num).copied().unwrap_or(TARGET_LATENCY)
    }

    /// How long a handler may work on what was taken with this visibility timeout.
    pub fn run_max_of(&self, visibility_timeout: Duration) -> Duration {
        self.run_max.unwrap_or_else(|| visibility_timeout.saturating_mul(RUN_TIMEOUTS))
    }

    /// The queues that they say something about although the worker has no such queue.
    pub(super) fn unknown_queues(&self, nums: &[u32]) -> Vec<u32> {
        let named = self.batch_sizes.keys().chain(self.target_latencies.keys());
        let unknown: BTreeSet<u32> = named.filter(|num| !nums.contains(num)).copied().collect();
        unknown.into_iter().collect()
    }

    /// Whether a worker can work with them.
    pub fn check(&self) -> Result<(), SettingsError> {
        within("max_processors", self.max_processors, PROCESSORS_MAX)?;
        for size in self.batch_sizes.values().chain([&self.batch_size]) {
            within("batch_size", *size, BATCH_TASKS_MAX)?;
        }
        lasting("visibility_timeout", self.visibility_timeout, VISIBILITY_SECONDS_MAX)?;
        self.run_max.map_or(Ok(()), |run_max| lasting("run_max", run_max, RUN_SECONDS_MAX))
    }
}

fn lasting(name: &'static str, time: Duration, most: u64) -> Result<(), SettingsError> {
    if !time.is_zero() && time <= Duration::from_secs(most) {
        return Ok(());
    }
    let value = format!("{} seconds", time.as_secs_f64());
    Err(SettingsError { name, value, least: 1, most })
}

fn within(name: &'static str, value: usize, most: usize) -> Result<(), SettingsError> {
    if (1..=most).contains(&value) {
        return Ok(());
    }
    Err(SettingsError { name, value: value.to_string(), least: 1, most: most as u64 })
}

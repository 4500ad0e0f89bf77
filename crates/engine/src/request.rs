//! Describes what callers send to the event loop: jobs with commands, and queries about its state.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use taskyard_core::estimate::{Calibrated, QueueNow};
use taskyard_core::limits::BATCH_TASKS_MAX;
use taskyard_core::{Command, Forecast, Result, ScheduleName, TubeName};
use taskyard_store::StoreHealth;
use tokio::sync::oneshot;

use crate::estimates::ForecastRequest;
use crate::reply::JobReply;
use crate::schedules::ScheduleNotes;
use crate::series::{Series, SeriesRequest, TubeFigures, TubeLatency};
use crate::waiters::{Waiting, WaitingCount};
use crate::workers::WorkerInfo;

/// Identifies a job; never reused.
pub(crate) type JobId = u64;

/// One item in place, or a list. Most jobs have one command, and a list of one would be allocated by the caller and freed by the
/// loop, on another core.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum OneOrMany<T> {
    /// Exactly one.
    One(T),
    /// Any number.
    Many(Vec<T>),
}

/// The commands of one caller.
#[derive(Debug)]
pub(crate) struct Job {
    /// Identifies the job.
    pub id: JobId,
    /// The commands to run.
    pub commands: OneOrMany<Command>,
    /// The number of affected tasks, at least one for each command.
    pub items: usize,
    /// The number of payload bytes.
    pub bytes: usize,
    /// The index and the tube of each take.
    pub takes: OneOrMany<(usize, TubeName)>,
    /// Whether a command may wait for a task, for capacity or for events.
    pub may_wait: bool,
    /// Receives the reply; `None` when no caller waits for it.
    pub reply: Option<oneshot::Sender<JobReply>>,
}

/// A request for state of the loop that is not a command.
#[derive(Debug)]
pub(crate) enum Query {
    /// All waiting commands.
    Waiting(oneshot::Sender<Vec<Waiting>>),
    /// The number of waiting commands for each tube.
    Counts(oneshot::Sender<BTreeMap<TubeName, WaitingCount>>),
    /// The number of keys that were freed before their time.
    KeysFreedEarly(oneshot::Sender<u64>),
    /// Whether the store works.
    Health(oneshot::Sender<Result<StoreHealth>>),
    /// A part of a time series; `None` for a tube that has none.
    Series {
        request: SeriesRequest,
        /// Whether the numbers of tasks are read for a while.
        observes: bool,
        reply: oneshot::Sender<Option<Series>>,
    },
    /// The durations of each tube that has series.
    Latencies(oneshot::Sender<Vec<TubeLatency>>),
    /// What the series of each tube say about it now; `None` without any series.
    TubeFigures(oneshot::Sender<Option<BTreeMap<TubeName, TubeFigures>>>),
    /// When tasks of a tube will start.
    Forecast(ForecastRequest, oneshot::Sender<Vec<Forecast>>),
    /// When all ready tasks of these tubes will have started.
    Drains(Vec<(TubeName, QueueNow)>, oneshot::Sender<Vec<Forecast>>),
    /// How many estimates of each tube held.
    Calibrated(oneshot::Sender<BTreeMap<TubeName, Calibrated>>),
    /// The workers; those of these names hold tasks, if that is known.
    Workers(Option<HashSet<Arc<str>>>, oneshot::Sender<Vec<WorkerInfo>>),
    /// What is known of these schedules.
    Schedules(Vec<ScheduleName>, oneshot::Sender<ScheduleNotes>),
}

impl<T> OneOrMany<T> {
    /// No item.
    pub const fn none() -> Self {
        OneOrMany::Many(Vec::new())
    }

    /// The items as a slice.
    pub fn as_slice(&self) -> &[T] {
        match self {
            OneOrMany::One(one) => std::slice::from_ref(one),
            OneOrMany::Many(many) => many,
        }
    }

    /// The same, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        match self {
            OneOrMany::One(one) => std::slice::from_mut(one),
            OneOrMany::Many(many) => many,
        }
    }

    /// The items as a list.
    pub fn into_vec(self) -> Vec<T> {
        match self {
            OneOrMany::One(one) => vec![one],
            OneOrMany::Many(many) => many,
        }
    }
}

impl<T> From<Vec<T>> for OneOrMany<T> {
    fn from(mut many: Vec<T>) -> Self {
        if many.len() > 1 {
            return OneOrMany::Many(many);
        }
        many.pop().map_or(OneOrMany::none(), OneOrMany::One)
    }
}

impl<T> FromIterator<T> for OneOrMany<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut items = items.into_iter();
        match (items.next(), items.next()) {
            (Some(one), None) => OneOrMany::One(one),
            (first, second) => {
                OneOrMany::Many(first.into_iter().chain(second).chain(items).collect())
            }
        }
    }
}

/// The number of tasks that a command affects, as an estimate of its cost.
pub(crate) fn items_of(command: &Command) -> usize {
    let items = match command {
        Command::Put { tasks, .. } => tasks.len(),
        Command::Finish { items, .. } => items.len(),
        Command::Delete { ids, .. }
        | Command::Peek { ids, .. }
        | Command::KickTasks { ids, .. } => ids.len(),
        // The store refuses more.
        Command::List(list) => list.limit.min(BATCH_TASKS_MAX),
        Command::Search(search) => search.count.min(BATCH_TASKS_MAX),
        Command::Semaphore(command) => command.items(),
        _ => 1,
    };
    items.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_item_is_in_place_and_others_are_in_a_list() {
        for items in [vec![], vec![1], vec![1, 2, 3]] {
            let of_list = OneOrMany::from(items.clone());
            assert_eq!(of_list, items.iter().copied().collect());
            assert_eq!(matches!(of_list, OneOrMany::One(_)), items.len() == 1);
            assert_eq!(of_list.as_slice(), items);
            assert_eq!(of_list.into_vec(), items);
        }
    }
}

//! Defines the requests and results for copying content between stores.

use taskyard_core::record::Record;
use taskyard_core::transfer::{ImportEnd, SemaphoreCopy, TubeCopy};
use taskyard_core::{EndedKey, Error, StoredSchedule, TaskId, TubeName};

/// A part of the content to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Export {
    /// All tubes without their tasks. The result is [`Exported::Tubes`].
    Tubes,
    /// Tasks of a tube, by id. The result is [`Exported::Tasks`].
    Tasks {
        /// The tube's number.
        tube: u32,
        /// The first id to read.
        from: TaskId,
        /// Maximum number of tasks.
        count: usize,
        /// The page ends when its bodies have this many bytes.
        bytes: usize,
    },
    /// Keys of ended tasks of a tube, by the ids of the tasks. The result is [`Exported::EndedKeys`].
    EndedKeys {
        /// The tube's number.
        tube: u32,
        /// The first id to read.
        from: TaskId,
        /// Maximum number of keys.
        count: usize,
    },
    /// All semaphores. The result is [`Exported::Semaphores`].
    Semaphores,
    /// All schedules. The result is [`Exported::Schedules`].
    Schedules,
}

/// A part of the content that was read.
#[derive(Clone, Debug, PartialEq)]
pub enum Exported {
    /// Tubes by name, and the lowest lease number that was never issued.
    Tubes(Vec<TubeCopy>, u64),
    /// Tasks with their bodies, as after a crash: taken tasks are ready. An empty page is the end.
    Tasks(Vec<Record>),
    /// Keys of ended tasks. An empty page is the end.
    EndedKeys(Vec<EndedKey>),
    /// Semaphores with all their entries.
    Semaphores(Vec<SemaphoreCopy>),
    /// Schedules, by name.
    Schedules(Vec<StoredSchedule>),
}

/// A part of the content to add.
#[derive(Clone, Debug)]
pub enum Import {
    /// Tasks with their ids, which must be higher than those in the tube.
    Tasks(TubeName, Vec<Record>),
    /// Keys of ended tasks, after the tasks of the tube. Those that are there already are skipped.
    EndedKeys(TubeName, Vec<EndedKey>),
    /// The last step: gives the tubes their names and adds the semaphores.
    End(ImportEnd),
}

/// The error of a store that does not support this.
pub fn refused(what: &str) -> Error {
    Error::Store(format!("this store cannot {what}"))
}

//! What a store is asked when its content moves to another one.

use taskyard_core::record::Record;
use taskyard_core::transfer::{ImportEnd, SemaphoreCopy, TubeCopy};
use taskyard_core::{Error, TaskId, TubeName};

/// What is to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Export {
    /// All tubes without their tasks. Answers [`Exported::Tubes`].
    Tubes,
    /// Tasks of a tube, by id. Answers [`Exported::Tasks`].
    Tasks {
        /// The tube's number.
        tube: u32,
        /// The first id that is wanted.
        from: TaskId,
        /// At most so many,
        count: usize,
        /// and no more when their bodies have this many bytes.
        bytes: usize,
    },
    /// All semaphores. Answers [`Exported::Semaphores`].
    Semaphores,
}

/// What is shown.
#[derive(Clone, Debug, PartialEq)]
pub enum Exported {
    /// Tubes by name, and a number that no delivery was given yet.
    Tubes(Vec<TubeCopy>, u64),
    /// Tasks with their bodies, as after a crash: who was taken is ready. None is the end.
    Tasks(Vec<Record>),
    /// Semaphores with all who stand there.
    Semaphores(Vec<SemaphoreCopy>),
}

/// What comes in.
#[derive(Clone, Debug)]
pub enum Import {
    /// Tasks with their ids, which must be beyond those that the tube has.
    Tasks(TubeName, Vec<Record>),
    /// The last step: tubes get their names, semaphores come.
    End(ImportEnd),
}

/// The error of a store that cannot do this.
pub fn refused(what: &str) -> Error {
    Error::Store(format!("this store cannot {what}"))
}

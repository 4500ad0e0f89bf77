//! Defines the error of opening a store.

use std::path::PathBuf;

/// The reason that a store could not be opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The URL names no known store.
    #[error(
        "'{0}' names no store; use memory:, sqlite:DIR, postgres://HOST/DATABASE, redis://HOST or \
         tarantool://HOST:PORT"
    )]
    UnknownUrl(String),
    /// Another process has it open.
    #[error("{0} is in use by another taskyard process; stop that one or choose another folder")]
    InUse(PathBuf),
    /// The data on disk differs from the data that was written.
    #[error(
        "{folder} is damaged: {what}. Restore it from a backup, or open the intact data with --accept-loss"
    )]
    Damaged {
        /// The folder.
        folder: PathBuf,
        /// The damage that was found.
        what: String,
    },
    /// It was written by a newer version.
    #[error("{folder} has format {found}, this version reads up to {known}; use a newer taskyard")]
    TooNew {
        /// The folder.
        folder: PathBuf,
        /// The format found.
        found: i64,
        /// The newest format this version knows.
        known: i64,
    },
    /// The operating system or the database refused.
    #[error("cannot open {folder}: {what}")]
    Unavailable {
        /// The folder.
        folder: PathBuf,
        /// Its message.
        what: String,
    },
}

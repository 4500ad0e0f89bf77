//! Why a batch could not be written, and what that means for it and for those after it.

use std::io::ErrorKind;

use rusqlite::ErrorCode;

use super::codec::RowError;
use super::journal::Failure;

/// Why a batch could not be written.
#[derive(Debug)]
pub(super) enum WriteError {
    Sqlite(rusqlite::Error),
    /// The last step of a transaction failed: it may be found done when the store is opened again.
    Commit(rusqlite::Error),
    /// The journal could not be written.
    Journal(Failure),
    /// The write-ahead log is as long as it may be.
    LogFull(String),
    /// The database must come first, and could not be written.
    Behind(String),
    /// A row was not there, or there was one too many.
    Damaged(String),
    /// The test asked for it.
    Fault,
}

impl From<rusqlite::Error> for WriteError {
    fn from(error: rusqlite::Error) -> Self {
        WriteError::Sqlite(error)
    }
}

impl From<RowError> for WriteError {
    fn from(error: RowError) -> Self {
        match error {
            RowError::Sqlite(error) => WriteError::Sqlite(error),
            RowError::Damaged(what) => WriteError::Damaged(what),
        }
    }
}

impl WriteError {
    /// What the user is told.
    pub fn describe(&self) -> String {
        let full = || "the disk is full; free some space and try again".to_owned();
        match self {
            WriteError::Sqlite(error) | WriteError::Commit(error)
                if error.sqlite_error_code() == Some(ErrorCode::DiskFull) =>
            {
                full()
            }
            WriteError::Sqlite(error) | WriteError::Commit(error) => {
                format!("cannot write to disk: {error}")
            }
            WriteError::Journal(Failure::Write(error))
                if error.kind() == ErrorKind::StorageFull =>
            {
                full()
            }
            WriteError::Journal(
                Failure::Write(error) | Failure::Begin(error) | Failure::Sync(error),
            ) => {
                format!("cannot write to disk: {error}")
            }
            WriteError::Behind(what) | WriteError::LogFull(what) => what.clone(),
            WriteError::Damaged(what) => format!("the database is damaged: {what}"),
            WriteError::Fault => "a test asked for this failure".into(),
        }
    }

    /// After a failed sync it is unknown what is on disk, and damage does not heal.
    pub fn is_lasting(&self) -> bool {
        match self {
            WriteError::Sqlite(error) | WriteError::Commit(error) => {
                let code = error.sqlite_error().map_or(0, |error| error.extended_code);
                let corrupt = error.sqlite_error_code() == Some(ErrorCode::DatabaseCorrupt);
                corrupt
                    || [rusqlite::ffi::SQLITE_IOERR_FSYNC, rusqlite::ffi::SQLITE_IOERR_DIR_FSYNC]
                        .contains(&code)
            }
            WriteError::Journal(Failure::Begin(_) | Failure::Sync(_)) | WriteError::Damaged(_) => {
                true
            }
            WriteError::Journal(Failure::Write(_))
            | WriteError::Behind(_)
            | WriteError::LogFull(_)
            | WriteError::Fault => false,
        }
    }

    /// Whether all of the batch may be on disk: it was written as a whole, and only not confirmed. A full disk, a lock
    /// or a missing right prevents the write itself.
    pub fn is_outcome_unknown(&self) -> bool {
        use ErrorCode::{DatabaseBusy, DatabaseLocked, DiskFull, PermissionDenied, ReadOnly};
        match self {
            WriteError::Journal(Failure::Sync(_)) => true,
            WriteError::Commit(error) => !matches!(
                error.sqlite_error_code(),
                Some(DatabaseBusy | DatabaseLocked | DiskFull | PermissionDenied | ReadOnly)
            ),
            _ => false,
        }
    }
}

impl From<Failure> for WriteError {
    fn from(failure: Failure) -> Self {
        WriteError::Journal(failure)
    }
}

//! Defines the error of writing a batch, and what it means for this batch and later ones.

use std::io::ErrorKind;

use rusqlite::ErrorCode;

use super::codec::RowError;
use super::journal::JournalError;

/// Why a batch could not be written.
#[derive(Debug)]
pub(super) enum WriteError {
    Sqlite(rusqlite::Error),
    /// The commit of a transaction failed: the next opening may find it done.
    Commit(rusqlite::Error),
    /// The journal could not be written.
    Journal(JournalError),
    /// The write-ahead log has its maximum length.
    LogFull(String),
    /// The database must be written first, and that failed.
    DatabaseBehind(String),
    /// A row was missing, or there was one too many.
    Damaged(String),
    /// A test requested the failure.
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
    /// The message for the user.
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
            WriteError::Journal(JournalError::Write(error))
                if error.kind() == ErrorKind::StorageFull =>
            {
                full()
            }
            WriteError::Journal(
                JournalError::Write(error)
                | JournalError::Create(error)
                | JournalError::Sync(error),
            ) => {
                format!("cannot write to disk: {error}")
            }
            WriteError::DatabaseBehind(what) | WriteError::LogFull(what) => what.clone(),
            WriteError::Damaged(what) => format!("the database is damaged: {what}"),
            WriteError::Fault => "a test requested this failure".into(),
        }
    }

    /// Whether no write may follow: after a failed sync the content of the disk is unknown, and damage is
    /// permanent.
    pub fn is_permanent(&self) -> bool {
        match self {
            WriteError::Sqlite(error) | WriteError::Commit(error) => {
                let code = error.sqlite_error().map_or(0, |error| error.extended_code);
                let corrupt = error.sqlite_error_code() == Some(ErrorCode::DatabaseCorrupt);
                corrupt
                    || [rusqlite::ffi::SQLITE_IOERR_FSYNC, rusqlite::ffi::SQLITE_IOERR_DIR_FSYNC]
                        .contains(&code)
            }
            WriteError::Journal(JournalError::Create(_) | JournalError::Sync(_))
            | WriteError::Damaged(_) => true,
            WriteError::Journal(JournalError::Write(_))
            | WriteError::DatabaseBehind(_)
            | WriteError::LogFull(_)
            | WriteError::Fault => false,
        }
    }

    /// Whether the whole batch may be on disk: it was written completely but not confirmed. A full disk, a
    /// lock or a missing permission prevents the write itself.
    pub fn is_outcome_unknown(&self) -> bool {
        use ErrorCode::{DatabaseBusy, DatabaseLocked, DiskFull, PermissionDenied, ReadOnly};
        match self {
            WriteError::Journal(JournalError::Sync(_)) => true,
            WriteError::Commit(error) => !matches!(
                error.sqlite_error_code(),
                Some(DatabaseBusy | DatabaseLocked | DiskFull | PermissionDenied | ReadOnly)
            ),
            _ => false,
        }
    }
}

impl From<JournalError> for WriteError {
    fn from(error: JournalError) -> Self {
        WriteError::Journal(error)
    }
}

//! Backups: everything in a store at one moment as one file, made while the store is used.
//!
//! `snapshot` reads the database, `slot` ends it when the store needs that, `format` encodes the file, `parser` reads and verifies
//! it, and `restore` makes a folder of it.

mod format;
mod parser;
mod restore;
mod restore_lock;
mod slot;
mod snapshot;
mod snapshot_check;

pub use format::BackupHeader;
pub use parser::{BackupBlock, BackupError, BackupParser, RowBlock};
pub use restore::{RestoreError, RestoreProgress, check, restore};
pub(super) use slot::BackupSlot;
pub(super) use snapshot::{Snapshot, log_too_long};

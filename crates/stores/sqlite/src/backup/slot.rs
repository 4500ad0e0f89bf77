//! Holds the connection whose read transaction a backup reads, and ends it when the store needs that.
//!
//! SQLite cannot reset its write-ahead log while the transaction is open. So the writer ends a backup when the log has become
//! long, whether or not the client of the backup reads it, and the store ends it before it closes.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use rusqlite::Connection;
use taskyard_core::Error;

/// The place of the one backup that may run.
#[derive(Debug, Default)]
pub(crate) struct BackupSlot {
    state: Mutex<SlotState>,
    connection: Mutex<Option<Connection>>,
}

#[derive(Debug, Default)]
enum SlotState {
    #[default]
    Free,
    Running,
    /// The backup has to end, with this error.
    Ended(Error),
}

impl BackupSlot {
    /// Begins a backup; refuses a second one.
    pub fn claim(&self) -> Result<(), Error> {
        let mut state = lock(&self.state);
        match &*state {
            SlotState::Free => *state = SlotState::Running,
            SlotState::Ended(Error::ShuttingDown) => return Err(Error::ShuttingDown),
            SlotState::Running | SlotState::Ended(_) => {
                return Err(Error::Overloaded("another backup of this server is running"));
            }
        }
        Ok(())
    }

    /// Gives the backup its connection.
    pub fn connect(&self, db: Connection) -> Result<(), Error> {
        *lock(&self.connection) = Some(db);
        self.read(|_| ())
    }

    /// Reads through the connection, unless the backup was ended.
    pub fn read<T>(&self, read: impl FnOnce(&Connection) -> T) -> Result<T, Error> {
        let mut connection = lock(&self.connection);
        let found = match (&*connection, self.ended()) {
            (Some(db), None) => Ok(read(db)),
            (_, Some(why)) => Err(why),
            (None, None) => Err(Error::Store("the backup has ended".into())),
        };
        // It may have been ended meanwhile, and then nothing else closes the connection.
        match self.ended() {
            Some(why) => {
                *connection = None;
                Err(why)
            }
            None => found,
        }
    }

    /// Ends a running backup. Does not wait for its reads: those notice it.
    pub fn end(&self, why: Error) {
        let mut state = lock(&self.state);
        match &*state {
            SlotState::Running => *state = SlotState::Ended(why),
            // A read that was about to end then may have left the connection open.
            SlotState::Ended(_) => {}
            SlotState::Free => return,
        }
        drop(state);
        match self.connection.try_lock() {
            Ok(mut connection) => *connection = None,
            Err(TryLockError::Poisoned(poisoned)) => *poisoned.into_inner() = None,
            Err(TryLockError::WouldBlock) => {}
        }
    }

    /// Ends a running backup and begins none afterwards; waits for a read that is under way.
    pub fn close(&self) {
        *lock(&self.state) = SlotState::Ended(Error::ShuttingDown);
        *lock(&self.connection) = None;
    }

    /// Makes room for the next backup.
    pub fn release(&self) {
        *lock(&self.connection) = None;
        let mut state = lock(&self.state);
        if !matches!(*state, SlotState::Ended(Error::ShuttingDown)) {
            *state = SlotState::Free;
        }
    }

    fn ended(&self) -> Option<Error> {
        match &*lock(&self.state) {
            SlotState::Ended(why) => Some(why.clone()),
            SlotState::Free | SlotState::Running => None,
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A backup was ended in the moment in which a read of it had looked for that and not returned yet. Its connection stayed open as
    /// long as its client did not read, and the write-ahead log went on growing.
    #[test]
    fn a_connection_that_was_missed_is_closed_later() {
        let slot = BackupSlot::default();
        slot.claim().expect("it is free");
        slot.connect(Connection::open_in_memory().expect("a database")).expect("it runs");
        let read = lock(&slot.connection);
        slot.end(Error::Store("first".into()));
        assert!(read.is_some(), "the read has it");
        drop(read);
        slot.end(Error::Store("second".into()));
        assert!(lock(&slot.connection).is_none(), "it is closed");
        let why = slot.read(|_| ()).expect_err("it was ended").to_string();
        assert!(why.contains("first"), "{why}");
    }
}

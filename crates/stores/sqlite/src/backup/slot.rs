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
        if !matches!(*state, SlotState::Running) {
            return;
        }
        *state = SlotState::Ended(why);
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

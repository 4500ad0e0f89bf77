//! How commands take effect.

use crate::command::{Command, Reply};
use crate::effects::Effects;
use crate::error::{Error, Result};
use crate::time::Timestamp;

/// The rules at work: all tubes, tasks and sessions of one store, in memory.
#[derive(Debug, Default)]
pub struct Machine {}

impl Machine {
    /// Applies one command at the moment `now`.
    pub fn apply(&mut self, _now: Timestamp, _command: Command) -> Result<Reply> {
        Err(Error::ShuttingDown)
    }

    /// What happened since the last call that others may be waiting for.
    pub fn take_effects(&mut self) -> Effects {
        Effects::default()
    }
}

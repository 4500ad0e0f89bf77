//! Tasks in memory: as fast as it gets, gone with the process.

use std::future::ready;
use std::sync::{Mutex, PoisonError};

use taskyard_core::{Body, Command, Error, Machine, Timestamp};

use crate::{BodyKey, Capabilities, Executed, Pending, Store};

/// The machine itself, and nothing else.
#[derive(Debug, Default)]
pub struct MemoryStore {
    machine: Mutex<Machine>,
}

impl Store for MemoryStore {
    fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed> {
        let mut machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        let replies = commands.into_iter().map(|command| machine.apply(now, command)).collect();
        let effects = machine.take_effects();
        Box::pin(ready(Executed { replies, effects, unloaded: Vec::new() }))
    }

    fn load(&self, keys: Vec<BodyKey>) -> Pending<'_, Vec<Result<Option<Body>, Error>>> {
        Box::pin(ready(vec![Ok(None); keys.len()]))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { name: "memory", durable: false, shared: false }
    }

    fn close(&self) -> Pending<'_, Result<(), Error>> {
        Box::pin(ready(Ok(())))
    }
}

//! Stores tasks in memory; they are lost when the process ends.

use std::future::ready;
use std::sync::{Mutex, PoisonError};

use taskyard_core::{Body, Command, Error, Machine, Timestamp};

use crate::{BodyKey, Capabilities, Executed, Export, Exported, Import, Pending, Store, StoreTime};

/// The capabilities of `memory:` as the store of a process. No other process can reach its content, so it cannot be copied.
pub const CAPABILITIES: Capabilities = Capabilities {
    semaphores: true,
    gates: true,
    keys: true,
    retries: true,
    rates: true,
    schedules: true,
    instead_of_backup: Some("`serve --data DIR`, which stores tasks on disk"),
    wakes: "at once, by the server itself",
    loses: &[
        ("the server is killed or stopped", "everything"),
        ("the machine fails", "everything"),
        ("the disk fails", "nothing: there is none"),
    ],
    ..Capabilities::plain("memory")
};

/// The core's machine behind the [`Store`] trait.
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
        // Within its own process its content can be read and written.
        Capabilities { exports: true, imports: true, ..CAPABILITIES }
    }

    fn time(&self) -> Option<StoreTime> {
        let machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        Some(StoreTime { wall_ahead: machine.wall_ahead(), ..StoreTime::default() })
    }

    fn set_wall_ahead(&self, _now: Timestamp, micros: i64) -> Pending<'_, Result<(), Error>> {
        let mut machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        machine.set_wall_ahead(micros);
        Box::pin(ready(Ok(())))
    }

    fn export(&self, wanted: Export) -> Pending<'_, Result<Exported, Error>> {
        let machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        let exported = match wanted {
            Export::Tubes => Exported::Tubes(machine.export_tubes(), machine.next_lease()),
            Export::Tasks { tube, from, count, bytes } => {
                let mut tasks = machine.export_tasks(tube, from, count);
                let mut before = 0;
                tasks.retain(|task| {
                    let fits = before == 0 || before < bytes;
                    before += task.body_bytes as usize;
                    fits
                });
                Exported::Tasks(tasks)
            }
            Export::EndedKeys { tube, from, count } => {
                Exported::EndedKeys(machine.export_ended_keys(tube, from, count))
            }
            Export::Semaphores => Exported::Semaphores(machine.export_semaphores()),
            Export::Schedules => Exported::Schedules(machine.export_schedules()),
        };
        Box::pin(ready(Ok(exported)))
    }

    fn import(&self, now: Timestamp, part: Import) -> Pending<'_, Result<(), Error>> {
        let mut machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        let done = match part {
            Import::Tasks(tube, tasks) => machine.import_tasks(&tube, tasks),
            Import::EndedKeys(tube, keys) => machine.import_ended_keys(&tube, keys),
            Import::End(ending) => machine.end_import(now, ending),
        };
        Box::pin(ready(done))
    }

    fn close(&self) -> Pending<'_, Result<(), Error>> {
        Box::pin(ready(Ok(())))
    }
}

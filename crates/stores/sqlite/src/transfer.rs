//! Exports and imports the content of a folder.

use std::sync::Arc;

use taskyard_core::record::Record;
use taskyard_core::{Error, TaskId, Timestamp};

use super::State;
use super::codec::{self, RowError, TASK_COLUMNS, TASK_COLUMNS_COUNT};
use taskyard_store::{Export, Exported, Import};

impl State {
    pub fn export(&self, request: Export) -> Result<Exported, Error> {
        Ok(match request {
            Export::Tubes => {
                Exported::Tubes(self.machine.export_tubes(), self.machine.next_lease())
            }
            Export::Tasks { tube, from, count, bytes } => {
                let temporary =
                    self.machine.tube_by_number(tube).is_some_and(|tube| tube.1.temporary);
                Exported::Tasks(if temporary {
                    // Their tasks are not on disk.
                    self.machine.export_tasks(tube, from, count)
                } else {
                    self.writer.catch_up()?;
                    self.read_tasks(tube, from, count, bytes).map_err(as_error)?
                })
            }
            Export::EndedKeys { tube, from, count } => {
                Exported::EndedKeys(self.machine.export_ended_keys(tube, from, count))
            }
            Export::Schedules => Exported::Schedules(self.machine.export_schedules()),
            Export::Semaphores => Exported::Semaphores(self.machine.export_semaphores()),
        })
    }

    /// Reads the rows on disk, which are the state after a crash.
    fn read_tasks(
        &self,
        tube: u32,
        from: TaskId,
        count: usize,
        bytes: usize,
    ) -> Result<Vec<Record>, RowError> {
        let database = self.writer.database();
        let sql = format!(
            "SELECT {TASK_COLUMNS}, data_sum, meta, data FROM task WHERE key BETWEEN ? AND ? \
             ORDER BY key LIMIT ?"
        );
        let mut statement = database.db.prepare_cached(&sql)?;
        let last = codec::key_range(tube).1;
        let mut rows = statement.query((codec::key(tube, from), last, count as i64))?;
        let (mut records, mut size) = (Vec::new(), 0);
        while let Some(row) = rows.next()? {
            let (_, mut record) = codec::read_task(row)?;
            size += record.body_bytes as usize;
            let key = codec::key(tube, record.id);
            record.body = Some(codec::read_body(row, key, TASK_COLUMNS_COUNT)?);
            record.key = self.machine.held_key(tube, record.id).cloned().map(Arc::new);
            record.move_moments(self.machine.wall_ahead());
            records.push(record);
            if size >= bytes {
                break;
            }
        }
        Ok(records)
    }

    /// Imports a part as one batch: it is on disk as a whole, or undone.
    pub fn import(&mut self, now: Timestamp, part: Import) -> Result<(), Error> {
        self.machine.begin();
        let imported = match part {
            Import::Tasks(tube, records) => self.machine.import_tasks(&tube, records),
            Import::EndedKeys(tube, keys) => self.machine.import_ended_keys(&tube, keys),
            Import::End(ending) => self.machine.end_import(now, ending),
        };
        let committed = imported.and_then(|()| {
            let changes = self.machine.changes();
            let done = self.done_in_memory(&changes);
            Ok((self.commit(now, changes)?, done))
        });
        match committed {
            Ok((new, done)) => {
                self.machine.keep();
                self.spill(new, done);
                Ok(())
            }
            Err(error) => {
                self.machine.undo();
                Err(error)
            }
        }
    }
}

fn as_error(error: RowError) -> Error {
    match error {
        RowError::Sqlite(error) => Error::Store(error.to_string()),
        RowError::Damaged(what) => Error::Store(format!("the database is damaged: {what}")),
    }
}

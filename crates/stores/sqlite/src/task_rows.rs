//! Restores the tasks of a database: from its pages where that is possible, otherwise with a statement.

use rusqlite::Connection;
use taskyard_core::Machine;
use taskyard_core::record::Record;

use super::codec::{self, Head, RowError, TASK_COLUMNS};
use super::folder::{WITH_DONE, WITH_FAILURES, WITH_PRIORITIES};
use super::platform::PlatformFile;
use super::task_pages::{PageRow, TaskPages};

/// Where the rows are read.
#[derive(Clone, Copy)]
pub(super) enum TaskSource<'a> {
    /// In the open file of the database, which has everything.
    Pages(&'a dyn PlatformFile),
    /// In what the connection sees.
    Statement,
}

/// Restores the tasks; returns their counts, to be compared with the head row.
pub(super) fn read(
    db: &Connection,
    format: i64,
    source: TaskSource<'_>,
    machine: &mut Machine,
) -> Result<Head, RowError> {
    let mut restored = RestoredTasks { machine, found: Head::default(), last: None };
    let columns = columns_in(format);
    match source {
        TaskSource::Pages(file) => read_pages(db, &columns, file, &mut restored)?,
        TaskSource::Statement => {
            let sql = format!("SELECT {TASK_COLUMNS} FROM {columns} ORDER BY key");
            let mut statement = db.prepare(&sql)?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                restored.add(codec::read_task(row)?)?;
            }
        }
    }
    Ok(restored.found)
}

/// The table `task` with the columns that older formats lack.
fn columns_in(format: i64) -> String {
    let added = match format {
        ..WITH_PRIORITIES => ", NULL AS semaphore_priority, NULL AS failures, NULL AS finished",
        WITH_PRIORITIES..WITH_FAILURES => ", NULL AS failures, NULL AS finished",
        WITH_FAILURES..WITH_DONE => ", NULL AS finished",
        _ => "",
    };
    format!("(SELECT *{added} FROM task)")
}

fn read_pages(
    db: &Connection,
    columns: &str,
    file: &dyn PlatformFile,
    restored: &mut RestoredTasks<'_>,
) -> Result<(), RowError> {
    let unexpected = || RowError::Damaged("its pages are not as expected".into());
    let pages = TaskPages::new(db, file)?.ok_or_else(unexpected)?;
    let mut one = db.prepare(&format!("SELECT {TASK_COLUMNS} FROM {columns} WHERE key = ?"))?;
    let mut ended = Ok(());
    let read = pages.each(|row| {
        let decoded = match row {
            PageRow::Local(row) => row.decode(),
            PageRow::Other(key) => one
                .query_row([key], |row| Ok(codec::read_task(row)))
                .map_err(RowError::Sqlite)
                .flatten(),
        };
        ended = decoded.and_then(|task| restored.add(task));
        ended.is_ok().then_some(())
    });
    ended?;
    read.ok_or_else(unexpected)
}

/// The tasks that were restored so far.
struct RestoredTasks<'m> {
    machine: &'m mut Machine,
    found: Head,
    last: Option<i64>,
}

impl RestoredTasks<'_> {
    fn add(&mut self, (number, record): (u32, Record)) -> Result<(), RowError> {
        let id = record.id;
        let key = codec::key(number, id);
        // A damaged tree may refer to the same page repeatedly.
        if self.last.is_some_and(|last| last >= key) {
            return Err(RowError::Damaged("its tasks are out of order".into()));
        }
        self.last = Some(key);
        self.found.add(key);
        if !self.machine.restore_task(number, record) {
            let what = format!("task {id} cannot belong to tube number {number}");
            return Err(RowError::Damaged(what));
        }
        Ok(())
    }
}

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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;
    use std::sync::Arc;

    use taskyard_core::record::StoredState;
    use taskyard_core::{
        Body, Failure, Failures, Kind, Priority, Span, TaskId, Timestamp, TubeName, TubeOptions,
        TubeRecord,
    };
    use taskyard_store::OpenOptions;

    use super::super::folder::{self, MIGRATIONS, OpenFolder, database};
    use super::super::insert::TaskInsert;
    use super::super::platform::DataFolder;
    use super::*;

    const TASKS: u64 = 1_000;

    /// A task with any columns; many have pages of their own, so that the tree has interior pages below its root.
    fn task(id: u64, random: &mut fastrand::Rng) -> Record {
        let moment = |micros: u64| Timestamp::from_micros(1_700_000_000_000_000 + micros as i64);
        let sizes = [0, 1, 100, 3_900, 4_000, 4_100, 9_000];
        let payload = vec![b'p'; sizes[random.usize(..sizes.len())]];
        let meta = vec![b'm'; if random.u8(..4) == 0 { random.usize(..300) } else { 0 }];
        let body = Body::with_meta(&payload, &meta);
        let created = moment(id);
        let failure = Failure {
            at: created,
            attempt: 1,
            run: Span::from_secs(1),
            worker: None,
            error: "it failed".into(),
        };
        let states = [
            StoredState::Ready(created),
            StoredState::Ready(moment(5_000_000)),
            StoredState::Delayed(moment(9_000_000)),
            StoredState::Buried,
            StoredState::DeadLetter,
        ];
        let mut sometimes = || random.u8(..4) == 0;
        Record {
            id: TaskId(id),
            expires: if sometimes() { moment(1 << 50) } else { Timestamp::NEVER },
            ttr: if sometimes() { Span::from_secs(id) } else { Span::FOREVER },
            attempts: if sometimes() { 300 } else { 0 },
            previous_start: sometimes().then_some(created),
            subqueue: Some(Arc::from(if sometimes() {
                "long sub-queue".repeat(20)
            } else {
                "s".into()
            })),
            semaphore_priority: sometimes().then(|| {
                Priority::new(if id.is_multiple_of(2) { 7.0 } else { 0.1 })
                    .expect("a good priority")
            }),
            attempts_max: sometimes().then_some(9),
            failures: sometimes().then(|| Failures::with(None, &failure)),
            finished: None,
            key: None,
            state: states[random.usize(..states.len())],
            pri: if random.bool() { u64::MAX - id } else { id % 200 },
            created,
            body_bytes: body.bytes(),
            body: Some(body),
        }
    }

    /// A folder whose database has tasks of every kind, and is complete without the log.
    fn filled(path: &Path, random: &mut fastrand::Rng) -> Vec<Record> {
        let folder = DataFolder::of_system(path);
        let OpenFolder { db, mut writer_state, .. } =
            folder::open(&folder, &OpenOptions::default()).expect("the folder opens");
        let name = TubeName::new("mail").expect("a good name");
        let options = TubeOptions::new(Kind::UtubeTtl);
        let tube = TubeRecord { name, options, next_id: TASKS, bucket: None };
        codec::write_tube(&db, 0, &tube).expect("a row");
        let mut insert = TaskInsert::new(&db).expect("the statements");
        let tasks: Vec<Record> = (0..TASKS).map(|id| task(id, random)).collect();
        for record in &tasks {
            let key = codec::key(0, record.id);
            let body = record.body.as_ref().expect("a body");
            assert_eq!(insert.add(&(key, record, body)).expect("a row"), 1);
            writer_state.head.add(key);
        }
        drop(insert);
        writer_state.head.tubes = 1;
        writer_state.head.write(&db).expect("a row");
        db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).expect("a checkpoint");
        tasks
    }

    fn restored(db: &Connection, source: TaskSource<'_>) -> Result<(Head, Vec<Record>), RowError> {
        let mut machine = Machine::default();
        let name = TubeName::new("mail").expect("a good name");
        let options = TubeOptions::new(Kind::UtubeTtl);
        let tube = TubeRecord { name, options, next_id: TASKS, bucket: None };
        assert!(machine.restore_tube(0, tube));
        let found = read(db, MIGRATIONS.len() as i64, source, &mut machine)?;
        Ok((found, machine.export_tasks(0, TaskId(0), TASKS as usize)))
    }

    /// Both ways restore the tasks that were written.
    #[test]
    fn pages_have_the_rows_that_a_statement_reads() {
        let guard = tempfile::tempdir().expect("a folder");
        let mut tasks = filled(guard.path(), &mut fastrand::Rng::with_seed(3));
        tasks.iter_mut().for_each(|task| task.body = None);
        let db = Connection::open(database(guard.path())).expect("the database");
        let file = File::open(database(guard.path())).expect("the file");
        let (rows, by_statement) = restored(&db, TaskSource::Statement).expect("the rows");
        let (pages, by_pages) = restored(&db, TaskSource::Pages(&file)).expect("the pages");
        assert_eq!(rows.tasks, TASKS);
        assert_eq!(pages, rows);
        assert!(by_pages == by_statement && by_pages == tasks);
    }

    /// Whatever is in the pages: the tasks that are read are those that were written, if as many as the head row says.
    #[test]
    fn damaged_pages_give_no_other_tasks() {
        let guard = tempfile::tempdir().expect("a folder");
        let mut random = fastrand::Rng::with_seed(7);
        let mut tasks = filled(guard.path(), &mut random);
        tasks.iter_mut().for_each(|task| task.body = None);
        let db = Connection::open(database(guard.path())).expect("the database");
        let intact = std::fs::read(database(guard.path())).expect("the content");
        let copy = guard.path().join("damaged");
        let (expected, _) = restored(&db, TaskSource::Statement).expect("the rows");
        let mut refused = 0;
        for round in 0..30 {
            let mut bytes = intact.clone();
            for _ in 0..1 + round % 20 {
                // Mostly where the header and the cells of a page begin.
                let page = random.usize(1..bytes.len() / 4096) * 4096;
                let at =
                    page + if random.bool() { random.usize(..40) } else { random.usize(..4096) };
                bytes[at] = random.u8(..);
            }
            if round % 10 == 9 {
                bytes.truncate(random.usize(4096..bytes.len()));
            }
            std::fs::write(&copy, &bytes).expect("a damaged copy");
            let file = File::open(&copy).expect("the copy");
            match restored(&db, TaskSource::Pages(&file)) {
                Ok((found, read)) if found == expected => assert!(read == tasks, "round {round}"),
                _ => refused += 1,
            }
        }
        assert!(refused > 5, "{refused} of 30");
    }
}

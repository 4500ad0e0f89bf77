//! Makes a folder of a backup: in a folder beside it, which gets its name when everything in it was verified.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::types::ToSqlOutput;
use rusqlite::{Connection, params_from_iter};
use taskyard_store::OpenError;

use super::super::SqliteStore;
use super::super::codec::{Head, RowError};
use super::super::folder::{
    MIGRATIONS, create_draft_of, database, draft, restore_mark, row_error, sync_parent, unavailable,
};
use super::super::lock::FolderLock;
use super::super::modes::OURS;
use super::super::platform::{Access, DataFolder, SystemPlatform};
use super::super::seal::Seal;
use super::super::semaphores;
use super::format::BackupHeader;
use super::parser::{BackupBlock, BackupError, BackupParser, RowBlock};
use super::restore_lock::RestoreLock;

/// How much of the file is read at a time.
const READ_BYTES: usize = 256 << 10;
/// What the name of the folder in which a restore works ends with.
const WORK_SUFFIX: &str = ".restoring";
/// How many numbers of grants and events are skipped at least: those may have been given after the backup.
const NUMBERS_SKIPPED_MIN: u64 = 1_000_000;

/// Why a backup could not be restored. Unless it names what was left, nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The file is not an intact backup.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// The file cannot be read.
    #[error("it cannot be read: {0}")]
    Read(io::Error),
    /// The folder is used.
    #[error(
        "{folder} is not empty: it has {found}; restore into a new folder, and give that to `serve --data`"
    )]
    Used {
        /// The folder.
        folder: PathBuf,
        /// One of its files.
        found: String,
    },
    /// The tables have a format that this version does not know.
    #[error(
        "its tables have format {found}, this version knows up to {known}; use taskyard {} or a newer one",
        .program.escape_debug()
    )]
    SchemaTooNew {
        /// Their format.
        found: u32,
        /// The newest format that this version knows.
        known: u32,
        /// The version that made the backup.
        program: String,
    },
    /// Its rows do not make a store.
    #[error("its content is not that of a store: {0}")]
    Content(String),
    /// The path is not that of a folder.
    #[error("{0} cannot be the name of a folder")]
    Name(PathBuf),
    /// The folder cannot be written, or the store in it not be opened.
    #[error(transparent)]
    Folder(#[from] OpenError),
}

/// Called with the number of tasks that were read, and the number of all tasks.
pub type RestoreProgress<'a> = &'a mut dyn FnMut(u64, u64);

/// Verifies a backup and returns what it is of.
pub fn check(file: impl Read, progress: RestoreProgress<'_>) -> Result<BackupHeader, RestoreError> {
    each_block(file, progress, |_| Ok(()))
}

/// Restores a backup into a folder that does not exist yet or is empty; `now` is wall time in microseconds.
pub fn restore(
    file: impl Read,
    folder: &Path,
    now: i64,
    progress: RestoreProgress<'_>,
) -> Result<BackupHeader, RestoreError> {
    let data_folder = |path: &Path| DataFolder::new(path, Arc::new(SystemPlatform::default()));
    let target = data_folder(folder);
    let is_unfinished = || target.has(&restore_mark(&target));
    if !is_unfinished() {
        refuse_used(folder)?;
    }
    let work = data_folder(&work_folder(folder)?);
    refuse_mount_point(folder)?;
    let _lock = RestoreLock::take(&work)?;
    if is_unfinished() {
        remove(&target);
    }
    // Another restore may have ended meanwhile.
    refuse_used(folder)?;
    work.platform().make_private(&work)?;
    let lock = FolderLock::take(&work)?;
    let restored =
        empty(&work).and_then(|()| mark(&work)).and_then(|()| build(file, &work, now, progress));
    lock.release();
    let restored = restored.and_then(|header| {
        open_once(&work)?;
        publish(&work, &target)?;
        Ok(header)
    });
    if restored.is_err() {
        remove(&work);
    }
    restored
}

/// Refuses a folder with anything in it.
fn refuse_used(folder: &Path) -> Result<(), RestoreError> {
    let failed = unavailable(folder);
    let mut entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(&failed)?,
    };
    match entries.next().transpose().map_err(&failed)? {
        None => Ok(()),
        Some(entry) => {
            let found = entry.file_name().to_string_lossy().into_owned();
            Err(RestoreError::Used { folder: folder.to_owned(), found })
        }
    }
}

/// Refuses a folder on another file system than its parent: the restored folder could not get its name.
fn refuse_mount_point(folder: &Path) -> Result<(), RestoreError> {
    let Ok(about) = fs::metadata(folder) else { return Ok(()) };
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = fs::metadata(parent.unwrap_or(Path::new("."))).map_err(unavailable(folder))?;
    if about.dev() == parent.dev() {
        return Ok(());
    }
    let what = "it is a mount point; restore into a new folder in it".to_owned();
    Err(OpenError::Unavailable { folder: folder.to_owned(), what }.into())
}

/// The folder in which a restore works, beside its target: on the same file system.
fn work_folder(folder: &Path) -> Result<PathBuf, RestoreError> {
    let name = folder.file_name().ok_or_else(|| RestoreError::Name(folder.to_owned()))?;
    let mut name = name.to_owned();
    name.push(WORK_SUFFIX);
    Ok(folder.with_file_name(name))
}

/// Removes what an earlier restore left, but not its mark; refuses a folder with files of others.
fn empty(work: &DataFolder) -> Result<(), RestoreError> {
    let failed = unavailable(work);
    let mut ours = Vec::new();
    for entry in fs::read_dir(&**work).map_err(&failed)? {
        let name = entry.map_err(&failed)?.file_name().to_string_lossy().into_owned();
        if !name.starts_with(OURS) {
            return Err(RestoreError::Used { folder: work.to_path_buf(), found: name });
        }
        ours.push(name);
    }
    let is_kept = |path: &Path| path == restore_mark(work) || path.ends_with("taskyard.lock");
    let mut removed = ours.iter().map(|name| work.join(name)).filter(|path| !is_kept(path));
    let removed = removed.try_for_each(fs::remove_file);
    Ok(removed.map_err(&failed)?)
}

/// Keeps other programs from taking the folder for a store: without its database it looks like a new one.
fn mark(work: &DataFolder) -> Result<(), RestoreError> {
    let marked = work.platform().open(&restore_mark(work), Access::Create);
    Ok(marked.and_then(|_| work.sync()).map_err(unavailable(work))?)
}

/// Removes the folder of a restore that failed, as far as it belongs to it.
fn remove(work: &DataFolder) {
    // Another program may use it.
    let Ok(lock) = FolderLock::take(work) else { return };
    if empty(work).is_ok() {
        // What is left of it is removed by the next restore.
        _ = fs::remove_file(work.join("taskyard.lock"));
        _ = fs::remove_file(restore_mark(work));
        _ = fs::remove_dir(&**work);
    }
    lock.release();
}

/// Writes the files of the store.
fn build(
    file: impl Read,
    work: &DataFolder,
    now: i64,
    progress: RestoreProgress<'_>,
) -> Result<BackupHeader, RestoreError> {
    let mut builder = None;
    let header = each_block(file, progress, |block| match (block, &mut builder) {
        (BackupBlock::Header(header), none) => {
            *none = Some(DatabaseBuilder::create(work, &header)?);
            Ok(())
        }
        (BackupBlock::Table { name, columns }, Some(builder)) => builder.begin_table(name, columns),
        (BackupBlock::Rows(rows), Some(builder)) => builder.add(&rows),
        _ => Ok(()),
    })?;
    let builder = builder.ok_or_else(|| RestoreError::Content("it has no header".into()))?;
    let head = builder.finish(now, header.taken_at)?;
    work.rename(&draft(work), &database(work)).map_err(unavailable(work))?;
    Seal::open(work, head.batch).map_err(unavailable(work))?;
    Ok(header)
}

/// Reads the file to its end, which must be that of a backup.
fn each_block(
    mut file: impl Read,
    progress: RestoreProgress<'_>,
    mut add: impl FnMut(BackupBlock) -> Result<(), RestoreError>,
) -> Result<BackupHeader, RestoreError> {
    let mut parser = BackupParser::default();
    let mut bytes = vec![0; READ_BYTES];
    loop {
        let count = match file.read(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            count => count.map_err(RestoreError::Read)?,
        };
        if count == 0 {
            return Ok(parser.finish()?.clone());
        }
        parser.push(&bytes[..count]);
        while let Some(block) = parser.next_block()? {
            add(block)?;
            progress(parser.tasks(), parser.header().map_or(0, |header| header.tasks));
        }
    }
}

/// Fills a new database.
struct DatabaseBuilder<'a> {
    work: &'a DataFolder,
    db: Connection,
    /// The statement that inserts a row of the current table, and the number of its columns.
    insert: Option<(String, usize)>,
}

impl<'a> DatabaseBuilder<'a> {
    /// Creates the tables of the format of the backup; opening the store brings them to the newest one.
    fn create(work: &'a DataFolder, header: &BackupHeader) -> Result<Self, RestoreError> {
        let known = MIGRATIONS.len() as u32;
        let BackupHeader { schema: found, program, .. } = header;
        if *found > known {
            let (found, program) = (*found, program.clone());
            return Err(RestoreError::SchemaTooNew { found, known, program });
        }
        if *found == 0 {
            return Err(RestoreError::Content("the number of their format is 0".into()));
        }
        let db = create_draft_of(work, *found as usize)?;
        let builder = DatabaseBuilder { work, db, insert: None };
        let begin = || -> rusqlite::Result<()> {
            // A draft that a crash interrupts is removed.
            builder.db.pragma_update_and_check(None, "journal_mode", "off", |_| Ok(()))?;
            builder.db.pragma_update(None, "synchronous", "off")?;
            builder.db.execute_batch("BEGIN IMMEDIATE; DELETE FROM store")
        };
        builder.done(begin())?;
        Ok(builder)
    }

    fn begin_table(&mut self, name: String, columns: Vec<String>) -> Result<(), RestoreError> {
        let known = |found: rusqlite::Result<Vec<String>>| found.unwrap_or_default();
        let is_table = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?";
        let count = self.db.query_row(is_table, [&name], |row| row.get::<_, i64>(0));
        // The name is put into statements only if a table has it.
        let is_known = self.done(count)? == 1 && known(self.columns(&name)) == columns;
        if !is_known || columns.is_empty() {
            let what = format!("it has a table that its format does not have: {name:?}");
            return Err(RestoreError::Content(what));
        }
        let values = vec!["?"; columns.len()].join(",");
        let sql = format!("INSERT INTO \"{name}\" VALUES ({values})");
        self.insert = Some((sql, columns.len()));
        Ok(())
    }

    fn columns(&self, table: &str) -> rusqlite::Result<Vec<String>> {
        let statement = self.db.prepare(&format!("SELECT * FROM \"{table}\" LIMIT 0"))?;
        Ok(statement.column_names().map(Into::into).collect())
    }

    fn add(&mut self, rows: &RowBlock) -> Result<(), RestoreError> {
        let Some((sql, columns)) = &self.insert else {
            return Err(RestoreError::Content("it has rows of no table".into()));
        };
        let mut insert = self.done(self.db.prepare_cached(sql))?;
        rows.for_each(*columns, |row| {
            let values = row.iter().map(|value| ToSqlOutput::Borrowed(*value));
            let inserted = insert.execute(params_from_iter(values));
            self.done(inserted).map(|_| ())
        })
    }

    /// Completes the database. Numbers that consumers compare go on above all that were given after the backup.
    fn finish(self, now: i64, taken_at: i64) -> Result<Head, RestoreError> {
        // The clock may have been set back since the backup.
        let now = now.max(taken_at);
        // Fewer than one each microsecond are given, of leases, grants and events alike.
        let skipped = now.abs_diff(taken_at).max(NUMBERS_SKIPPED_MIN);
        let complete = || -> Result<Head, RowError> {
            let mut head = Head::read(&self.db)?;
            head.lease_ceiling = head.lease_ceiling.max(now.max(0) as u64);
            head.write(&self.db)?;
            semaphores::skip_numbers(&self.db, skipped)?;
            self.db.execute_batch("COMMIT")?;
            Ok(head)
        };
        complete().map_err(|error| self.failed(error))
    }

    fn done<T>(&self, result: rusqlite::Result<T>) -> Result<T, RestoreError> {
        result.map_err(|error| self.failed(error.into()))
    }

    fn failed(&self, error: RowError) -> RestoreError {
        content_error(row_error(self.work, error))
    }
}

/// Opens the store, which verifies its content, and closes it.
fn open_once(work: &DataFolder) -> Result<(), RestoreError> {
    let store = SqliteStore::open_restored(work).map_err(content_error)?;
    let closed = store.close_now();
    closed.map_err(|error| RestoreError::Content(error.to_string()))
}

/// What is damage of a folder elsewhere is a backup with invalid content here.
fn content_error(error: OpenError) -> RestoreError {
    match error {
        OpenError::Damaged { what, .. } => RestoreError::Content(what),
        other => RestoreError::Folder(other),
    }
}

/// Gives the folder its name. It loses its mark after that: no server opens it before, whenever this is killed.
fn publish(work: &DataFolder, folder: &DataFolder) -> Result<(), RestoreError> {
    work.sync().map_err(unavailable(work))?;
    // An empty folder is replaced; one that was used meanwhile is not.
    if let Err(error) = fs::rename(&**work, &**folder) {
        refuse_used(folder)?;
        let what = format!(
            "{} cannot be renamed to it: {error}; restore into a folder that does not exist yet",
            work.display()
        );
        return Err(OpenError::Unavailable { folder: folder.to_path_buf(), what }.into());
    }
    let finished = sync_parent(folder)
        .and_then(|()| folder.platform().remove(&restore_mark(folder)))
        .and_then(|()| folder.sync());
    Ok(finished.map_err(unavailable(folder))?)
}

#[cfg(test)]
mod tests {
    use rusqlite::types::ValueRef;

    use super::super::format::{BackupEncoder, RowBuffer};
    use super::*;

    fn header(schema: u32) -> BackupHeader {
        BackupHeader {
            program: "9.9.9".into(),
            store: "sqlite:/data".into(),
            taken_at: 0,
            schema,
            batch: 0,
            tubes: 0,
            tasks: 0,
        }
    }

    /// Restores a file with intact checksums and these tables, each with one row of numbers; returns the refusal.
    fn refusal(header: &BackupHeader, tables: &[(&str, &[&str])]) -> String {
        let mut encoder = BackupEncoder::new();
        let mut file = encoder.start(header);
        for (name, columns) in tables {
            let columns: Vec<String> = columns.iter().map(|column| (*column).into()).collect();
            file.extend(encoder.table(name, &columns));
            let mut rows = RowBuffer::default();
            columns.iter().for_each(|_| rows.add(ValueRef::Integer(1)));
            rows.count = 1;
            file.extend(encoder.rows(rows));
        }
        file.extend(encoder.end());
        check(&file[..], &mut |_, _| ()).expect("its checksums are right");
        let folder = tempfile::tempdir().expect("a folder");
        let refused = restore(&file[..], &folder.path().join("data"), 0, &mut |_, _| ());
        let left = fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(left, 0, "nothing is left");
        refused.expect_err("it is no store").to_string()
    }

    #[test]
    fn content_that_is_not_that_of_a_store_is_refused() {
        let known = MIGRATIONS.len() as u32;
        let too_new = refusal(&header(known + 1), &[]);
        assert!(too_new.contains("use taskyard 9.9.9 or a newer one"), "{too_new}");
        let no_head = refusal(&header(known), &[]);
        assert!(no_head.contains("its head row is missing"), "{no_head}");
        let bad_head = ["one", "batch", "lease_ceiling", "tubes", "tasks", "task_keys", "sum"];
        let damaged = refusal(&header(known), &[("store", &bad_head)]);
        assert!(damaged.contains("the checksum of its head row is wrong"), "{damaged}");
        for (table, columns) in [
            ("store\" VALUES (1); --", &["one"][..]),
            ("store", &["one"]),
            ("sqlite_schema", &["type", "name", "tbl_name", "rootpage", "sql"]),
            ("store", &[]),
        ] {
            let refused = refusal(&header(known), &[(table, columns)]);
            assert!(refused.contains("a table that its format does not have"), "{refused}");
        }
    }
}

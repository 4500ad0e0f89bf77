//! Rebuilds a damaged database from its intact rows, when the operator accepts the loss.
//!
//! The damaged files are only read, and kept under other names. They are read page by page, without SQLite:
//! it gives up where a tree is broken and refuses a truncated file, while each row has its own checksum.
//! `pages` reads the files, `log` decides which part of the log is valid, `tree` finds the pages with rows,
//! `cells` the rows in them, `verifier` decides which rows are intact.

mod cells;
mod log;
mod pages;
mod report;
#[cfg(test)]
mod tests;
mod tree;
mod verifier;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use taskyard_core::record::Record;
use taskyard_core::{Body, Kind, SemaphoreKey, TubeName, TubeOptions, TubeRecord};

use super::clock;
use super::codec::{self, Head, RowError};
use super::folder::{self, create_draft, database, draft, row_error, unavailable};
use super::generation;
use super::insert::TaskInsert;
use super::journal;
use super::keys::SalvagedKeys;
use super::pace::{PaceReport, SalvagedPace};
use super::platform::DataFolder;
use super::rows::{Batch, Rows};
use super::seal::{Seal, Sealed};
use super::semaphores::{SalvagedSemaphores, SemaphoreHead};
use taskyard_store::OpenError;

use cells::RowCell;
pub(super) use log::{FRAME as LOG_FRAME_BYTES, HEADER as LOG_HEADER_BYTES, salts as log_salts};
use pages::{Page, Pages};
pub(super) use report::Report;
use tree::{PageMarks, TreeWalk};
use verifier::RowVerifier;

/// How many numbers are skipped, because the ids and leases that lost commits used are unknown.
const SKIPPED_NUMBERS: u64 = 1 << 32;
/// The next id of a tube whose row is lost.
const UNKNOWN_NEXT_ID: u64 = 1 << 44;
/// The lease ceiling when the head row is lost: a number that JavaScript represents exactly.
const UNKNOWN_LEASE: u64 = 1 << 52;

/// The root page of each table: they were created in this order in an empty database.
const STORE_ROOT: u32 = 2;
const TUBE_ROOT: u32 = 3;
const TASK_ROOT: u32 = 4;

/// Creates a new database from every intact row, with the commit number `batch`, and replaces the damaged
/// one, which is kept.
pub(super) fn rebuild(
    folder: &DataFolder,
    batch: u64,
    sealed: &Sealed,
) -> Result<Report, OpenError> {
    let verifier = RowVerifier::new().map_err(|error| row_error(folder, error))?;
    let old = DamagedDatabase::open(folder, verifier).map_err(unavailable(folder))?;
    let new = create_draft(folder)?;
    let mut writer = SalvageWriter::new(&new, batch);
    writer.save(&old).map_err(|error| row_error(folder, error))?;
    let report = Report::new(&writer, &old, sealed);
    drop(new);
    folder.rename(&draft(folder), &rebuilt(folder)).map_err(unavailable(folder))?;
    tracing::debug!(steps = report.steps, "read the pages of a damaged database");
    tracing::warn!("{report}");
    finish(folder)?;
    Ok(report)
}

/// Replaces the damaged database by the rebuilt one. If a crash interrupts this, the next opening completes
/// it: only the last step removes the rebuilt file.
pub(super) fn finish(folder: &DataFolder) -> Result<(), OpenError> {
    let rebuilt = rebuilt(folder);
    if !folder.has(&rebuilt) {
        return Ok(());
    }
    let head = Connection::open(&rebuilt).map_err(RowError::from).and_then(|db| Head::read(&db));
    let batch = match head.map_err(|error| row_error(folder, error)) {
        Ok(head) => Some(head.batch),
        // Opening it reports the damage, once it is in place.
        Err(OpenError::Damaged { .. }) => None,
        Err(error) => return Err(error),
    };
    let replace = || {
        if let Some(batch) = batch {
            Seal::open(folder, batch)?;
        }
        let kept = keep_damaged_files(folder)?;
        if folder.has(&kept) {
            tracing::warn!(kept = %kept.display(), "kept the damaged database");
        }
        folder.rename(&rebuilt, &database(folder))
    };
    replace().map_err(unavailable(folder))
}

/// A finished database that will replace a damaged one.
fn rebuilt(folder: &Path) -> PathBuf {
    folder.join("taskyard.db.rebuilt")
}

/// Renames the files of a damaged database to names that are kept, and returns the new name of the database.
/// The log is renamed first, so that after a crash the database gets the name that belongs to its log.
fn keep_damaged_files(folder: &DataFolder) -> io::Result<PathBuf> {
    let (database, log) = (database(folder), folder::log(folder));
    let journals = journal::paths(folder).into_iter().zip(["-journal-1", "-journal-2"]);
    let kept_already = |name: &PathBuf, from: &PathBuf, suffix: &str| {
        folder.has(from) && folder.has(&with_suffix(name, suffix))
    };
    let taken = |name: &PathBuf| {
        folder.has(name)
            || kept_already(name, &log, "-wal")
            || journals.clone().any(|(from, suffix)| kept_already(name, &from, suffix))
    };
    let kept = (1..)
        .map(|number| folder.join(format!("taskyard.db.damaged-{number}")))
        .find(|name| !taken(name));
    let kept = kept.ok_or_else(|| io::Error::other("too many damaged databases are kept"))?;
    let journals = journals.map(|(from, suffix)| (from, with_suffix(&kept, suffix)));
    // The log and the journal must not be used with the new database.
    for (from, to) in journals.chain([(log, log_of(&kept)), (database, kept.clone())]) {
        if folder.has(&from) {
            folder.platform().rename(&from, &to)?;
        }
    }
    _ = folder.platform().remove(&folder.join("taskyard.db-shm"));
    // Synced before the new database is in place: it must never be used with the old log.
    folder.sync()?;
    Ok(kept)
}

fn log_of(database: &Path) -> PathBuf {
    with_suffix(database, "-wal")
}

fn with_suffix(database: &Path, suffix: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// A damaged database.
struct DamagedDatabase {
    pages: Pages,
    verifier: RowVerifier,
    head: Option<Head>,
    /// Intact batches of the journal that the database does not have.
    batches: Vec<Batch>,
}

impl DamagedDatabase {
    /// Opens the damaged files. A log whose end is lost may have been copied into the database completely:
    /// then its pages are older than those of the database, and the database without it has a later commit.
    fn open(folder: &DataFolder, verifier: RowVerifier) -> io::Result<DamagedDatabase> {
        let pages = Pages::open(&database(folder), &folder::log(folder))?;
        let alone = pages.without_log()?;
        let head = |pages: &Pages| {
            let page = pages.read(STORE_ROOT)?;
            cells::rows(&page).find_map(|row| verifier.head(&row))
        };
        let (with_log, without) = (head(&pages), head(&alone));
        let behind =
            with_log.zip(without).is_some_and(|(with, without)| with.batch < without.batch);
        let (pages, head) = if behind { (alone, without) } else { (pages, with_log) };
        let known = head.map_or(0, |head| head.batch);
        let batches = journal::read(folder)?.all_after(known).collect();
        Ok(DamagedDatabase { pages, verifier, head, batches })
    }
}

impl DamagedDatabase {
    /// Number of lost commits, if the newest one had the number `sealed` or that of a later batch in the
    /// journal.
    fn lost_commits(&self, sealed: u64) -> u64 {
        let last = self.batches.last().map_or(0, |batch| batch.head.batch);
        let known = self.head.map_or(0, |head| head.batch) + self.batches.len() as u64;
        sealed.max(last).saturating_sub(known)
    }
}

/// Reads the intact unique keys. Pages outside of the tree are read only if keys are missing and the free pages,
/// which have outdated keys, are known.
fn read_keys(old: &DamagedDatabase, marks: &mut PageMarks) -> SalvagedKeys {
    let mut keys = SalvagedKeys::default();
    let head = tree::root_of(&old.pages, "unique_key_head").and_then(|root| old.pages.read(root));
    if let Some(page) = head.filter(|page| page[0] == cells::LEAF) {
        let head = cells::rows(&page).find_map(|row| old.verifier.key_head(&row, &old.pages));
        keys.expected = head.map_or(0, |head| head.rows);
    }
    if let Some(root) = tree::root_of(&old.pages, "unique_key") {
        let mut walk = TreeWalk::new(&old.pages, marks, root);
        while let Some((page, _)) = walk.next_leaf() {
            add_keys(old, &page, &mut keys);
        }
    }
    if keys.is_incomplete() && marks.free_are_known {
        for page in marks.unreached(&old.pages) {
            add_keys(old, &page, &mut keys);
        }
    }
    keys
}

fn add_keys(old: &DamagedDatabase, page: &Page, keys: &mut SalvagedKeys) {
    let found = cells::rows(page).filter_map(|row| old.verifier.key(&row, &old.pages));
    found.for_each(|(key, record)| keys.add(key, record));
}

/// Reads the intact retry policies, rate limits and schedules from their trees.
fn read_pace(old: &DamagedDatabase, marks: &mut PageMarks) -> SalvagedPace {
    let mut pace = SalvagedPace::default();
    let [head, tubes, schedules] =
        tree::roots_of(&old.pages, ["pace_head", "tube_pace", "schedule"]);
    let head = head.and_then(|root| old.pages.read(root));
    if let Some(page) = head.filter(|page| page[0] == cells::LEAF) {
        pace.expected = cells::rows(&page).find_map(|row| old.verifier.pace_head(&row, &old.pages));
    }
    for root in [tubes, schedules].into_iter().flatten() {
        let mut walk = TreeWalk::new(&old.pages, marks, root);
        while let Some((page, _)) = walk.next_leaf() {
            add_pace(old, &page, &mut pace);
        }
    }
    pace
}

fn add_pace(old: &DamagedDatabase, page: &Page, pace: &mut SalvagedPace) {
    let found = cells::rows(page).filter_map(|row| old.verifier.pace(&row, &old.pages));
    found.for_each(|row| pace.add(row));
}

/// Fills a new database with intact rows.
struct SalvageWriter<'a> {
    new: &'a Connection,
    head: Head,
    tubes: BTreeMap<u32, (TubeName, Kind)>,
    /// Number of tasks from pages that may have been free.
    doubtful: u64,
    semaphores: SemaphoreHead,
    /// The semaphores that tubes refer to, and in the end those that are lost.
    gates: BTreeSet<SemaphoreKey>,
    /// Number of unique keys that are lost.
    lost_keys: u64,
    pace: PaceReport,
}

impl<'a> SalvageWriter<'a> {
    fn new(new: &'a Connection, batch: u64) -> Self {
        let head = Head { batch, ..Head::default() };
        let semaphores = SemaphoreHead::default();
        let (tubes, gates) = (BTreeMap::new(), BTreeSet::new());
        let pace = PaceReport::default();
        SalvageWriter { new, head, tubes, doubtful: 0, semaphores, gates, lost_keys: 0, pace }
    }

    fn save(&mut self, old: &DamagedDatabase) -> Result<(), RowError> {
        self.new.execute_batch("BEGIN IMMEDIATE")?;
        let ceiling = old.head.map(|head| head.lease_ceiling.saturating_add(SKIPPED_NUMBERS));
        self.head.lease_ceiling = ceiling.unwrap_or(UNKNOWN_LEASE);
        let mut marks = PageMarks::new(&old.pages);
        self.save_tubes(old, &mut marks)?;
        self.save_tasks(old, &mut marks)?;
        let mut keys = read_keys(old, &mut marks);
        let mut pace = read_pace(old, &mut marks);
        self.save_semaphores(old, &marks, &mut pace)?;
        self.save_journal(old)?;
        old.batches.iter().for_each(|batch| keys.apply(&batch.rows.keys));
        let expected = keys.expected;
        let saved = keys.write(self.new, |number| self.tubes.contains_key(&number))?;
        self.lost_keys = expected.saturating_sub(saved);
        self.save_pace(old, pace)?;
        self.head.tubes = self.tubes.len() as u64;
        self.head.write(self.new)?;
        self.new.execute_batch("COMMIT")?;
        Ok(())
    }

    fn save_tubes(&mut self, old: &DamagedDatabase, marks: &mut PageMarks) -> Result<(), RowError> {
        let mut walk = TreeWalk::new(&old.pages, marks, TUBE_ROOT);
        while let Some((page, _)) = walk.next_leaf() {
            self.save_tube_page(old, &page)?;
        }
        if old.head.is_some_and(|head| head.tubes == self.tubes.len() as u64) {
            return Ok(());
        }
        for page in marks.unreached(&old.pages) {
            self.save_tube_page(old, &page)?;
        }
        Ok(())
    }

    fn save_tube_page(&mut self, old: &DamagedDatabase, page: &Page) -> Result<(), RowError> {
        for row in cells::rows(page) {
            let Some((number, mut record)) = old.verifier.tube(&row, &old.pages) else { continue };
            record.next_id = record.next_id.saturating_add(SKIPPED_NUMBERS);
            self.add_tube(number, record)?;
        }
        Ok(())
    }

    /// Adds a tube, unless its number or name exists.
    fn add_tube(&mut self, number: u32, record: TubeRecord) -> Result<(), RowError> {
        let taken = self.tubes.values().any(|(name, _)| *name == record.name);
        if !taken && !self.tubes.contains_key(&number) && generation::fits(number) {
            codec::write_tube(self.new, number, &record)?;
            self.gates.extend(record.options.semaphore);
            self.tubes.insert(number, (record.name, record.options.kind));
        }
        Ok(())
    }

    /// Whether the task has a tube; a task whose tube is lost gets a new one named `recovered-…`.
    fn find_tube(&mut self, number: u32, task: &Record) -> Result<bool, RowError> {
        if !self.tubes.contains_key(&number) {
            let kind = if task.subqueue.is_some() { Kind::UtubeTtl } else { Kind::FifoTtl };
            let Ok(name) = TubeName::new(&format!("recovered-{number}")) else { return Ok(false) };
            let options = TubeOptions::new(kind);
            self.add_tube(
                number,
                TubeRecord { name, options, next_id: UNKNOWN_NEXT_ID, bucket: None },
            )?;
        }
        Ok(self.tubes.contains_key(&number))
    }

    /// Saves the tasks in the tree. If tasks are missing, pages outside of the tree are read too; if these
    /// may be free pages, only for keys that the tree has lost.
    fn save_tasks(&mut self, old: &DamagedDatabase, marks: &mut PageMarks) -> Result<(), RowError> {
        let mut walk = TreeWalk::new(&old.pages, marks, TASK_ROOT);
        while let Some((page, doubtful)) = walk.next_leaf() {
            for row in cells::rows(&page) {
                self.save_task(old, &row, doubtful)?;
            }
        }
        let gaps = walk.gaps();
        if old.head.is_some_and(|head| self.has_all_of(&head)) {
            return Ok(());
        }
        let doubtful = !marks.free_are_known;
        for page in marks.unreached(&old.pages) {
            for row in cells::rows(&page).filter(|row| !doubtful || gaps.contains(row.key)) {
                self.save_task(old, &row, doubtful)?;
            }
        }
        Ok(())
    }

    /// Saves retry policies, rate limits and schedules.
    fn save_pace(&mut self, old: &DamagedDatabase, mut pace: SalvagedPace) -> Result<(), RowError> {
        pace.count_lost();
        old.batches.iter().for_each(|batch| pace.apply(&batch.rows.pace));
        self.pace = pace.write(self.new, |number| self.tubes.contains_key(&number))?;
        Ok(())
    }

    /// Saves semaphores, their entries and events, and adds lost rows to `pace`. Their pages are those that belong to no other table: the
    /// root pages of these tables depend on the format in which the database was created.
    fn save_semaphores(
        &mut self,
        old: &DamagedDatabase,
        marks: &PageMarks,
        pace: &mut SalvagedPace,
    ) -> Result<(), RowError> {
        let mut found = SalvagedSemaphores::default();
        // Free pages have outdated rows.
        let add_lost_pace = pace.is_incomplete() && marks.free_are_known;
        let clock_in = |page: &Page| {
            cells::rows(page).filter_map(|row| old.verifier.clock(&row, &old.pages)).last()
        };
        let mut lost_clock = None;
        for page in marks.unreached(&old.pages) {
            let rows =
                cells::rows(&page).filter_map(|row| old.verifier.semaphores(&row, &old.pages));
            rows.for_each(|row| found.add(row));
            lost_clock = clock_in(&page).or(lost_clock);
            if add_lost_pace {
                add_pace(old, &page, pace);
            }
        }
        // Other pages may have an outdated row.
        let table = tree::root_of(&old.pages, "clock").and_then(|root| old.pages.read(root));
        let clock = table.filter(|page| page[0] == cells::LEAF).and_then(|page| clock_in(&page));
        if let Some(wall_ahead) = clock.or(lost_clock) {
            clock::write(self.new, wall_ahead)?;
        }
        let known = found.keys();
        self.gates.retain(|key| !known.contains(key));
        let gates = &mut self.gates;
        self.semaphores = found.write(self.new, |key| _ = gates.insert(key))?;
        Ok(())
    }

    /// Applies the intact batches of the journal.
    fn save_journal(&mut self, old: &DamagedDatabase) -> Result<(), RowError> {
        for Batch { head, rows } in &old.batches {
            let ceiling = head.lease_ceiling.saturating_add(SKIPPED_NUMBERS);
            self.head.lease_ceiling = self.head.lease_ceiling.max(ceiling);
            for (key, record) in &rows.inserts {
                let (number, _) = codec::split_key(*key);
                if let Some(body) = &record.body
                    && generation::fits(number)
                    && self.find_tube(number, record)?
                {
                    let record = self.adapt(number, record.clone());
                    self.add_task(*key, &record, body)?;
                }
            }
            for (key, record) in rows.updates.iter().filter(|row| self.has(row.0).unwrap_or(false))
            {
                let update = Rows { updates: vec![(*key, record.clone())], ..Rows::default() };
                update.update(self.new).map_err(folder::as_row_error)?;
            }
            for (key, record) in &rows.replaced {
                self.replace_task(*key, record)?;
            }
            for key in &rows.removed {
                if self.new.prepare_cached("DELETE FROM task WHERE key = ?")?.execute([key])? == 1 {
                    self.head.remove(*key);
                }
            }
        }
        Ok(())
    }

    /// Applies a batch of the journal that replaced a task; the task is complete there.
    fn replace_task(&mut self, key: i64, record: &Record) -> Result<(), RowError> {
        let (number, _) = codec::split_key(key);
        let Some(body) = &record.body else { return Ok(()) };
        if !generation::fits(number) || !self.find_tube(number, record)? {
            return Ok(());
        }
        let record = self.adapt(number, record.clone());
        if self.add_task(key, &record, body)? {
            return Ok(());
        }
        let rows = Rows { replaced: vec![(key, record)], ..Rows::default() };
        rows.replace(self.new).map_err(folder::as_row_error)
    }

    fn has_all_of(&self, head: &Head) -> bool {
        (self.head.tasks, self.head.task_keys) == (head.tasks, head.task_keys)
    }

    /// Saves a task, if it is intact.
    fn save_task(
        &mut self,
        old: &DamagedDatabase,
        row: &RowCell<'_>,
        doubtful: bool,
    ) -> Result<(), RowError> {
        // A task with overflow pages is not read twice.
        if !row.is_whole() && self.has(row.key)? {
            return Ok(());
        }
        let Some((number, record, body)) = old.verifier.task(row, &old.pages) else {
            return Ok(());
        };
        if self.find_tube(number, &record)? {
            let record = self.adapt(number, record);
            let added = self.add_task(row.key, &record, &body)?;
            self.doubtful += u64::from(added && doubtful);
        }
        Ok(())
    }

    /// Adapts a task to the kind of its tube.
    fn adapt(&self, number: u32, mut record: Record) -> Record {
        if self.tubes.get(&number).is_some_and(|(_, kind)| kind.has_subqueues()) {
            record.subqueue.get_or_insert_default();
        }
        record
    }

    fn has(&self, key: i64) -> Result<bool, RowError> {
        let sql = "SELECT 1 FROM task WHERE key = ?";
        Ok(self.new.prepare_cached(sql)?.exists([key])?)
    }

    /// Adds a task, unless its key exists.
    fn add_task(&mut self, key: i64, record: &Record, body: &Body) -> Result<bool, RowError> {
        let added = TaskInsert::new(self.new)?.add(&(key, record, body))? == 1;
        if added {
            self.head.add(key);
        }
        Ok(added)
    }
}

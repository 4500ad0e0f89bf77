//! What can be saved from a damaged database, when its owner accepts the loss.
//!
//! The damaged files are only read, and kept under other names. They are read page by page, without
//! SQLite: it gives up where a tree is broken and refuses a file that was cut, while each row of ours
//! tells by its own checksum whether it is whole. `pages` are the files, `log` says which part of the
//! log can be trusted, `tree` finds the pages with rows, `cells` the rows in them, `judge` says which
//! are as they were written.

mod cells;
mod judge;
mod log;
mod pages;
mod report;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io};

use rusqlite::Connection;
use taskyard_core::record::Record;
use taskyard_core::{Body, Kind, SemaphoreKey, TubeName, TubeOptions, TubeRecord};

use super::clock;
use super::codec::{self, Head, RowError};
use super::folder::{
    self, database, draft, draw_up, rename, row_error, seal_file, sync, unavailable,
};
use super::generation;
use super::insert::Insert;
use super::journal;
use super::rows::{Batch, Rows};
use super::seal::{Seal, Sealed};
use super::semaphores::{Rescued, SemaphoreHead};
use taskyard_store::OpenError;

use cells::Cell;
use judge::Judge;
use pages::{Page, Pages};
pub(super) use report::Report;
use tree::{Marks, Walk};

/// Which ids and leases the lost commits used is unknown: so many are left out.
const LEFT_OUT: u64 = 1 << 32;
/// Where ids go on in a tube of which nothing is known.
const UNKNOWN_NEXT_ID: u64 = 1 << 44;
/// Where leases go on when nothing is known of them: a number that JavaScript still has.
const UNKNOWN_LEASE: u64 = 1 << 52;

/// The first page of each table: they were made in this order in an empty database.
const STORE_ROOT: u32 = 2;
const TUBE_ROOT: u32 = 3;
const TASK_ROOT: u32 = 4;

/// Makes a new database of every row that is as it was written, as the commit number `batch`, and
/// puts it in the place of the damaged one, which is kept.
pub(super) fn rebuild(folder: &Path, batch: u64, sealed: &Sealed) -> Result<Report, OpenError> {
    let judge = Judge::new().map_err(|error| row_error(folder, error))?;
    let old = Old::open(folder, judge).map_err(unavailable(folder))?;
    let new = draw_up(folder)?;
    let mut rescue = Rescue::new(&new, batch);
    rescue.save(&old).map_err(|error| row_error(folder, error))?;
    let report = Report::new(&rescue, &old, sealed);
    drop(new);
    rename(&draft(folder), &rebuilt(folder)).map_err(unavailable(folder))?;
    tracing::debug!(steps = report.steps, "pages were read");
    tracing::warn!("{report}");
    finish(folder)?;
    Ok(report)
}

/// Puts a rebuilt database in the place of the damaged one. If a crash interrupts this, the next
/// opening does the rest: only the last step takes the rebuilt one away.
pub(super) fn finish(folder: &Path) -> Result<(), OpenError> {
    let rebuilt = rebuilt(folder);
    if !rebuilt.exists() {
        return Ok(());
    }
    let head = Connection::open(&rebuilt).map_err(RowError::from).and_then(|db| Head::read(&db));
    let batch = match head.map_err(|error| row_error(folder, error)) {
        Ok(head) => Some(head.batch),
        // It is found to be damaged like any other, once it has its place.
        Err(OpenError::Damaged { .. }) => None,
        Err(error) => return Err(error),
    };
    let replace = || {
        if let Some(batch) = batch {
            Seal::open(&seal_file(folder), batch)?;
        }
        let kept = set_aside(folder)?;
        if kept.exists() {
            tracing::warn!(kept = %kept.display(), "the damaged database is kept");
        }
        rename(&rebuilt, &database(folder))
    };
    replace().map_err(unavailable(folder))
}

/// A finished database that is to replace a damaged one.
fn rebuilt(folder: &Path) -> PathBuf {
    folder.join("taskyard.db.rebuilt")
}

/// Keeps the files of a database under other names, and tells the new name. The log goes first, so
/// that a database whose log has gone already finds the name that belongs to it.
fn set_aside(folder: &Path) -> io::Result<PathBuf> {
    let (database, log) = (database(folder), folder::log(folder));
    let journals = journal::paths(folder).into_iter().zip(["-journal-1", "-journal-2"]);
    let kept_already = |name: &PathBuf, from: &PathBuf, suffix: &str| {
        from.exists() && beside(name, suffix).exists()
    };
    let taken = |name: &PathBuf| {
        name.exists()
            || kept_already(name, &log, "-wal")
            || journals.clone().any(|(from, suffix)| kept_already(name, &from, suffix))
    };
    let kept = (1..)
        .map(|number| folder.join(format!("taskyard.db.damaged-{number}")))
        .find(|name| !taken(name));
    let kept = kept.ok_or_else(|| io::Error::other("too many damaged databases are kept"))?;
    let journals = journals.map(|(from, suffix)| (from, beside(&kept, suffix)));
    // What follows the database must not meet the new one.
    for (from, to) in journals.chain([(log, log_of(&kept)), (database, kept.clone())]) {
        if from.exists() {
            fs::rename(from, to)?;
        }
    }
    _ = fs::remove_file(folder.join("taskyard.db-shm"));
    // Before anything takes their place: a new database must never meet the old log.
    sync(folder)?;
    Ok(kept)
}

fn log_of(database: &Path) -> PathBuf {
    beside(database, "-wal")
}

fn beside(database: &Path, suffix: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// A damaged database.
struct Old {
    pages: Pages,
    judge: Judge,
    head: Option<Head>,
    /// What the journal has more, as far as it can be read.
    batches: Vec<Batch>,
}

impl Old {
    /// A log whose end is lost may have been copied into the database as a whole: then it would put
    /// old pages over new ones, and the database knows a later commit without it.
    fn open(folder: &Path, judge: Judge) -> io::Result<Old> {
        let pages = Pages::open(&database(folder), &folder::log(folder))?;
        let alone = pages.without_log()?;
        let head = |pages: &Pages| {
            let page = pages.read(STORE_ROOT)?;
            cells::rows(&page).find_map(|row| judge.head(&row))
        };
        let (with_log, without) = (head(&pages), head(&alone));
        let behind =
            with_log.zip(without).is_some_and(|(with, without)| with.batch < without.batch);
        let (pages, head) = if behind { (alone, without) } else { (pages, with_log) };
        let known = head.map_or(0, |head| head.batch);
        let batches = journal::read(folder)?.all_after(known).collect();
        Ok(Old { pages, judge, head, batches })
    }
}

impl Old {
    /// How many commits are gone, when the newest one had this number or a later one that was found.
    fn lost_commits(&self, sealed: u64) -> u64 {
        let last = self.batches.last().map_or(0, |batch| batch.head.batch);
        let known = self.head.map_or(0, |head| head.batch) + self.batches.len() as u64;
        sealed.max(last).saturating_sub(known)
    }
}

/// A new database that fills up.
struct Rescue<'a> {
    new: &'a Connection,
    head: Head,
    tubes: BTreeMap<u32, (TubeName, Kind)>,
    /// How many of the tasks come from pages that may have been free.
    doubtful: u64,
    semaphores: SemaphoreHead,
    /// The semaphores that tubes name, and in the end those that are lost.
    gates: BTreeSet<SemaphoreKey>,
}

impl<'a> Rescue<'a> {
    fn new(new: &'a Connection, batch: u64) -> Self {
        let head = Head { batch, ..Head::default() };
        let semaphores = SemaphoreHead::default();
        let (tubes, gates) = (BTreeMap::new(), BTreeSet::new());
        Rescue { new, head, tubes, doubtful: 0, semaphores, gates }
    }

    fn save(&mut self, old: &Old) -> Result<(), RowError> {
        self.new.execute_batch("BEGIN IMMEDIATE")?;
        let ceiling = old.head.map(|head| head.lease_ceiling.saturating_add(LEFT_OUT));
        self.head.lease_ceiling = ceiling.unwrap_or(UNKNOWN_LEASE);
        let mut marks = Marks::new(&old.pages);
        self.save_tubes(old, &mut marks)?;
        self.save_tasks(old, &mut marks)?;
        self.save_semaphores(old, &marks)?;
        self.save_journal(old)?;
        self.head.tubes = self.tubes.len() as u64;
        self.head.write(self.new)?;
        self.new.execute_batch("COMMIT")?;
        Ok(())
    }

    fn save_tubes(&mut self, old: &Old, marks: &mut Marks) -> Result<(), RowError> {
        let mut walk = Walk::new(&old.pages, marks, TUBE_ROOT);
        while let Some((page, _)) = walk.next_leaf() {
            self.save_tube_page(old, &page)?;
        }
        if old.head.is_some_and(|head| head.tubes == self.tubes.len() as u64) {
            return Ok(());
        }
        for page in marks.lost(&old.pages) {
            self.save_tube_page(old, &page)?;
        }
        Ok(())
    }

    fn save_tube_page(&mut self, old: &Old, page: &Page) -> Result<(), RowError> {
        for row in cells::rows(page) {
            let Some((number, mut record)) = old.judge.tube(&row, &old.pages) else { continue };
            record.next_id = record.next_id.saturating_add(LEFT_OUT);
            self.add_tube(number, record)?;
        }
        Ok(())
    }

    /// Adds a tube, unless there is one of that number or name.
    fn add_tube(&mut self, number: u32, record: TubeRecord) -> Result<(), RowError> {
        let taken = self.tubes.values().any(|(name, _)| *name == record.name);
        if !taken && !self.tubes.contains_key(&number) && generation::fits(number) {
            codec::write_tube(self.new, number, &record)?;
            self.gates.extend(record.options.semaphore);
            self.tubes.insert(number, (record.name, record.options.kind));
        }
        Ok(())
    }

    /// Whether the task has a tube to be in; those of a tube that is lost itself get one that says so.
    fn find_tube(&mut self, number: u32, task: &Record) -> Result<bool, RowError> {
        if !self.tubes.contains_key(&number) {
            let kind = if task.subqueue.is_some() { Kind::UtubeTtl } else { Kind::FifoTtl };
            let Ok(name) = TubeName::new(&format!("recovered-{number}")) else { return Ok(false) };
            let options = TubeOptions::new(kind);
            self.add_tube(number, TubeRecord { name, options, next_id: UNKNOWN_NEXT_ID })?;
        }
        Ok(self.tubes.contains_key(&number))
    }

    /// Saves what the tree leads to. If tasks are missing, pages that nothing leads to are looked at
    /// as well; when these may be free ones, only for keys that the tree has lost.
    fn save_tasks(&mut self, old: &Old, marks: &mut Marks) -> Result<(), RowError> {
        let mut walk = Walk::new(&old.pages, marks, TASK_ROOT);
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
        for page in marks.lost(&old.pages) {
            for row in cells::rows(&page).filter(|row| !doubtful || gaps.contains(row.key)) {
                self.save_task(old, &row, doubtful)?;
            }
        }
        Ok(())
    }

    /// Saves semaphores, who stands there and events. Their pages are those that belong to no other table: where a
    /// database of before there were semaphores got theirs is not known.
    fn save_semaphores(&mut self, old: &Old, marks: &Marks) -> Result<(), RowError> {
        let mut found = Rescued::default();
        let clock_in = |page: &Page| {
            cells::rows(page).filter_map(|row| old.judge.clock(&row, &old.pages)).last()
        };
        let mut lost_clock = None;
        for page in marks.lost(&old.pages) {
            let rows = cells::rows(&page).filter_map(|row| old.judge.semaphores(&row, &old.pages));
            rows.for_each(|row| found.add(row));
            lost_clock = clock_in(&page).or(lost_clock);
        }
        // Other pages may have a row of long ago.
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

    /// Does what the batches of the journal did, with what is there of it.
    fn save_journal(&mut self, old: &Old) -> Result<(), RowError> {
        for Batch { head, rows } in &old.batches {
            let ceiling = head.lease_ceiling.saturating_add(LEFT_OUT);
            self.head.lease_ceiling = self.head.lease_ceiling.max(ceiling);
            for (key, record) in &rows.inserts {
                let (number, _) = codec::split_key(*key);
                if let Some(body) = &record.body
                    && generation::fits(number)
                    && self.find_tube(number, record)?
                {
                    let record = self.fitting(number, record.clone());
                    self.add_task(*key, &record, body)?;
                }
            }
            for (key, record) in rows.updates.iter().filter(|row| self.has(row.0).unwrap_or(false))
            {
                let update = Rows { updates: vec![(*key, record.clone())], ..Rows::default() };
                update.update(self.new).map_err(folder::as_row_error)?;
            }
            for key in &rows.removed {
                if self.new.prepare_cached("DELETE FROM task WHERE key = ?")?.execute([key])? == 1 {
                    self.head.remove(*key);
                }
            }
        }
        Ok(())
    }

    fn has_all_of(&self, head: &Head) -> bool {
        (self.head.tasks, self.head.task_keys) == (head.tasks, head.task_keys)
    }

    /// Saves a task, if it is as it was written.
    fn save_task(&mut self, old: &Old, row: &Cell<'_>, doubtful: bool) -> Result<(), RowError> {
        // One that goes over many pages is not read twice.
        if !row.is_whole() && self.has(row.key)? {
            return Ok(());
        }
        let Some((number, record, body)) = old.judge.task(row, &old.pages) else {
            return Ok(());
        };
        if self.find_tube(number, &record)? {
            let record = self.fitting(number, record);
            let added = self.add_task(row.key, &record, &body)?;
            self.doubtful += u64::from(added && doubtful);
        }
        Ok(())
    }

    /// A task as its tube can have it.
    fn fitting(&self, number: u32, mut record: Record) -> Record {
        if self.tubes.get(&number).is_some_and(|(_, kind)| kind.has_subqueues()) {
            record.subqueue.get_or_insert_default();
        }
        record
    }

    fn has(&self, key: i64) -> Result<bool, RowError> {
        let sql = "SELECT 1 FROM task WHERE key = ?";
        Ok(self.new.prepare_cached(sql)?.exists([key])?)
    }

    /// Adds a task, unless there is one of that key.
    fn add_task(&mut self, key: i64, record: &Record, body: &Body) -> Result<bool, RowError> {
        let added = Insert::new(self.new)?.add(&(key, record, body))? == 1;
        if added {
            self.head.add(key);
        }
        Ok(added)
    }
}

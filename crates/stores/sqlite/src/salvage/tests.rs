//! Tests what is saved from databases that are damaged deliberately.

use std::collections::BTreeSet;
use std::fs;

use taskyard_core::record::StoredState;
use taskyard_core::{Failure, Failures, Priority, Span, TaskId, Timestamp};
use tempfile::TempDir;

use super::pages::PAGE;
use super::*;

/// A database with tasks in two tubes.
struct SampleDatabase {
    folder: TempDir,
    bytes: Vec<u8>,
}

impl SampleDatabase {
    /// `count` tasks, of which `deleted` were deleted again.
    fn new(count: u64, deleted: std::ops::Range<u64>) -> SampleDatabase {
        let folder = fast_folder();
        let db = create_draft(&DataFolder::of_system(folder.path())).expect("a database");
        db.execute_batch("BEGIN").expect("a transaction");
        let mut writer = SalvageWriter::new(&db, 7);
        for (number, name) in [(0, "mail"), (5, "far")] {
            let name = TubeName::new(name).expect("a good name");
            let options = TubeOptions::new(Kind::FifoTtl);
            writer
                .add_tube(number, TubeRecord { name, options, next_id: count, bucket: None })
                .expect("a tube");
        }
        for id in 0..count {
            let (key, record, body) = task(id);
            writer.add_task(key, &record, &body).expect("a task");
        }
        for id in deleted {
            let key = task(id).0;
            db.execute("DELETE FROM task WHERE key = ?", [key]).expect("a task less");
            writer.head.remove(key);
        }
        writer.head.tubes = 2;
        writer.head.write(&db).expect("the head");
        db.execute_batch("COMMIT").expect("the end");
        drop(db);
        let bytes = fs::read(draft(folder.path())).expect("the file");
        SampleDatabase { folder, bytes }
    }

    fn pages(&self) -> usize {
        self.bytes.len() / PAGE
    }

    fn page(&mut self, number: usize) -> &mut Page {
        (&mut self.bytes[(number - 1) * PAGE..number * PAGE]).try_into().expect("a page")
    }

    fn shown(&self, number: usize) -> &Page {
        self.bytes[(number - 1) * PAGE..number * PAGE].try_into().expect("a page")
    }

    /// The numbers of the pages that begin with this byte.
    fn pages_of(&self, kind: u8) -> Vec<usize> {
        (2..=self.pages()).filter(|number| self.bytes[(number - 1) * PAGE] == kind).collect()
    }

    /// Rebuilds the database from these bytes; returns the report and the keys of its tasks.
    fn salvage(&self) -> (Report, BTreeSet<i64>) {
        let path = self.folder.path();
        fs::write(database(path), &self.bytes).expect("a damaged file");
        let report =
            rebuild(&DataFolder::of_system(path), 8, &Sealed::Batch { newest: 7, in_database: 7 })
                .expect("the intact data is saved");
        let db = Connection::open(database(path)).expect("the new database");
        let sql = "SELECT key, data, semaphore_priority, failures FROM task";
        let mut statement = db.prepare(sql).expect("the tasks");
        let tasks =
            statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)));
        let tasks: Vec<TaskRow> =
            tasks.expect("the tasks").collect::<Result<_, _>>().expect("they can be read");
        for (key, data, own, failures) in &tasks {
            let (_, id) = codec::split_key(*key);
            let (wanted, record, body) = task(id.0);
            assert!(wanted == *key && body.payload() == data, "task {id}");
            assert_eq!(record.semaphore_priority.map(Priority::value), *own, "task {id}");
            let kept = record.failures.as_ref().map(Failures::as_bytes);
            assert_eq!(kept, failures.as_deref(), "task {id}");
        }
        let head = Head::read(&db).expect("the new head");
        assert_eq!((report.tasks, tasks.len() as u64), (head.tasks, head.tasks));
        fs::remove_file(path.join("taskyard.db.damaged-1")).expect("the damaged one was kept");
        (report, tasks.into_iter().map(|(key, ..)| key).collect())
    }

    /// The keys of the tasks in these pages.
    fn keys_in(&self, pages: impl IntoIterator<Item = usize>) -> BTreeSet<i64> {
        let pages = pages.into_iter().filter(|number| *number > 3).map(|number| self.shown(number));
        let leaves = pages.filter(|page| page[0] == LEAF);
        // SQLite's schema table has leaf pages too.
        let is_task = |row: &RowCell<'_>| row.has(TASK_COLUMNS);
        leaves.flat_map(|page| cells::rows(page).filter(is_task).map(|row| row.key)).collect()
    }
}

const LEAF: u8 = cells::LEAF;
/// Number of columns of a task.
const TASK_COLUMNS: usize = 17;

/// A folder in memory where the system has one: these tests do not concern the disk.
fn fast_folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder")
}

/// Key, payload, semaphore priority and failures of a stored task.
type TaskRow = (i64, Vec<u8>, Option<f64>, Option<Vec<u8>>);

/// Returns the same task for the same id: most are short, some have many overflow pages, with all lengths at
/// which SQLite needs one page more.
fn failures(id: u64) -> Failures {
    let error = format!("error {id}").into();
    let (at, run) = (Timestamp::from_micros(id as i64), Span::from_secs(1));
    Failures::with(None, &Failure { at, attempt: 1, run, worker: None, error })
}

/// See [`failures`] for those of every eleventh.
fn task(id: u64) -> (i64, Record, Body) {
    let long = match id % 100 {
        50 => 3900 + id as usize % 300,
        99 => 20_000 + id as usize,
        _ => 60,
    };
    let payload: Vec<u8> = (0..long).map(|place| (id as usize * 7 + place) as u8).collect();
    let plain = !id.is_multiple_of(3);
    let created = Timestamp::from_micros(1_700_000_000_000_000 + id as i64);
    let record = Record {
        key: None,
        id: TaskId(id),
        state: match id % 5 {
            0 => StoredState::Buried,
            1 => StoredState::Ready(created + Span::from_micros(9)),
            _ => StoredState::Ready(created),
        },
        pri: id % 4,
        created,
        expires: if plain { Timestamp::NEVER } else { Timestamp::from_micros(-3) },
        ttr: if plain { Span::FOREVER } else { Span::from_micros(1 << 40) },
        attempts: 0,
        previous_start: None,
        subqueue: None,
        semaphore_priority: id
            .is_multiple_of(7)
            .then(|| Priority::new(id as f64).expect("a number")),
        attempts_max: None,
        failures: id.is_multiple_of(11).then(|| failures(id)),
        finished: None,
        body_bytes: long as u32,
        body: None,
    };
    let tube = if id % 1000 < 500 { 0 } else { 5 };
    (codec::key(tube, TaskId(id)), record, Body::with_meta(&payload, b""))
}

#[test]
fn the_root_pages_are_those_of_the_tables() {
    let sample = SampleDatabase::new(0, 0..0);
    let db = Connection::open(draft(sample.folder.path())).expect("a database");
    for (table, root) in [("store", STORE_ROOT), ("tube", TUBE_ROOT), ("task", TASK_ROOT)] {
        let sql = "SELECT rootpage FROM sqlite_schema WHERE name = ?";
        assert_eq!(db.query_row(sql, [table], |row| row.get(0)), Ok(root), "{table}");
    }
    assert_eq!(db.pragma_query_value(None, "page_size", |row| row.get(0)), Ok(PAGE as i64));
}

#[test]
fn an_intact_database_is_saved_completely_and_each_page_is_read_about_once() {
    let sample = SampleDatabase::new(3000, 100..1200);
    let (report, saved) = sample.salvage();
    assert_eq!(saved.len(), 1900);
    // In addition to the pages: the schema again, to find the small tables.
    assert!(report.steps <= sample.pages() as u64 + 30, "{} pages, {report:?}", sample.pages());
    let expected = "saved 1900 tasks in 2 tubes; lost: 0 tasks";
    assert_eq!(report.to_string(), expected);
}

/// All children of an interior page were lost with it.
#[test]
fn children_of_an_unreadable_page_are_found() {
    let mut sample = SampleDatabase::new(20_000, 0..0);
    let interior = sample.pages_of(cells::INTERIOR);
    assert!(interior.len() > 2, "{interior:?}");
    for number in interior {
        sample.page(number).fill(0xFF);
    }
    let (report, saved) = sample.salvage();
    assert_eq!((saved.len(), report.lost, report.doubtful), (20_000, Some(0), 0));
}

/// An interior page that lost half of its children looks intact.
#[test]
fn children_that_an_interior_page_lost_are_found() {
    let mut sample = SampleDatabase::new(5000, 0..0);
    for number in sample.pages_of(cells::INTERIOR) {
        let page = sample.page(number);
        (page[3], page[4]) = (0, page[4] / 2);
    }
    let (report, _) = sample.salvage();
    assert_eq!((report.tasks, report.lost), (5000, Some(0)));
}

/// Rows of finished tasks stay in their pages until these are reused.
#[test]
fn finished_tasks_are_saved_only_with_a_warning() {
    let live = |keys: &BTreeSet<i64>| {
        keys.iter().filter(|key| !(2000..4000).contains(&codec::split_key(**key).1.0)).count()
    };
    let mut sample = SampleDatabase::new(6000, 2000..4000);
    sample.page(TASK_ROOT as usize).fill(0);
    let (report, saved) = sample.salvage();
    assert_eq!((saved.len(), live(&saved), report.doubtful), (4000, 4000, 0));
    // The same with a damaged list of free pages.
    sample.page(1)[36..40].fill(1);
    let (report, saved) = sample.salvage();
    assert_eq!(live(&saved), 4000);
    assert!(report.doubtful >= (saved.len() - 4000) as u64);
    assert!(report.to_string().contains("may have been finished before"), "{report}");
}

#[test]
fn the_report_counts_what_is_lost() {
    let mut sample = SampleDatabase::new(5000, 0..0);
    let leaf = sample.pages_of(LEAF)[40];
    let gone = sample.keys_in([leaf]).len() as u64;
    assert!(gone > 5);
    sample.page(leaf).fill(0);
    let (report, _) = sample.salvage();
    assert_eq!((report.lost, report.commits, report.doubtful), (Some(gone), Some(0), 0));
    sample.page(STORE_ROOT as usize).fill(0);
    let (report, _) = sample.salvage();
    assert_eq!((report.tasks, report.lost, report.commits), (5000 - gone, None, None));
    assert!(report.to_string().contains("lost: unknown"), "{report}");
}

#[test]
fn the_report_as_text() {
    let report = Report {
        tasks: 1,
        tubes: 2,
        lost: Some(3),
        commits: Some(4),
        doubtful: 5,
        semaphores: [0; 3],
        lost_semaphores: Vec::new(),
        lost_keys: 6,
        pace: PaceReport::default(),
        steps: 0,
    };
    assert_eq!(
        report.to_string(),
        "saved 1 task in 2 tubes; lost: 3 tasks, and all changes of the newest 4 commits; \
         5 of the saved tasks may have been finished before; \
         lost 6 unique keys, which a put can use again"
    );
    let report = Report { commits: None, doubtful: 0, lost_keys: 0, ..report };
    assert_eq!(
        report.to_string(),
        "saved 1 task in 2 tubes; lost: 3 tasks, and perhaps newer commits: the seal is lost"
    );
}

// The report did not mention a lost semaphore that a tube refers to.
#[test]
fn the_report_names_lost_semaphores() {
    let mut sample = SampleDatabase::new(10, 0..0);
    let path = draft(sample.folder.path());
    let db = Connection::open(&path).expect("a database");
    let semaphore = SemaphoreKey::new("yang").ok();
    let options = TubeOptions { semaphore, ..TubeOptions::new(Kind::FifoTtl) };
    let name = TubeName::new("mail").expect("a good name");
    codec::write_tube(&db, 0, &TubeRecord { name, options, next_id: 10, bucket: None })
        .expect("a tube");
    drop(db);
    sample.bytes = fs::read(path).expect("the file");
    let (report, tasks) = sample.salvage();
    assert_eq!(tasks.len(), 10);
    let text = report.to_string();
    assert!(text.ends_with("admit no task until they are configured again: yang"), "{text}");
}

/// The clock row was taken from any page outside of the trees, and the last one was used: after a salvage
/// delays counted from an outdated wall clock.
#[test]
fn the_clock_row_is_read_from_its_table() {
    let mut sample = SampleDatabase::new(10, 0..0);
    let path = draft(sample.folder.path());
    let set = |micros: i64| {
        let db = Connection::open(&path).expect("a database");
        clock::write(&db, micros).expect("a clock");
        let sql = "SELECT rootpage FROM sqlite_schema WHERE name = 'clock'";
        let root: u32 = db.query_row(sql, [], |row| row.get(0)).expect("a table");
        drop(db);
        (root as usize, fs::read(&path).expect("the file"))
    };
    let (root, before) = set(3);
    (_, sample.bytes) = set(5);
    sample.bytes.extend_from_slice(&before[(root - 1) * PAGE..root * PAGE]);
    let salvaged_clock = |sample: &SampleDatabase| {
        sample.salvage();
        let db = Connection::open(database(sample.folder.path())).expect("the new database");
        clock::read(&db).expect("a clock")
    };
    assert_eq!(salvaged_clock(&sample), 5);
    // Without the current row an outdated one is used.
    sample.page(root).fill(0);
    assert_eq!(salvaged_clock(&sample), 3);
}

/// The search behind each unreadable page did not terminate on some files. The work is limited for any
/// damage, and the tasks in intact pages are saved.
#[test]
fn the_work_is_limited_for_any_damage() {
    let seed = std::env::var("TASKYARD_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("repeat with TASKYARD_SEED={seed}");
    let sound = SampleDatabase::new(1200, 0..0);
    for seed in [18_354_447_673_342_534_212, seed] {
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..40 {
            let mut sample = SampleDatabase { folder: fast_folder(), bytes: sound.bytes.clone() };
            let mut touched = BTreeSet::new();
            for _ in 0..random.usize(1..6) {
                touched.extend(damage(&mut sample, &mut random));
            }
            let (report, saved) = sample.salvage();
            let limit = 64 + 8 * sample.pages() as u64;
            assert!(report.steps <= limit, "{} steps, {} pages", report.steps, sample.pages());
            // The first page has the list of free pages; without it not all tasks are saved.
            if touched.contains(&1) {
                continue;
            }
            // Long tasks have overflow pages that may be damaged.
            let whole = (4..=sample.pages()).filter(|number| !touched.contains(number));
            let mut whole = sound.keys_in(whole);
            whole.retain(|key| task(codec::split_key(*key).1.0).2.payload().len() < 100);
            assert!(saved.is_superset(&whole), "{:?}", whole.difference(&saved).next());
        }
    }
}

/// A long row has many overflow pages, and a damaged page may refer to the same row repeatedly: the work is
/// still limited, and a saved row is not read again.
#[test]
fn a_long_row_with_many_references_is_read_once() {
    for whole in [true, false] {
        let mut sample = SampleDatabase::new(2000, 0..0);
        // Offset and page of the row of a long task; before the offset there is space for many references.
        let leaves = sample.pages_of(LEAF).into_iter().skip(2);
        let long = leaves.flat_map(|number| {
            let page = sample.shown(number);
            let rows: Vec<bool> = cells::rows(page).map(|row| row.is_whole()).collect();
            let places = rows.into_iter().enumerate().filter(|(_, whole)| !whole);
            let at = |place| u16::from_be_bytes([page[8 + 2 * place], page[9 + 2 * place]]);
            places.map(|(place, _)| (at(place), number)).collect::<Vec<_>>()
        });
        let (at, number) = long.max().expect("a long task");
        let references = (usize::from(at) - 8) / 2;
        assert!(references > 1000, "{references}");
        let page = sample.page(number);
        page[3..5].copy_from_slice(&(references as u16).to_be_bytes());
        page[8..8 + 2 * references].as_chunks_mut().0.fill(at.to_be_bytes());
        for number in if whole { Vec::new() } else { sample.pages_of(0) } {
            sample.page(number)[100] ^= 1;
        }
        let (report, _) = sample.salvage();
        let limit = 64 + 8 * sample.pages() + if whole { 0 } else { references + sample.pages() };
        assert!(report.steps <= limit as u64, "{report:?}");
        assert_eq!(report.tasks > 1900, whole, "{report:?}");
    }
}

/// Damages the file at random; returns the numbers of the changed pages.
fn damage(sample: &mut SampleDatabase, random: &mut fastrand::Rng) -> Vec<usize> {
    let pages = sample.pages();
    let number = random.usize(1..=pages);
    // Interior pages are few, and damage there has the most effect.
    let interior = sample.pages_of(cells::INTERIOR);
    let number = if random.bool() { random.choice(interior).unwrap_or(number) } else { number };
    match random.u8(..6) {
        0 => {
            let bit = random.usize(..PAGE * 8);
            sample.page(number)[bit / 8] ^= 1 << (bit % 8);
        }
        1 => random.fill(sample.page(number)),
        2 => sample.page(number).fill(0),
        3 => {
            let other = sample.page(random.usize(1..=pages)).to_vec();
            sample.page(number).copy_from_slice(&other);
        }
        4 => {
            // A number of another page, where such numbers are: a part of the tree occurs twice.
            let at = random.usize(..PAGE / 4) * 4;
            let other = random.u32(1..=pages as u32).to_be_bytes();
            sample.page(number)[at..at + 4].copy_from_slice(&other);
        }
        _ => {
            let left = random.usize(pages / 2..=pages);
            sample.bytes.truncate(left.max(4) * PAGE - random.usize(..PAGE));
            let whole = sample.bytes.len() / PAGE;
            sample.bytes.truncate(whole * PAGE);
        }
    }
    vec![number]
}

//! Damages files: a store returns exactly the data that was written or reports the damage, and never makes it
//! worse by opening.

mod payload;
mod salvage;
mod sample;
mod trial;

use std::fs;
use std::path::Path;

use taskyard_conformance::random::runs;
use taskyard_core::{Body, Kind, NewTask, TubeOptions};
use taskyard_store::OpenError;

use crate::fixture::{
    FILES, TaskContent, close, content, copy, create, fast_folder, must, open, put, random,
    try_open,
};

use sample::{IDS, Sample};
use trial::Trial;

/// Number of bits flipped in each file of each sample; `TASKYARD_RUNS` multiplies it.
const FLIPS: usize = 8;
/// The distance between flipped bits of the seal; `TASKYARD_RUNS` divides it.
const SEAL_STEP: usize = 25;

#[test]
fn a_flipped_bit_in_a_store_that_was_closed() {
    flip_bits(&Sample::closed());
}

#[test]
fn a_flipped_bit_in_a_store_that_crashed() {
    flip_bits(&Sample::crashed());
}

/// Everything is in the database and in the log too: a log that ends early then hides newer pages by older
/// ones.
#[test]
fn a_flipped_bit_in_a_log_that_was_copied() {
    flip_bits(&Sample::copied());
}

/// The log was reset, and behind its new end there are old frames.
#[test]
fn a_flipped_bit_in_a_log_that_was_reset() {
    flip_bits(&Sample::log_reset());
}

/// The newest batches are not in the database yet.
#[test]
fn a_flipped_bit_in_a_journal() {
    flip_bits(&Sample::journaled());
}

/// A log that ends early hides newer pages by older ones, and the journal must not be applied to that.
#[test]
fn a_flipped_bit_in_a_log_that_was_copied_beside_a_journal() {
    flip_bits(&Sample::applied());
}

fn flip_bits(sample: &Sample) {
    let mut random = random();
    for file in FILES {
        let bytes = sample.read(file);
        for (turn, bit) in bits_to_flip(file, used(&bytes), &mut random).into_iter().enumerate() {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let trial = Trial::new(sample, file, format!("bit {bit} flipped"), Some(bytes));
            // The later steps take most of the time, so not every bit is tested that far.
            if turn % 4 == 0 { trial.run_further() } else { trial.run() }
        }
    }
}

/// Length of a file without the unused end.
fn used(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

/// Random bits, some of them where they have the most effect: at the beginning of the file and of its pages.
fn bits_to_flip(file: &str, length: usize, random: &mut fastrand::Rng) -> Vec<usize> {
    if length == 0 {
        return Vec::new();
    }
    if file == "taskyard.seal" {
        let step = (SEAL_STEP / runs()).max(1);
        return (random.usize(..step)..length * 8).step_by(step).collect();
    }
    let flips = FLIPS * runs();
    let anywhere = |random: &mut fastrand::Rng| random.usize(..length * 8);
    let mut bits: Vec<usize> = (0..flips).map(|_| anywhere(random)).collect();
    bits.extend((0..flips / 2).map(|_| random.usize(..length.min(100) * 8)));
    for _ in 0..flips {
        let page = anywhere(random) / 8 / 4096;
        bits.push((page * 4096 * 8 + random.usize(..24 * 8)).min(length * 8 - 1));
    }
    bits
}

#[test]
fn a_truncated_file() {
    truncate_files(&mut random(), 3, &[]);
}

/// The salvage did not terminate with this seed: it asked SQLite to continue behind each unreadable page,
/// without a limit.
#[test]
fn a_truncated_file_does_not_make_the_salvage_endless() {
    // At the border of a page or a frame, and an empty file.
    let borders = [0, 32, 100, 4096, 8192, 32 + 4120];
    truncate_files(&mut fastrand::Rng::with_seed(18_354_447_673_342_534_212), 5, &borders);
}

/// Truncates every file of every sample to so many random lengths, to these lengths, and by its last byte.
fn truncate_files(random: &mut fastrand::Rng, count: usize, borders: &[usize]) {
    for sample in samples() {
        for file in FILES {
            let bytes = sample.read(file);
            let mut lengths: Vec<usize> =
                (0..count).map(|_| random.usize(..=used(&bytes))).collect();
            lengths.extend_from_slice(borders);
            lengths.push(bytes.len().saturating_sub(1));
            for length in lengths.into_iter().filter(|length| *length < bytes.len()) {
                let bytes = Some(bytes[..length].to_vec());
                Trial::new(&sample, file, format!("truncated to {length}"), bytes).run_further();
            }
        }
    }
}

fn samples() -> [Sample; 5] {
    let journaled = Sample::journaled();
    [Sample::closed(), Sample::crashed(), Sample::copied(), Sample::log_reset(), journaled]
}

#[test]
fn a_file_that_was_removed() {
    for sample in samples() {
        for file in FILES {
            if !sample.read(file).is_empty() {
                Trial::new(&sample, file, "removed".into(), None).run_further();
            }
        }
    }
}

/// A refused opening emptied the log into the database, deleted it, or created an empty database in the place
/// of a missing one: data that was only misplaced was lost by opening.
#[test]
fn a_refused_opening_changes_nothing() {
    let sample = Sample::crashed();
    for (file, bytes) in [
        ("taskyard.db", None),
        ("taskyard.db", Some(Vec::new())),
        ("taskyard.seal", None),
        ("taskyard.seal", Some(b"not a seal".to_vec())),
    ] {
        let folder = fast_folder();
        let folder = copy(sample.folder(), folder.path().join("copy"));
        let trial = Trial::new(&sample, file, "replaced".into(), bytes);
        trial.damage(&folder);
        for _ in 0..2 {
            let refused = try_open(&folder, false).expect_err("the store is damaged");
            assert!(matches!(refused, OpenError::Damaged { .. }), "{file}: {refused}");
        }
        fs::copy(sample.folder().join(file), folder.join(file)).expect("the file is restored");
        assert_eq!(content(&open(&folder), IDS), Ok(sample.content.clone()), "{file} is restored");
    }
}

/// Tubes were not counted: one without tasks could vanish with its options and its next id.
#[test]
fn a_missing_tube_is_detected() {
    let sample = Sample::closed();
    for tube in ["quiet", "temporary"] {
        refused_after(&sample, &format!("DELETE FROM tube WHERE name = '{tube}'"));
    }
}

/// Only the rows were checked: a changed condition or type has an effect only when something is written,
/// perhaps much later.
#[test]
fn changed_table_definitions_are_refused() {
    let sample = Sample::closed();
    for (from, to) in
        [("CHECK (one = 1)", "CHECK (one = 0)"), ("kind            TEXT", "kind            UEXT")]
    {
        let change = format!("UPDATE sqlite_schema SET sql = replace(sql, '{from}', '{to}')");
        refused_after(&sample, &format!("PRAGMA writable_schema = on; {change}"));
    }
}

/// A wrong key in the interior pages of the tree hides rows from lookups by key, while a scan of all rows
/// still finds them: the payload of such a task was reported as removed.
#[test]
fn a_row_that_cannot_be_found_is_damage() {
    let sample = Sample::closed();
    let bytes = sample.read("taskyard.db");
    let page_bytes = usize::from(u16::from_be_bytes([bytes[16], bytes[17]]));
    let (mut hidden, pages) = (0, bytes.len() / page_bytes);
    // Interior pages of tables begin with a 5; their cells end with the largest key of the left child.
    for page in (1..pages).map(|page| page * page_bytes).filter(|page| bytes[*page] == 5) {
        let first_cell = usize::from(u16::from_be_bytes([bytes[page + 12], bytes[page + 13]]));
        for bit in 0..4 {
            let mut bytes = bytes.clone();
            bytes[page + first_cell + 5] ^= 1 << bit;
            let change = format!("a key of page {page} changed");
            Trial::new(&sample, "taskyard.db", change, Some(bytes)).run_further();
            hidden += 1;
        }
    }
    assert!(hidden > 0, "the tree has interior pages");
}

/// Opening with --accept-loss did not check the payloads, so a task with a damaged payload could neither be
/// read nor removed.
#[test]
fn a_task_with_a_damaged_payload_is_not_saved() {
    let sample = Sample::closed();
    let folder = fast_folder();
    let folder = copy(sample.folder(), folder.path().join("copy"));
    change_rows(&folder, "UPDATE task SET data = x'00' WHERE key = 700");
    assert!(content(&open(&folder), IDS).is_err(), "the payload is damaged");
    let store = try_open(&folder, true).expect("the intact data can be opened");
    let mut expected = sample.content.clone();
    assert!(expected.remove(&("mail".to_owned(), 700)).is_some());
    assert!(content(&store, IDS) == Ok(expected), "all but one task is left");
}

/// All tasks of a tube whose own row is damaged were lost.
#[test]
fn tasks_are_saved_without_their_tube() {
    let sample = Sample::closed();
    let folder = fast_folder();
    let folder = copy(sample.folder(), folder.path().join("copy"));
    change_rows(&folder, "UPDATE tube SET next_id = 5 WHERE name = 'mail'");
    let store = try_open(&folder, true).expect("the intact data can be opened");
    let found = content(&store, IDS).expect("the intact data can be read");
    let ids = |content: &TaskContent, tube: &str| -> Vec<u64> {
        content.keys().filter(|key| key.0 == tube).map(|key| key.1).collect()
    };
    assert_eq!(ids(&found, "recovered-0"), ids(&sample.content, "mail"));
    assert_eq!(ids(&found, "keys"), ids(&sample.content, "keys"));
}

/// A task without a sub-queue in a tube with sub-queues has a valid checksum: opening panicked.
#[test]
fn a_task_in_no_sub_queue_is_damage_and_can_be_saved() {
    let folder = fast_folder();
    let store = open(folder.path());
    must(&store, create("keys", TubeOptions::new(Kind::Utube)));
    let task = NewTask { subqueue: Some("".into()), ..NewTask::new(Body::new(b"task")) };
    must(&store, put("keys", vec![task]));
    close(store);
    // An empty name and no name have the same checksum.
    change_rows(folder.path(), "UPDATE task SET subqueue = NULL");
    let refused = try_open(folder.path(), false).expect_err("the task has no sub-queue");
    assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
    let store = try_open(folder.path(), true).expect("the intact data can be opened");
    assert_eq!(content(&store, 10).expect("and read").len(), 1);
}

/// Between the removal of the damaged database and the renaming of the new one there was none: after a crash
/// there the next opening failed because the database file was missing, and --accept-loss opened an empty
/// store.
#[test]
fn an_interrupted_salvage_is_completed() {
    let sample = Sample::crashed();
    let scratch = fast_folder();
    let damaged = |name: &str| {
        let folder = copy(sample.folder(), scratch.path().join(name));
        fs::write(folder.join("taskyard.seal"), b"not a seal").expect("the seal is damaged");
        folder
    };
    let whole = damaged("whole");
    let store = try_open(&whole, true).expect("the intact data can be opened");
    let saved = content(&store, IDS).expect("the intact data can be read");
    assert!(saved.len() > 1000, "{} tasks", saved.len());
    close(store);
    for steps in 0..3 {
        let folder = damaged(&format!("after {steps} steps"));
        fs::copy(whole.join("taskyard.db"), folder.join("taskyard.db.rebuilt")).expect("a copy");
        for (from, to) in [
            ("taskyard.db-wal", "taskyard.db.damaged-1-wal"),
            ("taskyard.db", "taskyard.db.damaged-1"),
        ][..steps]
            .iter()
        {
            fs::rename(folder.join(from), folder.join(to)).expect("a file that is kept");
        }
        let found = content(&open(&folder), IDS).expect("all can be read");
        assert!(found == saved, "after {steps} steps");
        for (file, kept) in [
            ("taskyard.db", "taskyard.db.damaged-1"),
            ("taskyard.db-wal", "taskyard.db.damaged-1-wal"),
        ] {
            let kept = fs::read(folder.join(kept)).expect("the damaged files are kept");
            assert!(kept == sample.read(file), "{file} after {steps} steps");
        }
        assert!(!folder.join("taskyard.db.rebuilt").exists());
    }
}

fn refused_after(sample: &Sample, sql: &str) {
    let folder = fast_folder();
    let folder = copy(sample.folder(), folder.path().join("copy"));
    change_rows(&folder, sql);
    let refused = try_open(&folder, false).expect_err(sql);
    assert!(matches!(refused, OpenError::Damaged { .. }), "{sql}: {refused}");
}

fn change_rows(folder: &Path, sql: &str) {
    let db = rusqlite::Connection::open(folder.join("taskyard.db")).expect("the database opens");
    db.execute_batch(sql).expect("the rows can be changed");
}

/// A log alone does not make a new folder: its database and its seal are missing.
#[test]
fn a_log_without_its_database_is_kept() {
    let sample = Sample::crashed();
    let folder = fast_folder();
    fs::write(folder.path().join("taskyard.db-wal"), sample.read("taskyard.db-wal"))
        .expect("the log alone");
    let refused = try_open(folder.path(), false).expect_err("the database is missing");
    assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
    assert!(same_file(&sample, folder.path(), "taskyard.db-wal"), "the log is unchanged");
}

fn same_file(sample: &Sample, folder: &Path, file: &str) -> bool {
    fs::read(folder.join(file)).is_ok_and(|bytes| bytes == sample.read(file))
}

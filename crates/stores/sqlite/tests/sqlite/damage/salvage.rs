//! Tests how much data `--accept-loss` saves.

use std::fs;
use std::path::Path;

use taskyard_core::{Body, Kind, NewTask, TubeOptions};
use taskyard_store::OpenError;

use crate::fixture::{
    TaskContent, close, content, copy, create, fast_folder, must, open, put, random, try_open,
};

use super::sample::{IDS, Sample};

/// Size of a page of SQLite.
const PAGE: usize = 4096;
/// Number of tasks in a store of equal tasks.
const TASKS: u64 = 8_000;
/// Maximum number of them in a page.
const IN_A_PAGE: u64 = 40;

/// The ids of equal tasks that are missing after `damage` to the database.
fn missing_after(damage: impl FnOnce(&mut Vec<u8>)) -> Vec<u64> {
    let folder = fast_folder();
    let store = open(folder.path());
    must(&store, create("q", TubeOptions::new(Kind::Fifo)));
    let task = NewTask::new(Body::new(&[0xC0; 100]));
    must(&store, put("q", vec![task; TASKS as usize]));
    close(store);
    change_file(folder.path(), "taskyard.db", damage);
    let refused = try_open(folder.path(), false).expect_err("it is damaged");
    assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
    let store = try_open(folder.path(), true).expect("the intact data can be opened");
    let saved = content(&store, TASKS).expect("and read");
    (0..TASKS).filter(|id| !saved.contains_key(&("q".to_owned(), *id))).collect()
}

fn change_file(folder: &Path, file: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let path = folder.join(file);
    let mut bytes = fs::read(&path).expect("the file can be read");
    change(&mut bytes);
    fs::write(path, bytes).expect("and written");
}

/// Two unreadable pages cost everything between them: the salvage read from both ends and stopped at each.
#[test]
fn tasks_between_two_unreadable_pages_are_saved() {
    let missing = missing_after(|bytes| {
        let pages = bytes.len() / PAGE;
        for page in [pages / 3, pages * 2 / 3] {
            bytes[page * PAGE..][..PAGE].fill(0xFF);
        }
    });
    let runs: Vec<&[u64]> = missing.chunk_by(|a, b| a + 1 == *b).collect();
    assert_eq!(runs.len(), 2, "{missing:?}");
    assert!(runs.iter().all(|run| run.len() as u64 <= IN_A_PAGE), "{missing:?}");
    assert!(runs[1][0] - runs[0][0] > TASKS / 4, "{missing:?}");
}

/// Nothing was saved of a truncated file: SQLite refuses a file that is shorter than its header says.
#[test]
fn the_tasks_of_a_truncated_file_are_saved() {
    for (tenths, pages_more) in [(5, 0), (5, 1), (9, 0), (1, 0)] {
        let (mut pages, mut kept) = (0, 0);
        let missing = missing_after(|bytes| {
            pages = (bytes.len() / PAGE) as u64;
            kept = pages * tenths / 10 + pages_more;
            bytes.truncate(kept as usize * PAGE + 77);
        });
        // Tasks are in the order of their ids, so the first part is complete. A few pages have none.
        let first = missing.first().copied().unwrap_or(TASKS);
        assert!(first >= (kept - 20) * TASKS / pages, "{first} tasks in {kept} of {pages} pages");
    }
}

/// The log is read without SQLite, with the same result.
#[test]
fn without_the_seal_everything_is_saved() {
    for sample in [Sample::closed(), Sample::crashed(), Sample::copied(), Sample::log_reset()] {
        let left = after_damage(&sample, "taskyard.seal", |bytes| bytes[0] ^= 1);
        assert!(left == sample.content, "{}: {}", sample.name, left.len());
    }
}

/// A damaged log hid newer pages by older ones: it had been copied completely, and its first part was still
/// used.
#[test]
fn a_damaged_log_that_was_copied_loses_nothing() {
    let (sample, mut random) = (Sample::copied(), random());
    for _ in 0..10 {
        let left = after_damage(&sample, "taskyard.db-wal", |bytes| {
            let bit = random.usize(32 * 8..bytes.len() * 2);
            bytes[bit / 8] ^= 1 << (bit % 8);
        });
        assert!(left == sample.content, "{} of {}", left.len(), sample.content.len());
    }
}

/// When the database was missing, the log was kept but nothing in it was saved.
#[test]
fn tasks_of_a_log_without_its_database_are_saved() {
    let sample = Sample::crashed();
    let folder = fast_folder();
    let folder = copy(sample.folder(), folder.path().join("copy"));
    fs::remove_file(folder.join("taskyard.db")).expect("the file can be removed");
    let store = try_open(&folder, true).expect("the intact data can be opened");
    let left = content(&store, IDS).expect("and read").len();
    assert!(left > 200, "{left} tasks");
}

/// Finished tasks stay in free pages, and must not be saved from there.
#[test]
fn finished_tasks_are_not_saved_when_an_interior_page_is_lost() {
    let sample = Sample::closed();
    let left = after_damage(&sample, "taskyard.db", |bytes| {
        let interior = (4 * PAGE..bytes.len()).step_by(PAGE).find(|page| bytes[*page] == 5);
        let page = interior.unwrap_or(3 * PAGE);
        bytes[page..page + PAGE].fill(0);
    });
    assert!(left == sample.content, "{} of {}", left.len(), sample.content.len());
}

/// The content that is saved of a sample after damage to one file.
fn after_damage(sample: &Sample, file: &str, damage: impl FnOnce(&mut Vec<u8>)) -> TaskContent {
    let folder = fast_folder();
    let folder = copy(sample.folder(), folder.path().join("copy"));
    change_file(&folder, file, damage);
    let store = try_open(&folder, true).expect("the intact data can be opened");
    content(&store, IDS).expect("and read")
}

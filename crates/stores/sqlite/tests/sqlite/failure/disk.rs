//! Tests a full disk: puts are refused, nothing is lost, and the store works again when there is space.

use std::fs;
use std::path::Path;
use std::process::Command as Process;

use taskyard_conformance::skipped::skip;
use taskyard_core::{Body, Error, Finish, Kind, NewTask, Reply, TubeOptions};
use taskyard_store_sqlite::SqliteStore;
use taskyard_store_sqlite::backup::restore;

use crate::fixture::{
    TaskContent, ask, close, content, create, finish, finish_now, must, open, open_without_journal,
    put_now, put_one, take_now,
};

/// Large, so that the log is also copied into the database while the disk is full.
const PAYLOAD_BYTES: usize = 64 << 10;

/// What tasks may use of the small disk.
const DISK_BYTES: usize = 40 << 20;
/// Room for a log that has filled the disk to be copied into the database. How much of it was copied before depends
/// on how fast the copying thread runs.
const LOG_BALLAST_BYTES: usize = DISK_BYTES + (8 << 20);

#[test]
fn a_full_disk_is_survived() {
    survive_full_disk(LOG_BALLAST_BYTES, |store| store.set_journal_bytes(0));
}

#[test]
fn a_disk_full_of_a_log_that_was_never_copied_is_survived() {
    survive_full_disk(LOG_BALLAST_BYTES, |store| {
        store.set_journal_bytes(0);
        store.set_checkpoint_pages(i32::MAX);
    });
}

/// Batches in the journal cannot be applied, and the journal cannot grow.
#[test]
fn a_full_disk_is_survived_by_the_journal() {
    // The batches of the journal need space in the log and in the database too.
    survive_full_disk(88 << 20, |_| {});
}

fn survive_full_disk(ballast_bytes: usize, prepare: impl FnOnce(&SqliteStore)) {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(disk) = SmallDisk::mount(folder.path(), DISK_BYTES + ballast_bytes) else {
        skip("no small disk can be mounted here (a_full_database_is_survived runs instead)");
        return;
    };
    let data = folder.path().join("data");
    let ballast = folder.path().join("ballast");
    // Space for the copy of the log into the database, which comes before new tasks.
    fs::write(&ballast, vec![1; ballast_bytes]).expect("the ballast fits");
    let store = open(&data);
    prepare(&store);
    let put = fill(&store);
    assert!(put > 100, "only {put} tasks fit");
    survive(store, &data, put, || fs::remove_file(&ballast).expect("the ballast can be removed"));
    drop(disk);
}

#[test]
fn a_full_database_is_survived() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_without_journal(folder.path());
    store.limit_pages(1000).expect("a limit can be set");
    let put = fill(&store);
    let remove_limit = |store: &SqliteStore| store.limit_pages(u32::MAX >> 1).expect("no limit");
    remove_limit(&store);
    store.limit_pages(1).expect("the limit is not lower than the used pages");
    assert!(ask(&store, put_one("mail", &[1; PAYLOAD_BYTES])).is_err(), "it is full");
    let found = content(&store, u64::from(put) + 10).expect("payloads can be read");
    assert_eq!(found.len() as u32, put);
    remove_limit(&store);
    finish_now(&store, "mail", &take_now(&store, "mail", 1)[0], Finish::Ack);
    put_now(&store, "mail", vec![new_task(put)]);
    close(store);
    assert_eq!(numbers(&open(folder.path()), put + 1), (1..=put).collect::<Vec<_>>());
}

fn new_task(number: u32) -> NewTask {
    let mut payload = vec![number as u8; PAYLOAD_BYTES];
    payload[..4].copy_from_slice(&number.to_le_bytes());
    NewTask::new(Body::new(&payload))
}

/// Puts tasks until the disk is full. Returns their number.
fn fill(store: &SqliteStore) -> u32 {
    must(store, create("mail", TubeOptions::new(Kind::FifoTtl)));
    fill_further(store, 0)
}

/// The same from this number on. Returns how many were added.
fn fill_further(store: &SqliteStore, first: u32) -> u32 {
    for number in first.. {
        match ask(store, crate::fixture::put("mail", vec![new_task(number)])) {
            Ok(_) => {}
            Err(Error::Store(what)) => {
                assert!(what.contains("the disk is full"), "unexpected message: {what}");
                return number - first;
            }
            Err(other) => panic!("an unexpected refusal: {other}"),
        }
    }
    unreachable!("the disk has an end")
}

fn survive(store: SqliteStore, data: &Path, mut put: u32, free_space: impl FnOnce()) {
    // The disk is full except for the space that a copy of the log frees: the store can be read, and tasks
    // can be taken.
    for _ in 0..3 {
        put += fill_further(&store, put);
    }
    let taken = take_now(&store, "mail", 5);
    assert_eq!(taken.len(), 5, "a take needs no disk");
    assert_eq!(numbers(&store, put), (0..put).collect::<Vec<_>>());
    let ack = ask(&store, finish("mail", &taken[0], Finish::Ack));
    let acked = matches!(ack, Ok(Reply::Finished(_)));
    assert!(acked || matches!(ack, Err(Error::Store(_))), "{ack:?}");
    drop(store);
    // If the store opens on the full disk, everything is there.
    let first = u32::from(acked);
    if let Ok(store) = crate::fixture::try_open(data, false) {
        assert_eq!(numbers(&store, put), (first..put).collect::<Vec<_>>());
    }
    free_space();
    let store = open(data);
    assert_eq!(numbers(&store, put), (first..put).collect::<Vec<_>>());
    let count = 10;
    for task in take_now(&store, "mail", count) {
        finish_now(&store, "mail", &task, Finish::Ack);
    }
    put_now(&store, "mail", vec![new_task(put)]);
    close(store);
    let left: Vec<u32> = (first + count as u32..=put).collect();
    assert_eq!(numbers(&open(data), put + 1), left);
}

/// The mount point of an empty disk was refused only after everything had been restored, because it cannot be renamed.
#[test]
fn a_mount_point_is_refused_before_the_restore() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().join("data");
    fs::create_dir(&target).expect("a folder");
    let Some(_disk) = SmallDisk::mount(&target, 1 << 20) else { return };
    let refused = restore(&b"never read"[..], &target, 0, &mut |_, _| ());
    let refused = refused.expect_err("it cannot be renamed").to_string();
    assert!(refused.contains("it is a mount point"), "{refused}");
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing else is there");
}

/// The numbers of all tasks; checks their payloads.
fn numbers(store: &SqliteStore, put: u32) -> Vec<u32> {
    let found: TaskContent = content(store, u64::from(put) + 100).expect("payloads can be read");
    let number = |body: &Body| {
        let number = u32::from_le_bytes(body.payload()[..4].try_into().expect("four bytes"));
        assert!(*body == new_task(number).body, "another payload");
        number
    };
    found.values().map(|task| number(task.body.as_ref().expect("a payload"))).collect()
}

/// A file system in memory, of a given size.
struct SmallDisk<'a>(&'a Path);

impl SmallDisk<'_> {
    /// `None` if the test lacks the permission.
    fn mount(at: &Path, bytes: usize) -> Option<SmallDisk<'_>> {
        let size = format!("size={bytes}");
        let mount =
            Process::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at).output();
        mount.is_ok_and(|output| output.status.success()).then_some(SmallDisk(at))
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        _ = Process::new("umount").arg(self.0).output();
    }
}

//! Runs batches that follow from a seed in a process of its own, and kills it at a random time.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command as Program, Stdio};

use fastrand::Rng;
use taskyard_conformance::block_on;
use taskyard_core::{Command, Timestamp};
use taskyard_store::Store;

use crate::fixture::open;

const FOLDER: &str = "TASKYARD_CHILD_FOLDER";
const SEED: &str = "TASKYARD_CHILD_SEED";
/// What a child prints after each batch.
const ANSWERED: &str = "answered";

/// In the child: runs batch after batch and prints a line after each reply. Returns at once in any other process.
pub fn run(script: impl FnOnce(u64) -> Box<dyn FnMut() -> (Timestamp, Vec<Command>)>) {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let seed = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok()).expect("a seed");
    let (store, mut next) = (open(&folder), script(seed));
    for _ in 0..100_000 {
        let (now, batch) = next();
        block_on(store.execute(now, batch));
        let mut out = std::io::stdout().lock();
        if writeln!(out, "\n{ANSWERED}").and_then(|()| out.flush()).is_err() {
            return;
        }
    }
}

/// Starts the test of this name as a child and kills it after up to so many batches; returns how many had a reply.
pub fn answered_until_killed(
    test: &str,
    folder: &Path,
    seed: u64,
    rng: &mut Rng,
    batches_max: usize,
) -> usize {
    let (wanted, spins) = (rng.usize(1..batches_max), rng.u32(0..200_000));
    let mut child = Program::new(std::env::current_exe().expect("this executable"))
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(FOLDER, folder)
        .env(SEED, seed.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the child starts");
    let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    let mut count = 0;
    let mut next = || lines.next().map(|line| line.expect("it is text") == ANSWERED);
    while count < wanted {
        count += usize::from(next().expect("the child works on"));
    }
    for _ in 0..spins {
        std::hint::spin_loop();
    }
    child.kill().expect("it can be killed");
    while let Some(answered) = next() {
        count += usize::from(answered);
    }
    child.wait().expect("the child is gone");
    count
}

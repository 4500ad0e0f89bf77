//! Kills a process at random times, repeatedly on the same folder.
//!
//! The child runs random batches; it prints each batch before it runs and the reply of the store afterwards.
//! Batches with a reply must be on disk afterwards; the last batch, if it has no reply, is there as a whole
//! or not at all.

mod child;
mod model;
mod script;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use model::Model;
use script::Line;
use taskyard_conformance::random::runs;

use crate::fixture::{close, open, random, tubes};

/// Number of kills on one folder; `TASKYARD_RUNS` multiplies it.
const KILLS: usize = 60;

#[test]
fn acknowledged_batches_survive_a_kill() {
    let mut random = random();
    let folder = tempfile::tempdir().expect("a folder");
    let mut model = Model::default();
    for round in 0..KILLS * runs() {
        let kill = Kill { lines_max: 80, spins_max: 200_000 };
        let lines = lines_until_killed(folder.path(), &mut random, kill);
        println!("round {round}: {} lines", lines.len());
        model.read(&lines);
        let store = open(folder.path());
        model.compare(&store);
        // Sometimes the log is emptied, sometimes it continues to grow.
        if random.u8(..4) == 0 {
            close(store);
        }
    }
    assert!(model.batches() > KILLS, "the children did some work");
}

#[test]
fn a_folder_whose_creation_was_killed_can_be_opened() {
    let mut random = random();
    for _ in 0..30 * runs() {
        let folder = tempfile::tempdir().expect("a folder");
        let kill = Kill { lines_max: 1, spins_max: 2_000_000 };
        let lines = lines_until_killed(folder.path(), &mut random, kill);
        let mut model = Model::default();
        model.read(&lines);
        let store = open(folder.path());
        if !tubes(&store).is_empty() {
            model.compare(&store);
        }
    }
}

/// When a child is killed: at a random time up to these limits.
struct Kill {
    lines_max: usize,
    /// After the last of these lines, so that it happens anywhere within the next commit.
    spins_max: u32,
}

/// Starts a child, kills it at a random time and returns all lines that it printed.
fn lines_until_killed(folder: &Path, random: &mut fastrand::Rng, kill: Kill) -> Vec<Line> {
    let (mut child, output) = start(folder, random.u64(..));
    let mut output = BufReader::new(output);
    let mut lines = Vec::new();
    let wanted = random.usize(1..=kill.lines_max);
    while lines.len() < wanted {
        match read_line(&mut output) {
            Some(line) => lines.extend(line),
            None => panic!("the child ended without a kill after {} lines", lines.len()),
        }
    }
    for _ in 0..random.u32(..kill.spins_max) {
        std::hint::spin_loop();
    }
    child.kill().expect("the child can be killed");
    while let Some(line) = read_line(&mut output) {
        lines.extend(line);
    }
    child.wait().expect("the child is gone");
    lines
}

fn start(folder: &Path, seed: u64) -> (Child, ChildStdout) {
    let mut child = Command::new(std::env::current_exe().expect("this executable"))
        .args(["crash::child::child", "--exact", "--nocapture", "--test-threads=1"])
        .env(child::FOLDER, folder)
        .env(child::SEED, seed.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the child starts");
    let output = child.stdout.take().expect("its output is piped");
    (child, output)
}

/// The next line: `Some(None)` is a line of the test harness, `None` is the end. A line that the kill cut off
/// does not count.
fn read_line(output: &mut BufReader<ChildStdout>) -> Option<Option<Line>> {
    let mut text = String::new();
    output.read_line(&mut text).expect("the child's output is text");
    let whole = text.strip_suffix('\n')?;
    Some(Line::parse(whole))
}

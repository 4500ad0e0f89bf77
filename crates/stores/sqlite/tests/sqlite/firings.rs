//! A schedule fires while its process ends or its disk fails: no time fires twice, and none is missed.
//!
//! What the embedded store does of a firing is one record of its journal, or one commit of its database. The record is cut at each byte,
//! as by a power failure, and the commit fails at each step. Then another process goes on.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use taskyard_core::{
    Body, CatchUp, Command, Execute, Kind, NewTask, Overlap, Reply, ScheduleCommand, ScheduleName,
    ScheduleReply, StoredSchedule, Timestamp, TubeOptions,
};
use taskyard_engine::{Engine, ManualClock, Settings};
use taskyard_store_sqlite::{Fault, SqliteStore};

use crate::fixture::{FILES, NOW, block_on, copy, create, fast_folder, must, name, open};

/// How many times are due when the server starts.
const DUE: u64 = 3;
const PERIOD: i64 = 3_600_000_000;

/// A schedule, and whether its task is put once by hand instead of at its times.
#[derive(Clone, Copy, Debug)]
struct FiringCase {
    catch_up: CatchUp,
    overlap: Overlap,
    runs_now: bool,
}

/// What has come of the times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Outcome {
    next: Option<Timestamp>,
    tasks: u64,
    fired: u64,
    skipped: u64,
}

fn moment(time: u64) -> Timestamp {
    NOW.moved(PERIOD * time as i64)
}

fn job() -> ScheduleName {
    ScheduleName::new("job").expect("a good name")
}

fn get() -> Command {
    Command::Schedule(Box::new(ScheduleCommand::Get { name: job() }))
}

fn shown(reply: Reply) -> StoredSchedule {
    match reply {
        Reply::Schedule(ScheduleReply::Schedules(mut found)) => found.remove(0),
        other => panic!("a schedule was expected, not {other:?}"),
    }
}

impl FiringCase {
    const ALL: Self =
        FiringCase { catch_up: CatchUp::All, overlap: Overlap::Allow, runs_now: false };

    /// A store with the tube and the schedule. Its batches stay in the journal, or are committed at once.
    fn store(self, folder: &Path, has_journal: bool) -> SqliteStore {
        let store = open(folder);
        if has_journal {
            store.set_journal_delay(Duration::MAX);
        } else {
            store.set_journal_bytes(0);
        }
        must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
        let schedule = StoredSchedule {
            name: job(),
            tube: name("mail"),
            template: NewTask::new(Body::new(&[0xc0])),
            timing: "every 3600 start 1700000000".into(),
            catch_up: self.catch_up,
            overlap: self.overlap,
            until: None,
            paused: false,
            next: Some(moment(1)),
            last: None,
            fired: 0,
            skipped: 0,
        };
        let set = ScheduleCommand::Set { schedule, only_new: true, keep_paused: false };
        must(&store, Command::Schedule(Box::new(set)));
        store.catch_up().expect("the database can be written");
        store
    }

    /// What all times add that are due, with this many tasks that were put by hand.
    fn fired(self, by_hand: u64) -> Outcome {
        let fired = match (self.catch_up, self.overlap) {
            (CatchUp::All, Overlap::Allow) => DUE,
            (_, Overlap::Allow) => 1,
            (_, Overlap::Skip) => 1 - by_hand,
        };
        let (next, skipped) = (Some(moment(DUE + 1)), DUE - fired);
        Outcome { next, tasks: fired + by_hand, fired, skipped }
    }

    /// Before anything fires.
    fn waiting(by_hand: u64) -> Outcome {
        Outcome { next: Some(moment(1)), tasks: by_hand, fired: 0, skipped: 0 }
    }
}

/// What is in a store.
fn look(run: impl Fn(Command) -> Reply) -> Outcome {
    let StoredSchedule { next, fired, skipped, .. } = shown(run(get()));
    let Reply::Tubes(tubes) = run(Command::Tubes { tube: Some(name("mail")) }) else {
        panic!("a tube is shown");
    };
    Outcome { next, tasks: tubes[0].stats.tasks.total(), fired, skipped }
}

/// A server whose clock shows the moment of this time.
fn start(store: SqliteStore, time: u64) -> Engine {
    let clock = Arc::new(ManualClock::new(moment(time)));
    let engine = Engine::start(Box::new(store), clock, Settings::default());
    idle(&engine);
    engine
}

/// Returns when the server has done what is due.
fn idle(engine: &Engine) {
    (0..2).for_each(|_| drop(block_on(engine.waiting())));
}

fn ask(engine: &Engine, command: Command) -> Reply {
    block_on(engine.execute(vec![command])).remove(0).expect("it is done")
}

/// Starts a server on what another one left, and checks what it makes of that.
fn check_continued(folder: &Path, case: FiringCase, what: &str) {
    let store = open(folder);
    let found = look(|command| must(&store, command));
    // The task that was put by hand, or the firing, is there with all that belongs to it, or not at all.
    let by_hand = if case.runs_now { found.tasks } else { 0 };
    let mut possible = vec![FiringCase::waiting(0)];
    possible.push(if case.runs_now { FiringCase::waiting(1) } else { case.fired(0) });
    assert!(possible.contains(&found), "{case:?}, {what}: {found:?}");
    let engine = start(store, DUE);
    assert_eq!(look(|command| ask(&engine, command)), case.fired(by_hand), "{case:?}, {what}");
    block_on(engine.stop()).expect("it stops");
}

/// The files of a store before and after a server has fired or put a task.
fn write_record(folder: &Path, case: FiringCase) -> [PathBuf; 2] {
    let (store, before) = (case.store(&folder.join("store"), true), folder.join("before"));
    let engine = if case.runs_now {
        let engine = start(store, 0);
        copy(&folder.join("store"), before.clone());
        let put = shown(ask(&engine, get())).run_now().expect("it has a task");
        ask(&engine, put);
        engine
    } else {
        copy(&folder.join("store"), before.clone());
        start(store, DUE)
    };
    let after = copy(&folder.join("store"), folder.join("after"));
    block_on(engine.stop()).expect("it stops");
    [before, after]
}

/// The bytes that differ, if any do; the first file is at least as long.
fn changed(before: &[u8], after: &[u8]) -> Option<Range<usize>> {
    let differs = |place: &usize| before[*place] != after[*place];
    let first = (0..after.len()).find(differs)?;
    Some(first..(first..after.len()).rfind(differs)? + 1)
}

#[test]
fn a_firing_that_is_cut_in_the_journal_happens_once() {
    let all = FiringCase::ALL;
    for (case, every) in [
        (all, 1),
        (FiringCase { catch_up: CatchUp::Last, ..all }, 7),
        (FiringCase { overlap: Overlap::Skip, ..all }, 7),
        (FiringCase { runs_now: true, ..all }, 7),
        (FiringCase { overlap: Overlap::Skip, runs_now: true, ..all }, 7),
    ] {
        let folder = fast_folder();
        let folders = write_record(folder.path(), case);
        let mut cuts = 0;
        // The seal is written when the record is on disk.
        for file in FILES.into_iter().filter(|file| *file != "taskyard.seal") {
            let [before, after] = folders.each_ref().map(|one| fs::read(one.join(file)).ok());
            let (Some(mut before), Some(mut bytes)) = (before, after) else { continue };
            before.resize(bytes.len().max(before.len()), 0);
            let Some(range) = changed(&before, &bytes) else { continue };
            assert!(FILES[3..].contains(&file), "{file} changes, and not only the journal");
            // From the whole record to none of it.
            for cut in (range.start..=range.end).rev().step_by(every) {
                bytes[cut..range.end].copy_from_slice(&before[cut..range.end]);
                let crashed = copy(&folders[0], folder.path().join(format!("cut {cut}")));
                fs::write(crashed.join(file), &bytes).expect("it can be written");
                check_continued(
                    &crashed,
                    case,
                    &format!("{file} is cut at byte {cut} of {range:?}"),
                );
                fs::remove_dir_all(crashed).expect("it can be removed");
                cuts += 1;
            }
        }
        assert!(cuts >= 10, "{case:?} has written a record, which was cut {cuts} times");
        check_continued(&folders[1], case, "nothing is cut");
    }
}

#[test]
fn a_firing_whose_commit_fails_happens_once() {
    for has_journal in [true, false] {
        let mut faults = (0..).map(|after| Fault::Step { after });
        let mut failures = 0;
        // Beginning with a disk that does not confirm the commit.
        let mut fault = Fault::Sync;
        loop {
            let folder = fast_folder();
            let store = FiringCase::ALL.store(&folder.path().join("store"), has_journal);
            store.set_fault(Some(fault));
            let engine = start(store, DUE);
            let fired = look(|command| ask(&engine, command));
            let crashed = copy(&folder.path().join("store"), folder.path().join("crashed"));
            check_continued(&crashed, FiringCase::ALL, &format!("{fault:?}, {has_journal}"));
            if fired == FiringCase::ALL.fired(0) {
                assert!(failures > 0, "the fault changed nothing");
                break;
            }
            failures += 1;
            fault = faults.next().expect("there are more");
        }
        assert!(failures >= 3, "{failures}");
    }
}

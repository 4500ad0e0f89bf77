//! Kills a process while it puts and ends tasks with unique keys.
//!
//! The child runs batches that follow from a seed and prints a line after each reply. The core runs the same
//! batches: tasks and keys on disk must be those of the core after the last batch with a reply, or after the
//! one in flight. So nothing that was acknowledged is lost, and no key is held twice.

use std::collections::HashSet;

use fastrand::Rng;
use taskyard_conformance::block_on;
use taskyard_conformance::random::runs;
use taskyard_core::{
    Body, Command, Error, Finish, FinishItem, HeldKey, Holder, Key, KeyRequest, Kind, NewTask,
    OnConflict, Placed, Reply, Span, State, Take, Task, TaskId, Timestamp, TubeOptions,
};
use taskyard_store::{MemoryStore, Store};

use crate::fixture::{NOW, fast_folder, name, open, random, run_at};
use crate::killed_child::{self, answered_until_killed};

/// Number of children that are killed; `TASKYARD_RUNS` multiplies it.
const KILLS: usize = 25;
/// Number of keys: few, so that they are often held.
const KEYS: usize = 10;
/// Ids that are looked at: more than a child uses.
const IDS: u64 = 2_000;

/// The batches that follow from a seed, and their times.
struct KeyScript {
    rng: Rng,
    now: Timestamp,
    batches: u64,
    /// The number of tasks that were put: their ids are less.
    put: u64,
}

impl KeyScript {
    fn new(seed: u64) -> Self {
        KeyScript { rng: Rng::with_seed(seed), now: NOW, batches: 0, put: 0 }
    }

    fn batch(&mut self) -> Vec<Command> {
        self.batches += 1;
        self.now = self.now + Span::from_secs(self.rng.u64(0..4));
        let tube = name("mail");
        if self.batches == 1 {
            let options = TubeOptions::new(Kind::FifoTtl);
            return vec![Command::CreateTube { tube, options, if_not_exists: false }];
        }
        let mut commands = Vec::new();
        for _ in 0..self.rng.usize(1..4) {
            match self.rng.u8(0..40) {
                0..24 => {
                    let tasks = (0..self.rng.usize(1..4)).map(|_| self.task()).collect();
                    commands.push(Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO });
                }
                24..30 => {
                    let ids = (0..3).map(|_| self.id()).collect();
                    commands.push(Command::Delete { tube: tube.clone(), ids, show: false });
                }
                30..36 => commands.extend(self.take_and_ack()),
                36..39 => commands.push(Command::Tick { limit: 100, seed: 0 }),
                _ => commands.push(Command::Truncate { tube: tube.clone() }),
            }
        }
        commands
    }

    fn task(&mut self) -> NewTask {
        self.put += 1;
        let rng = &mut self.rng;
        let held = HeldKey { key: key(rng.usize(0..KEYS)), unique_for: secs(rng.u64(0..20)) };
        let replaces = rng.u8(0..3) == 0;
        let on_conflict = if replaces { OnConflict::Replace } else { OnConflict::Keep };
        NewTask {
            key: Some(Box::new(KeyRequest { held, on_conflict })),
            ttl: (rng.u8(0..4) == 0).then(|| secs(rng.u64(1..10))),
            delay: (rng.u8(0..6) == 0).then(|| secs(rng.u64(1..10))),
            ..NewTask::new(Body::new(&rng.u32(..).to_be_bytes()))
        }
    }

    /// One of the latest ids.
    fn id(&mut self) -> TaskId {
        TaskId(self.rng.u64(0..=self.put).max(self.put.saturating_sub(40)))
    }

    /// Acks some of the taken tasks and releases the others: a restart would do that too.
    fn take_and_ack(&mut self) -> [Command; 3] {
        let tube = name("mail");
        let take = Take {
            tube: tube.clone(),
            count: 3,
            session: None,
            lease: None,
            worker: None,
            wait: Span::ZERO,
        };
        let ack = |id| FinishItem { id, holder: Holder::Any, finish: Finish::Ack };
        let items = (0..self.put).rev().take(40).filter(|_| self.rng.bool());
        let items = items.map(|id| ack(TaskId(id))).collect();
        let finish = Command::Finish { tube: tube.clone(), items, show: false };
        [Command::Take(take), finish, Command::ReleaseAll { tube }]
    }
}

fn key(number: usize) -> Key {
    Key::new(&format!("key {number}")).expect("a good key")
}

fn secs(seconds: u64) -> Span {
    Span::from_secs(seconds)
}

/// What is read of a store.
#[derive(Debug, PartialEq)]
struct Content {
    tasks: Vec<Task>,
    /// The holder of each key, and the id of the next task.
    holders: Vec<Placed>,
}

/// All tasks and the holders of all keys. The keys are asked for with puts, last.
fn content(run: impl FnOnce(Vec<Command>) -> Vec<Result<Reply, Error>>) -> Content {
    let tube = name("mail");
    let peek = Command::Peek { tube: tube.clone(), ids: (0..IDS).map(TaskId).collect() };
    let keyed = |number| {
        let request = KeyRequest::new(key(number));
        NewTask { key: Some(Box::new(request)), ..NewTask::new(Body::new(b"\xc0")) }
    };
    let tasks = (0..KEYS).map(keyed).chain([NewTask::new(Body::new(b"\xc0"))]).collect();
    let put = Command::Put { tube, tasks, wait: Span::ZERO };
    let mut replies = run(vec![peek, put]).into_iter();
    match (replies.next(), replies.next()) {
        (Some(Ok(Reply::Tasks(tasks))), Some(Ok(Reply::Put(holders)))) => {
            Content { tasks, holders }
        }
        // Before the tube exists.
        _ => Content { tasks: Vec::new(), holders: Vec::new() },
    }
}

impl Content {
    /// Panics if two tasks that have not ended have the same key.
    fn check_keys(&self) {
        let mut seen = HashSet::new();
        for task in self.tasks.iter().filter(|task| task.state != State::Done) {
            let key = task.key.clone().expect("every task has a key");
            assert!(seen.insert(key), "two tasks have the key of {task:?}");
        }
    }
}

/// The content of the core after this many batches, at this time.
fn expected(seed: u64, batches: usize, now: Timestamp) -> Content {
    let (rules, mut script) = (MemoryStore::default(), KeyScript::new(seed));
    for _ in 0..batches {
        let batch = script.batch();
        block_on(rules.execute(script.now, batch));
    }
    content(|commands| block_on(rules.execute(now, commands)).replies)
}

/// Not a test: the one below runs it in a process of its own.
#[test]
fn child() {
    killed_child::run(|seed| {
        let mut script = KeyScript::new(seed);
        Box::new(move || {
            let batch = script.batch();
            (script.now, batch)
        })
    });
}

#[test]
fn every_key_with_a_reply_survives_a_kill() {
    let mut rng = random();
    let mut compared = 0;
    for _ in 0..KILLS * runs() {
        let (folder, seed) = (fast_folder(), rng.u64(..));
        let answered =
            answered_until_killed("key_crash::child", folder.path(), seed, &mut rng, 150);
        let mut script = KeyScript::new(seed);
        (0..=answered).for_each(|_| drop(script.batch()));
        assert!(script.put < IDS, "seed {seed}: more ids than are looked at");
        let store = open(folder.path());
        let run = |commands| run_at(&store, script.now, commands).expect("the bodies are readable");
        let found = content(run);
        found.check_keys();
        compared += found.tasks.len();
        // The kill may have happened after a commit and before its reply.
        let orders = [answered, answered + 1].map(|batches| expected(seed, batches, script.now));
        assert!(
            orders.contains(&found),
            "seed {seed}: {answered} were answered, there is\n{found:?}\nand not\n{orders:?}"
        );
    }
    assert!(compared > KILLS, "the children did some work");
}

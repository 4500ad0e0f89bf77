//! Kills a process while it works on semaphores.
//!
//! The child runs batches that follow from a seed and prints a line after each reply. The core runs the same
//! batches: the content on disk must be that of the core after the last batch with a reply, or after the one
//! in flight.

use fastrand::Rng;
use taskyard_conformance::block_on;
use taskyard_conformance::random::runs;
use taskyard_core::{
    Command, EnqueueItem, Error, EventId, Grant, GrantFinish, GrantItem, Reply, SemaphoreChange,
    SemaphoreCommand, SemaphoreKey, Span, TaskId, Timestamp,
};
use taskyard_store::{MemoryStore, Store};

use crate::fixture::{NOW, fast_folder, open, random};
use crate::killed_child::{self, answered_until_killed};

/// Number of children that are killed; `TASKYARD_RUNS` multiplies it.
const KILLS: usize = 20;
const TASKS: u64 = 12;
const KEYS: [&str; 3] = ["a", "b", "c"];

/// The batches that follow from a seed, and their times.
struct Script {
    rng: Rng,
    now: Timestamp,
    batches: u64,
}

impl Script {
    fn new(seed: u64) -> Self {
        Script { rng: Rng::with_seed(seed), now: NOW, batches: 0 }
    }

    fn batch(&mut self) -> Vec<Command> {
        self.batches += 1;
        self.now = self.now + Span::from_secs(self.rng.u64(0..4));
        if self.batches.is_multiple_of(5) {
            return vec![Command::Tick { limit: 100, seed: 0 }];
        }
        (0..self.rng.usize(1..4)).map(|_| Command::Semaphore(self.command())).collect()
    }

    fn command(&mut self) -> SemaphoreCommand {
        let rng = &mut self.rng;
        let key = SemaphoreKey::new(KEYS[rng.usize(0..KEYS.len())]).expect("a key");
        let task = TaskId(rng.u64(0..TASKS));
        if self.batches < 4 {
            return SemaphoreCommand::Configure { key, change: change(rng), only_new: false };
        }
        match rng.u8(0..20) {
            0..7 => {
                let entries = vec![EnqueueItem { task, priority: f64::from(rng.u8(0..9)) }];
                SemaphoreCommand::Enqueue { key, entries }
            }
            7..12 => {
                let finish = match rng.u8(0..4) {
                    0 => GrantFinish::Release,
                    1 => GrantFinish::Yield,
                    2 => GrantFinish::Decline,
                    _ => GrantFinish::Extend(Span::from_secs(rng.u64(0..60))),
                };
                let grant = rng.bool().then(|| Grant(rng.u64(1..40)));
                SemaphoreCommand::Finish { key, items: vec![GrantItem { task, grant, finish }] }
            }
            12..16 => SemaphoreCommand::Events { key: None, count: 2, wait: Span::ZERO },
            16..19 => {
                let latest = self.batches;
                let events = (0..4).map(|_| EventId(rng.u64(0..latest))).collect();
                SemaphoreCommand::Acknowledge { events }
            }
            _ => SemaphoreCommand::Configure { key, change: change(rng), only_new: false },
        }
    }
}

fn change(rng: &mut Rng) -> Box<SemaphoreChange> {
    let active = rng.i64(0..4);
    Box::new(SemaphoreChange {
        lease: Some(rng.bool().then(|| Span::from_secs(20))),
        ack_timeout: Some(rng.bool().then(|| Span::from_secs(30))),
        cool_down: Some(Span::from_secs(rng.u64(0..3) * 5)),
        ..SemaphoreChange::limits(active, active)
    })
}

/// Everything that can be read; the events last, because fetching changes them. Missing semaphores are
/// errors.
fn everything(store: &dyn Store) -> Vec<Result<Reply, Error>> {
    let look = |key: &str| {
        let key = SemaphoreKey::new(key).expect("a key");
        let tasks = (0..TASKS).map(TaskId).collect();
        Command::Semaphore(SemaphoreCommand::Peek { key, tasks })
    };
    let mut asked = vec![Command::Semaphore(SemaphoreCommand::List { key: None })];
    asked.extend(KEYS.map(look));
    let all = SemaphoreCommand::Events { key: None, count: 1000, wait: Span::ZERO };
    asked.push(Command::Semaphore(all));
    // Much later, when all events that were fetched and not acknowledged are due again.
    block_on(store.execute(NOW + Span::from_secs(100_000), asked)).replies
}

/// The content of the core after this many batches.
fn expected(seed: u64, batches: usize) -> Vec<Result<Reply, Error>> {
    let (rules, mut script) = (MemoryStore::default(), Script::new(seed));
    for _ in 0..batches {
        let batch = script.batch();
        block_on(rules.execute(script.now, batch));
    }
    everything(&rules)
}

/// Not a test: the one below runs it in a process of its own.
#[test]
fn child() {
    killed_child::run(|seed| {
        let mut script = Script::new(seed);
        Box::new(move || {
            let batch = script.batch();
            (script.now, batch)
        })
    });
}

#[test]
fn every_grant_and_event_with_a_reply_survives_a_kill() {
    let mut rng = random();
    for _ in 0..KILLS * runs() {
        let (folder, seed) = (fast_folder(), rng.u64(..));
        let answered =
            answered_until_killed("semaphore_crash::child", folder.path(), seed, &mut rng, 120);
        let found = everything(&open(folder.path()));
        // The kill may have happened after a commit and before its reply.
        let orders = [expected(seed, answered), expected(seed, answered + 1)];
        assert!(
            orders.contains(&found),
            "seed {seed}: {answered} were answered, there is\n{found:?}\nand not\n{orders:?}"
        );
    }
}

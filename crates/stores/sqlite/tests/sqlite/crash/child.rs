//! Runs random batches in the process that is killed.

use std::io::Write;
use std::path::Path;

use taskyard_core::{
    Body, Command, Finish, Kind, NewTask, Outcome, Reply, Span, Task, TaskId, Timestamp,
    TubeOptions,
};
use taskyard_store::OpenOptions;
use taskyard_store_sqlite::SqliteStore;

use super::script::{Line, SCRAP, Step, TEMPORARY, TUBES, Verb, payload};
use crate::fixture::{NOW, create, delete, finish, name, put, run_at, take};

/// The environment variables with the folder and the seed of the child.
pub const FOLDER: &str = "TASKYARD_CRASH_FOLDER";
pub const SEED: &str = "TASKYARD_CRASH_SEED";

/// Not a test: the crash test runs it in a process of its own.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let seed = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok()).expect("a seed");
    work(Path::new(&folder), seed);
}

fn work(folder: &Path, seed: u64) {
    // The harness has printed a line without its end.
    println!();
    print_line(&Line::Start);
    // Little memory, so that payloads are read back from disk too.
    let options = OpenOptions { memory_bytes: 64 << 10, ..OpenOptions::default() };
    let store = SqliteStore::open(folder, &options).expect("the store opens");
    // Few pages, so that many kills hit a checkpoint or a reset of the log.
    store.set_checkpoint_pages(50);
    let mut client = Client::new(seed);
    client.create_tubes(&store);
    for _ in 0..100_000 {
        let batch = client.batch();
        print_line(&Line::Begin { now: client.now().as_micros(), steps: batch.steps.clone() });
        let replies = run_at(&store, client.now(), batch.commands.clone()).expect("payloads load");
        let replies = replies.into_iter().map(|reply| reply.expect("the batch succeeds")).collect();
        print_line(&client.apply_replies(batch, replies));
    }
}

fn print_line(line: &Line) {
    let mut out = std::io::stdout().lock();
    let printed = writeln!(out, "{line}").and_then(|()| out.flush());
    // The parent has ended.
    if printed.is_err() {
        std::process::exit(0);
    }
}

/// Commands and their durable effects.
#[derive(Default)]
struct ChildBatch {
    commands: Vec<Command>,
    steps: Vec<Step>,
}

impl ChildBatch {
    fn add(&mut self, tube: usize, verb: Verb, command: Command) {
        self.steps.push(Step { tube, verb });
        self.commands.push(command);
    }
}

/// The state of a tube as the child knows it.
#[derive(Default)]
struct TubeState {
    held: Vec<Task>,
    /// Existing tasks, taken or not.
    present: Vec<u64>,
    /// The id of the next put, known after the first reply.
    next_id: Option<u64>,
}

struct Client {
    random: fastrand::Rng,
    batches: i64,
    tubes: [TubeState; 3],
}

impl Client {
    fn new(seed: u64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Client { random, batches: 0, tubes: Default::default() }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(NOW.as_micros() + self.batches)
    }

    fn create_tubes(&self, store: &SqliteStore) {
        for (tube, text) in TUBES.iter().enumerate() {
            let mut options = TubeOptions::new(Kind::FifoTtl);
            options.temporary = tube == TEMPORARY;
            options.keep_done = (tube == SCRAP).then_some(Span::FOREVER);
            let Command::CreateTube { tube, options, .. } = create(text, options) else { return };
            let create = Command::CreateTube { tube, options, if_not_exists: true };
            let made = run_at(store, self.now(), vec![create]).expect("nothing to load");
            assert!(made[0].is_ok(), "{made:?}");
        }
    }

    fn batch(&mut self) -> ChildBatch {
        self.batches += 1;
        let mut batch = ChildBatch::default();
        for _ in 0..self.random.u8(1..8) {
            // Half of the commands use the first tube.
            let tube = [0, 0, 0, SCRAP, SCRAP, TEMPORARY][self.random.usize(..6)];
            match self.random.u8(..20) {
                0..6 => self.put(&mut batch, tube),
                6..11 => batch.commands.push(take(TUBES[tube], self.random.usize(1..6))),
                11..17 => self.finish(&mut batch, tube),
                17 => {
                    let count = self.random.u64(1..4);
                    let kick = Command::Kick { tube: name(TUBES[tube]), count };
                    batch.add(tube, Verb::Kick(count), kick);
                }
                18 => self.delete(&mut batch, tube),
                _ if tube == SCRAP => self.truncate(&mut batch, tube),
                _ => self.put_and_delete(&mut batch, tube),
            }
        }
        batch
    }

    fn put(&mut self, batch: &mut ChildBatch, tube: usize) {
        let count = self.random.usize(1..6);
        let mut tasks = Vec::new();
        for _ in 0..count {
            let (token, pri) = (self.random.u64(..), self.random.u64(..4));
            let delay_s = if self.random.u8(..8) == 0 { self.random.u64(1..1_000_000) } else { 0 };
            batch.steps.push(Step { tube, verb: Verb::Put { token, pri, delay_s } });
            tasks.push(NewTask {
                pri: Some(pri),
                delay: Some(Span::from_secs(delay_s)),
                ..NewTask::new(Body::new(&payload(token)))
            });
        }
        let known = &mut self.tubes[tube];
        known.next_id = known.next_id.map(|id| id + count as u64);
        batch.commands.push(put(TUBES[tube], tasks));
    }

    fn finish(&mut self, batch: &mut ChildBatch, tube: usize) {
        let known = &mut self.tubes[tube];
        if known.held.is_empty() {
            return;
        }
        let task = known.held.swap_remove(self.random.usize(..known.held.len()));
        let id = task.id.0;
        let (verb, how) = match self.random.u8(..8) {
            0..5 => (Verb::Ack(id), Finish::Ack),
            5 | 6 => {
                let delay_s = self.random.u64(..3) * 1_000_000;
                let delay = Span::from_secs(delay_s);
                (Verb::Release { id, delay_s }, Finish::Release { delay, counted: true })
            }
            _ => (Verb::Bury(id), Finish::Bury),
        };
        if how == Finish::Ack {
            known.present.retain(|present| *present != id);
        }
        batch.add(tube, verb, finish(TUBES[tube], &task, how));
    }

    fn delete(&mut self, batch: &mut ChildBatch, tube: usize) {
        let known = &mut self.tubes[tube];
        if known.present.is_empty() {
            return;
        }
        let id = known.present.swap_remove(self.random.usize(..known.present.len()));
        known.held.retain(|task| task.id.0 != id);
        batch.add(tube, Verb::Delete(id), delete(TUBES[tube], [id]));
    }

    fn truncate(&mut self, batch: &mut ChildBatch, tube: usize) {
        let known = &mut self.tubes[tube];
        *known = TubeState { next_id: known.next_id, ..TubeState::default() };
        batch.add(tube, Verb::Truncate, Command::Truncate { tube: name(TUBES[tube]) });
    }

    /// A task that is put and deleted in the same batch, so that only its id is used.
    fn put_and_delete(&mut self, batch: &mut ChildBatch, tube: usize) {
        let Some(id) = self.tubes[tube].next_id else { return };
        self.tubes[tube].next_id = Some(id + 1);
        batch.commands.push(put(TUBES[tube], vec![NewTask::new(Body::new(b"put_and_delete"))]));
        batch.add(tube, Verb::PutDeleted, delete(TUBES[tube], [id]));
    }

    /// Updates the state with the replies, and returns the line to print.
    fn apply_replies(&mut self, batch: ChildBatch, replies: Vec<Reply>) -> Line {
        let (mut ids, mut leases) = (Vec::new(), Vec::new());
        for (command, reply) in batch.commands.iter().zip(replies) {
            match (command, reply) {
                (Command::Put { tube, .. }, Reply::Put(placed)) => {
                    let known = &mut self.tubes[number(tube.as_str())];
                    for placed in placed {
                        ids.push(placed.id.0);
                        known.present.push(placed.id.0);
                        known.next_id = known.next_id.max(Some(placed.id.0 + 1));
                    }
                }
                (Command::Take(take), Reply::Taken(tasks)) => {
                    let known = &mut self.tubes[number(take.tube.as_str())];
                    for task in tasks {
                        leases.push(task.lease.expect("a taken task has a lease").0);
                        known.present.push(task.id.0);
                        known.held.push(task);
                    }
                }
                (Command::Finish { .. } | Command::Delete { .. }, Reply::Finished(outcomes)) => {
                    assert!(
                        matches!(outcomes[..], [Outcome::Done(_)]),
                        "{command:?}: {outcomes:?}"
                    );
                    self.forget_deleted(command);
                }
                (Command::Truncate { tube }, Reply::Nothing) => {
                    let known = &mut self.tubes[number(tube.as_str())];
                    (known.held, known.present) = Default::default();
                }
                (Command::Kick { .. }, Reply::Kicked(_)) => {}
                (command, reply) => panic!("{command:?} answered {reply:?}"),
            }
        }
        self.tubes.iter_mut().for_each(TubeState::tidy);
        Line::Done { ids, leases }
    }

    /// A task that a take of the same batch delivered before it was deleted does not exist.
    fn forget_deleted(&mut self, command: &Command) {
        let Command::Delete { tube, ids, .. } = command else { return };
        let known = &mut self.tubes[number(tube.as_str())];
        known.held.retain(|task| task.id != ids[0]);
        known.present.retain(|id| TaskId(*id) != ids[0]);
    }
}

impl TubeState {
    fn tidy(&mut self) {
        self.present.sort_unstable();
        self.present.dedup();
    }
}

fn number(tube: &str) -> usize {
    TUBES.iter().position(|name| *name == tube).expect("a tube of the test")
}

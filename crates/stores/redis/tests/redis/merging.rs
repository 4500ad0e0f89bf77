//! Tests of merged and pipelined single commands: each is answered as if it had been sent alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;
use taskyard_conformance::model;
use taskyard_core::limits::{ERROR_BYTES_MAX, WORKER_BYTES_MAX};
use taskyard_core::{
    Body, Command, Error, Finish, FinishItem, Holder, Kind, Lease, NewTask, Reply, SessionId, Span,
    Take, TaskId, Timestamp, TubeChange, TubeName, TubeOptions,
};
use taskyard_store::MemoryStore;
use taskyard_store::Store;

use taskyard_testkit::calls::{NOW, ask, make_tube, put, take};
use taskyard_testkit::redis::{instance, open, own, run};

use super::done::{audit_done, remove_done};
use super::failures_stored::audit_failures;

const SESSION: SessionId = SessionId([7; 16]);
const BATCHES: usize = 60;
/// A lease that is never issued.
const NO_LEASE: Lease = Lease(u64::MAX - 1);

/// The lease of a task that was taken: here, and in the core.
type LeasePair = (Lease, Lease);

/// Random batches for one tube.
struct BatchScript {
    rng: Rng,
    tube: TubeName,
    held: BTreeMap<TaskId, LeasePair>,
    next_id: u64,
}

impl BatchScript {
    /// The same command twice: with the leases of the store, and with those of the core.
    fn command(&mut self) -> (Command, Command) {
        let both = |command: Command| (command.clone(), command);
        match self.rng.u8(0..20) {
            0..7 => both(self.put()),
            7..12 => both(self.take()),
            12..16 => self.finish(Finish::Ack),
            16 => self.finish(Finish::ack_with(b"\xa2ok")),
            17 => self.finish_somehow(),
            18 => both(self.kick()),
            _ => {
                let ids = vec![self.any_id(), self.any_id()];
                both(Command::Delete { tube: self.tube.clone(), ids, show: self.rng.bool() })
            }
        }
    }

    fn any_id(&mut self) -> TaskId {
        TaskId(self.rng.u64(0..=self.next_id))
    }

    fn put(&mut self) -> Command {
        let size = if self.rng.u8(0..8) == 0 { self.rng.usize(500..2_000) } else { 3 };
        let mut task = NewTask::new(Body::new(&vec![0xc0; size]));
        let span = Some(Span::from_secs(self.rng.u64(0..4)));
        match self.rng.u8(0..10) {
            0 => task.ttl = span,
            1 => task.delay = span,
            2 => task.pri = Some(self.rng.u64(..)),
            3 => (task.ttr, task.ttl) = (span, span),
            4 => task.subqueue = Some("of no use here".into()),
            _ => {}
        }
        let count = if self.rng.u8(0..6) == 0 { self.rng.usize(0..4) } else { 1 };
        self.next_id += count as u64;
        Command::Put { tube: self.tube.clone(), tasks: vec![task; count], wait: Span::ZERO }
    }

    fn kick(&mut self) -> Command {
        let tube = self.tube.clone();
        if self.rng.bool() {
            return Command::Kick { tube, count: 2 };
        }
        let ids = (0..4).map(|_| self.any_id()).collect();
        Command::KickTasks { tube, ids, reset_attempts: self.rng.bool() }
    }

    /// The names are shorter and longer than the padding of a delivery.
    fn worker(&mut self) -> Option<Arc<str>> {
        let bytes = self.rng.choice([0, 0, 1, 20, 21, 22, WORKER_BYTES_MAX])?;
        (bytes > 0).then(|| "w".repeat(bytes).into())
    }

    fn take(&mut self) -> Command {
        let count = if self.rng.u8(0..6) == 0 { self.rng.usize(0..4) } else { 1 };
        let session = Some(SESSION).filter(|_| self.rng.u8(0..4) == 0);
        let lease = Some(Span::from_secs(self.rng.u64(1..4))).filter(|_| self.rng.bool());
        Command::Take(Take {
            tube: self.tube.clone(),
            count,
            session,
            lease,
            worker: self.worker(),
            wait: Span::ZERO,
        })
    }

    fn finish_somehow(&mut self) -> (Command, Command) {
        let finish = match self.rng.u8(0..6) {
            0 => Finish::Release { delay: Span::from_secs(1), counted: true },
            1 => Finish::Bury,
            2..4 => Finish::fail("refused", Some(Span::from_secs(self.rng.u64(0..2)))),
            4 => Finish::fail(&"e".repeat(ERROR_BYTES_MAX), None),
            _ => Finish::Touch(Span::from_secs(1)),
        };
        self.finish(finish)
    }

    /// Mostly of taken tasks, by lease.
    fn finish(&mut self, finish: Finish) -> (Command, Command) {
        let ids: Vec<TaskId> = self.held.keys().copied().collect();
        let count = if self.rng.u8(0..4) == 0 { self.rng.usize(0..3) } else { 1 };
        let (mut here, mut there) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let id = self.rng.choice(&ids).copied().unwrap_or(TaskId(0));
            let id = if self.rng.u8(0..8) == 0 { self.any_id() } else { id };
            let leases = self.held.get(&id).copied().unwrap_or((NO_LEASE, NO_LEASE));
            let (own, core) = match self.rng.u8(0..8) {
                0 => (Holder::Any, Holder::Any),
                1 => (Holder::Session(SESSION), Holder::Session(SESSION)),
                2 => (Holder::Lease(NO_LEASE), Holder::Lease(NO_LEASE)),
                _ => (Holder::Lease(leases.0), Holder::Lease(leases.1)),
            };
            here.push(FinishItem { id, holder: own, finish: finish.clone() });
            there.push(FinishItem { id, holder: core, finish: finish.clone() });
        }
        let (tube, show) = (self.tube.clone(), self.rng.u8(0..6) == 0);
        let finish = |items| Command::Finish { tube: tube.clone(), items, show };
        (finish(here), finish(there))
    }

    /// Records issued leases.
    fn learn(&mut self, here: &Result<Reply, Error>, there: &Result<Reply, Error>) {
        let (Ok(Reply::Taken(own)), Ok(Reply::Taken(core))) = (here, there) else { return };
        for (own, core) in own.iter().zip(core) {
            if let (Some(lease), Some(other)) = (own.lease, core.lease) {
                self.held.insert(own.id, (lease, other));
            }
        }
    }
}

/// Leases and the numbers of tubes differ, all else must be equal.
fn without_numbers(mut reply: Result<Reply, Error>) -> Result<Reply, Error> {
    match &mut reply {
        Ok(Reply::Taken(tasks) | Reply::Tasks(tasks)) => {
            tasks.iter_mut().for_each(|task| task.lease = None);
        }
        Ok(Reply::Finished(outcomes)) => {
            for outcome in outcomes {
                if let taskyard_core::Outcome::Done(Some(task)) = outcome {
                    task.lease = None;
                }
            }
        }
        Ok(Reply::Tubes(tubes)) => tubes.iter_mut().for_each(|tube| tube.number = 0),
        _ => {}
    }
    reply
}

async fn compare(seed: u64) {
    let url = own(&instance().url());
    let (store, core) = (open(&url), MemoryStore::default());
    let mut rng = Rng::with_seed(seed);
    let capacity = Some(rng.u64(5..30)).filter(|_| rng.u8(0..3) == 0);
    let kind = if rng.bool() { Kind::FifoTtl } else { Kind::Fifo };
    let keep_done = Some(Span::from_secs(rng.u64(1..30))).filter(|_| rng.bool());
    let keep_done_max = rng.u64(1..40);
    let options = TubeOptions { capacity, keep_done, keep_done_max, ..TubeOptions::new(kind) };
    let tube = make_tube(&store, options.clone());
    let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: false };
    let join = Command::JoinSession { session: SESSION, create: true };
    ask(&store, join.clone()).expect("it joins");
    core.execute(NOW, vec![create, join]).await;
    let mut script = BatchScript { rng, tube: tube.clone(), held: BTreeMap::new(), next_id: 0 };
    for batch in 0..BATCHES {
        let now = Timestamp::from_micros(NOW.as_micros() + 700_000 * batch as i64);
        let size = script.rng.usize(1..25);
        let mut commands: Vec<(Command, Command)> = (0..size).map(|_| script.command()).collect();
        let info = Command::Tubes { tube: Some(tube.clone()) };
        commands.push((info.clone(), info));
        let ids = (0..script.next_id).map(TaskId).collect();
        let peek = Command::Peek { tube: tube.clone(), ids };
        commands.push((peek.clone(), peek));
        let tick = || vec![Command::Tick { limit: 1_000, seed: 0 }];
        let ticked = (store.execute(now, tick()).await, core.execute(now, tick()).await);
        assert_eq!(ticked.0.replies, ticked.1.replies, "seed {seed}, tick {batch}");
        let asked: Vec<Command> = commands.iter().map(|(own, _)| own.clone()).collect();
        // In parts that are in flight at the same time, or as one batch.
        let size = script.rng.usize(1..=asked.len());
        let parts = asked.chunks(size).map(|part| store.execute(now, part.to_vec()));
        let parts: Vec<_> = parts.collect();
        let mut own = Vec::new();
        for part in parts {
            own.extend(part.await.replies);
        }
        let others = commands.into_iter().map(|(_, core)| core).collect();
        let expected = core.execute(now, others).await.replies;
        for ((command, own), expected) in asked.iter().zip(own).zip(expected) {
            script.learn(&own, &expected);
            let (own, expected) = (without_numbers(own), without_numbers(expected));
            assert_eq!(own, expected, "seed {seed}, batch {batch}: {command:?} in {asked:#?}");
        }
    }
    let prefix = url.rsplit_once('=').expect("it has a prefix").1;
    audit_done(prefix);
    let end = Timestamp::from_micros(NOW.as_micros() + 700_000 * BATCHES as i64);
    remove_done(&store, &tube, end);
    instance().audit(prefix, "mail");
    audit_failures(prefix);
}

#[test]
fn batches_are_answered_as_the_core_answers_their_commands() {
    run(async {
        for seed in model::seeds(12) {
            compare(seed).await;
        }
    });
}

// This server may not know yet that another server gave the tube a capacity.
#[test]
fn merged_puts_fill_a_capacity_set_by_another_server() {
    run(async {
        let url = own(&instance().url());
        let (here, there) = (open(&url), open(&url));
        let tube = make_tube(&here, TubeOptions::new(Kind::Fifo));
        ask(&here, put(&tube, 1)).expect("it is put");
        let change = TubeChange { capacity: Some(Some(3)), ..TubeChange::default() };
        ask(&there, Command::AlterTube { tube: tube.clone(), change }).expect("it is altered");
        let puts = vec![put(&tube, 1); 5];
        let replies = here.execute(NOW, puts).await.replies;
        assert!(replies[..2].iter().all(Result::is_ok), "{replies:?}");
        let full = Err(Error::TubeFull { tube: tube.clone(), capacity: 3 });
        assert_eq!(replies[2..], [full.clone(), full.clone(), full]);
        assert_eq!(take(&here, &tube, 9).len(), 3);
    });
}

// Many single takes are one take for Redis; the limit of bytes of one take does not apply to them.
#[test]
fn merged_takes_ignore_the_byte_limit_of_one_take() {
    run(async {
        const SIZE: usize = 33 << 20;
        let store = open(&own(&instance().url()));
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        for _ in 0..3 {
            let tasks = vec![NewTask::new(Body::new(&vec![0xc0; SIZE]))];
            let put = Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO };
            ask(&store, put).expect("it is put");
        }
        let take = |count| {
            let (tube, session, lease) = (tube.clone(), None, None);
            Command::Take(Take { tube, count, session, lease, worker: None, wait: Span::ZERO })
        };
        let replies = store.execute(NOW, vec![take(1), take(1)]).await.replies;
        let sizes = replies.iter().map(|reply| match reply {
            Ok(Reply::Taken(tasks)) => tasks.len(),
            other => panic!("a take answers with tasks, not {other:?}"),
        });
        assert!(sizes.eq([1, 1]));
        ask(&store, Command::ReleaseAll { tube: tube.clone() }).expect("they go back");
        let together = ask(&store, take(3));
        assert!(matches!(&together, Ok(Reply::Taken(tasks)) if tasks.len() == 1));
    });
}

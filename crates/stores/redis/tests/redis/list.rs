//! Tests of lists in tubes of many contents: each way to find the tasks of a page gives the page of the core.

use fastrand::Rng;
use taskyard_conformance::model;
use taskyard_core::{
    Body, Command, Finish, FinishItem, Holder, Kind, List, ListOrder, NewTask, Reply, Span,
    StateSet, Take, TaskId, Timestamp, TubeName, TubeOptions,
};
use taskyard_store::{MemoryStore, Store};

use taskyard_testkit::calls::{NOW, ask, make_tube, put};
use taskyard_testkit::redis::{instance, open, own, run};

const ROUNDS: i64 = 12;

/// Random commands for one tube. Many tasks are put and deleted at once, so that there are gaps between ids.
struct ListScript {
    rng: Rng,
    tube: TubeName,
    next_id: u64,
}

impl ListScript {
    fn command(&mut self) -> Command {
        let tube = self.tube.clone();
        match self.rng.u8(0..9) {
            0..3 => {
                let most = if self.rng.bool() { 3_000 } else { 20 };
                let tasks: Vec<NewTask> =
                    (0..self.rng.usize(1..most)).map(|_| self.task()).collect();
                self.next_id += tasks.len() as u64;
                Command::Put { tube, tasks, wait: Span::ZERO }
            }
            3..5 => {
                let first = self.id();
                let ids = (first..first + self.rng.u64(1..6_000)).map(TaskId);
                let ids = ids.filter(|_| self.rng.u8(0..100) > 0).collect();
                Command::Delete { tube, ids, show: false }
            }
            5 => {
                let most = if self.rng.bool() { 2_000 } else { 20 };
                let count = self.rng.usize(1..most);
                let lease = Some(Span::from_secs(self.rng.u64(1..40)));
                Command::Take(Take {
                    tube,
                    count,
                    session: None,
                    lease,
                    worker: None,
                    wait: Span::ZERO,
                })
            }
            6 => {
                let id = TaskId(self.id());
                let items = vec![FinishItem { id, holder: Holder::Any, finish: Finish::Bury }];
                Command::Finish { tube, items, show: false }
            }
            7 => {
                let first = self.id();
                let ids = (first..first + self.rng.u64(1..3_000)).map(TaskId);
                let (holder, finish) = (Holder::Any, Finish::Ack);
                let item = |id| FinishItem { id, holder, finish: finish.clone() };
                Command::Finish { tube, items: ids.map(item).collect(), show: false }
            }
            _ => Command::Tick { limit: 10_000, seed: 0 },
        }
    }

    fn id(&mut self) -> u64 {
        self.rng.u64(0..=self.next_id)
    }

    fn task(&mut self) -> NewTask {
        let mut task = NewTask::new(Body::new(&[0xc0]));
        let span = Some(Span::from_secs(self.rng.u64(1..20)));
        match self.rng.u8(0..40) {
            0..20 => task.pri = Some(self.rng.u64(0..4)),
            20..26 => task.ttl = span,
            26 => task.delay = span,
            27 => task.delay = Some(Span::FOREVER).filter(|_| self.rng.u8(0..20) == 0),
            _ => {}
        }
        task.subqueue = Some(format!("{}", self.rng.u8(0..6)).into());
        task
    }

    /// The core leaves out what is behind an expired task before the place after which a page begins; so pages of the queue begin
    /// after a place only in tubes without sub-queues.
    fn list(&mut self, kind: Kind) -> Command {
        let id = Some(TaskId(self.id())).filter(|_| self.rng.bool());
        let order = if self.rng.u8(0..4) > 0 {
            let states = StateSet::from_bits(self.rng.u8(1..32)).expect("these are states");
            ListOrder::Id { states, after: id }
        } else {
            let pri = self.rng.u64(0..4);
            let after = id.filter(|_| !kind.has_subqueues()).map(|id| (pri, id));
            ListOrder::Queue { after }
        };
        let limit = if self.rng.bool() { 1_000 } else { self.rng.usize(1..30) };
        Command::List(List { tube: self.tube.clone(), order, limit, key: None })
    }
}

async fn compare(seed: u64, kind: Kind) {
    let (store, core) = (open(&own(&instance().url())), MemoryStore::default());
    let tube = TubeName::new("mail").expect("a name");
    let mut script = ListScript { rng: Rng::with_seed(seed), tube: tube.clone(), next_id: 0 };
    let keep_done = Some(Span::from_secs(15)).filter(|_| !seed.is_multiple_of(3));
    let keep_done_max = script.rng.u64(1..3_000);
    let options = TubeOptions { keep_done, keep_done_max, ..TubeOptions::new(kind) };
    let create = Command::CreateTube { tube, options, if_not_exists: false };
    let mut commands = vec![create];
    for round in 0..ROUNDS {
        let now = Timestamp::from_micros(NOW.as_micros() + 2_000_000 * round);
        commands.extend((0..4).map(|_| script.command()));
        let (own, expected) =
            (store.execute(now, commands.clone()).await, core.execute(now, commands).await);
        assert_eq!(own.replies.len(), expected.replies.len());
        let lists: Vec<Command> = (0..20).map(|_| script.list(kind)).collect();
        let own = store.execute(now, lists.clone()).await.replies;
        let expected = core.execute(now, lists.clone()).await.replies;
        for ((list, own), expected) in lists.iter().zip(own).zip(expected) {
            assert!(matches!(expected, Ok(Reply::Listed(_))), "{expected:?}");
            assert_eq!(own, expected, "seed {seed}, {kind:?}, round {round}: {list:?}");
        }
        commands = Vec::new();
    }
}

// A task that is never due has no deadline. It was left out when delayed tasks were searched among the deadlines, and in gaps.
#[test]
fn tasks_that_are_never_due_are_listed() {
    run(async {
        let store = open(&own(&instance().url()));
        let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        let list = |limit| {
            let order = ListOrder::Id { states: StateSet::ALL, after: None };
            match ask(&store, Command::List(List { tube: tube.clone(), order, limit, key: None })) {
                Ok(Reply::Listed(tasks)) => tasks.iter().map(|task| task.id.0).collect::<Vec<_>>(),
                other => panic!("a list has tasks, not {other:?}"),
            }
        };
        let never = NewTask { delay: Some(Span::FOREVER), ..NewTask::new(Body::new(&[0xc0])) };
        let never = Command::Put { tube: tube.clone(), tasks: vec![never], wait: Span::ZERO };
        ask(&store, never.clone()).expect("it is put");
        assert_eq!(list(10), [0], "it is the only task");
        for command in [put(&tube, 51), never, put(&tube, 51)] {
            ask(&store, command).expect("they are put");
        }
        let gaps = (0..104).filter(|id| ![1, 52, 103].contains(id));
        let ids = gaps.map(TaskId).collect();
        ask(&store, Command::Delete { tube: tube.clone(), ids, show: false }).expect("deleted");
        assert_eq!(list(10), [1, 52, 103], "it is between gaps");
    });
}

#[test]
fn pages_are_those_of_the_core() {
    run(async {
        for seed in model::seeds(3) {
            for kind in [Kind::Fifo, Kind::FifoTtl, Kind::Utube, Kind::UtubeTtl] {
                compare(seed, kind).await;
            }
        }
    });
}

//! Tests of lists of large tubes, which are read in several ways.

use taskyard_conformance::block_on;
use taskyard_core::{
    Body, Command, Finish, FinishItem, Holder, Kind, List, ListOrder, ListedTask, NewTask, Reply,
    SemaphoreChange, SemaphoreCommand, SemaphoreKey, Span, StateSet, Take, TaskId, Timestamp,
    TubeName, TubeOptions,
};
use taskyard_store::{MemoryStore, Store};
use taskyard_store_tarantool::TarantoolStore;

use taskyard_testkit::calls::{NOW, put};
use taskyard_testkit::tarantool::{run, store};

const TASKS: u64 = 4_000;

/// Both get the same commands, and answer the same lists.
struct Pair {
    store: TarantoolStore,
    memory: MemoryStore,
    tube: TubeName,
}

impl Pair {
    fn new(options: TubeOptions) -> Self {
        let tube = TubeName::new("mail").expect("a name");
        let pair = Pair { store: store(), memory: MemoryStore::default(), tube: tube.clone() };
        if let Some(key) = options.semaphore.clone() {
            let change = Box::new(SemaphoreChange::limits(1_500, 1_500));
            let configure = SemaphoreCommand::Configure { key, change, only_new: false };
            pair.run(Command::Semaphore(configure));
        }
        pair.run(Command::CreateTube { tube, options, if_not_exists: false });
        pair
    }

    fn run(&self, command: Command) {
        for store in [&self.store as &dyn Store, &self.memory] {
            let replies = block_on(store.execute(NOW, vec![command.clone()])).replies;
            assert!(replies[0].is_ok(), "{replies:?}");
        }
    }

    /// Puts tasks of all priorities below `priorities`, and brings them into all states.
    fn fill(&self, random: &mut fastrand::Rng, kind: Kind, priorities: u64) {
        let mut task = || NewTask {
            pri: Some(random.u64(..priorities)),
            ttl: (random.u8(..10) == 0).then(|| Span::from_secs(5)),
            delay: (random.u8(..10) == 0).then(|| Span::from_secs(random.u32(1..100).into())),
            subqueue: kind.has_subqueues().then(|| random.u16(..1_000).to_string().into()),
            ..NewTask::new(Body::new(&[0xc0]))
        };
        let tasks = (0..TASKS).map(|_| task()).collect();
        let tube = self.tube.clone();
        self.run(Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO });
        let (session, lease, wait) = (None, None, Span::ZERO);
        self.run(Command::Take(Take {
            tube: tube.clone(),
            count: 300,
            session,
            lease,
            worker: None,
            wait,
        }));
        let mut some =
            |count| -> Vec<TaskId> { (0..count).map(|_| TaskId(random.u64(..TASKS))).collect() };
        let bury = |id| FinishItem { id, holder: Holder::Any, finish: Finish::Bury };
        let items = some(600).into_iter().map(bury).collect();
        self.run(Command::Finish { tube: tube.clone(), items, show: false });
        self.run(Command::Delete { tube, ids: some(300), show: false });
    }

    /// The page that both answer.
    fn list(&self, now: Timestamp, order: ListOrder, limit: usize) -> Vec<ListedTask> {
        let list = Command::List(List { tube: self.tube.clone(), order, limit, key: None });
        let [own, expected] =
            [&self.store as &dyn Store, &self.memory].map(|store| {
                match block_on(store.execute(now, vec![list.clone()])).replies.remove(0) {
                    Ok(Reply::Listed(tasks)) => tasks,
                    other => panic!("{other:?}"),
                }
            });
        assert!(own == expected, "{order:?} {limit}\nown:    {own:?}\nmemory: {expected:?}");
        own
    }

    fn compare(&self, now: Timestamp, random: &mut fastrand::Rng) {
        for bits in 1..=StateSet::ALL.bits() {
            let states = StateSet::from_bits(bits).expect("a set");
            for limit in [1, 10, 250, 1_000] {
                let after = random.bool().then(|| TaskId(random.u64(..TASKS + 10)));
                self.list(now, ListOrder::Id { states, after }, limit);
            }
        }
        let mut after = None;
        loop {
            let page = self.list(now, ListOrder::Queue { after }, 170);
            after = page.last().map(|last| (last.pri, last.id));
            if after.is_none() {
                break;
            }
        }
    }
}

/// Few priorities, more priorities than are read together, sub-queues, and a semaphore.
#[test]
fn large_tubes_are_listed_as_in_memory() {
    run(async {
        let gated = SemaphoreKey::new("yang").expect("a key");
        let gated = TubeOptions { semaphore: Some(gated), ..TubeOptions::new(Kind::FifoTtl) };
        let variants = [
            (TubeOptions::new(Kind::FifoTtl), 3),
            (TubeOptions::new(Kind::FifoTtl), u64::MAX),
            (TubeOptions::new(Kind::UtubeTtl), 5),
            (gated, 2),
        ];
        for (seed, (options, priorities)) in variants.into_iter().enumerate() {
            let mut random = fastrand::Rng::with_seed(seed as u64);
            let kind = options.kind;
            let pair = Pair::new(options);
            pair.fill(&mut random, kind, priorities);
            pair.compare(NOW, &mut random);
            // Tasks expire, and no tick removes them.
            pair.compare(NOW + Span::from_secs(50), &mut random);
        }
    });
}

/// A list of more delayed tasks than are sorted reads all tasks, so it lets other calls run; those of its batch wait.
#[test]
fn commands_of_a_batch_wait_for_a_list_before_them() {
    run(async {
        let pair = Pair::new(TubeOptions::new(Kind::FifoTtl));
        let delay = Some(Span::from_secs(60));
        let later = NewTask { delay, ..NewTask::new(Body::new(&[0xc0])) };
        for _ in 0..2 {
            let tasks = vec![later.clone(); 10_000];
            pair.run(Command::Put { tube: pair.tube.clone(), tasks, wait: Span::ZERO });
        }
        let ids = (0..6_000).map(TaskId).collect::<Vec<_>>();
        let items =
            ids.iter().map(|id| FinishItem { id: *id, holder: Holder::Any, finish: Finish::Bury });
        let bury = Command::Finish { tube: pair.tube.clone(), items: items.collect(), show: false };
        let states = StateSet::EMPTY.with(taskyard_core::State::Delayed);
        let after = Some(TaskId(19_000));
        let order = |after| ListOrder::Id { states, after };
        let list = |after| {
            Command::List(List {
                tube: pair.tube.clone(),
                order: order(after),
                limit: 1_000,
                key: None,
            })
        };
        let delete = |id| Command::Delete { tube: pair.tube.clone(), ids: vec![id], show: false };
        let commands = vec![
            bury,
            delete(TaskId(19_998)),
            list(None),
            list(after),
            delete(TaskId(19_999)),
            put(&pair.tube, 1),
            list(after),
        ];
        let replies = block_on(pair.store.execute(NOW, commands)).replies;
        let listed = |place: usize| match &replies[place] {
            Ok(Reply::Listed(tasks)) => tasks.iter().map(|task| task.id.0).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        assert_eq!(listed(2), (6_000..7_000).collect::<Vec<_>>());
        assert_eq!(listed(3), (19_001..19_998).chain([19_999]).collect::<Vec<_>>());
        assert_eq!(listed(6), (19_001..19_998).collect::<Vec<_>>());
    });
}

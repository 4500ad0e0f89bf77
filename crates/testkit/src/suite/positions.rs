//! Positions in large tubes, whose tasks a database does not count one by one: the numbers are nearly those of the core.

use fastrand::Rng;
use taskyard_conformance::block_on;
use taskyard_core::limits::{AHEAD_COUNTED_MAX, BATCH_TASKS_MAX, POSITIONS_MAX};
use taskyard_core::{
    Body, Command, Kind, NewTask, Position, Reply, Span, TaskId, TubeName, TubeOptions,
};
use taskyard_store::{MemoryStore, Store};

use crate::SharedDatabase;
use crate::calls::{NOW, make_tube, take};

const TASKS: u64 = 24_000;
/// So many that counting them costs more than a second sample.
const MANY_TASKS: u64 = 200_000;

/// Both get the same commands.
struct Pair<'a> {
    store: &'a dyn Store,
    memory: MemoryStore,
    tube: TubeName,
    tasks: u64,
    /// The error may be 5 % of this number, if fewer are ahead.
    base: u64,
}

impl<'a> Pair<'a> {
    fn new(store: &'a dyn Store, kind: Kind, base: u64) -> Self {
        let memory = MemoryStore::default();
        let tube = make_tube(store, TubeOptions::new(kind));
        make_tube(&memory, TubeOptions::new(kind));
        Pair { store, memory, tube, tasks: TASKS, base }
    }

    fn run(&self, command: &Command) -> [Reply; 2] {
        [self.store, &self.memory].map(|store| {
            let reply = block_on(store.execute(NOW, vec![command.clone()])).replies.remove(0);
            reply.expect("it works")
        })
    }

    /// Puts tasks, and deletes a fifth of them.
    fn fill(&self, random: &mut Rng, task: impl FnMut(&mut Rng, u64) -> NewTask) {
        self.fill_with_holes(random, 5, task);
    }

    /// Puts tasks, and deletes one of so many.
    fn fill_with_holes(
        &self,
        random: &mut Rng,
        hole: u64,
        mut task: impl FnMut(&mut Rng, u64) -> NewTask,
    ) {
        let mut holes = random.fork();
        let is_gone = |_| holes.u64(0..hole) == 0;
        self.fill_without(is_gone, |id| task(random, id));
    }

    /// Puts tasks, and deletes some.
    fn fill_without(
        &self,
        mut is_gone: impl FnMut(u64) -> bool,
        mut task: impl FnMut(u64) -> NewTask,
    ) {
        let all: Vec<u64> = (0..self.tasks).collect();
        for ids in all.chunks(BATCH_TASKS_MAX.min(4_000)) {
            let tasks = ids.iter().map(|id| task(*id)).collect();
            self.run(&Command::Put { tube: self.tube.clone(), tasks, wait: Span::ZERO });
        }
        let gone: Vec<_> = all.into_iter().filter(|id| is_gone(*id)).map(TaskId).collect();
        for ids in gone.chunks(BATCH_TASKS_MAX.min(4_000)) {
            let (tube, ids) = (self.tube.clone(), ids.to_vec());
            self.run(&Command::Delete { tube, ids, show: false });
        }
    }

    /// Compares the positions of these tasks.
    fn compare(&self, ids: Vec<TaskId>) {
        let [own, exact] = self.run(&Command::Positions { tube: self.tube.clone(), ids });
        let (Reply::Positions(own), Reply::Positions(exact)) = (own, exact) else {
            panic!("positions");
        };
        assert_eq!(own.len(), exact.len());
        for (own, exact) in own.iter().zip(&exact) {
            let exact = Position { is_exact: own.is_exact, ..exact.clone() };
            if own.is_exact {
                assert_eq!(*own, exact);
            }
            let error = own.ahead.abs_diff(exact.ahead);
            assert!(error * 20 <= exact.ahead.max(self.base), "{own:?} is {} ahead", exact.ahead);
            let is_many = exact.ahead.max(self.base) >= AHEAD_COUNTED_MAX as u64;
            assert!(own.is_exact || is_many, "few tasks are counted exactly: {own:?}");
            assert_eq!(*own, Position { ahead: own.ahead, ..exact });
        }
    }

    /// Compares at several places, one by one and many at once.
    fn compare_all(&self, random: &mut Rng) {
        let tasks = self.tasks;
        let places = (0..24).map(|place| place * tasks / 24 + random.u64(0..tasks / 24));
        places.for_each(|id| self.compare(vec![TaskId(id)]));
        let some = (0..POSITIONS_MAX).map(|_| TaskId(random.u64(0..tasks))).collect();
        let page = (tasks - POSITIONS_MAX as u64..tasks).map(TaskId).collect();
        self.compare(some);
        self.compare(page);
    }
}

fn with_pri(pri: u64) -> NewTask {
    NewTask { pri: Some(pri), ..NewTask::new(Body::new(&[0xc0])) }
}

fn compare<D: SharedDatabase>(
    kind: Kind,
    seed: u64,
    base: u64,
    task: impl FnMut(&mut Rng, u64) -> NewTask,
) {
    D::run(async {
        let mut random = Rng::with_seed(seed);
        let part = D::part();
        let store = D::open(&part);
        let pair = Pair::new(&store, kind, base);
        pair.fill(&mut random, task);
        pair.compare_all(&mut random);
    });
}

pub fn positions_with_few_priorities<D: SharedDatabase>() {
    compare::<D>(Kind::FifoTtl, 1, 0, |random, _| with_pri(random.u64(0..4)));
}

pub fn positions_with_one_priority<D: SharedDatabase>() {
    compare::<D>(Kind::FifoTtl, 7, 0, |_, _| with_pri(3));
}

/// The number of all tasks then says nearly how many are before each. Delayed tasks are behind all others, or before them.
pub fn positions_with_one_priority_and_few_holes<D: SharedDatabase>() {
    D::run(async {
        let mut random = Rng::with_seed(8);
        let part = D::part();
        let store = D::open(&part);
        let pair = Pair::new(&store, Kind::FifoTtl, 0);
        pair.fill_with_holes(&mut random, 60, |_, id| match id % 1_000 {
            0 => NewTask { delay: Some(Span::from_secs(60)), ..with_pri(id / 1_000 % 3 + 2) },
            _ => with_pri(3),
        });
        take(&store, &pair.tube, 50);
        take(&pair.memory, &pair.tube, 50);
        pair.compare_all(&mut random);
        (0..24).for_each(|id| pair.compare(vec![TaskId(1_000 * id)]));
    });
}

/// Without holes the number is exact at any distance.
pub fn positions_without_holes<D: SharedDatabase>() {
    D::run(async {
        let part = D::part();
        let store = D::open(&part);
        let pair = Pair::new(&store, Kind::Fifo, 0);
        pair.fill_with_holes(&mut Rng::with_seed(9), u64::MAX, |_, _| {
            NewTask::new(Body::new(&[0xc0]))
        });
        take(&store, &pair.tube, 50);
        take(&pair.memory, &pair.tube, 50);
        pair.compare_all(&mut Rng::with_seed(10));
    });
}

/// Batches of tasks with one priority each leave large holes between the ids of a priority. Each list has the priorities of batches
/// that follow each other again and again.
fn compare_batches<D: SharedDatabase>(seed: u64, tasks: u64, size: u64, priorities: &[&[u64]]) {
    D::run(async {
        let mut random = Rng::with_seed(seed);
        for priorities in priorities {
            let part = D::part();
            let store = D::open(&part);
            let pair = Pair { tasks, ..Pair::new(&store, Kind::FifoTtl, 0) };
            let pri_of = |id: u64| priorities[(id / size) as usize % priorities.len()];
            // Every second tube has holes.
            let hole = if priorities.len() % 2 == 0 { 5 } else { u64::MAX };
            pair.fill_with_holes(&mut random, hole, |_, id| with_pri(pri_of(id)));
            pair.compare_all(&mut random);
        }
    });
}

/// Two, three and ten priorities with the same number of tasks each, and with different ones.
const ALTERNATING: &[&[u64]] = &[
    &[1, 2],
    &[1, 2, 3],
    &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
    &[1, 2, 2, 2, 2, 2, 2, 2, 2, 2],
    &[1, 1, 1, 1, 2, 1, 1, 1, 1, 1],
    &[3, 1, 3, 2, 3, 3, 1],
];

pub fn positions_with_batches_of_twenty<D: SharedDatabase>() {
    compare_batches::<D>(2, TASKS, 20, &[&[0, 1, 2]]);
}

pub fn positions_with_batches_of_thirty<D: SharedDatabase>() {
    compare_batches::<D>(11, TASKS, 30, ALTERNATING);
}

pub fn positions_with_batches_of_three_hundred<D: SharedDatabase>() {
    compare_batches::<D>(12, TASKS, 300, ALTERNATING);
}

pub fn positions_with_batches_of_three_thousand<D: SharedDatabase>() {
    compare_batches::<D>(13, TASKS, 3_000, ALTERNATING);
}

/// Counting costs more than a second sample of each priority.
pub fn positions_with_many_small_batches<D: SharedDatabase>() {
    compare_batches::<D>(14, MANY_TASKS, 30, &[&[1, 2, 3]]);
}

/// Counting costs more than a sample of all tasks.
pub fn positions_with_many_large_batches<D: SharedDatabase>() {
    compare_batches::<D>(15, MANY_TASKS, 300, &[&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]]);
}

pub fn positions_with_a_rare_priority<D: SharedDatabase>() {
    compare::<D>(Kind::FifoTtl, 3, 0, |random, _| with_pri(u64::from(random.u8(0..50) > 0) * 7));
}

/// Nearly all tasks of a priority are old, and few were put after many others, of which one in `kept` is left.
struct OldAndNew {
    tasks: u64,
    old: u64,
    new: u64,
    own: u64,
    other: u64,
    kept: u64,
}

fn compare_old_and_new<D: SharedDatabase>(shape: &OldAndNew) {
    D::run(async {
        let mut random = Rng::with_seed(17);
        let part = D::part();
        let store = D::open(&part);
        let pair = Pair { tasks: shape.tasks, ..Pair::new(&store, Kind::FifoTtl, 0) };
        let newest = shape.tasks - shape.new;
        let is_own = |id: u64| id < shape.old || id >= newest;
        let is_gone = |id: u64| !is_own(id) && !id.is_multiple_of(shape.kept);
        let pri_of = |id| if is_own(id) { shape.own } else { shape.other };
        pair.fill_without(is_gone, |id| with_pri(pri_of(id)));
        let others = (0..20).map(|_| random.u64(shape.old..newest) / shape.kept * shape.kept);
        let mut ids: Vec<_> = others.chain([0, 1, shape.old - 1]).map(TaskId).collect();
        ids.extend((0..20).map(|_| TaskId(random.u64(0..shape.old))));
        ids.extend((shape.tasks - shape.new.min(8)..shape.tasks).map(TaskId));
        ids.iter().for_each(|id| pair.compare(vec![*id]));
        pair.compare(ids);
    });
}

/// The others are behind the old tasks. Tarantool measured the distance of ids only behind the old ones, found no tasks there, took the first 120
/// for the whole range and answered that nearly all ids are ahead of the newest.
pub fn positions_with_old_tasks_before_all_others<D: SharedDatabase>() {
    let tasks = 2 * MANY_TASKS;
    let shape = OldAndNew { tasks, old: 2_300, new: 5, own: 3, other: 5, kept: 1 };
    compare_old_and_new::<D>(&shape);
}

/// The others go first and are mostly gone. No window had one of the old tasks, which then counted as none, without an error, on PostgreSQL. Where
/// the windows were depended on the number of the priority: 3 worked, 2, 4, 9 and 10 did not.
pub fn positions_with_old_tasks_of_any_priority<D: SharedDatabase>() {
    for own in 2..=12 {
        let shape = OldAndNew { tasks: 60_000, old: 900, new: 5, own, other: 1, kept: 14 };
        compare_old_and_new::<D>(&shape);
    }
}

/// Old and new tasks go first. Windows had some of the new ones, so Tarantool did not count the old ones, which no window had.
pub fn positions_behind_old_and_new_tasks<D: SharedDatabase>() {
    for new in [20, 400] {
        let tasks = MANY_TASKS;
        let shape = OldAndNew { tasks, old: 4_000, new, own: 1, other: 3, kept: 10 };
        compare_old_and_new::<D>(&shape);
    }
}

/// The tasks of a priority are in short blocks that are far from each other, so that few windows have any of them.
pub fn positions_with_blocks_between_windows<D: SharedDatabase>() {
    D::run(async {
        let mut random = Rng::with_seed(18);
        for size in [150, 600] {
            let part = D::part();
            let store = D::open(&part);
            let pair = Pair { tasks: MANY_TASKS, ..Pair::new(&store, Kind::FifoTtl, 0) };
            let pri_of = |id: u64| if id % (20 * size) < size { 1 } else { 5 };
            pair.fill_with_holes(&mut random, 3, |_, id| with_pri(pri_of(id)));
            pair.compare_all(&mut random);
        }
    });
}

/// Delayed, taken and deleted tasks are between the ready ones, and one delayed task is far before all others.
pub fn positions_between_tasks_in_other_states<D: SharedDatabase>() {
    D::run(async {
        let mut random = Rng::with_seed(19);
        let part = D::part();
        let store = D::open(&part);
        let pair = Pair { tasks: MANY_TASKS, ..Pair::new(&store, Kind::FifoTtl, 0) };
        let is_gone = |id| (1..100_000).contains(&id) || id % 7 == 3;
        // Databases count 10,000 delayed tasks.
        pair.fill_without(is_gone, |id| match id % 12 {
            0 => NewTask { delay: Some(Span::from_secs(60)), ..with_pri(id % 3) },
            _ => with_pri(id / 40 % 3),
        });
        take(&store, &pair.tube, 3_000);
        take(&pair.memory, &pair.tube, 3_000);
        pair.compare_all(&mut random);
    });
}

pub fn positions_with_many_priorities<D: SharedDatabase>() {
    compare::<D>(Kind::FifoTtl, 4, 0, |random, _| with_pri(random.u64(..)));
}

pub fn positions_with_batches_of_many_priorities<D: SharedDatabase>() {
    compare::<D>(Kind::FifoTtl, 16, 0, |_, id| with_pri(id / 100 * 37 % 80));
}

/// Few sub-queues have tasks ahead of the first ones.
pub fn positions_at_the_front_of_sub_queues<D: SharedDatabase>() {
    D::run(async {
        let mut random = Rng::with_seed(6);
        let part = D::part();
        let store = D::open(&part);
        let pair = Pair::new(&store, Kind::UtubeTtl, 0);
        pair.fill(&mut random, |random, id| {
            let subqueue = Some(random.u64(id / 8..id / 8 + 40).to_string().into());
            NewTask { subqueue, ..with_pri(0) }
        });
        take(&store, &pair.tube, 20);
        take(&pair.memory, &pair.tube, 20);
        (20..60).for_each(|id| pair.compare(vec![TaskId(10 * id)]));
    });
}

/// One sub-queue has more tasks than are counted. Its share of all tasks is found once for a command, and was found again for each task.
pub fn positions_in_a_long_sub_queue<D: SharedDatabase>() {
    D::run(async {
        let part = D::part();
        let store = D::open(&part);
        let pair = Pair::new(&store, Kind::UtubeTtl, 0);
        pair.fill_without(
            |_| false,
            |id| {
                let key = if id % 2 == 0 { "long".to_owned() } else { (id % 500).to_string() };
                NewTask { subqueue: Some(key.into()), ..with_pri(0) }
            },
        );
        let ids = [10, 9_000, 20_500, 21_000, 23_000, 23_998].map(TaskId).to_vec();
        let [own, exact] = pair.run(&Command::Positions { tube: pair.tube.clone(), ids });
        let (Reply::Positions(own), Reply::Positions(exact)) = (own, exact) else {
            panic!("positions");
        };
        let in_subqueue = |position: &Position| position.subqueue.expect("it has one").ahead;
        for (own, exact) in own.iter().zip(&exact) {
            let error = in_subqueue(own).abs_diff(in_subqueue(exact));
            assert!(error * 10 <= in_subqueue(exact), "{own:?} and {exact:?}");
        }
        assert_eq!(own.len(), exact.len());
    });
}

pub fn positions_with_sub_queues<D: SharedDatabase>() {
    compare::<D>(Kind::UtubeTtl, 5, TASKS * 4 / 10, |random, _| {
        let subqueue = Some(random.u16(0..3_000).to_string().into());
        NewTask { subqueue, ..with_pri(random.u64(0..3)) }
    });
}

/// Redis read every fourth task in the order of the sub-queues. Here these were all the first ones of their sub-queues, so all tasks seemed to go
/// first.
pub fn positions_with_sub_queues_of_two_tasks<D: SharedDatabase>() {
    D::run(async {
        let part = D::part();
        let store = D::open(&part);
        let tasks = 16_384;
        let pair = Pair { tasks, ..Pair::new(&store, Kind::UtubeTtl, tasks / 2) };
        pair.fill_without(
            |_| false,
            |id| {
                let subqueue = Some((id / 2).to_string().into());
                NewTask { subqueue, ..with_pri(id % 2) }
            },
        );
        pair.compare_all(&mut Rng::with_seed(20));
    });
}

crate::suite::suite! {
    /// Runs the cases about positions in large tubes on a [`SharedDatabase`].
    positions_suite, positions, $:
    positions_with_few_priorities
    positions_with_one_priority
    positions_with_one_priority_and_few_holes
    positions_without_holes
    positions_with_batches_of_twenty
    positions_with_batches_of_thirty
    positions_with_batches_of_three_hundred
    positions_with_batches_of_three_thousand
    positions_with_many_small_batches
    positions_with_many_large_batches
    positions_with_a_rare_priority
    positions_with_old_tasks_before_all_others
    positions_with_old_tasks_of_any_priority
    positions_behind_old_and_new_tasks
    positions_with_blocks_between_windows
    positions_between_tasks_in_other_states
    positions_with_many_priorities
    positions_with_batches_of_many_priorities
    positions_at_the_front_of_sub_queues
    positions_in_a_long_sub_queue
    positions_with_sub_queues
    positions_with_sub_queues_of_two_tasks
}

//! Stored data: a simulated disk that gets the changes of every batch must always contain what the
//! machine contains, and a machine restored from it must continue like the old one.

use std::collections::{BTreeMap, HashSet};

use taskyard_core::command::TubeInfo;
use taskyard_core::*;

use crate::random::{Step, Steps, seeds};

/// The content of a store's disk.
#[derive(Default)]
struct Disk {
    tubes: BTreeMap<u32, TubeRecord>,
    tasks: BTreeMap<(u32, TaskId), Record>,
    keys: BTreeMap<(u32, TaskId), KeyRecord>,
    schedules: BTreeMap<ScheduleName, StoredSchedule>,
}

impl Disk {
    /// Writes a batch, in the order in which the changes are meant to be applied.
    fn write(&mut self, changes: Changes) {
        for number in changes.cleared {
            self.tasks.retain(|key, _| key.0 != number);
            self.keys.retain(|key, _| key.0 != number);
        }
        for (number, record) in changes.tubes {
            match record {
                Some(record) => _ = self.tubes.insert(number, record),
                None => _ = self.tubes.remove(&number),
            }
        }
        for (number, bucket) in changes.buckets {
            self.tubes.get_mut(&number).expect("its tube is unchanged").bucket = Some(bucket);
        }
        for (name, schedule) in changes.schedules {
            match schedule {
                Some(schedule) => _ = self.schedules.insert(name, schedule),
                None => _ = self.schedules.remove(&name),
            }
        }
        let mut touched = HashSet::new();
        for (number, change) in changes.tasks {
            let id = self.write_task(number, change);
            assert!(touched.insert((number, id)), "{number}:{id} is changed twice");
        }
        for (number, id, change) in changes.keys {
            let (was_there, is_expected) = match change {
                KeyChange::Insert(key) => (self.keys.insert((number, id), key).is_some(), false),
                KeyChange::Update(key) => (self.keys.insert((number, id), key).is_some(), true),
                KeyChange::Remove => (self.keys.remove(&(number, id)).is_some(), true),
            };
            assert_eq!(was_there, is_expected, "the key of {number}:{id}");
        }
    }

    fn write_task(&mut self, number: u32, change: Change) -> TaskId {
        match change {
            Change::Insert(record) => {
                let id = record.id;
                self.use_up(number, id);
                assert!(self.tasks.insert((number, id), record).is_none(), "{id} is there already");
                id
            }
            Change::Update(record) => {
                let old =
                    self.tasks.get_mut(&(number, record.id)).expect("updated, so it is there");
                *old = Record { body: old.body.take(), ..record };
                old.id
            }
            Change::Replace(record) => {
                let id = record.id;
                assert!(record.body.is_some());
                self.tasks.insert((number, id), record).expect("replaced, so it was there");
                id
            }
            Change::Remove(id) => {
                self.tasks.remove(&(number, id)).expect("removed, so it was there");
                id
            }
            Change::Passed(id) => {
                self.use_up(number, id);
                id
            }
        }
    }

    fn use_up(&mut self, number: u32, id: TaskId) {
        let tube = self.tubes.get_mut(&number).expect("a task comes after its tube");
        tube.next_id = tube.next_id.max(id.0 + 1);
    }

    /// A machine restored from this disk.
    fn open(&self) -> Machine {
        let mut machine = Machine::default();
        for (number, record) in &self.tubes {
            machine.restore_tube(*number, record.clone());
        }
        for ((number, _), record) in &self.tasks {
            // A store does not write tasks of temporary tubes; this one does, to compare them too.
            if !self.tubes[number].options.temporary {
                // A store may keep keys beside the tasks.
                let record = Record { key: None, ..record.clone() };
                assert!(machine.restore_task(*number, record));
            }
        }
        for schedule in self.schedules.values() {
            assert!(machine.restore_schedule(schedule.clone()));
        }
        for ((number, id), key) in &self.keys {
            if !self.tubes[number].options.temporary {
                assert!(machine.restore_key(*number, *id, key.clone()));
            }
        }
        machine
    }
}

/// A machine with its disk, driven by random batches.
struct Store {
    seed: u64,
    machine: Machine,
    disk: Disk,
    steps: Steps,
    now: Timestamp,
}

impl Store {
    fn new(seed: u64) -> Self {
        let steps = Steps::new(seed);
        let (machine, disk) = (Machine::default(), Disk::default());
        Store { seed, machine, disk, steps, now: Timestamp::EPOCH }
    }

    /// One batch, which `fails` or is stored.
    fn batch(&mut self, fails: bool) {
        self.machine.begin();
        for _ in 0..self.steps.rng.usize(..12) {
            let Step { now, command } = self.steps.next(self.machine.next_wakeup());
            self.now = self.now.max(now);
            let answer = self.machine.apply(now, command.clone());
            if !fails {
                self.steps.learn(&command, &answer);
            }
        }
        if fails {
            self.machine.undo();
        } else {
            self.disk.write(self.machine.changes());
            self.machine.keep();
        }
    }

    /// The disk must contain exactly what the machine contains. Ids of failed batches may be
    /// reused: no caller has seen them.
    fn compare(&mut self, some_failed: bool) {
        let seed = self.seed;
        let tubes = tubes(&mut self.machine, self.now);
        let numbers: Vec<u32> = self.disk.tubes.keys().copied().collect();
        let mut held: Vec<u32> = tubes.iter().map(|tube| tube.number).collect();
        held.sort_unstable();
        assert_eq!(numbers, held, "seed {seed}: tubes");
        let mut count = 0;
        for tube in tubes {
            let written = &self.disk.tubes[&tube.number];
            let mut held = self.machine.tube_record(tube.number).unwrap();
            assert!(written.next_id <= held.next_id, "seed {seed}: ids");
            if some_failed {
                held.next_id = written.next_id;
            }
            assert_eq!(*written, held, "seed {seed}: tube {}", tube.number);
            for task in tasks(&mut self.machine, self.now, &tube.name) {
                let record = &self.disk.tasks[&(tube.number, task.id)];
                assert_eq!(record, &expected(&task, record), "seed {seed}: tube {}", tube.number);
                count += 1;
            }
        }
        self.compare_keys(&numbers);
        let schedules: Vec<_> = self.disk.schedules.values().cloned().collect();
        assert_eq!(schedules, self.machine.export_schedules(), "seed {seed}: schedules");
        // Done tasks over age cannot be seen, but are there until a tick removes them.
        let is_hidden = |number: &u32, record: &Record| {
            let ended = record.finished.as_ref().map(Finished::at);
            let options = &self.disk.tubes[number].options;
            ended.is_some_and(|ended| !options.keeps(ended, self.now))
        };
        for (number, id) in self.disk.tasks.keys() {
            let exported = self.machine.export_tasks(*number, *id, 1);
            assert_eq!(exported.first().map(|record| record.id), Some(*id), "seed {seed}");
        }
        let tasks = self.disk.tasks.iter();
        let hidden = tasks.filter(|((number, _), record)| is_hidden(number, record)).count();
        assert_eq!(self.disk.tasks.len(), count + hidden, "seed {seed}: tasks on disk");
    }
}

impl Store {
    /// The disk must contain the keys of the tasks on it, and those that ended tasks hold.
    fn compare_keys(&self, numbers: &[u32]) {
        let seed = self.seed;
        let keys = &self.disk.keys;
        let of_task =
            |key: &KeyRecord| Some(HeldKey { key: key.key.clone(), unique_for: key.unique_for? });
        let mut count = 0;
        for task @ (number, id) in self.disk.tasks.keys() {
            let held = self.machine.held_key(*number, *id);
            let stored = keys.get(task).and_then(of_task);
            assert_eq!(held, stored.as_ref(), "seed {seed}: the key of {task:?}");
            count += usize::from(held.is_some());
        }
        let named = keys.iter().filter(|(_, key)| key.unique_for.is_some());
        assert_eq!(named.count(), count, "seed {seed}: keys without a task");
        for number in numbers {
            let held = self.machine.export_ended_keys(*number, TaskId(0), usize::MAX);
            let of_tube = keys.iter().filter(|((tube, _), _)| tube == number);
            let ended = of_tube.filter_map(|((_, id), key)| {
                Some(EndedKey { id: *id, key: key.key.clone(), until: key.until? })
            });
            assert_eq!(ended.collect::<Vec<_>>(), held, "seed {seed}");
        }
    }
}

fn tubes(machine: &mut Machine, now: Timestamp) -> Vec<TubeInfo> {
    match machine.apply(now, Command::Tubes { tube: None }) {
        Ok(Reply::Tubes(tubes)) => tubes,
        other => panic!("{other:?}"),
    }
}

fn tasks(machine: &mut Machine, now: Timestamp, tube: &TubeName) -> Vec<Task> {
    let ids = (0..1_000).map(TaskId).collect();
    match machine.apply(now, Command::Peek { tube: tube.clone(), ids }) {
        Ok(Reply::Tasks(tasks)) => tasks,
        other => panic!("{other:?}"),
    }
}

/// The expected stored form of the task. Why an expired one was buried is not shown, so that is
/// taken from `written`.
fn expected(task: &Task, written: &Record) -> Record {
    let state = match (task.state, task.reason) {
        // Whether its put named that moment is not shown.
        (State::Delayed, _) => match written.state {
            StoredState::Scheduled(_) => StoredState::Scheduled(task.due.unwrap()),
            _ => StoredState::Delayed(task.due.unwrap()),
        },
        (State::Buried, Reason::AttemptsUsedUp) => StoredState::DeadLetter,
        (State::Buried, Reason::Expired) if written.state == StoredState::DeadLetter => {
            StoredState::DeadLetter
        }
        (State::Buried, _) => StoredState::Buried,
        (State::Done, _) => StoredState::Done,
        // Since when it waits is shown of the oldest alone.
        _ => match written.state {
            StoredState::Ready(since) => StoredState::Ready(since),
            _ => StoredState::Ready(task.created),
        },
    };
    Record {
        id: task.id,
        state,
        pri: task.pri,
        created: task.created,
        expires: task.expires,
        ttr: task.ttr,
        attempts: task.attempts,
        previous_start: task.previous_start,
        subqueue: task.subqueue.clone(),
        semaphore_priority: None,
        attempts_max: task.attempts_max,
        failures: task.failures.clone(),
        finished: task.finished.clone(),
        // How long it is unique is not shown.
        key: written.key.clone().filter(|held| Some(&held.key) == task.key.as_deref()),
        body_bytes: task.body.as_ref().map_or(0, Body::bytes),
        body: task.body.clone(),
    }
}

#[test]
fn the_disk_always_contains_what_the_machine_contains() {
    for seed in seeds(40) {
        let mut store = Store::new(seed);
        let some_fail = seed % 2 == 0;
        for _ in 0..80 {
            let fails = some_fail && store.steps.rng.u8(..4) == 0;
            store.batch(fails);
            store.compare(some_fail);
        }
    }
}

/// A clean stop stores that taken tasks were released. Then the new machine equals the old one.
#[test]
fn a_restored_machine_continues_like_the_restarted_one() {
    for seed in seeds(60) {
        let mut store = Store::new(seed);
        for _ in 0..30 {
            store.batch(false);
        }
        store.machine.begin();
        store.machine.give_back_all();
        store.disk.write(store.machine.changes());
        store.machine.keep();
        let Store { machine: mut old, disk, mut steps, .. } = store;
        let mut new = disk.open();
        new.set_next_lease(old.next_lease());
        old.restart();
        assert_eq!(old.body_bytes(), new.body_bytes(), "seed {seed}");
        for _ in 0..100 {
            let Step { now, command } = steps.next(old.next_wakeup());
            let now = now.max(store.now);
            // The order in which a tick moves tasks is unspecified, only their number is compared.
            let all = Command::Tick { limit: usize::MAX, seed: 0 };
            assert_eq!(old.apply(now, all.clone()), new.apply(now, all), "seed {seed}");
            let answer = old.apply(now, command.clone());
            assert_eq!(answer, new.apply(now, command.clone()), "seed {seed}: {command:?}");
            assert_eq!(old.next_wakeup(), new.next_wakeup(), "seed {seed}: {command:?}");
            steps.learn(&command, &answer);
        }
    }
}

/// A crash stores nothing more. Only the attempts of taken tasks differ then.
#[test]
fn a_crash_loses_nothing_but_the_attempts_of_taken_tasks() {
    for seed in seeds(60) {
        let mut store = Store::new(seed);
        for _ in 0..30 {
            store.batch(false);
        }
        let (now, mut old) = (store.now, store.machine);
        let mut taken = HashSet::new();
        for tube in tubes(&mut old, now) {
            let here = tasks(&mut old, now, &tube.name).into_iter();
            let here = here.filter(|task| task.state == State::Taken);
            taken.extend(here.map(|task| (tube.name.clone(), task.id)));
        }
        let mut new = store.disk.open();
        old.restart();
        let names = |machine: &mut Machine| -> Vec<_> {
            tubes(machine, now).into_iter().map(|tube| (tube.name, tube.options)).collect()
        };
        assert_eq!(names(&mut old), names(&mut new), "seed {seed}");
        for (tube, _) in names(&mut old) {
            let (before, after) = (tasks(&mut old, now, &tube), tasks(&mut new, now, &tube));
            assert_eq!(before.len(), after.len(), "seed {seed}");
            for (before, after) in before.into_iter().zip(after) {
                let lost = taken.contains(&(tube.clone(), before.id));
                assert_eq!(after.attempts + u32::from(lost), before.attempts, "seed {seed}");
                if !lost {
                    assert_eq!(before, after, "seed {seed}");
                }
            }
        }
    }
}

/// Ids are never reused, not even those of tasks that were truncated in the batch that added them:
/// the truncation hid them from the changes, and after a restart the next put got id 0 again.
#[test]
fn a_truncated_batch_uses_up_its_ids() {
    let (mut store, tube) = Store::with_task();
    store.write([put(&tube, None), Command::Truncate { tube: tube.clone() }]);
    let placed = Placed { id: TaskId(2), state: State::Ready, existing: false };
    let next = store.disk.open().apply(Timestamp::EPOCH, put(&tube, None));
    assert_eq!(next, Ok(Reply::Put(vec![placed])));
}

/// A store without a stored next id derives it from the tasks.
#[test]
fn a_restored_task_uses_up_its_id() {
    let (mut store, tube) = Store::with_task();
    store.disk.tubes.get_mut(&0).unwrap().next_id = 0;
    let placed = Placed { id: TaskId(1), state: State::Ready, existing: false };
    let next = store.disk.open().apply(Timestamp::EPOCH, put(&tube, None));
    assert_eq!(next, Ok(Reply::Put(vec![placed])));
}

/// A touch moves only the expiry where the time to run is already endless.
#[test]
fn a_touch_is_stored() {
    let (mut store, tube) = Store::with_task();
    let finish = Finish::Touch(Span::from_micros(1));
    store.write([take(&tube), finish_first(&tube, finish.clone())]);
    store.compare(false);
    assert_eq!(store.disk.tasks[&(0, TaskId(0))].expires, Timestamp::from_micros(11));
}

/// Two deliveries that began at the same moment differ only in the number of attempts.
#[test]
fn an_attempt_is_stored() {
    let (mut store, tube) = Store::with_task();
    let finish = Finish::Release { delay: Span::ZERO, counted: true };
    for attempts in 1..=2 {
        store.write([take(&tube), finish_first(&tube, finish.clone())]);
        assert_eq!(store.disk.tasks[&(0, TaskId(0))].attempts, attempts);
    }
}

impl Store {
    /// A store with a tube `a` and in it a task that lives 10 µs and may run forever.
    fn with_task() -> (Self, TubeName) {
        let tube = TubeName::new("a").unwrap();
        let mut store = Store::new(0);
        let options = TubeOptions { ttr: Some(Span::FOREVER), ..TubeOptions::new(Kind::FifoTtl) };
        let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: false };
        store.write([create, put(&tube, Some(Span::from_micros(10)))]);
        (store, tube)
    }

    /// Applies a batch and stores it.
    fn write<const N: usize>(&mut self, commands: [Command; N]) {
        self.machine.begin();
        for command in commands {
            self.machine.apply(self.now, command).unwrap();
        }
        self.disk.write(self.machine.changes());
        self.machine.keep();
    }
}

fn put(tube: &TubeName, ttl: Option<Span>) -> Command {
    let tasks = vec![NewTask { ttl, ..NewTask::new(Body::new(b"x")) }];
    Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO }
}

fn take(tube: &TubeName) -> Command {
    let tube = tube.clone();
    Command::Take(Take {
        tube,
        count: 1,
        session: None,
        lease: None,
        worker: None,
        wait: Span::ZERO,
    })
}

fn finish_first(tube: &TubeName, finish: Finish) -> Command {
    let item = FinishItem { id: TaskId(0), holder: Holder::Any, finish };
    Command::Finish { tube: tube.clone(), items: vec![item], show: true }
}

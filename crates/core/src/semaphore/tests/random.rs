//! Random commands on the rules and on the naive model; stored data restores everything, and an
//! undone batch leaves no trace.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;

use super::audit::audit;
use super::fixture::Fixture;
use super::naive::{Naive, NaiveEvent};
use crate::semaphore::semaphores::Semaphores;
use crate::semaphore::{
    EnqueueItem, EventId, EventKind, EventRecord, Grant, GrantFinish, GrantItem, GrantOutcome,
    QueueEntryRecord, Row, SemaphoreChange, SemaphoreCommand, SemaphoreRecord, SemaphoreReply,
    Status, TRANSITIONS,
};
use crate::task::TaskId;
use crate::time::Span;

#[test]
fn the_rules_agree_with_the_naive_model() {
    let mut steps = BTreeSet::new();
    for seed in 0..60 {
        let mut run = RandomRun::new(seed);
        for _ in 0..400 {
            run.step();
        }
        steps.append(&mut run.steps);
    }
    let allowed: BTreeSet<_> = TRANSITIONS.iter().map(|(from, _, to)| (*from, *to)).collect();
    let missing: Vec<_> = allowed.difference(&steps).collect();
    assert!(missing.is_empty(), "these steps were never seen: {missing:?}");
}

/// Rules and model, and what a disk would contain.
struct RandomRun {
    seed: u64,
    rng: Rng,
    fixture: Fixture,
    naive: Naive,
    disk: StoredRecords,
    held_max: usize,
    events: Vec<(EventId, NaiveEvent)>,
    /// The last delivered event of each grant; a declined request is answered.
    heard: BTreeMap<u64, EventKind>,
    steps: BTreeSet<(Option<Status>, Option<Status>)>,
}

#[derive(Default)]
struct StoredRecords {
    semaphores: BTreeMap<u32, SemaphoreRecord>,
    tasks: BTreeMap<u64, QueueEntryRecord>,
    events: BTreeMap<EventId, EventRecord>,
}

impl RandomRun {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let first = change(&mut rng);
        let mut disk = StoredRecords::default();
        let mut fixture = Fixture::with_limits(1, 1);
        fixture.all = Semaphores::default();
        fixture.all.begin();
        fixture.configure(first.clone());
        disk.write(&fixture.all);
        fixture.all.keep();
        let naive = Naive::new(&first);
        let held_max = naive.options.active as usize;
        let (events, heard, steps) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
        RandomRun { seed, rng, fixture, naive, disk, held_max, events, heard, steps }
    }

    fn step(&mut self) {
        let before = self.statuses();
        self.try_in_vain();
        self.fixture.all.begin();
        match self.rng.u8(0..20) {
            0..3 => self.advance(),
            3 => self.configure(),
            4..10 => self.enqueue(),
            10..15 => self.finish(),
            15..18 => self.fetch(),
            _ => self.acknowledge(),
        }
        self.disk.write(&self.fixture.all);
        self.fixture.all.keep();
        if self.rng.u8(0..30) == 0 {
            let next_event = self.fixture.all.next_event();
            self.fixture.all = self.disk.read();
            self.fixture.all.set_next_event(next_event);
        }
        self.compare(&before);
    }

    /// Runs commands and undoes them: nothing may change.
    fn try_in_vain(&mut self) {
        if self.rng.u8(0..4) > 0 {
            return;
        }
        let (rng, naive, now) = (self.rng.clone(), self.naive.clone(), self.fixture.now);
        let heard = self.heard.clone();
        self.fixture.all.begin();
        self.enqueue();
        self.finish();
        self.configure();
        let other = crate::semaphore::SemaphoreKey::new("other").expect("a good key");
        let change = Box::default();
        let create = SemaphoreCommand::Configure { key: other, change, only_new: false };
        self.fixture.ask(create).expect("can be made");
        let key = self.fixture.key.clone();
        let drop = SemaphoreCommand::Drop { key: key.clone(), force: true };
        self.fixture.ask(drop).expect("can be dropped");
        let again = SemaphoreCommand::Configure { key, change: Box::default(), only_new: true };
        self.fixture.ask(again).expect("can be made again");
        self.enqueue();
        self.fixture.all.undo();
        (self.naive, self.heard, self.fixture.now) = (naive, heard, now);
        // The same random numbers again: had anything stayed, the model would see it.
        self.rng = rng;
        self.rng.u8(..);
    }

    fn advance(&mut self) {
        let seconds = self.rng.u64(0..40);
        self.fixture.advance(seconds);
        self.naive.tick(self.fixture.now);
        self.bound_held();
    }

    fn configure(&mut self) {
        let change = change(&mut self.rng);
        self.fixture.configure(change.clone());
        self.naive.configure(self.fixture.now, &change);
    }

    fn task(&mut self) -> u64 {
        self.rng.u64(0..14)
    }

    fn enqueue(&mut self) {
        let count = if self.rng.bool() { 1 } else { self.rng.usize(0..5) };
        let entries: Vec<_> =
            (0..count).map(|_| (TaskId(self.task()), f64::from(self.rng.u8(0..12)))).collect();
        self.naive.enqueue(self.fixture.now, &entries);
        let entries =
            entries.iter().map(|(task, priority)| EnqueueItem { task: *task, priority: *priority });
        let (key, entries) = (self.fixture.key.clone(), entries.collect());
        self.fixture.ask(SemaphoreCommand::Enqueue { key, entries }).expect("can be enqueued");
    }

    fn finish(&mut self) {
        let count = if self.rng.bool() { 1 } else { self.rng.usize(0..4) };
        let items: Vec<_> = (0..count).map(|_| self.item()).collect();
        let expected = self.naive.finish(self.fixture.now, &items);
        let key = self.fixture.key.clone();
        let got = self.fixture.ask(SemaphoreCommand::Finish { key, items: items.clone() });
        for (item, outcome) in items.iter().zip(&expected) {
            let person = self.naive.people.iter().find(|person| person.task == item.task);
            if let (GrantFinish::Decline, GrantOutcome::Done, Some(person)) =
                (item.finish, outcome, person)
            {
                self.heard.remove(&person.grant);
            }
        }
        assert_eq!(got, Ok(SemaphoreReply::Finished(expected)), "seed {}", self.seed);
    }

    fn item(&mut self) -> GrantItem {
        let task = TaskId(self.task());
        let person = self.naive.people.iter().find(|person| person.task == task);
        let grant = match self.rng.u8(0..4) {
            0 => None,
            1 => Some(Grant(self.rng.u64(0..=self.naive.grants + 1))),
            _ => person.map(|person| Grant(person.grant)),
        };
        let finish = match self.rng.u8(0..6) {
            0 | 1 => GrantFinish::Release,
            2 | 3 => GrantFinish::Yield,
            4 => GrantFinish::Decline,
            _ => GrantFinish::Extend(Span::from_secs(self.rng.u64(1..60))),
        };
        GrantItem { task, grant, finish }
    }

    fn fetch(&mut self) {
        let count = self.rng.usize(0..6);
        let expected = self.naive.fetch(self.fixture.now, count);
        let command = SemaphoreCommand::Events { key: None, count, wait: Span::ZERO };
        let Ok(SemaphoreReply::Events(got)) = self.fixture.ask(command) else {
            panic!("no events")
        };
        assert_eq!(got.len(), expected.len(), "seed {}", self.seed);
        for (expected, got) in expected.into_iter().zip(got) {
            let said = (expected.task, Grant(expected.grant), expected.kind, expected.attempts);
            assert_eq!(said, (got.task, got.grant, got.kind, got.attempt), "seed {}", self.seed);
            self.heard.insert(got.grant.0, got.kind);
            self.events.push((got.id, expected));
        }
    }

    /// Some acknowledgements are lost, some come twice.
    fn acknowledge(&mut self) {
        if self.events.is_empty() {
            return;
        }
        let (id, event) = self.events[self.rng.usize(0..self.events.len())].clone();
        let there = self.disk.events.contains_key(&id);
        self.fixture.acknowledge(vec![id]);
        if there {
            self.naive.acknowledge(&event);
        }
    }

    /// The last event that a holder received is what is requested of it, or a newer event is
    /// pending.
    fn holders_know(&self) {
        for person in &self.naive.people {
            let about = (0, person.task, Grant(person.grant));
            let told = |kind| self.fixture.all.outbox.find(about, kind).is_some();
            let asked = self.heard.get(&person.grant) == Some(&EventKind::TryRelease);
            let knows = match person.status {
                Status::Acquired => !asked || told(EventKind::Keep),
                Status::TryRelease => {
                    (asked || told(EventKind::TryRelease)) && !told(EventKind::Keep)
                }
                Status::Wait | Status::Delayed => true,
            };
            assert!(knows, "seed {}: {person:?} heard {asked}", self.seed);
        }
    }

    fn statuses(&self) -> BTreeMap<TaskId, Status> {
        self.naive.people.iter().map(|person| (person.task, person.status)).collect()
    }

    /// After the capacity was lowered, the number of surplus holders may only decrease.
    fn bound_held(&mut self) {
        let held = [Status::Acquired, Status::TryRelease];
        let held = self.naive.people.iter().filter(|person| held.contains(&person.status)).count();
        self.held_max = (self.naive.options.active as usize).max(self.held_max.min(held));
    }

    fn compare(&mut self, before: &BTreeMap<TaskId, Status>) {
        self.held_max = self.held_max.max(self.naive.options.active as usize);
        audit(&self.fixture.all, self.fixture.now, 0, self.held_max);
        self.bound_held();
        self.holders_know();
        for task in 0..14 {
            let (expected, got) = self.both(TaskId(task));
            assert_eq!(got, expected, "seed {}, task {task}", self.seed);
            let was = before.get(&TaskId(task)).copied();
            let is = expected.map(|person| person.1);
            if was != is {
                self.steps.insert((was, is));
            }
        }
        let info = self.fixture.info();
        assert_eq!(info.events as usize, self.naive.events.len(), "seed {}", self.seed);
        assert_eq!(self.fixture.all.semaphore(0).record.grant_seq, self.naive.grants);
    }

    #[expect(clippy::type_complexity, reason = "used once, to compare two sides field by field")]
    fn both(
        &mut self,
        task: TaskId,
    ) -> (Option<(f64, Status, u64, bool)>, Option<(f64, Status, u64, bool)>) {
        let person = self.naive.people.iter().find(|person| person.task == task);
        let holds = |status| matches!(status, Status::Acquired | Status::TryRelease);
        let expected = person.map(|person| {
            let grant = if holds(person.status) { person.grant } else { 0 };
            (person.priority, person.status, grant, person.pinned)
        });
        let got = self.fixture.member(task.0).map(|member| {
            let grant = member.grant.map_or(0, |grant| grant.0);
            (member.priority.value(), member.status, grant, member.pinned)
        });
        (expected, got)
    }
}

/// Mostly small numbers, so that every case occurs.
fn change(rng: &mut Rng) -> SemaphoreChange {
    let active = rng.i64(0..6);
    let span = |rng: &mut Rng| Span::from_secs(rng.u64(0..3) * 10);
    let some = |rng: &mut Rng| rng.bool().then(|| Span::from_secs(rng.u64(5..50)));
    SemaphoreChange {
        active: Some(active),
        try_release: Some(rng.i64(0..=active)),
        margin: Some(f64::from(rng.u8(0..3))),
        min_hold: Some(span(rng)),
        cool_down: Some(span(rng)),
        max_revoking: Some(rng.bool().then(|| rng.i64(0..4))),
        revoke_grace: Some(Span::from_secs(rng.u64(1..30))),
        force: Some(rng.bool()),
        lease: Some(some(rng)),
        ack_timeout: Some(some(rng)),
        shed: Some(rng.bool()),
        drop_expired: Some(rng.u8(0..4) == 0),
    }
}

impl StoredRecords {
    fn write(&mut self, all: &Semaphores) {
        let changes = all.changes();
        put(&mut self.semaphores, changes.semaphores);
        for (number, record) in changes.granted {
            let before = self.semaphores.insert(number, record.clone());
            let before = before.expect("it was stored before");
            assert!(before.grant_seq < record.grant_seq);
            assert_eq!(before, SemaphoreRecord { grant_seq: before.grant_seq, ..record });
        }
        put(&mut self.tasks, changes.tasks);
        put(&mut self.events, changes.events);
    }

    fn read(&self) -> Semaphores {
        let mut all = Semaphores::default();
        for (number, record) in &self.semaphores {
            assert!(all.restore_semaphore(*number, record.clone()));
        }
        for record in self.tasks.values() {
            assert!(all.restore_place(record.clone()));
        }
        for (id, event) in &self.events {
            assert!(all.restore_event(*id, event.clone()));
        }
        all
    }
}

fn put<K: Ord + std::fmt::Debug, T>(rows: &mut BTreeMap<K, T>, changes: Vec<(K, Row<T>)>) {
    for (key, change) in changes {
        let there = rows.contains_key(&key);
        match change {
            Row::Insert(row) => {
                assert!(!there, "{key:?} is inserted twice");
                rows.insert(key, row);
            }
            Row::Update(row) => {
                assert!(there, "{key:?} is changed before it is there");
                rows.insert(key, row);
            }
            Row::Remove => _ = rows.remove(&key).unwrap_or_else(|| panic!("{key:?} is not there")),
        }
    }
}

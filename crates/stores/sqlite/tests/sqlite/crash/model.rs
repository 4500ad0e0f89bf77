//! Models what must be on disk, from the lines that the child printed.

use std::collections::BTreeMap;

use taskyard_core::{Reply, Span, State, Task, Timestamp};
use taskyard_store_sqlite::SqliteStore;

use super::script::{Line, SCRAP, Step, TEMPORARY, TUBES, Verb, payload};
use crate::fixture::{must, peek, tubes};

/// Tasks of one tube by id.
type Tasks = BTreeMap<u64, Expected>;

/// Placeholder ids of expected tasks whose ids were not printed; higher than all others.
const UNKNOWN_ID: u64 = 1 << 60;

/// The expected state after everything the children did.
#[derive(Debug, Default)]
pub struct Model {
    tasks: [Tasks; 2],
    /// The first id of each tube that was never printed.
    unprinted: [u64; 3],
    lease_last: Option<u64>,
    /// The batch without a reply.
    in_flight: Option<(i64, Vec<Step>)>,
    batches: usize,
}

#[derive(Clone, Debug, PartialEq)]
struct Expected {
    token: u64,
    pri: u64,
    attempts: u32,
    state: State,
    due: Option<Timestamp>,
}

impl Model {
    /// Number of batches with a reply.
    pub fn batches(&self) -> usize {
        self.batches
    }

    /// Applies the lines of a child.
    pub fn read(&mut self, lines: &[Line]) {
        assert_eq!(self.in_flight, None, "a comparison has decided the last batch");
        for line in lines {
            match line {
                Line::Start => {}
                Line::Begin { now, steps } => self.in_flight = Some((*now, steps.clone())),
                Line::Done { ids, leases } => {
                    let (now, steps) = self.in_flight.take().expect("it has begun");
                    self.batches += 1;
                    self.check_numbers(&steps, ids, leases);
                    apply(&mut self.tasks, now, &steps, ids.iter().copied());
                }
            }
        }
    }

    /// Checks that ids and leases are never issued twice, even after a crash.
    fn check_numbers(&mut self, steps: &[Step], ids: &[u64], leases: &[u64]) {
        let puts = steps.iter().filter(|s| matches!(s.verb, Verb::Put { .. } | Verb::PutDeleted));
        let puts: Vec<_> = puts.collect();
        assert_eq!(puts.len(), ids.len(), "an id for each put");
        for (put, id) in puts.iter().zip(ids) {
            let unprinted = &mut self.unprinted[put.tube];
            assert!(id >= unprinted, "id {id} of {} was issued before", TUBES[put.tube]);
            *unprinted = id + 1;
        }
        for lease in leases {
            assert!(self.lease_last < Some(*lease), "lease {lease} was issued before");
            self.lease_last = Some(*lease);
        }
    }

    /// Compares with a store that was opened after the kill, and decides whether the batch without a reply
    /// was executed.
    pub fn compare(&mut self, store: &SqliteStore) {
        let in_flight = self.in_flight.take();
        let (now, steps) = in_flight.clone().unwrap_or_default();
        let found: [Tasks; 2] = [0, SCRAP].map(|tube| self.find(store, tube, steps.len() as u64));
        let temporary = tubes(store).into_iter().find(|t| t.name.as_str() == TUBES[TEMPORARY]);
        let left = temporary.map_or(0, |tube| tube.stats.tasks.total());
        assert_eq!(left, 0, "a temporary tube is empty after a restart");
        if found == self.tasks {
            return;
        }
        let mut after = self.tasks.clone();
        apply(&mut after, now, &steps, UNKNOWN_ID..);
        for tube in [0, SCRAP] {
            self.assign_unknown_ids(tube, &mut after[tube], &found[tube]);
        }
        if found != after {
            panic!("{}", difference(&self.tasks, &after, &found, &in_flight));
        }
        self.tasks = after;
    }

    fn find(&self, store: &SqliteStore, tube: usize, more: u64) -> Tasks {
        let Some(info) = tubes(store).into_iter().find(|t| t.name.as_str() == TUBES[tube]) else {
            assert_eq!(self.batches, 0, "the tube {} is missing", TUBES[tube]);
            return Tasks::new();
        };
        let present = self.tasks[tube].keys().copied();
        let fresh = self.unprinted[tube]..self.unprinted[tube] + more;
        let old = (0..self.unprinted[tube]).filter(|id| !self.tasks[tube].contains_key(id));
        let Reply::Tasks(tasks) = must(store, peek(TUBES[tube], present.chain(old).chain(fresh)))
        else {
            panic!("a peek answers tasks");
        };
        let unfinished = tasks.iter().filter(|task| task.state != State::Done).count() as u64;
        assert_eq!(unfinished, info.stats.tasks.total(), "tasks of {}", TUBES[tube]);
        tasks.into_iter().map(|task| (task.id.0, Expected::from(&task))).collect()
    }

    /// Gives expected tasks with unknown ids the new ids that were found, in order.
    fn assign_unknown_ids(&mut self, tube: usize, after: &mut Tasks, found: &Tasks) {
        let unknown = after.split_off(&UNKNOWN_ID);
        let new = found.range(self.unprinted[tube]..).map(|(id, _)| *id);
        after.extend(new.zip(unknown.into_values()));
        if let Some((last, _)) = found.last_key_value() {
            self.unprinted[tube] = self.unprinted[tube].max(last + 1);
        }
    }
}

impl From<&Task> for Expected {
    fn from(task: &Task) -> Self {
        let body = task.body.as_ref().expect("the payload is loaded").payload();
        let token = body[..8].try_into().map(u64::from_le_bytes).expect("a token");
        assert!(body == payload(token), "task {} has another payload", task.id);
        let Task { pri, attempts, state, due, .. } = *task;
        Expected { token, pri, attempts, state, due }
    }
}

fn apply(tubes: &mut [Tasks; 2], now: i64, steps: &[Step], ids: impl IntoIterator<Item = u64>) {
    let mut ids = ids.into_iter();
    let moment = |delay_s| Timestamp::from_micros(now) + Span::from_secs(delay_s);
    let later = |delay_s| match delay_s {
        0 => (State::Ready, None),
        _ => (State::Delayed, Some(moment(delay_s))),
    };
    for step in steps {
        let id = match step.verb {
            Verb::Put { .. } | Verb::PutDeleted => ids.next().expect("an id for each put"),
            _ => 0,
        };
        let Some(tasks) = tubes.get_mut(step.tube) else { continue };
        match step.verb {
            Verb::Put { token, pri, delay_s } => {
                let (state, due) = later(delay_s);
                tasks.insert(id, Expected { token, pri, attempts: 0, state, due });
            }
            Verb::PutDeleted => {}
            // This tube keeps done tasks.
            Verb::Ack(id) if step.tube == SCRAP => {
                let task = tasks.get_mut(&id).expect("the task exists");
                (task.state, task.due) = (State::Done, None);
            }
            Verb::Ack(id) | Verb::Delete(id) => _ = tasks.remove(&id).expect("the task exists"),
            Verb::Release { id, delay_s } => {
                let task = tasks.get_mut(&id).expect("the task exists");
                task.attempts += 1;
                (task.state, task.due) = later(delay_s);
            }
            Verb::Bury(id) => {
                let task = tasks.get_mut(&id).expect("the task exists");
                (task.state, task.due) = (State::Buried, None);
            }
            Verb::Kick(count) => kick(tasks, count),
            Verb::Truncate => tasks.clear(),
        }
    }
}

/// Kicks the buried tasks with the lowest (pri, id) first.
fn kick(tasks: &mut Tasks, count: u64) {
    let mut buried: Vec<_> =
        tasks.iter_mut().filter(|(_, task)| task.state == State::Buried).collect();
    buried.sort_by_key(|(id, task)| (task.pri, **id));
    for (_, task) in buried.into_iter().take(count as usize) {
        task.state = State::Ready;
    }
}

fn difference(
    before: &[Tasks; 2],
    after: &[Tasks; 2],
    found: &[Tasks; 2],
    in_flight: &Option<(i64, Vec<Step>)>,
) -> String {
    let mut text = format!("the content matches neither the state before nor after {in_flight:?}");
    for tube in [0, SCRAP] {
        let ids: std::collections::BTreeSet<_> =
            [before, after, found].iter().flat_map(|tubes| tubes[tube].keys()).collect();
        for id in ids {
            let three = [before, after, found].map(|tubes| tubes[tube].get(id));
            if three[2] != three[0] || three[2] != three[1] {
                text += &format!(
                    "\n{} {id}: {:?}, then {:?}, found {:?}",
                    TUBES[tube], three[0], three[1], three[2]
                );
            }
        }
    }
    text
}

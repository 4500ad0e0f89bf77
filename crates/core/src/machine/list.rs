//! Lists the tasks of a tube page by page.

use std::collections::BinaryHeap;

use crate::command::{List, ListOrder, ListedTask, Reply};
use crate::error::{Error, Result};
use crate::key::Key;
use crate::limits::LIST_TASKS_MAX;
use crate::record::Record;
use crate::slots::{Slot, SlotState};
use crate::state::{State, StateSet};
use crate::subqueue::OrderKey;
use crate::task::TaskId;
use crate::tasks::Tasks;
use crate::time::Timestamp;

use super::Machine;
use super::tubes::Tube;

/// How many ids are looked up one by one before all tasks are searched: ids are dense unless most
/// tasks between old and new ones are finished.
const LOOKUPS_MAX: u64 = 8192;

impl List {
    /// Refuses a page without tasks or states, or with too many tasks. Stores whose rules run in the
    /// database call this first.
    pub fn check(&self) -> Result<()> {
        if matches!(self.order, ListOrder::Id { states: StateSet::EMPTY, .. }) {
            return Err(Error::Invalid("a list needs at least one state".into()));
        }
        if self.key.is_some() && matches!(self.order, ListOrder::Queue { .. }) {
            let why = "a list in the order of the queue has no key; list in the order of ids";
            return Err(Error::Invalid(why.into()));
        }
        if (1..=LIST_TASKS_MAX).contains(&self.limit) {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "the limit of a list must be between 1 and {LIST_TASKS_MAX}, not {}",
            self.limit
        )))
    }
}

impl Machine {
    pub(super) fn list(&mut self, now: Timestamp, list: &List) -> Result<Reply> {
        list.check()?;
        let number = self.number(&list.tube)?;
        let tube = self.tube(number);
        Ok(Reply::Listed(match list.order {
            ListOrder::Id { states, after } => {
                let first = after.map_or(0, |id| id.0.saturating_add(1));
                let (ids, limit) = (first..tube.next_id, list.limit);
                let page = Page { now, states, ids, limit, key: list.key.as_ref() };
                let mut tasks = page.by_id(&tube.tasks);
                if states.contains(State::Done) {
                    page.add_done(tube, &mut tasks);
                }
                tasks
            }
            ListOrder::Queue { after } => in_queue(&mut tube.tasks, now, after, list.limit),
        }))
    }
}

/// A page in the order of ids.
struct Page<'a> {
    now: Timestamp,
    states: StateSet,
    ids: std::ops::Range<u64>,
    limit: usize,
    key: Option<&'a Key>,
}

impl Page<'_> {
    fn by_id(&self, tasks: &Tasks) -> Vec<ListedTask> {
        if self.states.iter().all(|state| state == State::Done) {
            return Vec::new();
        }
        if let Some(key) = self.key {
            let holder = tasks.key_holder(key).and_then(|id| tasks.get(id));
            return self.smallest(holder.into_iter());
        }
        let rare = StateSet::EMPTY.with(State::Taken).with(State::Buried);
        let counts = tasks.counts();
        let few = (counts.taken + counts.buried) * 8 < tasks.len() as u64;
        if few && self.states.iter().all(|state| state == State::Done || rare.contains(state)) {
            return self.smallest(tasks.taken_and_buried().filter_map(|id| tasks.get(id)));
        }
        let mut page = Vec::new();
        for id in self.ids.clone() {
            if page.len() == self.limit {
                return page;
            }
            if id - self.ids.start == LOOKUPS_MAX {
                return self.smallest(tasks.all());
            }
            let slot = tasks.get(TaskId(id)).filter(|slot| self.has(slot));
            page.extend(slot.map(listed));
        }
        page
    }

    /// Adds the done tasks to those of the page, which are in the order of ids.
    fn add_done(&self, tube: &Tube, page: &mut Vec<ListedTask>) {
        let done = tube.tasks.done().range(TaskId(self.ids.start)..);
        let kept = done.filter(|done| tube.options.keeps(done.at, self.now));
        let named = |record: &Record| match (self.key, &record.key) {
            (Some(key), held) => held.as_ref().is_some_and(|held| held.key == *key),
            (None, _) => true,
        };
        let kept = kept.filter(|done| named(&done.record));
        let kept = kept.take(self.limit);
        page.extend(kept.map(|done| ListedTask { id: done.record.id, pri: done.record.pri }));
        page.sort_unstable_by_key(|task| task.id);
        page.truncate(self.limit);
    }

    /// The tasks of the page among these, which are in no order.
    fn smallest<'a>(&self, slots: impl Iterator<Item = &'a Slot>) -> Vec<ListedTask> {
        let mut smallest = BinaryHeap::with_capacity(self.limit + 1);
        for slot in slots.filter(|slot| self.ids.contains(&slot.id.0) && self.has(slot)) {
            if smallest.len() < self.limit {
                smallest.push((slot.id, slot.pri()));
            } else if smallest.peek().is_some_and(|largest| slot.id < largest.0) {
                smallest.pop();
                smallest.push((slot.id, slot.pri()));
            }
        }
        smallest.into_sorted_vec().into_iter().map(|(id, pri)| ListedTask { id, pri }).collect()
    }

    fn has(&self, slot: &Slot) -> bool {
        self.states.contains(slot.state()) && !is_expired(slot, self.now)
    }
}

/// A page in the order of delivery. Expired tasks leave the ready index first, so that none hides the
/// next one of its sub-queue.
fn in_queue(
    tasks: &mut Tasks,
    now: Timestamp,
    after: Option<OrderKey>,
    limit: usize,
) -> Vec<ListedTask> {
    tasks.hide_expired(now);
    let mut page = Vec::new();
    let mut next = tasks.next_takeable(after);
    while let Some(key) = next.filter(|_| page.len() < limit) {
        page.extend(tasks.get(key.1).map(listed));
        next = tasks.next_takeable(Some(key));
    }
    page
}

fn listed(slot: &Slot) -> ListedTask {
    ListedTask { id: slot.id, pri: slot.pri() }
}

/// Whether the next tick removes it.
pub(super) fn is_expired(slot: &Slot, now: Timestamp) -> bool {
    match slot.details() {
        SlotState::Taken(_) | SlotState::Delayed(_) | SlotState::Scheduled(_) => false,
        SlotState::Ready(_) | SlotState::Gated(_) | SlotState::Buried { .. } => {
            slot.expires() <= now
        }
    }
}

//! Puts with unique keys, and what happens to keys when tasks end.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::command::{NewTask, Placed};
use crate::error::{Error, Result};
use crate::journal::{Entry, KeyChange};
use crate::key::{EndedKey, HeldKey, Key, KeyRecord, KeyRequest, OnConflict};
use crate::limits::TASK_ID_MAX;
use crate::record::{Record, StoredState};
use crate::slots::Slot;
use crate::state::{self, Event, State};
use crate::task::{Body, TaskId};
use crate::time::Timestamp;
use crate::tube::TubeName;

use super::Machine;
use super::put::new_slot;
use super::tubes::Tube;

/// A task, by the number of its tube and its id.
type TubeTask = (u32, TaskId);

/// The stored key of a task before the batch, as far as the batch changed it.
struct KeyBefore<'a> {
    /// The key of the stored task.
    held: Option<Option<&'a HeldKey>>,
    /// The key while it was held after the end.
    ended: Option<Option<&'a EndedKey>>,
}

impl Tube {
    /// The key of a task that has not ended, or of a done one that is kept.
    fn held_key(&self, id: TaskId) -> Option<&HeldKey> {
        let done = || self.tasks.done().get(id).and_then(|done| done.record.key.as_deref());
        self.tasks.key_of(id).or_else(done)
    }

    /// How many of the tasks a put would add.
    pub fn added_by(&self, now: Timestamp, tasks: &[NewTask]) -> u64 {
        if tasks.iter().all(|task| task.key.is_none()) {
            return tasks.len() as u64;
        }
        let (mut new, mut added) = (HashSet::new(), 0);
        for task in tasks {
            let key = task.key.as_ref().map(|request| &request.held.key);
            let is_added = key.is_none_or(|key| !self.is_held(now, key) && new.insert(key));
            added += u64::from(is_added);
        }
        added
    }

    fn is_held(&self, now: Timestamp, key: &Key) -> bool {
        let Some(id) = self.tasks.key_holder(key) else { return false };
        match (self.tasks.get(id), self.tasks.key_of(id)) {
            (Some(slot), Some(held)) if is_over(slot, now) => {
                slot.expires() + held.unique_for > now
            }
            (Some(_), _) => true,
            (None, _) => self.tasks.keys().ended(id).is_some_and(|ended| ended.until > now),
        }
    }
}

/// Whether the time to live of a task that is not taken is over.
fn is_over(slot: &Slot, now: Timestamp) -> bool {
    slot.delivery().is_none() && slot.expires() <= now
}

/// When a task that is removed now has ended.
pub(super) fn end_of(slot: &Slot, now: Timestamp) -> Timestamp {
    if is_over(slot, now) { slot.expires() } else { now }
}

impl Machine {
    /// Puts tasks one after the other, because one of their keys has a holder. Adds holders that are removed to `expired`.
    pub(super) fn put_unclaimed(
        &mut self,
        now: Timestamp,
        number: u32,
        tasks: Vec<NewTask>,
        expired: &mut Vec<TaskId>,
    ) -> Vec<Placed> {
        let put_one = |mut task: NewTask| match task.key.take() {
            None => self.add_task(now, number, task),
            Some(request) => self.put_keyed(now, number, task, request, expired),
        };
        tasks.into_iter().map(put_one).collect()
    }

    /// Puts a task with a key. A holder whose time to live is over is removed first, and its id added to `expired`.
    fn put_keyed(
        &mut self,
        now: Timestamp,
        number: u32,
        task: NewTask,
        request: Box<KeyRequest>,
        expired: &mut Vec<TaskId>,
    ) -> Placed {
        let mut holder = self.tubes[number].tasks.key_holder(&request.held.key);
        if let Some(id) = holder {
            self.free_key(now, number, id, expired);
            holder = self.tubes[number].tasks.key_holder(&request.held.key);
        }
        let Some(id) = holder else {
            let placed = self.add_task(now, number, task);
            self.tube(number).tasks.insert_key(placed.id, request);
            return placed;
        };
        let state = self.tubes[number].tasks.get(id).map_or(State::Done, Slot::state);
        let state = match (request.on_conflict, state) {
            (OnConflict::Replace, State::Ready | State::Delayed) => {
                self.replace(now, number, id, task, request.held)
            }
            _ => state,
        };
        Placed { id, state, existing: true }
    }

    /// Frees the key of a task if it is held no longer. A task whose time to live is over is removed first,
    /// and added to `expired`.
    fn free_key(&mut self, now: Timestamp, number: u32, id: TaskId, expired: &mut Vec<TaskId>) {
        if self.tubes[number].tasks.get(id).is_some_and(|slot| is_over(slot, now)) {
            self.expire(now, number, id);
            expired.push(id);
        }
        let ended = self.tubes[number].tasks.keys().ended(id);
        if ended.is_some_and(|ended| ended.until <= now) {
            self.forget_key(now, number, id);
        }
    }

    /// Gives a ready or delayed task the content of a put. Returns its new state.
    fn replace(
        &mut self,
        now: Timestamp,
        number: u32,
        id: TaskId,
        mut task: NewTask,
        held: HeldKey,
    ) -> State {
        self.note(number, id);
        let wall_ahead = self.wall_ahead;
        let tube = self.tubes.get_mut(number).expect("put looked the tube up");
        let before = tube.tasks.get(id);
        // The body tells that the task was replaced, so it must not be the same allocation.
        if before.and_then(|slot| slot.body.as_ref()).is_some_and(|body| body.is_same(&task.body)) {
            task.body = Body::with_meta(task.body.payload(), task.body.meta().unwrap_or(&[]));
        }
        let before = before.map(Slot::state);
        let semaphore_priority = task.semaphore_priority;
        let slot = new_slot(now, id, task, &tube.options, wall_ahead);
        let state = slot.state();
        let event = match state {
            State::Delayed => Event::ReplaceDelayed,
            _ => Event::Replace,
        };
        debug_assert_eq!(state::next(before, event), Some(state));
        tube.tasks.replace(slot, semaphore_priority, held, &mut self.shared);
        state
    }

    /// The task of this key has ended: the key stays held for some time.
    pub(super) fn end_key(&mut self, now: Timestamp, number: u32, ended: EndedKey) {
        self.add_ended(number, ended);
        let keys = self.tubes[number].tasks.keys();
        if let Some(first) = keys.surplus(now).filter(|_| keys.is_full()) {
            self.forget_key(now, number, first);
        }
    }

    fn add_ended(&mut self, number: u32, ended: EndedKey) {
        let id = ended.id;
        self.journal.push(|| Entry::EndedKey { tube: number, id, before: None });
        self.tube(number).tasks.keys_mut().insert_ended(ended);
    }

    /// Frees the key of an ended task.
    fn forget_key(&mut self, now: Timestamp, number: u32, id: TaskId) {
        let Some(before) = self.tube(number).tasks.keys_mut().remove_ended(id) else { return };
        self.keys_freed_early += u64::from(before.until > now);
        self.journal.push(|| Entry::EndedKey { tube: number, id, before: Some(before) });
    }

    /// Forgets keys of ended tasks that are free. Returns how many.
    pub(super) fn trim_keys(&mut self, now: Timestamp, number: u32, limit: usize) -> usize {
        let mut removed = 0;
        while removed < limit
            && let Some(id) = self.tubes[number].tasks.keys().surplus(now)
        {
            self.forget_key(now, number, id);
            removed += 1;
        }
        removed
    }

    pub(super) fn undo_ended_key(
        &mut self,
        number: u32,
        id: TaskId,
        before: Option<Box<EndedKey>>,
    ) {
        let Some(tube) = self.tubes.get_mut(number) else { return };
        match before {
            None => _ = tube.tasks.keys_mut().remove_ended(id),
            Some(before) => tube.tasks.keys_mut().insert_ended(*before),
        }
        self.update_signals(number);
    }

    /// The key of a task that is stored: one that has not ended, or a done one that is kept.
    pub fn held_key(&self, number: u32, id: TaskId) -> Option<&HeldKey> {
        self.tubes.get(number)?.held_key(id)
    }

    /// The changes of stored keys. `cleared` tells where a tube lost all of them, `keyed` which tasks with
    /// a key changed, and the key that each had before if it was stored.
    pub(super) fn key_changes(
        &self,
        cleared: &HashMap<u32, usize>,
        keyed: Vec<(TubeTask, Option<&HeldKey>)>,
    ) -> Vec<(u32, TaskId, KeyChange)> {
        let held = keyed
            .into_iter()
            .map(|(task, held)| (task, KeyBefore { held: Some(held), ended: None }));
        let mut before: Vec<(TubeTask, KeyBefore<'_>)> = held.collect();
        for (place, entry) in self.journal.entries.iter().enumerate() {
            let Entry::EndedKey { tube, id, before: ended } = entry else { continue };
            if cleared.get(tube).is_none_or(|clear| place > *clear) {
                let ended = Some(ended.as_deref());
                before.push(((*tube, *id), KeyBefore { held: None, ended }));
            }
        }
        // Stable: the first value of each is the one before the batch.
        before.sort_by_key(|of_task| of_task.0);
        before.dedup_by(|later, first| {
            let is_same = later.0 == first.0;
            if is_same {
                first.1.held = first.1.held.or(later.1.held);
                first.1.ended = first.1.ended.or(later.1.ended);
            }
            is_same
        });
        let change = |((number, id), before): (TubeTask, KeyBefore<'_>)| {
            let tube = self.tubes.get(number)?;
            let held = tube.held_key(id);
            let ended = tube.tasks.keys().ended(id);
            let before = KeyRecord::new(before.held.unwrap_or(held), before.ended.unwrap_or(ended));
            let change = match (before, KeyRecord::new(held, ended)) {
                (None, Some(after)) => KeyChange::Insert(after),
                (Some(before), Some(after)) if before != after => KeyChange::Update(after),
                (Some(_), None) => KeyChange::Remove,
                _ => return None,
            };
            Some((number, id, change))
        };
        before.into_iter().filter_map(change).collect()
    }

    /// Restores the stored key of a task, after the tasks; false if that is impossible.
    pub fn restore_key(&mut self, number: u32, id: TaskId, record: KeyRecord) -> bool {
        let Some(tube) = self.tubes.get_mut(number) else { return false };
        let KeyRecord { key, unique_for, until } = record;
        if let Some(unique_for) = unique_for {
            let is_held = tube.tasks.key_holder(&key).is_some();
            let held = HeldKey { key: key.clone(), unique_for };
            if tube.tasks.get(id).is_some() {
                if is_held || until.is_some() || tube.tasks.key_of(id).is_some() {
                    return false;
                }
                tube.tasks.insert_key(id, KeyRequest::of(&held));
            } else if let Some(done) = tube.tasks.done_mut(id) {
                done.record.key = Some(Arc::new(held));
            } else {
                return false;
            }
        }
        match until {
            Some(until) => self.restore_ended_key(number, EndedKey { id, key, until }),
            None => unique_for.is_some(),
        }
    }

    fn restore_ended_key(&mut self, number: u32, ended: EndedKey) -> bool {
        let Some(tube) = self.tubes.get_mut(number) else { return false };
        let is_held = tube.tasks.key_holder(&ended.key).is_some();
        if is_held || ended.id.0 > TASK_ID_MAX || tube.tasks.get(ended.id).is_some() {
            return false;
        }
        tube.next_id = tube.next_id.max(ended.id.0 + 1);
        tube.tasks.keys_mut().insert_ended(ended);
        self.update_signals(number);
        true
    }

    /// Keys of ended tasks of a tube from this task on, at most `count`, by task.
    pub fn export_ended_keys(&self, number: u32, from: TaskId, count: usize) -> Vec<EndedKey> {
        let Some(tube) = self.tubes.get(number) else { return Vec::new() };
        let all = tube.tasks.keys().all_ended().filter(|ended| ended.id >= from);
        let mut page: Vec<_> = all.cloned().collect();
        page.sort_unstable_by_key(|ended| ended.id);
        page.truncate(count);
        page.iter_mut().for_each(|ended| ended.move_moments(self.wall_ahead));
        page
    }

    /// Adds keys of ended tasks of another store to a tube, after its tasks. Those that are there
    /// already are skipped. All or none.
    pub fn import_ended_keys(&mut self, name: &TubeName, page: Vec<EndedKey>) -> Result<()> {
        let number = self.number(name)?;
        let tasks = &self.tube(number).tasks;
        let mut new = HashSet::new();
        for ended in &page {
            let other = tasks.key_holder(&ended.key).is_some_and(|id| id != ended.id);
            let is_alive = tasks.get(ended.id).is_some();
            if other || is_alive || ended.id.0 > TASK_ID_MAX || !new.insert(&ended.key) {
                let text =
                    format!("cannot import key '{}' into tube '{name}': it is held", ended.key);
                return Err(Error::Invalid(text));
            }
        }
        let by = self.wall_ahead.saturating_neg();
        for mut ended in page {
            if self.tubes[number].tasks.keys().ended(ended.id).is_none() {
                ended.move_moments(by);
                self.add_ended(number, ended);
            }
        }
        self.update_signals(number);
        Ok(())
    }

    /// Refuses an imported task whose key another task of the tube holds, or one before it, whose keys are in `new`.
    pub(super) fn check_imported_key<'a>(
        &self,
        number: u32,
        record: &'a Record,
        new: &mut HashSet<&'a Key>,
    ) -> Result<()> {
        let Some(held) = record.key.as_ref().filter(|_| record.state != StoredState::Done) else {
            return Ok(());
        };
        if self.tubes[number].tasks.key_holder(&held.key).is_none() && new.insert(&held.key) {
            return Ok(());
        }
        Err(Error::Invalid(format!("cannot import task {}: its key is held", record.id)))
    }
}

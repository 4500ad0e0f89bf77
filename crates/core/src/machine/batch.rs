//! Lets a store write a batch, undo it, and restore stored data.

use std::collections::{BTreeSet, HashMap};

use crate::done::DoneTask;
use crate::journal::{Changes, Entry, KeyChange, TubeRecord};
use crate::key::{KeyRecord, KeyRequest};
use crate::limits::{TASK_ID_MAX, TUBE_NUMBERS_MAX};
use crate::record::{Change, Record, StoredState};
use crate::semaphore::Semaphores;
use crate::slots::{Slot, is_other_body};
use crate::stats::TubeStats;
use crate::task::{Body, TaskId};
use crate::tasks::{DetachedTask, Tasks};
use crate::time::Timestamp;
use crate::tube::{TubeName, TubeOptions};

use super::Machine;
use super::finish::ReleaseMode;
use super::tubes::Tube;

impl Machine {
    /// Begins a batch: from here on changes are recorded, until [`Machine::keep`] or
    /// [`Machine::undo`].
    pub fn begin(&mut self) {
        self.journal.on = true;
        self.journal.batch = self.journal.batch.wrapping_add(1);
        if self.journal.batch == 0 {
            // The numbers start again: no mark of the previous round may match a new batch.
            self.journal.batch = 1;
            self.tubes.iter_mut().for_each(|tube| {
                tube.noted = 0;
                tube.tasks.forget_notes();
            });
        }
        self.journal.entries.clear();
        self.semaphores.begin();
    }

    /// The changes of the batch that must be stored.
    pub fn changes(&self) -> Changes {
        let mut changes = Changes { semaphores: self.semaphores.changes(), ..Changes::default() };
        let (mut tubes, mut buckets, mut schedules) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        // Where a tube lost all its tasks: earlier entries concern removed tasks.
        let mut cleared: HashMap<u32, usize> = HashMap::new();
        for (place, entry) in self.journal.entries.iter().enumerate() {
            match entry {
                Entry::Created { tube }
                | Entry::Options { tube, .. }
                | Entry::Named { tube, .. } => _ = tubes.insert(*tube),
                // A truncated tube is stored too: the ids of its tasks stay used.
                Entry::Dropped { tube, .. } | Entry::Truncated { tube, .. } => {
                    tubes.insert(*tube);
                    cleared.insert(*tube, place);
                }
                Entry::Bucket { tube, .. } => _ = buckets.insert(*tube),
                Entry::Schedule { name, .. } => _ = schedules.insert(name),
                _ => {}
            }
        }
        buckets.retain(|number| !tubes.contains(number));
        changes.buckets = buckets
            .into_iter()
            .filter_map(|number| Some((number, self.tubes.get(number)?.bucket?)))
            .collect();
        changes.schedules = schedules
            .into_iter()
            .map(|name| (name.clone(), self.schedules.get(name).cloned()))
            .collect();
        changes.cleared = cleared.keys().copied().collect();
        changes.tubes =
            tubes.into_iter().map(|number| (number, self.tube_record(number))).collect();
        let (mut keyed, mut new_keys) = (Vec::new(), Vec::new());
        for (place, entry) in self.journal.entries.iter().enumerate() {
            let (tube, change, key) = match entry {
                Entry::Task { tube, id, before } => {
                    let key = before.as_ref().and_then(|before| before.key.as_deref());
                    let key = key.map(|request| &request.held);
                    (tube, self.change(*tube, *id, before.as_ref()), key)
                }
                Entry::DoneRemoved { tube, before } => {
                    (tube, Some(Change::Remove(before.record.id)), before.record.key.as_deref())
                }
                _ => continue,
            };
            if !cleared.is_empty() && cleared.get(tube).is_some_and(|clear| place < *clear) {
                continue;
            }
            let Some(change) = change else { continue };
            if key.is_some() || change.is_keyed_done() {
                keyed.push(((*tube, change.id()), key));
            } else if let Some(key) = self.new_key(*tube, &change) {
                new_keys.push((*tube, change.id(), KeyChange::Insert(key)));
            }
            changes.tasks.push((*tube, change));
        }
        changes.keys = self.key_changes(&cleared, keyed);
        changes.keys.extend(new_keys);
        changes
    }

    /// The key of a new task that has not ended. Nothing else can have changed it in this batch.
    fn new_key(&self, number: u32, change: &Change) -> Option<KeyRecord> {
        let Change::Insert(record) = change else { return None };
        KeyRecord::new(self.tubes.get(number)?.tasks.key_of(record.id), None)
    }

    /// The change of one task that must be stored.
    fn change(&self, number: u32, id: TaskId, before: Option<&DetachedTask>) -> Option<Change> {
        let tube = self.tubes.get(number)?;
        let Some(after) = tube.tasks.get(id) else {
            return Some(match (tube.tasks.done().get(id), before) {
                (None, Some(_)) => Change::Remove(id),
                (None, None) => Change::Passed(id),
                (Some(done), Some(before))
                    if is_other_body(done.record.body.as_ref(), before.slot.body.as_ref()) =>
                {
                    Change::Replace(done.record.clone())
                }
                (Some(done), Some(_)) => Change::Update(done.record.clone()),
                (Some(done), None) => Change::Insert(done.record.clone()),
            });
        };
        let record = || tube.tasks.record_without_key(after, self.wall_ahead);
        match before {
            None => Some(Change::Insert(record())),
            Some(before) if after.is_replaced(&before.slot) => Some(Change::Replace(record())),
            Some(before)
                if after.stored_alike(&before.slot)
                    && tube.tasks.failures(id) == before.failures.as_ref() =>
            {
                None
            }
            Some(_) => Some(Change::Update(record())),
        }
    }

    /// Ends the batch after it was stored.
    pub fn keep(&mut self) {
        self.journal.on = false;
        self.journal.entries.clear();
        self.semaphores.keep();
    }

    /// Reverts the batch. Lease numbers and task ids it used stay used.
    pub fn undo(&mut self) {
        self.semaphores.undo();
        self.journal.on = false;
        self.keys_freed_early = 0;
        for entry in std::mem::take(&mut self.journal.entries).into_iter().rev() {
            self.undo_entry(entry);
        }
        self.failed.clear();
        // Repairs made in this batch were reverted with it.
        self.restored();
    }

    fn undo_entry(&mut self, entry: Entry) {
        match entry {
            Entry::Task { tube, id, before } => self.undo_task(tube, id, before),
            Entry::DoneRemoved { tube, before } => {
                let Some(found) = self.tubes.get_mut(tube) else { return };
                found.tasks.insert_done(before, &mut self.shared);
                self.update_signals(tube);
            }
            Entry::EndedKey { tube, id, before } => self.undo_ended_key(tube, id, before),
            Entry::Stats { tube, before } => self.tube(tube).since_open = before,
            Entry::Options { tube, before } => {
                let tube_before = self.tube(tube);
                tube_before.tasks.set_gated(before.semaphore.is_some());
                tube_before.options = before;
                self.update_signals(tube);
            }
            Entry::Bucket { tube, before } => {
                self.tube(tube).bucket = before;
                self.update_signals(tube);
            }
            Entry::Schedule { name, before } => _ = self.schedules.replace(&name, before),
            Entry::Named { tube, before } => {
                let (name, queue_num) = *before;
                self.tubes.rename(tube, name);
                self.tube(tube).options.queue_num = queue_num;
            }
            Entry::Created { tube } => _ = self.remove_tube(tube),
            Entry::Dropped { tube, before } => {
                before.tasks.share(tube, &mut self.shared, true);
                self.tubes.insert(tube, *before);
                self.update_signals(tube);
            }
            Entry::Truncated { tube, before } => {
                before.share(tube, &mut self.shared, true);
                self.tube(tube).tasks = *before;
                self.update_signals(tube);
            }
            Entry::Session { id, before } => self.set_session(id, before),
            Entry::SessionTtr { before } => self.session_ttr = before,
        }
    }

    fn undo_task(&mut self, number: u32, id: TaskId, before: Option<DetachedTask>) {
        let Some(tube) = self.tubes.get_mut(number) else { return };
        tube.tasks.remove(id, &mut self.shared);
        tube.tasks.remove_done(id, &mut self.shared);
        if let Some(detached) = before {
            tube.tasks.insert(detached, &mut self.shared);
        }
        self.update_signals(number);
    }

    /// Restores a stored tube; false if it cannot have been stored.
    pub fn restore_tube(&mut self, number: u32, record: TubeRecord) -> bool {
        if number >= TUBE_NUMBERS_MAX {
            return false;
        }
        let mut tube = Tube::new(number, record.name, record.options);
        tube.next_id = record.next_id;
        tube.bucket = record.bucket;
        self.tubes.insert(number, tube);
        true
    }

    /// Restores a stored task into a restored tube; false if that does not exist or cannot have
    /// contained the task.
    pub fn restore_task(&mut self, number: u32, record: Record) -> bool {
        let Some(tube) = self.tubes.get_mut(number) else { return false };
        let no_subqueue = tube.options.kind.has_subqueues() && record.subqueue.is_none();
        let is_done = record.state == StoredState::Done;
        let contradicts = is_done != record.finished.is_some();
        if no_subqueue || contradicts || record.id.0 > TASK_ID_MAX {
            return false;
        }
        tube.next_id = tube.next_id.max(record.id.0 + 1);
        self.latest_restored = self.latest_restored.max(Some(record.created));
        let earliest = self.earliest_restored.unwrap_or(record.created);
        self.earliest_restored = Some(earliest.min(record.created));
        if is_done {
            if let Some(done) = DoneTask::new(record, 0) {
                tube.tasks.insert_done(done, &mut self.shared);
            }
            self.update_signals(number);
            return true;
        }
        let subqueue = record.subqueue.clone();
        let (semaphore_priority, failures) = (record.semaphore_priority, record.failures.clone());
        let attempts_max = record.attempts_max;
        let key = record.key.as_deref().map(KeyRequest::of);
        let is_held = |request: &KeyRequest| tube.tasks.key_holder(&request.held.key).is_some();
        if key.as_deref().is_some_and(is_held) {
            return false;
        }
        let slot = Slot::from_record(record, self.wall_ahead);
        let detached =
            DetachedTask { slot, subqueue, semaphore_priority, attempts_max, failures, key };
        tube.tasks.insert(detached, &mut self.shared);
        self.update_signals(number);
        true
    }

    /// A tube, as it is stored.
    pub fn tube_record(&self, number: u32) -> Option<TubeRecord> {
        let tube = self.tubes.get(number)?;
        Some(TubeRecord {
            name: tube.name.clone(),
            options: tube.options.clone(),
            next_id: tube.next_id,
            bucket: tube.bucket,
        })
    }

    /// The name and options of a tube.
    pub fn tube_by_number(&self, number: u32) -> Option<(&TubeName, &TubeOptions)> {
        self.tubes.get(number).map(|tube| (&tube.name, &tube.options))
    }

    /// The number of the tube of this name.
    pub fn tube_number(&self, name: &TubeName) -> Option<u32> {
        self.tubes.number(name)
    }

    /// How many tubes there are.
    pub fn tube_count(&self) -> usize {
        self.tubes.len()
    }

    /// The numbers of all tubes.
    pub fn tube_numbers(&self) -> impl Iterator<Item = u32> {
        self.tubes.iter().map(|tube| tube.0)
    }

    /// The semaphores, to be restored or read.
    pub fn semaphores(&self) -> &Semaphores {
        &self.semaphores
    }

    /// The semaphores, to be restored.
    pub fn semaphores_mut(&mut self) -> &mut Semaphores {
        &mut self.semaphores
    }

    /// The number of the next lease.
    pub fn next_lease(&self) -> u64 {
        self.next_lease
    }

    /// Continues lease numbers from `number`, so that none is issued twice.
    pub fn set_next_lease(&mut self, number: u64) {
        self.next_lease = self.next_lease.max(number);
    }

    /// Memory used by the bodies in memory, in bytes.
    pub fn body_bytes(&self) -> usize {
        self.shared.body_bytes
    }

    /// Puts the body of a task into memory or, with `None`, removes it because it is on disk.
    pub fn set_body(&mut self, number: u32, id: TaskId, body: Option<Body>) {
        if let Some(tube) = self.tubes.get_mut(number) {
            tube.tasks.set_body(id, body, &mut self.shared);
        }
    }

    /// Whether the task exists and its body is not in memory.
    pub fn is_body_unloaded(&self, number: u32, id: TaskId) -> bool {
        let Some(tube) = self.tubes.get(number) else { return false };
        match tube.tasks.get(id) {
            Some(slot) => slot.body.is_none(),
            None => tube.tasks.done().get(id).is_some_and(|done| done.record.body.is_none()),
        }
    }

    /// The tasks to be taken next, as far as known, at most `window`.
    pub fn upcoming(&self, number: u32, window: usize) -> Vec<TaskId> {
        self.tubes.get(number).map_or_else(Vec::new, |tube| tube.tasks.upcoming(window))
    }

    /// Applies the effects of a stop and a new start: taken tasks are released, temporary tubes are
    /// empty, sessions are gone and the counters start again.
    pub fn restart(&mut self) {
        self.give_back_all();
        self.forget_sessions();
        let numbers: Vec<u32> = self.tube_numbers().collect();
        for number in numbers {
            let tube = self.tube(number);
            tube.since_open = TubeStats::default();
            if tube.options.temporary {
                let empty = Tasks::new(number, &tube.options);
                let before = std::mem::replace(&mut tube.tasks, empty);
                before.share(number, &mut self.shared, false);
                self.update_signals(number);
            }
        }
        // The entries of removed tasks are removed with the next command.
        self.restored();
    }

    /// Releases every taken task, as a stop does.
    pub fn give_back_all(&mut self) {
        let now = self.now.unwrap_or(Timestamp::EPOCH);
        let taken: Vec<_> = self
            .tubes
            .iter()
            .flat_map(|(number, tube)| tube.tasks.taken().map(move |id| (number, id)))
            .collect();
        for (number, id) in taken {
            self.give_back(now, number, id, ReleaseMode::RELEASE);
            self.update_signals(number);
        }
        self.restored();
    }
}

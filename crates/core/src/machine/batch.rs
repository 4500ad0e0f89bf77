//! How a store writes a batch down, undoes it, and brings back what was written.

use std::collections::{BTreeSet, HashMap};

use crate::journal::{Changes, Entry, TubeRecord};
use crate::limits::{TASK_ID_MAX, TUBE_NUMBERS_MAX};
use crate::record::{Change, Record};
use crate::semaphore::Semaphores;
use crate::slots::Slot;
use crate::stats::TubeStats;
use crate::task::{Body, TaskId};
use crate::tasks::{Loose, Tasks};
use crate::time::Timestamp;
use crate::tube::{TubeName, TubeOptions};

use super::Machine;
use super::finish::GiveBack;
use super::tubes::Tube;

impl Machine {
    /// Begins a batch: from here on what changes is noted, until [`Machine::keep`] or
    /// [`Machine::undo`].
    pub fn begin(&mut self) {
        self.journal.on = true;
        self.journal.batch = self.journal.batch.wrapping_add(1);
        if self.journal.batch == 0 {
            // The numbers begin again: no mark of the last time around may be taken for a new one.
            self.journal.batch = 1;
            self.tubes.iter_mut().for_each(|tube| {
                tube.noted = 0;
                tube.tasks.forget_notes();
            });
        }
        self.journal.entries.clear();
        self.semaphores.begin();
    }

    /// What the batch changed that must be written down.
    pub fn changes(&self) -> Changes {
        let mut changes = Changes { semaphores: self.semaphores.changes(), ..Changes::default() };
        let mut tubes = BTreeSet::new();
        // Where a tube lost all its tasks: what was noted before concerns tasks that are gone.
        let mut cleared: HashMap<u32, usize> = HashMap::new();
        for (place, entry) in self.journal.entries.iter().enumerate() {
            match entry {
                Entry::Created { tube }
                | Entry::Options { tube, .. }
                | Entry::Named { tube, .. } => _ = tubes.insert(*tube),
                // A truncated tube is written too: the ids its tasks used up stay used.
                Entry::Dropped { tube, .. } | Entry::Truncated { tube, .. } => {
                    tubes.insert(*tube);
                    cleared.insert(*tube, place);
                }
                _ => {}
            }
        }
        changes.cleared = cleared.keys().copied().collect();
        changes.tubes =
            tubes.into_iter().map(|number| (number, self.tube_record(number))).collect();
        for (place, entry) in self.journal.entries.iter().enumerate() {
            let Entry::Task { tube, id, before } = entry else { continue };
            if !cleared.is_empty() && cleared.get(tube).is_some_and(|clear| place < *clear) {
                continue;
            }
            if let Some(change) = self.change(*tube, *id, before.as_ref()) {
                changes.tasks.push((*tube, change));
            }
        }
        changes
    }

    /// What is to be written down of one task.
    fn change(&self, number: u32, id: TaskId, before: Option<&Loose>) -> Option<Change> {
        let tube = self.tubes.get(number)?;
        let Some(after) = tube.tasks.get(id) else {
            return Some(if before.is_some() { Change::Remove(id) } else { Change::Passed(id) });
        };
        let record = || {
            let (subqueue, priority) =
                (tube.tasks.subqueue_of(after), tube.tasks.semaphore_priority(after.id));
            after.record(subqueue, priority, self.wall_ahead)
        };
        match before {
            None => Some(Change::Insert(record())),
            Some(before) if after.stored_alike(&before.slot) => None,
            Some(_) => Some(Change::Update(record())),
        }
    }

    /// Ends the batch: it is written down.
    pub fn keep(&mut self) {
        self.journal.on = false;
        self.journal.entries.clear();
        self.semaphores.keep();
    }

    /// Ends the batch as if it had not happened. Lease numbers and task ids it used stay used.
    pub fn undo(&mut self) {
        self.semaphores.undo();
        self.journal.on = false;
        for entry in std::mem::take(&mut self.journal.entries).into_iter().rev() {
            self.undo_entry(entry);
        }
        // What was put right in this batch is not right any more.
        self.restored();
    }

    fn undo_entry(&mut self, entry: Entry) {
        match entry {
            Entry::Task { tube, id, before } => self.undo_task(tube, id, before),
            Entry::Stats { tube, before } => self.tube(tube).since_open = before,
            Entry::Options { tube, before } => {
                let tube_before = self.tube(tube);
                tube_before.tasks.set_gated(before.semaphore.is_some());
                tube_before.options = before;
                self.settle(tube);
            }
            Entry::Named { tube, before } => {
                let (name, queue_num) = *before;
                self.tubes.rename(tube, name);
                self.tube(tube).options.queue_num = queue_num;
            }
            Entry::Created { tube } => _ = self.remove_tube(tube),
            Entry::Dropped { tube, before } => {
                before.tasks.share(tube, &mut self.shared, true);
                self.tubes.insert(tube, *before);
                self.settle(tube);
            }
            Entry::Truncated { tube, before } => {
                before.share(tube, &mut self.shared, true);
                self.tube(tube).tasks = *before;
                self.settle(tube);
            }
            Entry::Session { id, before } => self.set_session(id, before),
            Entry::SessionTtr { before } => self.session_ttr = before,
        }
    }

    fn undo_task(&mut self, number: u32, id: TaskId, before: Option<Loose>) {
        let Some(tube) = self.tubes.get_mut(number) else { return };
        tube.tasks.remove(id, &mut self.shared);
        if let Some(loose) = before {
            tube.tasks.insert(loose, &mut self.shared);
        }
        self.settle(number);
    }

    /// Brings back a tube that was written down; whether it can have been.
    pub fn restore_tube(&mut self, number: u32, record: TubeRecord) -> bool {
        if number >= TUBE_NUMBERS_MAX {
            return false;
        }
        let mut tube = Tube::new(number, record.name, record.options);
        tube.next_id = record.next_id;
        self.tubes.insert(number, tube);
        true
    }

    /// Brings back a task that was written down, into a tube that is back already; whether it is, and
    /// the task can have been in it.
    pub fn restore_task(&mut self, number: u32, record: Record) -> bool {
        let Some(tube) = self.tubes.get_mut(number) else { return false };
        let lacks_subqueue = tube.options.kind.has_subqueues() && record.subqueue.is_none();
        if lacks_subqueue || record.id.0 > TASK_ID_MAX {
            return false;
        }
        tube.next_id = tube.next_id.max(record.id.0 + 1);
        self.latest_restored = self.latest_restored.max(Some(record.created));
        let earliest = self.earliest_restored.unwrap_or(record.created);
        self.earliest_restored = Some(earliest.min(record.created));
        let subqueue = record.subqueue.clone();
        let semaphore_priority = record.semaphore_priority;
        let slot = Slot::from_record(record, self.wall_ahead);
        let loose = Loose { slot, subqueue, semaphore_priority };
        tube.tasks.insert(loose, &mut self.shared);
        self.settle(number);
        true
    }

    /// A tube as it is written down.
    pub fn tube_record(&self, number: u32) -> Option<TubeRecord> {
        let tube = self.tubes.get(number)?;
        Some(TubeRecord {
            name: tube.name.clone(),
            options: tube.options.clone(),
            next_id: tube.next_id,
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

    /// The numbers of all tubes.
    pub fn tube_numbers(&self) -> impl Iterator<Item = u32> {
        self.tubes.iter().map(|tube| tube.0)
    }

    /// The semaphores, to be brought back or looked at.
    pub fn semaphores(&self) -> &Semaphores {
        &self.semaphores
    }

    /// The semaphores, to be brought back.
    pub fn semaphores_mut(&mut self) -> &mut Semaphores {
        &mut self.semaphores
    }

    /// The number the next lease gets.
    pub fn next_lease(&self) -> u64 {
        self.next_lease
    }

    /// Lets leases go on from `number`, so that none is issued twice.
    pub fn set_next_lease(&mut self, number: u64) {
        self.next_lease = self.next_lease.max(number);
    }

    /// Memory used by the bodies that are in it, in bytes.
    pub fn body_bytes(&self) -> usize {
        self.shared.body_bytes
    }

    /// Puts the body of a task into memory or, with `None`, takes it out because disk has it.
    pub fn set_body(&mut self, number: u32, id: TaskId, body: Option<Body>) {
        if let Some(tube) = self.tubes.get_mut(number) {
            tube.tasks.set_body(id, body, &mut self.shared);
        }
    }

    /// Whether the task is there and its body is not in memory.
    pub fn lacks_body(&self, number: u32, id: TaskId) -> bool {
        let slot = self.tubes.get(number).and_then(|tube| tube.tasks.get(id));
        slot.is_some_and(|slot| slot.body.is_none())
    }

    /// The tasks to be taken next, as far as that can be told, at most `window`.
    pub fn upcoming(&self, number: u32, window: usize) -> Vec<TaskId> {
        self.tubes.get(number).map_or_else(Vec::new, |tube| tube.tasks.upcoming(window))
    }

    /// What a stop and a new start do: taken tasks are given back, temporary tubes are empty, sessions
    /// are gone and the counters begin again.
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
                self.settle(number);
            }
        }
        // The places of what was forgotten are free with the next command.
        self.restored();
    }

    /// Gives every taken task back, as a stop does.
    pub fn give_back_all(&mut self) {
        let now = self.now.unwrap_or(Timestamp::EPOCH);
        let taken: Vec<_> = self
            .tubes
            .iter()
            .flat_map(|(number, tube)| tube.tasks.taken().map(move |id| (number, id)))
            .collect();
        for (number, id) in taken {
            self.give_back(now, number, id, GiveBack::RELEASE);
            self.settle(number);
        }
        self.restored();
    }
}

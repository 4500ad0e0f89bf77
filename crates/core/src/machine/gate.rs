//! Tubes that are gated by a semaphore: their tasks are ready only while they hold a grant.
//!
//! A task is in the semaphore's queue exactly while it is ready, taken, or would be ready with a
//! grant. It is not in it while it is delayed, buried or removed. So every command that moves tasks
//! ends with `regate`, and every change of grants with `apply_grants`.

use std::collections::BTreeSet;

use crate::error::{Error, Result};
use crate::semaphore::gated::{GateRequest, gated, priority_of, tube_task};
use crate::semaphore::{
    Priority, SemaphoreChange, SemaphoreCommand, SemaphoreKey, SemaphoreReply, Semaphores, Status,
};
use crate::slots::{Slot, SlotState};
use crate::state::{self, Event, State};
use crate::task::TaskId;
use crate::time::Timestamp;
use crate::tube::TubeName;

use super::Machine;
use super::tubes::Tube;

impl Machine {
    /// The number of the semaphore of a tube.
    pub(super) fn gate(&self, number: u32) -> Option<u32> {
        let key = self.tubes.get(number)?.options.semaphore.as_ref()?;
        self.semaphores.number_of(key)
    }

    /// Runs `ask` on the semaphores, which can see the taken tasks meanwhile.
    pub(super) fn with_semaphores<T>(&mut self, ask: impl FnOnce(&mut Semaphores) -> T) -> T {
        std::mem::swap(&mut self.shared.taken_tasks, &mut self.semaphores.taken_tasks);
        let answer = ask(&mut self.semaphores);
        std::mem::swap(&mut self.shared.taken_tasks, &mut self.semaphores.taken_tasks);
        answer
    }

    /// Updates the semaphore after tasks of a tube moved. Does nothing for a tube without a
    /// semaphore.
    pub(super) fn regate(&mut self, now: Timestamp, number: u32, ids: &[TaskId]) {
        let Some(gate) = self.gate(number).filter(|_| !ids.is_empty()) else { return };
        self.regate_in(now, gate, ids.iter().map(|id| gated(number, *id)).collect());
    }

    /// The same for tasks by their numbers in the semaphore.
    pub(super) fn regate_in(&mut self, now: Timestamp, gate: u32, tasks: Vec<TaskId>) {
        let wants: Vec<_> =
            tasks.into_iter().map(|task| (task, self.gate_request(gate, task))).collect();
        self.with_semaphores(|semaphores| semaphores.regate(now, gate, &wants));
        self.apply_grants();
    }

    /// The semaphore of a tube and the numbers of all its tasks there, before they are removed.
    pub(super) fn gated_ids(&self, number: u32) -> Option<(u32, Vec<TaskId>)> {
        let gate = self.gate(number)?;
        let mut ids: Vec<_> =
            self.tubes[number].tasks.all().map(|slot| gated(number, slot.id)).collect();
        ids.sort_unstable();
        Some((gate, ids))
    }

    /// What the tube requests from this semaphore for a task.
    fn gate_request(&self, gate: u32, task: TaskId) -> GateRequest {
        let Some((slot, own)) = self.gated_slot(gate, task) else { return GateRequest::Remove };
        match slot.details() {
            SlotState::Ready(_) | SlotState::Gated(_) => {
                GateRequest::Queue(own.unwrap_or_else(|| priority_of(slot.pri())))
            }
            SlotState::Taken(_) => GateRequest::Taken,
            SlotState::Delayed(_) | SlotState::Scheduled(_) | SlotState::Buried { .. } => {
                GateRequest::Remove
            }
        }
    }

    /// The task with this number in a semaphore, if its tube has that semaphore, and the priority
    /// that its put gave it there.
    fn gated_slot(&self, gate: u32, task: TaskId) -> Option<(&Slot, Option<Priority>)> {
        let (number, id) = tube_task(task)?;
        self.gate(number).filter(|own| *own == gate)?;
        let tasks = &self.tubes.get(number)?.tasks;
        Some((tasks.get(id)?, tasks.semaphore_priority(id)))
    }

    /// Applies changes of grants: tasks with a new grant become ready, tasks that lost theirs do
    /// not stay ready.
    pub(super) fn apply_grants(&mut self) {
        for task in self.semaphores.take_moved() {
            let Some((number, id)) = tube_task(task) else { continue };
            let Some(gate) = self.gate(number) else { continue };
            let holds = self.semaphores.holds(gate, task);
            if self.set_gated(number, id, holds) {
                self.update_signals(number);
            }
        }
    }

    /// Makes a task ready, or lets it wait for its semaphore; whether that is a change.
    fn set_gated(&mut self, number: u32, id: TaskId, holds: bool) -> bool {
        let state = self.tubes[number].tasks.get(id).map(Slot::details);
        let (event, to) = match (state, holds) {
            (Some(SlotState::Gated(since)), true) => (Event::Admit, SlotState::Ready(since)),
            (Some(SlotState::Ready(since)), false) => (Event::Gate, SlotState::Gated(since)),
            _ => return false,
        };
        let from = if holds { State::Delayed } else { State::Ready };
        self.note(number, id);
        let tube = self.tubes.get_mut(number).expect("the task was just looked at");
        tube.tasks.update(id, &mut self.shared, |slot| {
            slot.set_state(to);
            debug_assert_eq!(state::next(Some(from), event), Some(slot.state()));
        });
        true
    }

    /// Called when all stored data is restored: tasks with a grant become ready. What a crash left
    /// inconsistent (a released task that was asked to release its grant, a task that is not
    /// queued, an entry whose task is gone) is repaired with the next command.
    pub fn restored(&mut self) {
        let mut detached: Vec<_> = self.semaphores.gated_tasks().collect();
        detached.retain(|(gate, task)| self.gate_request(*gate, *task) == GateRequest::Remove);
        self.orphans = self.tube_numbers().filter(|number| self.is_orphan(*number)).collect();
        for number in self.tube_numbers().collect::<Vec<_>>() {
            let Some(gate) = self.gate(number) else { continue };
            let waiting =
                |slot: &&Slot| matches!(slot.details(), SlotState::Ready(_) | SlotState::Gated(_));
            let ids: Vec<_> =
                self.tubes[number].tasks.all().filter(waiting).map(|slot| slot.id).collect();
            for id in ids {
                let task = gated(number, id);
                let status = self.semaphores.status(gate, task);
                if matches!(status, None | Some(Status::TryRelease)) {
                    detached.push((gate, task));
                }
                self.set_gated(number, id, self.semaphores.holds(gate, task));
            }
            self.update_signals(number);
        }
        detached.sort_unstable();
        self.to_repair = detached;
    }

    /// Whether a tube has a semaphore that does not exist: it was lost with a damaged page.
    fn is_orphan(&self, number: u32) -> bool {
        let named = self.tubes.get(number).is_some_and(|tube| tube.options.semaphore.is_some());
        named && self.gate(number).is_none()
    }

    /// The keys of lost semaphores that tubes use, after all stored data is restored. They are
    /// recreated with the next command and grant nothing: their capacity is unknown, and an open
    /// gate would admit all tasks.
    pub fn lost_semaphores(&self) -> BTreeSet<SemaphoreKey> {
        let tubes = self.orphans.iter().filter_map(|number| self.tubes.get(*number));
        tubes.filter_map(|tube| tube.options.semaphore.clone()).collect()
    }

    /// Whether something must be repaired with the next command.
    pub(super) fn needs_repair(&self) -> bool {
        !self.to_repair.is_empty() || !self.orphans.is_empty()
    }

    /// Recreates the lost semaphore of a tube, and enqueues its tasks there.
    fn recreate_semaphore(&mut self, now: Timestamp, number: u32) {
        let Some(key) = self.tubes.get(number).and_then(|tube| tube.options.semaphore.clone())
        else {
            return;
        };
        let change = Box::new(SemaphoreChange { active: Some(0), ..SemaphoreChange::default() });
        let make = SemaphoreCommand::Configure { key, change, only_new: true };
        // This cannot exceed the limit: the semaphore existed before.
        _ = self.semaphores.apply(now, make);
        if let Some((gate, tasks)) = self.gated_ids(number) {
            self.regate_in(now, gate, tasks);
        }
    }

    /// Repairs what was found when the store was opened.
    pub(super) fn repair_gates(&mut self, now: Timestamp) {
        for number in std::mem::take(&mut self.orphans) {
            self.recreate_semaphore(now, number);
        }
        for of_one in std::mem::take(&mut self.to_repair).chunk_by(|a, b| a.0 == b.0) {
            let tasks = of_one.iter().map(|detached| detached.1).collect();
            self.regate_in(now, of_one[0].0, tasks);
        }
    }

    /// Adds the tubes of the tasks in a reply.
    pub(super) fn name_tubes(&self, reply: &mut SemaphoreReply) {
        let named = |tube: &mut Option<TubeName>, task: &mut TaskId| {
            if let Some((number, id)) = tube_task(*task) {
                *tube = self.tubes.get(number).map(|tube| tube.name.clone());
                *task = id;
            }
        };
        match reply {
            SemaphoreReply::Events(events) => {
                events.iter_mut().for_each(|event| named(&mut event.tube, &mut event.task));
            }
            SemaphoreReply::Members(page) => {
                let members = page.members.iter_mut();
                members.for_each(|member| named(&mut member.tube, &mut member.info.task));
            }
            _ => {}
        }
    }

    /// Refuses to drop a semaphore that gates a tube: its tasks would never be ready again.
    pub(super) fn check_gates(&self, command: &SemaphoreCommand) -> Result<()> {
        let SemaphoreCommand::Drop { key, .. } = command else { return Ok(()) };
        let behind = |tube: &&Tube| tube.options.semaphore.as_ref() == Some(key);
        match self.tubes.iter().map(|(_, tube)| tube).find(behind) {
            Some(tube) => {
                Err(Error::SemaphoreHasTube { key: key.clone(), tube: tube.name.clone() })
            }
            None => Ok(()),
        }
    }
}

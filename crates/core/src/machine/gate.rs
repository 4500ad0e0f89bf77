//! Tubes with a semaphore before them: their tasks are ready only while they hold a grant.
//!
//! A task stands in the semaphore exactly while it is ready, taken, or would be ready with a grant. It is not there
//! while its time has not come, and not when it is buried or gone. So whatever moved tasks says which in the end
//! (`regate`), and whatever moved places is followed (`follow`).

use std::collections::BTreeSet;

use crate::error::{Error, Result};
use crate::semaphore::gated::{Want, gated, priority_of, tube_task};
use crate::semaphore::{
    Priority, SemaphoreChange, SemaphoreCommand, SemaphoreKey, SemaphoreReply, Semaphores, Status,
};
use crate::slots::{Slot, Standing};
use crate::state::{self, Event, State};
use crate::task::TaskId;
use crate::time::Timestamp;
use crate::tube::TubeName;

use super::Machine;
use super::tubes::Tube;

impl Machine {
    /// The number of the semaphore before a tube.
    pub(super) fn gate(&self, number: u32) -> Option<u32> {
        let key = self.tubes.get(number)?.options.semaphore.as_ref()?;
        self.semaphores.number_of(key)
    }

    /// Asks the semaphores something; they see who is at work.
    pub(super) fn ask_semaphores<T>(&mut self, ask: impl FnOnce(&mut Semaphores) -> T) -> T {
        std::mem::swap(&mut self.shared.at_work, &mut self.semaphores.at_work);
        let answer = ask(&mut self.semaphores);
        std::mem::swap(&mut self.shared.at_work, &mut self.semaphores.at_work);
        answer
    }

    /// After tasks of a tube moved: brings them to where their semaphore has them. Does nothing for a tube
    /// without one.
    pub(super) fn regate(&mut self, now: Timestamp, number: u32, ids: &[TaskId]) {
        let Some(gate) = self.gate(number).filter(|_| !ids.is_empty()) else { return };
        self.regate_in(now, gate, ids.iter().map(|id| gated(number, *id)).collect());
    }

    /// The same for tasks by their numbers in the semaphore.
    pub(super) fn regate_in(&mut self, now: Timestamp, gate: u32, tasks: Vec<TaskId>) {
        let wants: Vec<_> = tasks.into_iter().map(|task| (task, self.want(gate, task))).collect();
        self.ask_semaphores(|semaphores| semaphores.regate(now, gate, &wants));
        self.follow();
    }

    /// The semaphore of a tube and the numbers there of all its tasks, before they go.
    pub(super) fn gated_ids(&self, number: u32) -> Option<(u32, Vec<TaskId>)> {
        let gate = self.gate(number)?;
        let mut ids: Vec<_> =
            self.tubes[number].tasks.all().map(|slot| gated(number, slot.id)).collect();
        ids.sort_unstable();
        Some((gate, ids))
    }

    /// What the tube of a task wants of this semaphore for it.
    fn want(&self, gate: u32, task: TaskId) -> Want {
        let Some((slot, own)) = self.gated_slot(gate, task) else { return Want::Leave };
        match slot.standing {
            Standing::Ready(_) | Standing::Gated(_) => {
                Want::Stand(own.unwrap_or_else(|| priority_of(slot.pri)))
            }
            Standing::Taken(_) => Want::Work,
            Standing::Delayed(_) | Standing::Scheduled(_) | Standing::Buried { .. } => Want::Leave,
        }
    }

    /// The task that stands under this number in a semaphore, if its tube has that semaphore, and the priority that
    /// its put gave it there.
    fn gated_slot(&self, gate: u32, task: TaskId) -> Option<(&Slot, Option<Priority>)> {
        let (number, id) = tube_task(task)?;
        self.gate(number).filter(|own| *own == gate)?;
        let tasks = &self.tubes.get(number)?.tasks;
        Some((tasks.get(id)?, tasks.semaphore_priority(id)))
    }

    /// After semaphores changed: who was let in is ready, who lost its grant is not.
    pub(super) fn follow(&mut self) {
        for task in self.semaphores.take_moved() {
            let Some((number, id)) = tube_task(task) else { continue };
            let Some(gate) = self.gate(number) else { continue };
            let holds = self.semaphores.holds(gate, task);
            if self.set_gated(number, id, holds) {
                self.settle(number);
            }
        }
    }

    /// Lets a task be ready, or wait for its semaphore; whether that is a change.
    fn set_gated(&mut self, number: u32, id: TaskId, holds: bool) -> bool {
        let standing = self.tubes[number].tasks.get(id).map(|slot| &slot.standing);
        let (event, to) = match (standing, holds) {
            (Some(Standing::Gated(since)), true) => (Event::Admit, Standing::Ready(*since)),
            (Some(Standing::Ready(since)), false) => (Event::Gate, Standing::Gated(*since)),
            _ => return false,
        };
        let from = if holds { State::Delayed } else { State::Ready };
        self.note(number, id);
        let tube = self.tubes.get_mut(number).expect("the task was just looked at");
        tube.tasks.update(id, &mut self.shared, |slot| {
            slot.standing = to;
            debug_assert_eq!(state::next(Some(from), event), Some(slot.state()));
        });
        true
    }

    /// When all is back that was written down: a grant lets its task be ready. What a crash left undone (a task that
    /// went back and was asked to release, one that never came to stand in line, a place whose task is gone) is
    /// put right with the next command.
    pub fn restored(&mut self) {
        let mut loose: Vec<_> = self.semaphores.gated_tasks().collect();
        loose.retain(|(gate, task)| self.want(*gate, *task) == Want::Leave);
        self.orphans = self.tube_numbers().filter(|number| self.is_orphan(*number)).collect();
        for number in self.tube_numbers().collect::<Vec<_>>() {
            let Some(gate) = self.gate(number) else { continue };
            let waiting =
                |slot: &&Slot| matches!(slot.standing, Standing::Ready(_) | Standing::Gated(_));
            let ids: Vec<_> =
                self.tubes[number].tasks.all().filter(waiting).map(|slot| slot.id).collect();
            for id in ids {
                let task = gated(number, id);
                let status = self.semaphores.status(gate, task);
                if matches!(status, None | Some(Status::TryRelease)) {
                    loose.push((gate, task));
                }
                self.set_gated(number, id, self.semaphores.holds(gate, task));
            }
            self.settle(number);
        }
        loose.sort_unstable();
        self.loose = loose;
    }

    /// Whether a tube names a semaphore that is not there: it went with a damaged page.
    fn is_orphan(&self, number: u32) -> bool {
        let named = self.tubes.get(number).is_some_and(|tube| tube.options.semaphore.is_some());
        named && self.gate(number).is_none()
    }

    /// The keys of lost semaphores that tubes name, when all is back that was written down. They are made anew with the
    /// next command and let nobody in: how many may go on is not known, and an open gate would let all.
    pub fn lost_semaphores(&self) -> BTreeSet<SemaphoreKey> {
        let tubes = self.orphans.iter().filter_map(|number| self.tubes.get(*number));
        tubes.filter_map(|tube| tube.options.semaphore.clone()).collect()
    }

    /// Whether something is to be put right with the next command.
    pub(super) fn is_loose(&self) -> bool {
        !self.loose.is_empty() || !self.orphans.is_empty()
    }

    /// Makes the lost semaphore of a tube anew, and lets its tasks stand in line there.
    fn close_gate(&mut self, now: Timestamp, number: u32) {
        let Some(key) = self.tubes.get(number).and_then(|tube| tube.options.semaphore.clone())
        else {
            return;
        };
        let change = Box::new(SemaphoreChange { active: Some(0), ..SemaphoreChange::default() });
        let make = SemaphoreCommand::Configure { key, change, only_new: true };
        // There is room: it was there before.
        _ = self.semaphores.apply(now, make);
        if let Some((gate, tasks)) = self.gated_ids(number) {
            self.regate_in(now, gate, tasks);
        }
    }

    /// Puts right what was found when the store was opened.
    pub(super) fn regate_loose(&mut self, now: Timestamp) {
        for number in std::mem::take(&mut self.orphans) {
            self.close_gate(now, number);
        }
        for of_one in std::mem::take(&mut self.loose).chunk_by(|a, b| a.0 == b.0) {
            let tasks = of_one.iter().map(|loose| loose.1).collect();
            self.regate_in(now, of_one[0].0, tasks);
        }
    }

    /// Says of which tubes the tasks are that an answer names.
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
                members.for_each(|member| named(&mut member.tube, &mut member.standing.task));
            }
            _ => {}
        }
    }

    /// Refuses to drop a semaphore that is before a tube: its tasks would never be ready again.
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

//! Shows where waiting tasks are in the queue.

use crate::command::Reply;
use crate::error::Result;
use crate::estimate::{DelayedTasks, Position, SubqueuePosition, check_positions};
use crate::limits::{DELAYED_LOOKED_MAX, GATE_LOOKED_MAX};
use crate::semaphore::gated::gated;
use crate::slots::{Slot, SlotState};
use crate::task::TaskId;
use crate::tasks::Tasks;
use crate::time::Timestamp;
use crate::tube::TubeName;

use super::Machine;

impl Machine {
    pub(super) fn positions(
        &mut self,
        now: Timestamp,
        name: &TubeName,
        ids: &[TaskId],
    ) -> Result<Reply> {
        check_positions(ids)?;
        let number = self.number(name)?;
        let tasks = &mut self.tube(number).tasks;
        tasks.hide_expired(now);
        let delayed = tasks.delayed(now);
        let (tasks, gate) = (&self.tubes[number].tasks, self.gate(number));
        let position = |id: &TaskId| {
            let slot = tasks.get(*id).filter(|slot| waits(slot, now))?;
            let mut position = tasks.position(slot);
            position.delayed_ahead = delayed.before(slot.pri, slot.id);
            if let (SlotState::Gated(_), Some(gate)) = (&slot.state, gate) {
                let task = gated(number, slot.id);
                let ahead = self.semaphores.waiting_before(gate, task, GATE_LOOKED_MAX);
                position.gate_ahead = Some(ahead as u64);
                position.is_exact &= ahead < GATE_LOOKED_MAX;
            }
            Some(position)
        };
        Ok(Reply::Positions(ids.iter().filter_map(position).collect()))
    }
}

/// Whether the task is ready or will be.
fn waits(slot: &Slot, now: Timestamp) -> bool {
    match slot.state {
        SlotState::Ready(_) | SlotState::Gated(_) => slot.expires > now,
        SlotState::Delayed(_) | SlotState::Scheduled(_) => true,
        SlotState::Taken(_) | SlotState::Buried { .. } => false,
    }
}

impl Tasks {
    /// The place of a task among those that are ready.
    fn position(&self, slot: &Slot) -> Position {
        let (ahead, is_exact) = self.rank(slot);
        let subqueue = self.rank_in_subqueue(slot);
        Position {
            id: slot.id,
            pri: slot.pri,
            due: match slot.state {
                SlotState::Delayed(due) | SlotState::Scheduled(due) => Some(due),
                _ => None,
            },
            ahead,
            delayed_ahead: Vec::new(),
            subqueue: subqueue.map(|ahead| {
                let is_busy = self.is_blocked(slot);
                SubqueuePosition { ahead, is_busy }
            }),
            gate_ahead: None,
            is_exact,
            estimate: None,
        }
    }

    /// The delayed tasks that are due first.
    fn delayed(&self, now: Timestamp) -> DelayedTasks {
        if self.counts().delayed == 0 {
            return DelayedTasks::default();
        }
        let delayed = self.timers().filter_map(|(_, id)| {
            let slot = self.get(id)?;
            match slot.state {
                SlotState::Delayed(due) | SlotState::Scheduled(due) => {
                    Some((slot.pri, slot.id, due))
                }
                _ => None,
            }
        });
        DelayedTasks::new(now, delayed.take(DELAYED_LOOKED_MAX))
    }
}

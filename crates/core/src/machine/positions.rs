//! Shows where waiting tasks are in the queue.

use crate::command::Reply;
use crate::error::Result;
use crate::estimate::{Position, SubqueuePosition, check_positions};
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
        let (tasks, gate) = (&self.tubes[number].tasks, self.gate(number));
        let is_waiting = |id: &TaskId| tasks.get(*id).filter(|slot| waits(slot, now));
        let slots: Vec<&Slot> = ids.iter().filter_map(is_waiting).collect();
        let keys: Vec<_> = slots.iter().map(|slot| slot.order_key()).collect();
        let delayed = tasks.delayed_ahead(now, &keys);
        let position = |(slot, delayed_ahead): (&Slot, Vec<u64>)| {
            let mut position = Position { delayed_ahead, ..tasks.position(slot) };
            if let (SlotState::Gated(_), Some(gate)) = (slot.details(), gate) {
                let task = gated(number, slot.id);
                position.gate_ahead = Some(self.semaphores.waiting_before(gate, task) as u64);
            }
            position
        };
        Ok(Reply::Positions(slots.into_iter().zip(delayed).map(position).collect()))
    }
}

/// Whether the task is ready or will be.
fn waits(slot: &Slot, now: Timestamp) -> bool {
    match slot.details() {
        SlotState::Ready(_) | SlotState::Gated(_) => slot.expires() > now,
        SlotState::Delayed(_) | SlotState::Scheduled(_) => true,
        SlotState::Taken(_) | SlotState::Buried { .. } => false,
    }
}

impl Tasks {
    /// The place of a task among those that are ready.
    fn position(&self, slot: &Slot) -> Position {
        let subqueue = self.rank_in_subqueue(slot);
        Position {
            id: slot.id,
            pri: slot.pri(),
            due: match slot.details() {
                SlotState::Delayed(due) | SlotState::Scheduled(due) => Some(due),
                _ => None,
            },
            ahead: self.rank(slot),
            delayed_ahead: Vec::new(),
            subqueue: subqueue.map(|ahead| {
                let is_busy = self.is_blocked(slot);
                SubqueuePosition { ahead, is_busy }
            }),
            gate_ahead: None,
            is_exact: true,
            estimate: None,
        }
    }
}

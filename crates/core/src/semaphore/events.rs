//! Sends events, and handles their acknowledgements.

use crate::error::Result;
use crate::time::Timestamp;

use super::command::{EventId, EventKind, SemaphoreEvent, SemaphoreReply};
use super::key::SemaphoreKey;
use super::outbox::back_off;
use super::semaphores::Semaphores;

impl Semaphores {
    pub(super) fn fetch(
        &mut self,
        now: Timestamp,
        key: Option<&SemaphoreKey>,
        count: usize,
    ) -> Result<SemaphoreReply> {
        let number = key.map(|key| self.number(key)).transpose()?;
        let due = self.outbox.due(now, number, count);
        let events = due.into_iter().filter_map(|id| self.hand_out(now, id)).collect();
        Ok(SemaphoreReply::Events(events))
    }

    fn hand_out(&mut self, now: Timestamp, id: EventId) -> Option<SemaphoreEvent> {
        let mut row = self.outbox.get(id)?.clone();
        row.attempts = row.attempts.saturating_add(1);
        row.next_at = now + back_off(row.attempts);
        let event = SemaphoreEvent {
            id,
            semaphore: self.semaphore(row.semaphore).record.key.clone(),
            tube: None,
            task: row.task,
            grant: row.grant,
            kind: row.kind,
            attempt: row.attempts,
        };
        self.set_event(id, Some(row));
        Some(event)
    }

    pub(super) fn acknowledge(&mut self, events: &[EventId]) -> SemaphoreReply {
        let arrived = events.iter().filter(|id| self.arrived(**id)).count();
        SemaphoreReply::Acknowledged(arrived as u64)
    }

    fn arrived(&mut self, id: EventId) -> bool {
        let Some(row) = self.outbox.get(id) else { return false };
        let (number, task, grant, kind) = (row.semaphore, row.task, row.grant, row.kind);
        self.set_event(id, None);
        if !self.outbox.of_grant((number, task, grant)).is_empty() {
            // The next event of this grant had to wait for this one.
            self.note_new_events(number);
        }
        let hold = self.queue(number).get(task).and_then(|entry| entry.hold());
        let clock_runs = |hold: &super::entry::HeldGrant| hold.ack_by != Timestamp::NEVER;
        if kind == EventKind::Acquired && hold.is_some_and(|h| h.grant == grant && clock_runs(h)) {
            self.change_hold(number, task, |hold| hold.ack_by = Timestamp::NEVER);
            self.schedule(number);
        }
        true
    }
}

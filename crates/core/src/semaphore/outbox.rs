//! The unacknowledged events.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;

use crate::task::TaskId;
use crate::time::{Span, Timestamp};

use super::command::{EventId, EventKind};
use super::key::Grant;
use super::record::EventRecord;

/// How long a first delivery may stay unacknowledged before the next.
const VISIBILITY_MICROS: i64 = 30_000_000;
/// The longest time between two deliveries.
const VISIBILITY_MAX_MICROS: i64 = 600_000_000;

/// One grant of one task of one semaphore.
pub(super) type GrantKey = (u32, TaskId, Grant);

/// The unacknowledged events. Of each grant only the first is sent, so that a later one never
/// arrives before an earlier one.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    rows: BTreeMap<EventId, EventRecord>,
    by_grant: HashMap<GrantKey, Vec<EventId>>,
    /// Events that may be sent, by moment: of all semaphores, and of each.
    due: BTreeSet<(Timestamp, EventId)>,
    due_of: HashMap<u32, BTreeSet<(Timestamp, EventId)>>,
    count_of: HashMap<u32, u64>,
    next_id: u64,
}

impl Outbox {
    pub fn get(&self, id: EventId) -> Option<&EventRecord> {
        self.rows.get(&id)
    }

    /// An id for a new event.
    pub fn issue(&mut self) -> EventId {
        let id = EventId(self.next_id);
        self.next_id += 1;
        id
    }

    /// The id of the next event.
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    /// Continues ids from here, so that none is used twice.
    pub fn set_next_id(&mut self, next_id: u64) {
        self.next_id = self.next_id.max(next_id);
    }

    /// The number of unacknowledged events of a semaphore.
    pub fn count(&self, semaphore: u32) -> u64 {
        self.count_of.get(&semaphore).copied().unwrap_or(0)
    }

    /// Sets or removes an event; returns the previous one.
    pub fn set(&mut self, id: EventId, row: Option<EventRecord>) -> Option<EventRecord> {
        let grant = row.as_ref().or(self.rows.get(&id)).map(key_of)?;
        self.unlink_first(grant);
        let before = self.rows.remove(&id);
        let of_grant = self.by_grant.entry(grant).or_default();
        of_grant.retain(|other| *other != id);
        let count = self.count_of.entry(grant.0).or_default();
        *count -= u64::from(before.is_some());
        if let Some(row) = row {
            let place = of_grant.partition_point(|other| *other < id);
            of_grant.insert(place, id);
            self.rows.insert(id, row);
            *count += 1;
        }
        self.link_first(grant);
        before
    }

    /// The first event of a grant and its moment: of each grant only this one may be sent.
    fn first(&self, grant: GrantKey) -> Option<(Timestamp, EventId)> {
        let first = self.by_grant.get(&grant)?.first()?;
        Some((self.rows.get(first)?.next_at, *first))
    }

    fn unlink_first(&mut self, grant: GrantKey) {
        let Some(first) = self.first(grant) else { return };
        self.due.remove(&first);
        if let Some(due) = self.due_of.get_mut(&grant.0) {
            due.remove(&first);
        }
    }

    fn link_first(&mut self, grant: GrantKey) {
        let Some(first) = self.first(grant) else {
            self.by_grant.remove(&grant);
            return;
        };
        self.due.insert(first);
        self.due_of.entry(grant.0).or_default().insert(first);
    }

    /// The events of a grant, the oldest first.
    pub fn of_grant(&self, grant: GrantKey) -> &[EventId] {
        self.by_grant.get(&grant).map_or(&[], Vec::as_slice)
    }

    /// The event of this kind of a grant.
    pub fn find(&self, grant: GrantKey, kind: EventKind) -> Option<(EventId, &EventRecord)> {
        let ids = self.of_grant(grant).iter();
        ids.filter_map(|id| Some((*id, self.rows.get(id)?))).find(|(_, row)| row.kind == kind)
    }

    /// The events that may be sent now, of one semaphore or of all, in order.
    pub fn due(&self, now: Timestamp, semaphore: Option<u32>, count: usize) -> Vec<EventId> {
        let due = match semaphore {
            None => Some(&self.due),
            Some(number) => self.due_of.get(&number),
        };
        let due = due.into_iter().flatten().take_while(|due| due.0 <= now);
        due.map(|due| due.1).take(count).collect()
    }

    /// When the next event of a semaphore may be sent.
    pub fn next_of(&self, semaphore: u32) -> Option<Timestamp> {
        self.due_of.get(&semaphore)?.first().map(|due| due.0)
    }

    /// The first moment after this one at which an event may be sent.
    pub fn next_after(&self, moment: Timestamp) -> Option<Timestamp> {
        let after = (moment, EventId(u64::MAX));
        self.due.range(after..).next().map(|due| due.0)
    }

    /// All events, by id.
    pub fn all(&self) -> impl Iterator<Item = (EventId, &EventRecord)> {
        self.rows.iter().map(|(id, row)| (*id, row))
    }
}

/// The grant of an event.
pub(super) fn key_of(row: &EventRecord) -> GrantKey {
    (row.semaphore, row.task, row.grant)
}

/// How long after its `attempts`-th delivery an event is delivered again.
pub(super) fn back_off(attempts: u32) -> Span {
    let doublings = attempts.saturating_sub(1).min(10);
    Span::from_micros((VISIBILITY_MICROS << doublings).min(VISIBILITY_MAX_MICROS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_delivery_waits_twice_as_long_up_to_ten_minutes() {
        let seconds = [1, 2, 3, 5, 6, 100, u32::MAX].map(|n| back_off(n).as_secs_f64());
        assert_eq!(seconds, [30.0, 60.0, 120.0, 480.0, 600.0, 600.0, 600.0]);
    }
}

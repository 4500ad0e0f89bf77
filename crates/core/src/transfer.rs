//! The data that is copied from one store to another, independent of any store's format.
//!
//! Tasks are copied in pages, in the order of their ids, into a tube with a temporary name. When
//! all are there, one [`ImportEnd`] gives the tubes their names and options, and adds the
//! semaphores: until then the copy is invisible.

use crate::command::TubeInfo;
use crate::journal::TubeRecord;
use crate::record::{Record, StoredState};
use crate::semaphore::{EntryState, EventId, EventKind, Grant, QueueEntry, SemaphoreRecord};
use crate::stats::TubeStats;
use crate::stored_schedule::StoredSchedule;
use crate::task::TaskId;
use crate::time::Timestamp;
use crate::tube::TubeName;

/// A tube without its tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TubeCopy {
    /// Its number in the source store.
    pub number: u32,
    /// Name, options and next id.
    pub record: TubeRecord,
    /// Its counters since the source store was opened.
    pub stats: TubeStats,
}

impl TubeCopy {
    /// A tube, as replies show it, and the id of its next task.
    pub fn new(info: TubeInfo, next_id: u64) -> Self {
        let TubeInfo { name, number, options, stats, .. } = info;
        TubeCopy { number, record: TubeRecord { name, options, next_id, bucket: None }, stats }
    }
}

/// An entry of a semaphore's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueEntryCopy {
    /// The number of its tube in the source store, if it is the task of a tube.
    pub tube: Option<u32>,
    /// The task.
    pub task: TaskId,
    /// The entry; only the order of the sequence numbers is kept.
    pub entry: QueueEntry,
}

/// An event that is not acknowledged yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventCopy {
    /// Its id, which is kept if it is still free.
    pub id: EventId,
    /// The number of the task's tube, as in [`QueueEntryCopy`].
    pub tube: Option<u32>,
    /// The task.
    pub task: TaskId,
    /// The grant.
    pub grant: Grant,
    /// The kind of event.
    pub kind: EventKind,
    /// How often it was sent.
    pub attempts: u32,
    /// When it is sent next.
    pub next_at: Timestamp,
}

/// A semaphore with all its entries, in the order of arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SemaphoreCopy {
    /// Its stored form.
    pub record: SemaphoreRecord,
    /// Its entries.
    pub entries: Vec<QueueEntryCopy>,
    /// Its events.
    pub events: Vec<EventCopy>,
}

impl SemaphoreCopy {
    /// Moves all moments, between wall time and the machine's time.
    pub(crate) fn move_moments(&mut self, by: i64) {
        let moved = |moment: &mut Timestamp| *moment = moment.moved(by);
        self.record.recheck_at.iter_mut().for_each(moved);
        self.events.iter_mut().for_each(|event| moved(&mut event.next_at));
        for QueueEntryCopy { entry, .. } in &mut self.entries {
            moved(&mut entry.enqueued);
            match &mut entry.state {
                EntryState::Wait => {}
                EntryState::Delayed(until) => moved(until),
                EntryState::Held(hold) => {
                    moved(&mut hold.granted);
                    moved(&mut hold.lease_until);
                    moved(&mut hold.ack_by);
                    hold.revoke_at.iter_mut().for_each(moved);
                }
            }
        }
    }
}

/// The end of an import: one step that makes the copy visible.
#[derive(Clone, Debug, Default)]
pub struct ImportEnd {
    /// The temporary names of the tubes, and the tubes.
    pub tubes: Vec<(TubeName, TubeCopy)>,
    /// New semaphores.
    pub semaphores: Vec<SemaphoreCopy>,
    /// New schedules. Their moments are wall time.
    pub schedules: Vec<StoredSchedule>,
    /// The smallest lease number for new deliveries: clients may still use older ones of the source
    /// store.
    pub next_lease: u64,
}

impl Record {
    /// Moves all moments that are not wall time, between wall time and the machine's time.
    pub fn move_moments(&mut self, by: i64) {
        self.created = self.created.moved(by);
        if by != 0 {
            self.failures = self.failures.as_ref().map(|failures| failures.moved(by));
            self.finished = self.finished.as_ref().map(|finished| finished.moved(by));
        }
        self.previous_start = self.previous_start.map(|moment| moment.moved(by));
        match &mut self.state {
            StoredState::Scheduled(_) => return,
            StoredState::Ready(moment) | StoredState::Delayed(moment) => *moment = moment.moved(by),
            StoredState::Buried | StoredState::DeadLetter | StoredState::Done => {}
        }
        self.expires = self.expires.moved(by);
    }

    /// Turns a task that was taken at `start` into one whose holder is gone: ready again since
    /// then, because the end of the delivery is unknown.
    pub fn given_back(&mut self, start: Timestamp, attempts_max: Option<u32>) {
        let attempts_max = self.attempts_max.or(attempts_max);
        self.previous_start = Some(match self.state {
            StoredState::Ready(since) => since,
            _ => self.created,
        });
        self.attempts = self.attempts.saturating_add(1);
        let used_up = attempts_max.is_some_and(|most| self.attempts >= most);
        self.state = if used_up { StoredState::DeadLetter } else { StoredState::Ready(start) };
    }
}

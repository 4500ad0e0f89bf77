//! What moves from one store to another: everything that a store has written down, in words of no store.
//!
//! Tasks come in pages, in the order of their ids, into a tube under a name of its own. When all are there one
//! [`Ending`] gives the tubes their names and options, and brings the semaphores: until then nobody sees anything.

use crate::command::TubeInfo;
use crate::journal::TubeRecord;
use crate::record::{Record, StoredState};
use crate::semaphore::{EventId, EventKind, Grant, Place, SemaphoreRecord, Stand};
use crate::stats::TubeStats;
use crate::task::TaskId;
use crate::time::Timestamp;
use crate::tube::TubeName;

/// A tube without its tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TubeCopy {
    /// Its number in the store that it comes from.
    pub number: u32,
    /// Name, options and next id.
    pub record: TubeRecord,
    /// What it has, and what was done to it since its store was opened.
    pub stats: TubeStats,
}

impl TubeCopy {
    /// A tube as answers show it, and the id its next task gets.
    pub fn new(info: TubeInfo, next_id: u64) -> Self {
        let TubeInfo { name, number, options, stats, .. } = info;
        TubeCopy { number, record: TubeRecord { name, options, next_id }, stats }
    }
}

/// Who stands in a semaphore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceCopy {
    /// The number of its tube in the store it comes from, if it is the task of a tube.
    pub tube: Option<u32>,
    /// Which task.
    pub task: TaskId,
    /// Where it stands; of the numbers of arrival only their order stays.
    pub place: Place,
}

/// An event that is not acknowledged yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventCopy {
    /// Its number, which it keeps where that is still free.
    pub id: EventId,
    /// The number of the task's tube, as in [`PlaceCopy`].
    pub tube: Option<u32>,
    /// For which task.
    pub task: TaskId,
    /// About which grant.
    pub grant: Grant,
    /// What happened.
    pub kind: EventKind,
    /// How often it was handed out.
    pub attempts: u32,
    /// When it is handed out next.
    pub next_at: Timestamp,
}

/// A semaphore with all who stand in it, in the order in which they came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SemaphoreCopy {
    /// What is written down of itself.
    pub record: SemaphoreRecord,
    /// Who stands there.
    pub places: Vec<PlaceCopy>,
    /// What they are to be told.
    pub events: Vec<EventCopy>,
}

impl SemaphoreCopy {
    /// Moves all moments, between wall time and the time of a machine.
    pub(crate) fn move_moments(&mut self, by: i64) {
        let moved = |moment: &mut Timestamp| *moment = moment.moved(by);
        self.record.recheck_at.iter_mut().for_each(moved);
        self.events.iter_mut().for_each(|event| moved(&mut event.next_at));
        for PlaceCopy { place, .. } in &mut self.places {
            moved(&mut place.enqueued);
            match &mut place.stand {
                Stand::Wait => {}
                Stand::Delayed(until) => moved(until),
                Stand::Held(hold) => {
                    moved(&mut hold.granted);
                    moved(&mut hold.lease_until);
                    moved(&mut hold.ack_by);
                    hold.revoke_at.iter_mut().for_each(moved);
                }
            }
        }
    }
}

/// The end of a move: one step, after which all is there.
#[derive(Clone, Debug, Default)]
pub struct Ending {
    /// The names under which the tasks came, and what their tubes are.
    pub tubes: Vec<(TubeName, TubeCopy)>,
    /// Semaphores that are new.
    pub semaphores: Vec<SemaphoreCopy>,
    /// No delivery may get a number below this: somebody may still name one of the old store.
    pub next_lease: u64,
}

impl Record {
    /// Moves all moments that are not wall time already, between wall time and the time of a machine.
    pub fn move_moments(&mut self, by: i64) {
        self.created = self.created.moved(by);
        self.previous_start = self.previous_start.map(|moment| moment.moved(by));
        match &mut self.standing {
            StoredState::Scheduled(_) => return,
            StoredState::Ready(moment) | StoredState::Delayed(moment) => *moment = moment.moved(by),
            StoredState::Buried | StoredState::DeadLetter => {}
        }
        self.expires = self.expires.moved(by);
    }

    /// A task that was taken at `start`, as it is after whoever held it is gone: ready again since then, because nobody
    /// knows when that was.
    pub fn given_back(&mut self, start: Timestamp, attempts_max: Option<u32>) {
        self.previous_start = Some(match self.standing {
            StoredState::Ready(since) => since,
            _ => self.created,
        });
        self.attempts = self.attempts.saturating_add(1);
        let used_up = attempts_max.is_some_and(|most| self.attempts >= most);
        self.standing = if used_up { StoredState::DeadLetter } else { StoredState::Ready(start) };
    }
}

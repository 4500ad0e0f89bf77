//! The judge of what many clients saw at the same time.
//!
//! Clients write down what they asked and what was answered, in a [`Recorder`]. Calls that overlap
//! may have happened in either order, calls that were cut off may have happened or not, and what
//! time does is seen by nobody. [`History::check`] asks whether there is, for each task, an order
//! of all that which is a path of the core's table of transitions: then no task was given to two at
//! once, none came back from the dead and none was lost.

mod path;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use taskyard_core::{Lease, State, TaskId, Timestamp, TubeName};

/// What one client did to one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Did {
    /// Put it; it was ready or delayed then.
    Put(State),
    /// Took it.
    Take {
        /// The number of the delivery.
        lease: Lease,
        /// When the delivery began, by the store's clock.
        start: Timestamp,
        /// When it ends by itself.
        until: Timestamp,
    },
    /// Acked it.
    Ack(Lease),
    /// Gave it back; it was ready, delayed or buried then.
    Release(Lease, State),
    /// Got more time, until then.
    Touch(Lease, Timestamp),
    /// Buried it, holding it or not.
    Bury(Option<Lease>),
    /// Deleted it.
    Delete,
    /// Kicked its tube: it may have been hit or not.
    Kick,
    /// Went away or was taken for dead while it held this: it was given back, or was not.
    Gone(Lease),
    /// Gave back whatever was taken, by `release_all`, the end of a session or a restart: it may
    /// have been hit or not.
    GiveBack,
}

/// A call of a client: what it did, and between which moments of the recorder it did it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Before this the call had not happened.
    pub begin: u64,
    /// After this it had. `None` when no answer came: it may have happened later, or never.
    pub end: Option<u64>,
    /// What it did.
    pub did: Did,
}

/// What may have happened to a task that no client wrote down.
#[derive(Clone, Copy, Debug)]
pub struct Unseen {
    /// The moment, by the store's clock, at which the recording ended.
    pub ended: Timestamp,
    /// Whether tasks have a ttl and may die of it.
    pub expire: bool,
    /// Whether the tube buries a task whose attempts are used up.
    pub dead_letter: bool,
    /// Whether takes were cut off, so that a task may be in the hands of nobody.
    pub lost_takes: bool,
}

impl Unseen {
    /// Only leases run out and delays end.
    pub const fn until(ended: Timestamp) -> Self {
        Unseen { ended, expire: false, dead_letter: false, lost_takes: false }
    }
}

/// What was seen of every task.
#[derive(Clone, Debug, Default)]
pub struct History {
    tasks: BTreeMap<(TubeName, TaskId), Seen>,
}

/// What was seen of one task.
#[derive(Clone, Debug, Default)]
struct Seen {
    calls: Vec<Call>,
    left: Option<State>,
}

/// A task whose history cannot have happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Its tube.
    pub tube: TubeName,
    /// The task.
    pub id: TaskId,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {} of '{}': {}", self.id, self.tube, self.what)
    }
}

impl History {
    /// Adds a call.
    pub fn record(&mut self, tube: &TubeName, id: TaskId, call: Call) {
        self.seen(tube, id).calls.push(call);
    }

    /// Says where a task was found when all was over; `Done` when it was not there. A task of which
    /// this is not said may be anywhere.
    pub fn found(&mut self, tube: &TubeName, id: TaskId, state: State) {
        self.seen(tube, id).left = Some(state);
    }

    /// Every task that was put or otherwise heard of.
    pub fn tasks(&self) -> impl Iterator<Item = (&TubeName, TaskId)> {
        self.tasks.keys().map(|(tube, id)| (tube, *id))
    }

    /// What cannot have happened; nothing, when all is well.
    pub fn check(&self, unseen: Unseen) -> Vec<Violation> {
        let mut violations = self.check_leases();
        for ((tube, id), seen) in &self.tasks {
            if let Err(what) = path::find(&seen.calls, seen.left, unseen) {
                violations.push(Violation { tube: tube.clone(), id: *id, what });
            }
        }
        violations
    }

    /// Lease numbers are issued once.
    fn check_leases(&self) -> Vec<Violation> {
        let mut issued = BTreeMap::new();
        let mut violations = Vec::new();
        for ((tube, id), seen) in &self.tasks {
            for call in &seen.calls {
                let Did::Take { lease, .. } = call.did else { continue };
                if let Some((tube_before, before)) = issued.insert(lease, (tube, id)) {
                    let what =
                        format!("lease {lease} was issued before, for {before} of '{tube_before}'");
                    violations.push(Violation { tube: tube.clone(), id: *id, what });
                }
            }
        }
        violations
    }

    /// Deliveries of a task whose lease numbers did not grow, where one was over before the next was asked for.
    pub fn check_lease_order(&self) -> Vec<Violation> {
        let mut violations = Vec::new();
        for ((tube, id), seen) in &self.tasks {
            let mut takes: Vec<_> = seen.calls.iter().filter_map(delivery).collect();
            takes.sort_unstable();
            for (place, (begin, _, lease)) in takes.iter().enumerate() {
                let earlier = takes[..place].iter().filter(|(_, end, _)| end < begin);
                if let Some((_, _, before)) =
                    earlier.max_by_key(|take| take.2).filter(|take| take.2 > *lease)
                {
                    let what = format!("lease {lease} was issued after lease {before}");
                    violations.push(Violation { tube: tube.clone(), id: *id, what });
                }
            }
        }
        violations
    }

    fn seen(&mut self, tube: &TubeName, id: TaskId) -> &mut Seen {
        self.tasks.entry((tube.clone(), id)).or_default()
    }
}

/// When a delivery was asked for and answered, and its number.
fn delivery(call: &Call) -> Option<(u64, u64, Lease)> {
    match call.did {
        Did::Take { lease, .. } => Some((call.begin, call.end?, lease)),
        _ => None,
    }
}

/// Where clients on many threads write down what they see.
#[derive(Debug, Default)]
pub struct Recorder {
    moment: AtomicU64,
    history: Mutex<History>,
}

impl Recorder {
    /// Notes that a call begins now; its number is for [`Recorder::end`] or [`Recorder::cut_off`].
    pub fn begin(&self) -> u64 {
        self.moment.fetch_add(1, Ordering::SeqCst)
    }

    /// Notes that a call was answered: it did this to that task. A call on many tasks is noted for
    /// each of them.
    pub fn end(&self, begin: u64, tube: &TubeName, id: TaskId, did: Did) {
        let end = Some(self.begin());
        self.add(tube, id, Call { begin, end, did });
    }

    /// Notes that a call was never answered: it did this, or nothing.
    pub fn cut_off(&self, begin: u64, tube: &TubeName, id: TaskId, did: Did) {
        self.add(tube, id, Call { begin, end: None, did });
    }

    /// What was written down so far.
    pub fn history(&self) -> History {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add(&self, tube: &TubeName, id: TaskId, call: Call) {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.record(tube, id, call);
    }
}

#[cfg(test)]
mod tests;

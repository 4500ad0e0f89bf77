//! Checks the recorded history of concurrent clients against the state table of the core.
//!
//! Clients record their calls and the replies in a [`Recorder`]. Overlapping calls can have
//! happened in either order, interrupted calls can have happened or not, and no client records the
//! effects of time. [`History::check`] searches, for each task, an order of all of these that is a
//! path of the core's table of transitions: then no task had two holders at once, no removed task
//! was delivered and none was lost.

mod path;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use taskyard_core::{Lease, State, TaskId, Timestamp, TubeName};

/// An operation of one client on one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
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
    /// Released it; it was ready, delayed or buried then.
    Release(Lease, State),
    /// Extended the lease until then.
    Touch(Lease, Timestamp),
    /// Buried it, holding it or not.
    Bury(Option<Lease>),
    /// Deleted it.
    Delete,
    /// Kicked its tube: the task may have been among the kicked ones or not.
    Kick,
    /// Disconnected or was declared dead while it held this lease: the task was released or not.
    Disconnect(Lease),
    /// Released all taken tasks, by `release_all`, the end of a session or a restart: the task may
    /// have been among them or not.
    ReleaseTaken,
}

/// A call of a client: its operation, and the interval of the recorder's counter in which it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The call happened after this.
    pub begin: u64,
    /// The call happened before this. `None` without a reply: it may have happened later, or never.
    pub end: Option<u64>,
    /// Its operation.
    pub operation: Operation,
}

/// The changes of a task that can happen without a record of a client.
#[derive(Clone, Copy, Debug)]
pub struct Unrecorded {
    /// When the recording ended, by the store's clock.
    pub ended: Timestamp,
    /// Whether tasks have a ttl and can expire.
    pub expire: bool,
    /// Whether the tube buries a task whose attempts are used up.
    pub dead_letter: bool,
    /// Whether takes were interrupted, so that a task can be taken without a known holder.
    pub lost_takes: bool,
}

impl Unrecorded {
    /// Only leases and delays end.
    pub const fn until(ended: Timestamp) -> Self {
        Unrecorded { ended, expire: false, dead_letter: false, lost_takes: false }
    }
}

/// The recorded calls of every task.
#[derive(Clone, Debug, Default)]
pub struct History {
    tasks: BTreeMap<(TubeName, TaskId), TaskHistory>,
}

/// The recorded calls of one task and its final state.
#[derive(Clone, Debug, Default)]
struct TaskHistory {
    calls: Vec<Call>,
    left: Option<State>,
}

/// A task whose history violates the rules.
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
        self.task(tube, id).calls.push(call);
    }

    /// Records the final state of a task; `Done` if it did not exist. A task without a final state
    /// can be in any state.
    pub fn record_final_state(&mut self, tube: &TubeName, id: TaskId, state: State) {
        self.task(tube, id).left = Some(state);
    }

    /// Every recorded task.
    pub fn tasks(&self) -> impl Iterator<Item = (&TubeName, TaskId)> {
        self.tasks.keys().map(|(tube, id)| (tube, *id))
    }

    /// The violations of all tasks.
    pub fn check(&self, unrecorded: Unrecorded) -> Vec<Violation> {
        let mut violations = self.check_leases();
        for ((tube, id), task) in &self.tasks {
            if let Err(what) = path::find(&task.calls, task.left, unrecorded) {
                violations.push(Violation { tube: tube.clone(), id: *id, what });
            }
        }
        violations
    }

    /// Finds lease numbers that were issued twice.
    fn check_leases(&self) -> Vec<Violation> {
        let mut issued = BTreeMap::new();
        let mut violations = Vec::new();
        for ((tube, id), task) in &self.tasks {
            for call in &task.calls {
                let Operation::Take { lease, .. } = call.operation else { continue };
                if let Some((tube_before, before)) = issued.insert(lease, (tube, id)) {
                    let what =
                        format!("lease {lease} was issued before, for {before} of '{tube_before}'");
                    violations.push(Violation { tube: tube.clone(), id: *id, what });
                }
            }
        }
        violations
    }

    /// Finds deliveries of a task whose lease numbers did not grow, although one had ended before the next was requested.
    pub fn check_lease_order(&self) -> Vec<Violation> {
        let mut violations = Vec::new();
        for ((tube, id), task) in &self.tasks {
            let mut takes: Vec<_> = task.calls.iter().filter_map(delivery).collect();
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

    fn task(&mut self, tube: &TubeName, id: TaskId) -> &mut TaskHistory {
        self.tasks.entry((tube.clone(), id)).or_default()
    }
}

/// When a delivery was requested and received, and its lease number.
fn delivery(call: &Call) -> Option<(u64, u64, Lease)> {
    match call.operation {
        Operation::Take { lease, .. } => Some((call.begin, call.end?, lease)),
        _ => None,
    }
}

/// Collects the calls of clients on many threads.
#[derive(Debug, Default)]
pub struct Recorder {
    moment: AtomicU64,
    history: Mutex<History>,
}

impl Recorder {
    /// Records that a call begins now; its number is for [`Recorder::end`] or [`Recorder::interrupt`].
    pub fn begin(&self) -> u64 {
        self.moment.fetch_add(1, Ordering::SeqCst)
    }

    /// Records the reply to a call: its operation on a task. A call on many tasks is recorded for
    /// each of them.
    pub fn end(&self, begin: u64, tube: &TubeName, id: TaskId, operation: Operation) {
        let end = Some(self.begin());
        self.add(tube, id, Call { begin, end, operation });
    }

    /// Records that a call had no reply: it had this effect, or none.
    pub fn interrupt(&self, begin: u64, tube: &TubeName, id: TaskId, operation: Operation) {
        self.add(tube, id, Call { begin, end: None, operation });
    }

    /// The history recorded so far.
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

//! Checks the recorded calls of a storm against the tasks that are left, however a test reads those.

use std::collections::{HashMap, HashSet};

use taskyard_conformance::audit::{Call, History, Operation, Unrecorded};
use taskyard_core::{Lease, State, TaskId, Timestamp, TubeName};

use crate::fixture::{CAPACITY, LANES, PLAIN, ROOM};
use crate::load::{Payload, StormLoad, TaskKey};

/// A task that exists after a storm.
pub struct LeftTask {
    pub tube: TubeName,
    pub id: TaskId,
    pub state: State,
    pub payload: Payload,
    /// The lease, if a session holds the task.
    pub held: Option<Lease>,
}

/// Panics unless the recorded calls are possible and no task is lost or leaked. Returns the calls. The storm ended at this moment
/// of the clock of the database.
pub fn check_storm(load: &StormLoad, tasks: Vec<LeftTask>, ended: Timestamp) -> History {
    let mut history = load.recorder.history();
    let mut left = HashSet::new();
    let mut payloads = load.payloads.lock().expect("no client failed").clone();
    let received = load.received.lock().expect("no client failed");
    for LeftTask { tube, id, state, payload, held } in tasks {
        if let Some(lease) = held {
            assert!(
                received.contains(&lease),
                "a session holds lease {lease} that no client received"
            );
        }
        // Servers have tubes of their own.
        if [PLAIN, LANES, ROOM].contains(&tube.as_str()) {
            history.record_final_state(&tube, id, state);
            payloads.insert((tube.clone(), id), payload);
            left.insert((tube, id));
        }
    }
    let acknowledged = load.acknowledged.lock().expect("no client failed");
    let unacknowledged = load.unacknowledged.lock().expect("no client failed");
    check_payloads(&acknowledged, &unacknowledged, &payloads);
    let all: Vec<_> = history.tasks().map(|(tube, id)| (tube.clone(), id)).collect();
    for key in all {
        if !acknowledged.contains_key(&key) {
            let operation = Operation::Put(State::Ready);
            history.record(&key.0, key.1, Call { begin: 0, end: None, operation });
        }
        if !left.contains(&key) {
            history.record_final_state(&key.0, key.1, State::Done);
        }
    }
    let violations = history.check(Unrecorded { lost_takes: true, ..Unrecorded::until(ended) });
    assert!(violations.is_empty(), "{}", violations[0]);
    let room = left.iter().filter(|(tube, _)| tube.as_str() == ROOM).count() as u64;
    assert!(room <= CAPACITY, "{room} tasks in a tube of capacity {CAPACITY}");
    println!("{} tasks were put, {} are left", acknowledged.len(), left.len());
    history
}

/// Panics unless each task has the payload of its put: that of the put with its id if that had a reply, otherwise that of a
/// put without a reply, which no other task has.
fn check_payloads(
    acknowledged: &HashMap<TaskKey, Payload>,
    unacknowledged: &HashSet<(TubeName, Payload)>,
    payloads: &HashMap<TaskKey, Payload>,
) {
    let mut claimed = HashSet::new();
    for (key, payload) in payloads {
        if let Some(put) = acknowledged.get(key) {
            assert_eq!(put, payload, "{key:?} has the payload of another put");
            continue;
        }
        let origin = (key.0.clone(), payload.clone());
        assert!(unacknowledged.contains(&origin), "{key:?} exists and no put can have added it");
        assert!(claimed.insert(origin), "{key:?} exists twice");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::tube;

    fn task(id: u64, payload: u8) -> (TaskKey, Payload) {
        ((tube(PLAIN), TaskId(id)), vec![payload])
    }

    fn check(acknowledged: &[(TaskKey, Payload)], payloads: &[(TaskKey, Payload)]) {
        let unacknowledged = [(tube(PLAIN), vec![7])].into();
        let [acknowledged, payloads] =
            [acknowledged, payloads].map(|tasks| tasks.iter().cloned().collect());
        check_payloads(&acknowledged, &unacknowledged, &payloads);
    }

    #[test]
    fn put_tasks_can_exist() {
        check(&[task(0, 1)], &[task(0, 1), task(1, 7)]);
    }

    // A put that the server repeated added its task twice, and every storm passed: for each unknown task the judge
    // assumed a put.
    #[test]
    #[should_panic(expected = "no put can have added it")]
    fn a_put_with_reply_does_not_exist_twice() {
        check(&[task(0, 1)], &[task(0, 1), task(1, 1)]);
    }

    #[test]
    #[should_panic(expected = "exists twice")]
    fn a_put_without_reply_does_not_exist_twice() {
        check(&[], &[task(0, 7), task(1, 7)]);
    }

    #[test]
    #[should_panic(expected = "payload of another put")]
    fn payloads_are_not_mixed_up() {
        check(&[task(0, 1)], &[task(0, 7)]);
    }
}

//! Checks the recorded calls and the remaining tasks after a storm.

use std::collections::{HashMap, HashSet};

use taskyard_conformance::audit::{Call, Operation, Unrecorded};
use taskyard_core::{Lease, State, TaskId, Timestamp, TubeName};

use crate::database::DatabaseFixture;
use crate::fixture::{CAPACITY, LANES, PLAIN, ROOM, tube};
use crate::load::{Payload, StormLoad, TaskKey};
use taskyard_testkit::postgres::{check_counts, sql, wait_until};

/// Lists leaked rows, as text.
const LEAKS: &str = "
SELECT string_agg(what, '; ') FROM (
    SELECT 'sub-queue ' || k.key || ' runs ' || k.taken AS what FROM (
        SELECT subqueue AS key, count(*) AS taken FROM taskyard.task
        WHERE state = 1 AND subqueue IS NOT NULL GROUP BY tube, subqueue) k WHERE k.taken > 1
    UNION ALL
    SELECT 'sub-queue ' || coalesce(s.key, t.subqueue) || ' has the head '
        || coalesce(s.head_id::text, 'none') || ' instead of ' || coalesce(t.head::text, 'none')
    FROM taskyard.subqueue s FULL JOIN (
        SELECT tube, subqueue, CASE WHEN bool_or(state = 1) THEN NULL
            ELSE min(id) FILTER (WHERE state = 0) END AS head
        FROM taskyard.task WHERE subqueue IS NOT NULL GROUP BY tube, subqueue) t
        ON s.tube = t.tube AND s.key = t.subqueue
    WHERE s.key IS NULL OR t.subqueue IS NULL OR s.head_id IS DISTINCT FROM t.head
    UNION ALL
    SELECT 'task ' || t.id || ' is held by an absent session' FROM taskyard.task t
    WHERE t.state = 1 AND t.session IS NOT NULL
        AND t.session NOT IN (SELECT id FROM taskyard.session)
    UNION ALL
    SELECT 'a connection of an absent server' FROM taskyard.connection
    WHERE server NOT IN (SELECT id FROM taskyard.server)
    UNION ALL
    SELECT 'a session without connections does not end' FROM taskyard.session
    WHERE ends IS NULL AND id NOT IN (SELECT session FROM taskyard.connection)) leaks";

const TASKS: &str = "
SELECT string_agg(format('%s %s %s %s', u.name, t.id, t.state, encode(t.payload, 'hex')), ',')
FROM taskyard.task t JOIN taskyard.tube u ON u.number = t.tube";

/// The leases that sessions hold.
const HELD: &str = "
SELECT string_agg(lease::text, ',') FROM taskyard.task WHERE state = 1 AND session IS NOT NULL";

/// Waits until no ended session holds a task.
pub fn wait_for_returns(fixture: &DatabaseFixture) {
    let nothing =
        "NOT EXISTS (SELECT 1 FROM taskyard.task WHERE state = 1 AND session IS NOT NULL)";
    wait_until(&fixture.database.url(), nothing);
}

/// Panics unless the recorded calls are possible and no task is lost or leaked.
pub fn judge(fixture: &DatabaseFixture, load: &StormLoad) {
    let url = fixture.database.url();
    check_counts(&url);
    assert_eq!(sql(&url, LEAKS), None, "leaked rows");
    let received = load.received.lock().expect("no client failed");
    let held = sql(&url, HELD).unwrap_or_default();
    for lease in held.split(',').filter_map(|lease| lease.parse().ok()) {
        assert!(
            received.contains(&Lease(lease)),
            "a session holds lease {lease} that no client received"
        );
    }
    let mut history = load.recorder.history();
    let mut left = HashSet::new();
    let mut payloads = load.payloads.lock().expect("no client failed").clone();
    let tasks = sql(&url, TASKS).unwrap_or_default();
    for task in tasks.split(',').filter(|task| !task.is_empty()) {
        let [name, id, state, payload] = task.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{task}")
        };
        if ![PLAIN, LANES, ROOM].contains(&name) {
            continue;
        }
        let key = (tube(name), TaskId(id.parse().expect("a number")));
        history.record_final_state(&key.0, key.1, state_of(state));
        payloads.insert(key.clone(), bytes(payload));
        left.insert(key);
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
    let clock = sql(&url, "SELECT taskyard.clock()").and_then(|clock| clock.parse().ok());
    let ended = Timestamp::from_micros(clock.expect("the database has a clock"));
    let violations = history.check(Unrecorded { lost_takes: true, ..Unrecorded::until(ended) });
    assert!(violations.is_empty(), "{}", violations[0]);
    let disorder = history.check_lease_order();
    assert!(disorder.is_empty(), "{}", disorder[0]);
    let room = left.iter().filter(|(tube, _)| tube.as_str() == ROOM).count() as u64;
    assert!(room <= CAPACITY, "{room} tasks in a tube of capacity {CAPACITY}");
    println!("{} tasks were put, {} are left", acknowledged.len(), left.len());
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

fn bytes(hex: &str) -> Payload {
    let digits = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).expect("digits"));
    digits.map(|pair| u8::from_str_radix(pair, 16).expect("hexadecimal")).collect()
}

fn state_of(stored: &str) -> State {
    match stored {
        "0" | "5" => State::Ready,
        "1" => State::Taken,
        "2" => State::Delayed,
        _ => State::Buried,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

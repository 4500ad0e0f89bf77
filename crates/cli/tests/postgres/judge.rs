//! What must be so when a storm is over.

use std::collections::{HashMap, HashSet};

use taskyard_conformance::audit::{Call, Operation, Unrecorded};
use taskyard_core::{Lease, State, TaskId, Timestamp, TubeName};

use crate::load::{Load, Payload};
use crate::yard::{CAPACITY, LANES, PLAIN, ROOM, Yard, tube};
use taskyard_testkit::postgres::{check_counts, sql, wait_until};

/// Everything that takes a place and should not, as text.
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
    SELECT 'task ' || t.id || ' is held by a session that is none' FROM taskyard.task t
    WHERE t.state = 1 AND t.session IS NOT NULL
        AND t.session NOT IN (SELECT id FROM taskyard.session)
    UNION ALL
    SELECT 'a connection of a server that is gone' FROM taskyard.connection
    WHERE server NOT IN (SELECT id FROM taskyard.server)
    UNION ALL
    SELECT 'a session without connections does not end' FROM taskyard.session
    WHERE ends IS NULL AND id NOT IN (SELECT session FROM taskyard.connection)) leaks";

const TASKS: &str = "
SELECT string_agg(format('%s %s %s %s', u.name, t.id, t.state, encode(t.payload, 'hex')), ',')
FROM taskyard.task t JOIN taskyard.tube u ON u.number = t.tube";

/// A task, and where it is.
type Key = (TubeName, TaskId);

/// What sessions hold, by lease.
const HELD: &str = "
SELECT string_agg(lease::text, ',') FROM taskyard.task WHERE state = 1 AND session IS NOT NULL";

/// Waits until nobody who is gone holds anything.
pub fn wait_for_returns(yard: &Yard) {
    let nothing =
        "NOT EXISTS (SELECT 1 FROM taskyard.task WHERE state = 1 AND session IS NOT NULL)";
    wait_until(&yard.database.url(), nothing);
}

/// Panics unless all that clients saw can have happened and nothing is lost or leaked.
pub fn judge(yard: &Yard, load: &Load) {
    let url = yard.database.url();
    check_counts(&url);
    assert_eq!(sql(&url, LEAKS), None, "a place is leaked");
    let told = load.told.lock().expect("no client failed");
    let held = sql(&url, HELD).unwrap_or_default();
    for lease in held.split(',').filter_map(|lease| lease.parse().ok()) {
        assert!(told.contains(&Lease(lease)), "a session holds lease {lease} and nobody knows");
    }
    let mut history = load.recorder.history();
    let mut left = HashSet::new();
    let mut carried = load.carried.lock().expect("no client failed").clone();
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
        carried.insert(key.clone(), bytes(payload));
        left.insert(key);
    }
    let known = load.known.lock().expect("no client failed");
    let unsure = load.unsure.lock().expect("no client failed");
    check_origins(&known, &unsure, &carried);
    let all: Vec<_> = history.tasks().map(|(tube, id)| (tube.clone(), id)).collect();
    for key in all {
        if !known.contains_key(&key) {
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
    assert!(room <= CAPACITY, "{room} tasks where {CAPACITY} have room");
    println!("{} tasks were put, {} are left", known.len(), left.len());
}

/// Panics unless each task is what was put: one whose put was answered carries what that operation, and any other
/// what a put carried that was not answered, and is the only one that does.
fn check_origins(
    known: &HashMap<Key, Payload>,
    unsure: &HashSet<(TubeName, Payload)>,
    carried: &HashMap<Key, Payload>,
) {
    let mut claimed = HashSet::new();
    for (key, payload) in carried {
        if let Some(put) = known.get(key) {
            assert_eq!(put, payload, "{key:?} carries what another was put with");
            continue;
        }
        let origin = (key.0.clone(), payload.clone());
        assert!(unsure.contains(&origin), "{key:?} is there and nobody can have put it");
        assert!(claimed.insert(origin), "{key:?} is there twice");
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

    fn task(id: u64, payload: u8) -> (Key, Payload) {
        ((tube(PLAIN), TaskId(id)), vec![payload])
    }

    fn check(known: &[(Key, Payload)], carried: &[(Key, Payload)]) {
        let unsure = [(tube(PLAIN), vec![7])].into();
        let [known, carried] = [known, carried].map(|tasks| tasks.iter().cloned().collect());
        check_origins(&known, &unsure, &carried);
    }

    #[test]
    fn what_was_put_may_be_there() {
        check(&[task(0, 1)], &[task(0, 1), task(1, 7)]);
    }

    // A put that was sent again behind everybody's back was there twice, and every storm passed: for each task that
    // nobody knew the judge made up a put.
    #[test]
    #[should_panic(expected = "nobody can have put it")]
    fn an_answered_put_is_not_there_twice() {
        check(&[task(0, 1)], &[task(0, 1), task(1, 1)]);
    }

    #[test]
    #[should_panic(expected = "is there twice")]
    fn an_unanswered_put_is_not_there_twice() {
        check(&[], &[task(0, 7), task(1, 7)]);
    }

    #[test]
    #[should_panic(expected = "another was put with")]
    fn payloads_are_not_mixed_up() {
        check(&[task(0, 1)], &[task(0, 7)]);
    }
}

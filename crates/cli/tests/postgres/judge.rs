//! Reads the remaining tasks after a storm from PostgreSQL, and checks them.

use taskyard_core::{Lease, State, TaskId, Timestamp};

use crate::database::DatabaseFixture;
use crate::fixture::tube;
use crate::load::{Payload, StormLoad};
use crate::storm_check::{LeftTask, check_storm};
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

/// All tasks: tube, id, state, lease if a session holds it, payload.
const TASKS: &str = "
SELECT string_agg(format('%s %s %s %s %s', u.name, t.id, t.state,
    CASE WHEN t.state = 1 AND t.session IS NOT NULL THEN t.lease::text ELSE '-' END, encode(t.payload, 'hex')), ',')
FROM taskyard.task t JOIN taskyard.tube u ON u.number = t.tube";

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
    let tasks = sql(&url, TASKS).unwrap_or_default();
    let tasks = tasks.split(',').filter(|task| !task.is_empty()).map(left_task).collect();
    let clock = sql(&url, "SELECT taskyard.clock()").and_then(|clock| clock.parse().ok());
    let ended = Timestamp::from_micros(clock.expect("the database has a clock"));
    let disorder = check_storm(load, tasks, ended).check_lease_order();
    assert!(disorder.is_empty(), "{}", disorder[0]);
}

/// Reads a task from a row of [`TASKS`].
fn left_task(row: &str) -> LeftTask {
    let [name, id, state, lease, payload] = row.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{row}")
    };
    LeftTask {
        tube: tube(name),
        id: TaskId(id.parse().expect("a number")),
        state: state_of(state),
        payload: bytes(payload),
        held: lease.parse().ok().map(Lease),
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

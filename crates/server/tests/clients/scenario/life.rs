//! The life cycle of a task, in each kind of tube.

use serde_json::json;

use super::{Case, KINDS, TTL_KINDS};

pub fn cases() -> Vec<Case> {
    let every = KINDS.into_iter().flat_map(|kind| [life(kind), touch(kind)]);
    let timed = TTL_KINDS
        .into_iter()
        .flat_map(|kind| [delay(kind), pri(kind), ttr(kind), ttl(kind), odd_numbers(kind)]);
    every.chain(timed).collect()
}

fn life(kind: &str) -> Case {
    let mut case =
        Case::with_tube("put, take, ack and the rest", "life", kind, "{if_not_exists = true}");
    case.verb("a", "put", json!(["one"])).gives_task(0, "r", "one");
    case.verb("a", "peek", json!([0])).gives_task(0, "r", "one");
    case.verb("a", "take", json!([0])).gives_task(0, "t", "one");
    case.verb("a", "peek", json!([0])).gives_task(0, "t", "one");
    case.verb("a", "take", json!([0])).gives(json!([]));
    case.verb("a", "ack", json!([0])).gives_task(0, "-", "one");
    case.verb("a", "peek", json!([0])).fails(32, "Task 0 not found");

    // An id is not used again, also when the tube is empty.
    case.verb("a", "put", json!(["two", {}])).gives_task(1, "r", "two");
    case.verb("a", "take", json!([])).gives_task(1, "t", "two");
    case.verb("a", "release", json!([1])).gives_task(1, "r", "two");
    case.verb("a", "take", json!([null])).gives_task(1, "t", "two");
    case.verb("a", "bury", json!([1])).gives_task(1, "!", "two");
    case.verb("a", "bury", json!([1])).gives_task(1, "!", "two");
    case.verb("a", "take", json!([0])).gives(json!([]));
    case.verb("a", "kick", json!([5])).gives(json!([1]));
    case.verb("a", "kick", json!([5])).gives(json!([0]));
    case.verb("a", "peek", json!([1])).gives_task(1, "r", "two");
    case.verb("a", "delete", json!([1])).gives_task(1, "-", "two");
    case.verb("a", "delete", json!([1])).fails(32, "Task 1 not found");

    // A kick without a number is for one task.
    for (id, data) in [(2, "three"), (3, "four")] {
        case.verb("a", "put", json!([data])).gives_task(id, "r", data);
        case.verb("b", "bury", json!([id])).gives_task(id, "!", data);
    }
    case.verb("b", "kick", json!([])).gives(json!([1]));
    case.verb("b", "peek", json!([2])).gives_task(2, "r", "three");
    case.counts(
        &[("ready", 1), ("buried", 1), ("done", 2), ("total", 2)],
        &[
            ("put", 4),
            ("take", 3),
            ("ack", 1),
            ("release", 1),
            ("bury", 3),
            ("kick", 2),
            ("delete", 1),
        ],
    );
    case
}

fn touch(kind: &str) -> Case {
    let mut case = Case::with_tube("touch", "touch", kind, "{if_not_exists = true}");
    case.verb("a", "put", json!(["x", { "ttr": 60 }])).gives_task(0, "r", "x");
    case.verb("a", "take", json!([0])).gives_task(0, "t", "x");
    if TTL_KINDS.contains(&kind) {
        case.verb("a", "touch", json!([0, 2.5])).gives_task(0, "t", "x");
        for no_time in [json!([0, 0]), json!([0, -1]), json!([0])] {
            case.verb("a", "touch", no_time).gives(json!([]));
        }
        case.verb("b", "touch", json!([0, 2.5])).fails(32, "Task was not taken");
        case.counts(&[("taken", 1), ("total", 1)], &[("put", 1), ("take", 1), ("touch", 1)]);
    } else {
        let refusal = format!("{kind} queue does not support touch");
        case.verb("a", "touch", json!([0, 2.5])).fails(32, refusal);
    }
    case
}

/// Delays of a put and of a release; a consumer that waits gets the task when it is due.
fn delay(kind: &str) -> Case {
    let mut case = Case::with_tube("delays", "delay", kind, "{}");
    case.verb("a", "put", json!(["late", { "delay": 0.05 }])).gives_task(0, "~", "late");
    case.verb("a", "take", json!([20])).gives_task(0, "t", "late");
    case.verb("a", "release", json!([0, { "delay": 0.05 }])).gives_task(0, "~", "late");
    case.verb("a", "take", json!([20])).gives_task(0, "t", "late");
    case.verb("a", "release", json!([0, { "delay": 600 }])).gives_task(0, "~", "late");
    case.verb("a", "take", json!([0])).gives(json!([]));
    case.counts(
        &[("delayed", 1), ("total", 1)],
        &[("put", 1), ("take", 2), ("release", 2), ("delay", 2)],
    );
    case
}

/// The smaller number goes first, and a released task goes back to its old place.
fn pri(kind: &str) -> Case {
    let mut case = Case::with_tube("priorities", "pri", kind, "{pri = 7}");
    for (id, pri) in [(0, json!({})), (1, json!({ "pri": 9 })), (2, json!({ "pri": 0 }))] {
        case.verb("a", "put", json!([id, pri])).gives_task(id, "r", id);
    }
    case.verb("a", "take", json!([0])).gives_task(2, "t", 2);
    case.verb("a", "release", json!([2])).gives_task(2, "r", 2);
    for id in [2, 0, 1] {
        case.verb("a", "take", json!([0])).gives_task(id, "t", id);
        case.verb("a", "ack", json!([id])).gives_task(id, "-", id);
    }
    case
}

/// A task that is not finished in time goes to the next consumer, and the first has lost it.
fn ttr(kind: &str) -> Case {
    let mut case = Case::with_tube("ttr", "ttr", kind, "{}");
    case.verb("a", "put", json!(["x", { "ttr": 0.05 }])).gives_task(0, "r", "x");
    case.verb("a", "take", json!([0])).gives_task(0, "t", "x");
    case.verb("b", "take", json!([20])).gives_task(0, "t", "x");
    for verb in ["ack", "release"] {
        case.verb("a", verb, json!([0])).fails(32, "Task was not taken");
    }
    case
}

/// A task that is not taken within its time to live is removed, also a buried one.
fn ttl(kind: &str) -> Case {
    let mut case = Case::with_tube("ttl", "ttl", kind, "{}");
    case.verb("a", "put", json!(["x", { "ttl": 0.05 }])).gives_task(0, "r", "x");
    case.verb("a", "bury", json!([0])).gives_task(0, "!", "x");
    // The server waits, on the same clock that expires the task.
    case.verb("a", "take", json!([0.1])).gives(json!([]));
    case.verb("a", "peek", json!([0])).fails(32, "Task 0 not found");
    case.counts(&[("done", 1)], &[("put", 1), ("bury", 1), ("delete", 1), ("ttl", 1)]);
    case
}

/// Numbers that make little sense are taken as upstream takes them.
fn odd_numbers(kind: &str) -> Case {
    let mut case = Case::with_tube("odd numbers", "odd", kind, "{}");
    case.verb("a", "put", json!(["no delay", { "delay": -1 }])).gives_task(0, "r", "no delay");
    // A number of a task is the same number with a point in it.
    case.verb("a", "peek", json!([0.0])).gives_task(0, "r", "no delay");
    case.verb("a", "kick", json!([0])).gives(json!([0]));
    case.verb("a", "kick", json!([-1])).gives(json!([-1]));
    case.verb("a", "take", json!([1e9])).gives_task(0, "t", "no delay");
    // A release uses only the delay.
    case.verb("a", "release", json!([0, { "pri": 9, "ttl": 0.001 }]))
        .gives_task(0, "r", "no delay");
    case.verb("a", "put", json!(["no time", { "ttl": 0, "pri": 1 }])).gives_task(1, "r", "no time");
    case.verb("a", "take", json!([0])).gives_task(0, "t", "no delay");
    case.verb("a", "take", json!([0])).gives(json!([]));
    case
}

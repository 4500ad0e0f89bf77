//! Options of some kinds of tubes only, sub-queues and a capacity, and options that a plain tube ignores.

use serde_json::json;

use super::Case;

pub fn cases() -> Vec<Case> {
    vec![subqueues("utube"), subqueues("utubettl"), capacity(), no_limit(), nothing_fits(), plain()]
}

/// Of each sub-queue one task at a time is taken.
fn subqueues(kind: &str) -> Case {
    let mut case = Case::with_tube("sub-queues", "sub", kind, "{if_not_exists = true}");
    for (id, utube, data) in [(0, "red", "r1"), (1, "red", "r2"), (2, "blue", "b1")] {
        case.verb("a", "put", json!([data, { "utube": utube }])).gives_task(id, "r", data);
    }
    case.verb("a", "take", json!([0])).gives_task(0, "t", "r1");
    case.verb("b", "take", json!([0])).gives_task(2, "t", "b1");
    case.verb("b", "take", json!([0])).gives(json!([]));
    case.start("b", "take", json!([20]), "red is free");
    case.verb("a", "ack", json!([0])).gives_task(0, "-", "r1");
    case.awaits("red is free").gives_task(1, "t", "r2");
    // The name may be a number: it is the same as its text.
    for (id, utube) in [(3, json!(7)), (4, json!("7"))] {
        case.verb("a", "put", json!([id, { "utube": utube }])).gives_task(id, "r", id);
    }
    case.verb("a", "take", json!([0])).gives_task(3, "t", 3);
    case.verb("a", "take", json!([0])).gives(json!([]));
    case
}

/// A full tube refuses with nil, or lets the producer wait for capacity.
fn capacity() -> Case {
    let mut case = Case::with_tube("capacity", "capacity", "limfifottl", "{capacity = 1}");
    case.verb("a", "put", json!(["one"])).gives_task(0, "r", "one");
    case.verb("a", "put", json!(["two"])).gives(json!([null]));
    case.verb("a", "put", json!(["two", { "timeout": 0.03 }])).gives(json!([null]));
    case.start("b", "put", json!(["three", { "timeout": 20 }]), "waiting put");
    case.verb("a", "take", json!([0])).gives_task(0, "t", "one");
    case.verb("a", "ack", json!([0])).gives_task(0, "-", "one");
    case.awaits("waiting put").gives_task(1, "r", "three");
    case
}

/// A capacity of 0 is no limit.
fn no_limit() -> Case {
    let mut case = Case::with_tube("capacity 0", "unlimited", "limfifottl", "{capacity = 0}");
    for id in 0..3 {
        case.verb("a", "put", json!([id])).gives_task(id, "r", id);
    }
    case
}

// It was refused when the tube was created.
/// A tube with a negative capacity is created and accepts nothing.
fn nothing_fits() -> Case {
    let mut case = Case::with_tube("capacity -1", "closed", "limfifottl", "{capacity = -1}");
    case.verb("a", "put", json!(["one"])).gives(json!([null]));
    case.verb("a", "put", json!(["one", { "timeout": 0.03 }])).gives(json!([null]));
    case.verb("a", "take", json!([0])).gives(json!([]));
    case.verb("a", "drop", json!([])).gives(json!([true]));
    case
}

/// Options that a kind does not have are ignored.
fn plain() -> Case {
    let mut case = Case::with_tube("unknown options", "plain", "fifo", "{temporary = true}");
    let options = json!({ "delay": 600, "ttl": 600, "ttr": 600, "pri": 3, "utube": "x" });
    case.verb("a", "put", json!(["one", options])).gives_task(0, "r", "one");
    // An empty PHP array arrives as an empty list.
    case.verb("a", "put", json!(["two", []])).gives_task(1, "r", "two");
    case.verb("a", "take", json!([0])).gives_task(0, "t", "one");
    case.verb("a", "release", json!([0, []])).gives_task(0, "r", "one");
    case
}

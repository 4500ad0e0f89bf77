//! Sessions that end, come back, and are shared.

use serde_json::json;

use super::{Ability, Case, KINDS};

pub fn cases() -> Vec<Case> {
    let ended = KINDS.into_iter().map(ended);
    ended.chain([back(), shared(), expired(), wrong_names(), settings()]).collect()
}

/// What a client held when its connection ended is ready again at once.
fn ended(kind: &str) -> Case {
    let mut case = Case::with_tube("the holder leaves", "ended", kind, "{if_not_exists = true}");
    case.verb("a", "put", json!(["x"])).gives_task(0, "r", "x");
    case.verb("b", "take", json!([0])).gives_task(0, "t", "x");
    case.start("a", "take", json!([20]), "next");
    case.close("b");
    case.awaits("next").gives_task(0, "t", "x");
    case.verb("a", "ack", json!([0])).gives_task(0, "-", "x");
    case.counts(&[("done", 1)], &[("put", 1), ("take", 2), ("release", 1), ("ack", 1)]);
    case
}

/// With `queue.cfg{ttr}` a session outlives its connection for a while.
fn back() -> Case {
    let mut case = Case::with_tube("identify after a reconnect", "back", "fifottl", "{}")
        .needs(Ability::Bytes);
    case.call("a", "queue.cfg", json!([{ "ttr": 60 }])).gives(json!([]));
    case.verb("a", "put", json!(["x"])).gives_task(0, "r", "x");
    case.call("b", "queue.identify", json!([])).keeps("session");
    case.verb("b", "take", json!([0])).gives_task(0, "t", "x");
    case.call("b", "queue.identify", json!([])).gives(json!([{ "kept": "session" }]));
    case.close("b");
    case.call("c", "queue.identify", json!([{ "kept": "session" }]))
        .gives(json!([{ "kept": "session" }]));
    case.verb("c", "ack", json!([0])).gives_task(0, "-", "x");
    case.call("c", "queue.cfg", json!([{ "ttr": 0 }])).gives(json!([]));
    case
}

/// Connections of one session finish each other's tasks.
fn shared() -> Case {
    let mut case = Case::with_tube("two connections, one session", "shared", "utubettl", "{}")
        .needs(Ability::Bytes);
    case.call("a", "queue.identify", json!([])).keeps("session");
    case.verb("a", "put", json!(["x"])).gives_task(0, "r", "x");
    case.verb("a", "take", json!([0])).gives_task(0, "t", "x");
    case.verb("b", "release", json!([0])).fails(32, "Task was not taken");
    case.call("b", "queue.identify", json!([{ "kept": "session" }]))
        .gives(json!([{ "kept": "session" }]));
    case.verb("b", "release", json!([0])).gives_task(0, "r", "x");
    case
}

/// A session that does not come back in time releases its tasks and is forgotten.
fn expired() -> Case {
    let mut case =
        Case::with_tube("no connection comes back", "expired", "fifo", "{}").needs(Ability::Bytes);
    case.call("a", "queue.cfg", json!([{ "ttr": 0.05 }])).gives(json!([]));
    case.verb("a", "put", json!(["x"])).gives_task(0, "r", "x");
    case.call("b", "queue.identify", json!([])).keeps("session");
    case.verb("b", "take", json!([0])).gives_task(0, "t", "x");
    case.close("b");
    case.verb("a", "take", json!([20])).gives_task(0, "t", "x");
    case.call("a", "queue.identify", json!([{ "kept": "session" }])).fails(32, "is unknown");
    case.call("a", "queue.cfg", json!([{ "ttr": 0 }])).gives(json!([]));
    case
}

fn wrong_names() -> Case {
    let mut case = Case::new("names of no session");
    case.call("a", "queue.identify", json!(["too short"])).fails(32, "Invalid UUID format.");
    case.call("a", "queue.identify", json!(["0123456789abcdef"])).fails(32, "is unknown");
    case
}

fn settings() -> Case {
    let mut case = Case::new("queue.cfg and queue.state");
    case.call("a", "queue.state", json!([])).gives(json!(["RUNNING"]));
    case.call("a", "queue.cfg", json!([{ "ttr": -1 }])).fails(32, "Invalid value of ttr: -1");
    case.call("a", "queue.cfg", json!([{ "zz": 1 }])).fails(32, "Unknown option zz");
    case.call("a", "queue.cfg", json!([{ "ttr": 0, "in_replicaset": false }])).gives(json!([]));
    case
}

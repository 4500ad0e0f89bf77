//! Refused calls, with the codes and texts that clients check.

use serde_json::json;

use super::{Case, KINDS};

pub fn cases() -> Vec<Case> {
    let owners = KINDS.into_iter().map(owner);
    owners.chain([unknown(), wrong_arguments(), ignored_options()]).collect()
}

/// Only the holder may finish a task; every client may use `bury` and `delete`.
fn owner(kind: &str) -> Case {
    let mut case = Case::with_tube("the holder of a task", "owner", kind, "{}");
    case.verb("a", "put", json!(["x"])).gives_task(0, "r", "x");
    for verb in ["ack", "release"] {
        case.verb("a", verb, json!([0])).fails(32, "Task was not taken");
        case.verb("a", verb, json!([99])).fails(32, "Task was not taken");
    }
    case.verb("a", "take", json!([0])).gives_task(0, "t", "x");
    for verb in ["ack", "release"] {
        case.verb("b", verb, json!([0])).fails(32, "Task was not taken");
    }
    for verb in ["peek", "bury", "delete"] {
        case.verb("b", verb, json!([99])).fails(32, "Task 99 not found");
    }
    case.verb("b", "bury", json!([0])).gives_task(0, "!", "x");
    case.verb("a", "ack", json!([0])).fails(32, "Task was not taken");
    case.verb("b", "delete", json!([0])).gives_task(0, "-", "x");
    case
}

fn unknown() -> Case {
    let mut case = Case::with_tube("what does not exist", "known", "fifo", "{}");
    for function in ["queue.tube.nowhere:put", "queue.tube.known_fifo:fly", "queue.fly", "fly"] {
        let text = format!("Procedure '{function}' is not defined");
        case.call("a", function, json!([1])).fails(33, text);
    }
    // The connection still works.
    case.verb("a", "put", json!(["x"])).gives_task(0, "r", "x");
    case
}

/// A kind does not look at options that it does not have.
fn ignored_options() -> Case {
    let mut case = Case::with_tube("ignored options", "ignored", "fifo", "{ttl = 'x'}");
    let options = json!({ "pri": "high", "ttl": "long", "delay": [], "utube": [1] });
    case.verb("a", "put", json!(["x", options])).gives_task(0, "r", "x");
    case.verb("a", "put", json!(["y", 5])).gives_task(1, "r", "y");
    case.verb("a", "put", json!([])).fails(39, "Tuple field 3 required by space format is missing");
    case.verb("a", "take", json!([0])).gives_task(0, "t", "x");
    case.verb("a", "release", json!([0, { "delay": "x" }])).gives_task(0, "r", "x");
    case
}

fn wrong_arguments() -> Case {
    let mut case = Case::with_tube("wrong arguments", "wrong", "fifottl", "{}");
    case.verb("a", "put", json!([])).fails(39, "Tuple field 8 required by space format is missing");
    for pri in [json!("high"), json!(-1), json!(1.5)] {
        case.verb("a", "put", json!(["x", { "pri": pri }])).fails(23, "expected unsigned");
    }
    case.verb("a", "put", json!(["x", { "ttl": "long" }])).fails(32, "attempt to compare");
    let text = "attempt to index local 'opts' (a number value)";
    case.verb("a", "put", json!(["x", 5])).fails(32, text);
    case.verb("a", "take", json!(["long"])).fails(32, "attempt to compare");
    case.verb("a", "kick", json!([null])).fails(32, "'for' limit must be a number");
    case.verb("a", "kick", json!(["all"])).fails(32, "'for' limit must be a number");
    for id in [json!("x"), json!(-1), json!(0.5)] {
        case.verb("a", "peek", json!([id])).fails(18, "expected unsigned");
    }
    case.verb("a", "peek", json!([])).fails(19, "(expected 1, got 0)");
    for verb in ["ack", "release"] {
        case.verb("a", verb, json!([])).fails(19, "(expected 2, got 1)");
        case.verb("a", verb, json!([null])).fails(18, "part 1 does not match index part type");
    }
    case.call("a", "queue.statistics", json!(["absent"])).fails(32, "attempt to index a nil value");
    case.verb("a", "put", json!(["x"])).gives_task(0, "r", "x");
    case
}

//! Consumers that wait.

use serde_json::json;

use super::{Ability, Case};

pub fn cases() -> Vec<Case> {
    vec![woken(), too_long(), two_consumers(), gone(), side_by_side()]
}

fn woken() -> Case {
    let mut case = Case::with_tube("a put wakes a consumer", "woken", "fifo", "{}");
    case.start("a", "take", json!([20]), "take");
    case.verb("b", "put", json!(["x"])).gives_task(0, "r", "x");
    case.awaits("take").gives_task(0, "t", "x");
    case.verb("a", "ack", json!([0])).gives_task(0, "-", "x");
    // Without a number it waits as long as it takes.
    case.start("a", "take", json!([]), "take");
    case.verb("b", "put", json!(["y"])).gives_task(1, "r", "y");
    case.awaits("take").gives_task(1, "t", "y");
    case
}

fn too_long() -> Case {
    let mut case = Case::with_tube("a consumer gives up", "too_long", "fifo", "{}");
    case.verb("a", "take", json!([0.03])).gives(json!([]));
    case.verb("a", "take", json!([-1])).gives(json!([]));
    case.counts(&[], &[]);
    case
}

/// The consumer that has waited longest is served first.
fn two_consumers() -> Case {
    let mut case = Case::with_tube("two consumers", "two", "fifottl", "{}");
    case.start("a", "take", json!([20]), "first");
    case.start("b", "take", json!([20]), "second");
    case.verb("c", "put", json!(["x"])).gives_task(0, "r", "x");
    case.awaits("first").gives_task(0, "t", "x");
    case.verb("c", "put", json!(["y"])).gives_task(1, "r", "y");
    case.awaits("second").gives_task(1, "t", "y");
    case.verb("b", "ack", json!([0])).fails(32, "Task was not taken");
    case.verb("a", "ack", json!([0])).gives_task(0, "-", "x");
    case.verb("b", "ack", json!([1])).gives_task(1, "-", "y");
    case
}

/// A consumer that has left takes no task with it.
fn gone() -> Case {
    let mut case = Case::with_tube("a consumer leaves", "gone", "fifo", "{}");
    case.start("b", "take", json!([20]), "never");
    case.close("b");
    case.verb("a", "put", json!(["x"])).gives_task(0, "r", "x");
    case.verb("a", "take", json!([20])).gives_task(0, "t", "x");
    case
}

/// A waiting take holds up nothing else on its connection, and answers come as they are ready.
fn side_by_side() -> Case {
    let mut case =
        Case::with_tube("answers out of order", "side", "fifottl", "{}").needs(Ability::Pipelining);
    case.start("a", "take", json!([20]), "first");
    case.start("a", "take", json!([20]), "second");
    case.start("a", "take", json!([0.03]), "short");
    case.call("a", "queue.state", json!([])).gives(json!(["RUNNING"]));
    case.awaits("short").gives(json!([]));
    case.verb("a", "put", json!(["x"])).gives_task(0, "r", "x");
    case.awaits("first").gives_task(0, "t", "x");
    case.verb("a", "put", json!(["y"])).gives_task(1, "r", "y");
    case.awaits("second").gives_task(1, "t", "y");
    case
}

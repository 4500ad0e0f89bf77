//! Semaphores by CALL: what tarantool/queue does not have.

use serde_json::json;

use super::Case;

pub fn cases() -> Vec<Case> {
    vec![grants(), gated()]
}

fn grants() -> Case {
    let mut case = Case::new("a semaphore from the enqueue to the release");
    let limits = json!({ "active": 1, "try_release": 1 });
    case.call("a", "queue.semaphore.create", json!(["yang", limits]));
    case.call("a", "queue.semaphore.enqueue", json!(["yang", 7, 2.5]))
        .gives(json!([[[7, "granted", 2.5, 1]]]));
    case.call("b", "queue.semaphore.enqueue_many", json!(["yang", [[8, 1.5]]]))
        .gives(json!([[[8, "waiting", 1.5, null]]]));
    case.call("b", "queue.semaphore.release", json!(["yang", 7, 99])).gives(json!([["stale"]]));
    case.call("a", "queue.semaphore.release", json!(["yang", 7, 1])).gives(json!([["done"]]));
    case.call("b", "queue.semaphore.look", json!(["yang", [7, 8]]))
        .gives(json!([[[8, "granted", 1.5, 2]]]));
    case.call("a", "queue.semaphore.release", json!(["nowhere", 1])).fails(32, "does not exist");
    case
}

fn gated() -> Case {
    let mut case = Case::new("a tube with a semaphore before it");
    case.tube = "gated".into();
    let limits = json!({ "active": 1, "try_release": 1 });
    case.call("a", "queue.semaphore.create", json!(["gate", limits]));
    case.call("a", "queue.create_tube", json!(["gated", "fifottl", { "semaphore": "gate" }]));
    case.verb("a", "put", json!(["first"])).gives_task(0, "r", "first");
    case.verb("a", "put", json!(["second"])).gives_task(1, "~", "second");
    case.verb("b", "take", json!([0])).gives_task(0, "t", "first");
    case.verb("b", "take", json!([0])).gives(json!([]));
    case.verb("b", "ack", json!([0])).gives_task(0, "-", "first");
    case.verb("b", "take", json!([0])).gives_task(1, "t", "second");
    case
}

//! Many tasks in one call: what tarantool/queue does not have.

use serde_json::json;

use super::{Case, KINDS};

pub fn cases() -> Vec<Case> {
    KINDS.into_iter().map(many).collect()
}

fn many(kind: &str) -> Case {
    let mut case = Case::with_tube("put_many, take_many, ack_many", "many", kind, "{}");
    let tasks = json!([["one", { "utube": "1" }], ["two", { "utube": "2" }], ["three"]]);
    let made = json!([[0, "r", "one"], [1, "r", "two"], [2, "r", "three"]]);
    case.verb("a", "put_many", json!([tasks])).gives(json!([made]));
    case.verb("a", "take_many", json!([2])).gives(json!([[[0, "t", "one"], [1, "t", "two"]]]));
    case.verb("a", "take_many", json!([10, 0])).gives(json!([[[2, "t", "three"]]]));
    case.verb("a", "ack_many", json!([[0, 2]]))
        .gives(json!([[[0, "-", "one"], [2, "-", "three"]]]));
    // What is not the caller's to finish is left out of the answer.
    case.verb("b", "ack_many", json!([[1]])).gives(json!([[]]));
    case.start("b", "take_many", json!([10, 20]), "batch");
    case.verb("a", "release", json!([1])).gives_task(1, "r", "two");
    case.awaits("batch").gives(json!([[[1, "t", "two"]]]));
    case.counts(
        &[("taken", 1), ("done", 2), ("total", 1)],
        &[("put", 3), ("take", 4), ("ack", 2), ("release", 1)],
    );
    case
}

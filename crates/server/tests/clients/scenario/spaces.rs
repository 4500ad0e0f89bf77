//! Names and counters of all tubes, and readable spaces.

use serde_json::json;

use super::{Ability, Case, statistics};

/// They come first, while these are the only tubes.
pub fn cases() -> Vec<Case> {
    vec![all_tubes(), spaces()]
}

fn all_tubes() -> Case {
    let mut case = Case::with_tube("all tubes", "only", "fifo", "{}");
    case.call("a", "queue.tube", json!([])).gives(json!([["only_fifo"]]));
    let counts = statistics(&[], &[]);
    for function in ["queue.statistics", "queue.stats"] {
        case.call("a", function, json!([])).gives(json!([{ "only_fifo": counts }]));
        case.call("a", function, json!(["only_fifo"])).gives(json!([counts]));
    }
    case
}

fn spaces() -> Case {
    let mut case = Case::with_tube("spaces", "seen", "fifo", "{}").needs(Ability::Spaces);
    case.select("a", "_queue").gives(json!([2]));
    case.select("a", "_queue_taken").gives(json!([0]));
    case.verb("a", "put", json!(["x"])).gives_task(0, "r", "x");
    case.verb("b", "take", json!([0])).gives_task(0, "t", "x");
    case.select("a", "_queue_taken").gives(json!([1]));
    case.select("a", "_queue_consumers").gives(json!([0]));
    case.start("b", "take", json!([20]), "take");
    case.select("a", "_queue_consumers").gives(json!([1]));
    case.verb("a", "put", json!(["y"])).gives_task(1, "r", "y");
    case.awaits("take").gives_task(1, "t", "y");
    case.select("a", "_queue_consumers").gives(json!([0]));
    case.select("a", "_queue_taken").gives(json!([2]));
    case
}

//! Data comes back as it went in.

use serde_json::json;

use super::{Ability, Case};

pub fn cases() -> Vec<Case> {
    vec![all_sorts(), bytes()]
}

fn all_sorts() -> Case {
    let mut case = Case::with_tube("all sorts of data", "data", "fifo", "{}");
    let long = "long ".repeat(20_000);
    let many = [
        json!(null),
        json!(true),
        json!(0),
        json!(-7),
        json!(2_000_000_000),
        json!(0.25),
        json!(""),
        json!("žluťoučký kůň 🐎"),
        json!(long),
        json!([1, [2, "three"], null, 4]),
        json!({ "to": "ann", "lines": [1, 2], "more": { "deep": [true, false] } }),
    ];
    for (id, data) in (0..).zip(many) {
        case.verb("a", "put", json!([data])).gives_task(id, "r", data.clone());
        case.verb("a", "take", json!([0])).gives_task(id, "t", data.clone());
        case.verb("a", "ack", json!([id])).gives_task(id, "-", data);
    }
    case
}

/// A string that is no text; the name of a session is one.
fn bytes() -> Case {
    let mut case = Case::with_tube("bytes", "bytes", "fifo", "{}").needs(Ability::Bytes);
    case.call("a", "queue.identify", json!([])).keeps("bytes");
    case.verb("a", "put", json!([{ "kept": "bytes" }]));
    case.verb("a", "take", json!([0])).gives(json!([[0, "t", { "kept": "bytes" }]]));
    case
}

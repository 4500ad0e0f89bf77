//! Cases with wrong expected answers: a program that accepts one of them tests nothing.

use serde_json::json;

use super::{Ability, Case};

pub fn cases() -> Vec<Case> {
    vec![value(), nothing(), nil(), refused(), accepted(), text(), code()]
}

fn value() -> Case {
    let mut case = Case::new("another value");
    case.call("a", "queue.state", json!([])).gives(json!(["WAITING"]));
    case
}

fn nothing() -> Case {
    let mut case = Case::new("no value");
    case.call("a", "queue.state", json!([])).gives(json!([]));
    case
}

/// Clients tell an empty tube from a full one by this.
fn nil() -> Case {
    let mut case = Case::with_tube("nil for nothing", "nil", "fifo", "{if_not_exists = true}");
    case.call("a", "queue.tube.nil_fifo:take", json!([0])).gives(json!([null]));
    case
}

fn refused() -> Case {
    let mut case = Case::new("refused");
    case.call("a", "queue.fly", json!([])).gives(json!([]));
    case
}

fn accepted() -> Case {
    let mut case = Case::new("not refused");
    case.call("a", "queue.state", json!([])).fails(33, "is not defined");
    case
}

fn text() -> Case {
    let mut case = Case::new("refused with another text");
    case.call("a", "queue.fly", json!([])).fails(33, "is another text");
    case
}

fn code() -> Case {
    let mut case = Case::new("refused with another code").needs(Ability::Codes);
    case.call("a", "queue.fly", json!([])).fails(32, "is not defined");
    case
}

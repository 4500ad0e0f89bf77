//! Users and passwords.

use serde_json::json;

use super::Case;

/// The user with all rights.
pub const USER: &str = "ann";
/// The user that may only put, and only into one tube.
pub const LIMITED_USER: &str = "lim";
pub const LIMITED_TUBE: &str = "inbox_fifo";
/// The password of both.
pub const PASSWORD: &str = "s3cret, and more";

pub fn cases() -> Vec<Case> {
    vec![passwords(), rights()]
}

fn passwords() -> Case {
    let mut case = Case::new("users and passwords");
    case.connect("a", USER, PASSWORD);
    case.call("a", "queue.state", json!([])).gives(json!(["RUNNING"]));
    let text = "User not found or supplied credentials are invalid";
    case.connect("b", USER, "wrong").fails(47, text);
    case.connect("c", "unknown", PASSWORD).fails(47, text);
    case.call("a", "queue.state", json!([])).gives(json!(["RUNNING"]));
    case
}

fn rights() -> Case {
    let mut case = Case::with_tube("rights", "inbox", "fifo", "{}");
    case.connect("b", LIMITED_USER, PASSWORD);
    case.verb("b", "put", json!(["x"])).gives_task(0, "r", "x");
    for verb in ["take", "peek", "drop"] {
        let function = format!("queue.tube.{LIMITED_TUBE}:{verb}");
        let text = format!("Execute access to function '{function}' is denied for user 'lim'");
        case.call("b", function, json!([0])).fails(42, text);
    }
    case.eval("b", "return queue.state()", json!([]))
        .fails(42, "Execute access to universe '' is denied for user 'lim'");
    case.verb("a", "peek", json!([0])).gives_task(0, "r", "x");
    case
}

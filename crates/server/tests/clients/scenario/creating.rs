//! Tubes are created and dropped: by the Lua that each client sends, and by name.

use serde_json::json;

use super::Case;

/// The Lua that the Go client sends.
const GO_CREATE: &str = "local name, type, cfg = ... ; queue.create_tube(name, type, cfg)";
const GO_EXISTS: &str = "local name = ... ; return queue.tube[name] ~= nil";

pub fn cases() -> Vec<Case> {
    vec![by_lua(), as_go_does(), as_php_does(), by_name(), dropped(), emptied()]
}

fn by_lua() -> Case {
    let mut case = Case::new("a tube made by EVAL");
    let lua = "queue.create_tube('lua', 'fifottl', {if_not_exists=true})";
    case.eval("a", lua, json!([])).gives(json!([]));
    case.call("a", "queue.tube.lua:put", json!(["x"])).gives_task(0, "r", "x");
    case.eval("a", lua, json!([])).gives(json!([]));
    case.call("a", "queue.tube.lua:peek", json!([0])).gives_task(0, "r", "x");
    case.eval("a", "queue.create_tube('lua', 'fifo')", json!([]))
        .fails(32, "Space 'lua' already exists");
    case.eval("a", "queue.create_tube('odd', 'odd')", json!([])).fails(32, "Unknown tube type odd");
    case.eval("a", "return queue.state()", json!([])).gives(json!(["RUNNING"]));
    case
}

fn as_go_does() -> Case {
    let mut case = Case::new("a tube made as the Go client does it");
    case.eval("a", GO_EXISTS, json!(["go"])).gives(json!([false]));
    let options = json!({ "temporary": true, "if_not_exists": true, "ttl": 60.0, "ttr": 10.0 });
    case.eval("a", GO_CREATE, json!(["go", "utubettl", options])).gives(json!([]));
    case.eval("a", GO_EXISTS, json!(["go"])).gives(json!([true]));
    let options = json!({ "pri": 1, "ttl": 60.0, "ttr": 10.0, "delay": 0.0, "utube": "u" });
    case.call("a", "queue.tube.go:put", json!(["x", options])).gives_task(0, "r", "x");
    case.eval("a", GO_CREATE, json!(["go", "odd", {}])).fails(32, "Unknown tube type odd");
    case
}

/// A global variable stands for the tube, for every connection.
fn as_php_does() -> Case {
    let mut case = Case::new("a tube made as the tests of the PHP client do it");
    case.eval("a", "tube = create_tube('php', 'fifottl')", json!([])).gives(json!([]));
    case.eval("b", "tube:put('one', {pri = 1})", json!([])).gives(json!([]));
    case.eval("b", "return tube:take(0)", json!([])).gives_task(0, "t", "one");
    case.call("b", "queue.tube.php:ack", json!([0])).gives_task(0, "-", "one");
    case
}

/// CALL works too, and under the name of the oldest description.
fn by_name() -> Case {
    let mut case = Case::new("a tube made by CALL");
    case.call("a", "queue.create_tube", json!(["named", "fifo", {}])).gives(json!([]));
    case.call("a", "queue.schema.create_tube", json!(["older", "fifottl", { "ttl": 60 }]))
        .gives(json!([]));
    for tube in ["named", "older"] {
        case.call("a", "queue.tube", json!([tube])).gives(json!([true]));
        case.call("a", format!("queue.tube.{tube}:put"), json!([1])).gives_task(0, "r", 1);
    }
    case.call("a", "queue.tube", json!(["absent"])).gives(json!([false]));
    case
}

fn dropped() -> Case {
    let mut case = Case::with_tube("drop", "dropped", "fifo", "{}");
    case.verb("a", "put", json!(["x"])).gives_task(0, "r", "x");
    case.verb("a", "take", json!([0])).gives_task(0, "t", "x");
    case.verb("a", "drop", json!([])).fails(32, "There are taken tasks in the tube");
    case.verb("a", "ack", json!([0])).gives_task(0, "-", "x");
    case.start("b", "take", json!([20]), "take");
    case.verb("a", "drop", json!([])).fails(32, "There are consumers connected the tube");
    case.verb("a", "put", json!(["y"])).gives_task(1, "r", "y");
    case.awaits("take").gives_task(1, "t", "y");
    case.verb("b", "release", json!([1])).gives_task(1, "r", "y");
    case.verb("a", "drop", json!([])).gives(json!([true]));
    case.verb("a", "drop", json!([])).fails(33, "is not defined");
    case
}

fn emptied() -> Case {
    let mut case = Case::with_tube("truncate and release_all", "emptied", "fifottl", "{}");
    for id in [0, 1] {
        case.verb("a", "put", json!([id])).gives_task(id, "r", id);
    }
    case.verb("a", "take", json!([0])).gives_task(0, "t", 0);
    case.verb("b", "release_all", json!([])).gives(json!([]));
    case.verb("a", "ack", json!([0])).fails(32, "Task was not taken");
    case.verb("b", "take", json!([0])).gives_task(0, "t", 0);
    case.verb("a", "truncate", json!([])).gives(json!([]));
    case.verb("a", "take", json!([0])).gives(json!([]));
    case.verb("a", "peek", json!([1])).fails(32, "Task 1 not found");
    case
}

//! Semaphores by CALL.

use serde_json::json;

use crate::fixture::TestServer;

#[tokio::test]
async fn every_verb_of_a_semaphore() {
    let server = TestServer::new().await;
    let mut client = server.connect().await;
    let made = client
        .done("queue.semaphore.create", json!(["yang", { "active": 1, "try_release": 1 }]))
        .await;
    let shown = json!({ "key": "yang", "active": 1, "try_release": 1, "waiting": 0, "delayed": 0,
        "acquired": 0, "revoking": 0, "events": 0 });
    assert_eq!(made, json!([[shown]]));
    assert_eq!(client.done("queue.semaphore.create", json!(["yang"])).await, made, "it stays");
    let stands = client.done("queue.semaphore.enqueue", json!(["yang", 7, 2.5])).await;
    assert_eq!(stands, json!([[[7, "granted", 2.5, 1]]]));
    let stands =
        client.done("queue.semaphore.enqueue_many", json!(["yang", [[8, 1], [9, 0.5]]])).await;
    assert_eq!(stands, json!([[[8, "waiting", 1.0, null], [9, "waiting", 0.5, null]]]));
    let events = client.done("queue.semaphore.events", json!(["yang", 10, 0.0])).await;
    let id = events[0][0][0].clone();
    assert_eq!(events, json!([[[id, "yang", 7, 1, "acquired", 1, null]]]));
    assert_eq!(client.done("queue.semaphore.ack", json!([[id]])).await, json!([1]));
    for (verb, args, outcome) in [
        ("decline", json!(["yang", 8]), "stale"),
        ("decline", json!(["yang", 7]), "not_asked"),
        ("extend", json!(["yang", 7, 30, 1]), "done"),
        ("yield", json!(["yang", 7, 99]), "stale"),
        ("yield", json!(["yang", 7, 1]), "done"),
        ("release", json!(["yang", 7]), "done"),
        ("release", json!(["yang", 7]), "missing"),
    ] {
        let said = client.done(&format!("queue.semaphore.{verb}"), args).await;
        assert_eq!(said, json!([[outcome]]), "{verb}");
    }
    let stands = client.done("queue.semaphore.look", json!(["yang", [7, 8]])).await;
    assert_eq!(stands, json!([[[8, "granted", 1.0, 3]]]));
    let page = client.done("queue.semaphore.holders", json!(["yang"])).await;
    assert_eq!(page, json!([[[[8, "granted", 1.0, 3, null]], null]]));
    let page = client.done("queue.semaphore.waiting", json!(["yang", 1])).await;
    assert_eq!(page[0][0], json!([[9, "waiting", 0.5, null, null]]));
    let rest = json!(["yang", 1, page[0][1]]);
    let rest = client.done("queue.semaphore.waiting", rest).await;
    assert_eq!(rest, json!([[[], null]]));
    let said = client.done("queue.semaphore.release_many", json!(["yang", [[8, 3], 9, 10]])).await;
    assert_eq!(said, json!([["done", "done", "missing"]]));
    let set =
        client.done("queue.semaphore.set", json!(["yang", { "active": 0, "lease": 5 }])).await;
    assert_eq!(set[0][0]["active"], 0);
    assert_eq!(client.done("queue.semaphore.show", json!(["yang"])).await, set);
    assert_eq!(client.done("queue.semaphore.list", json!([])).await, set);
    let force = json!(["yang", { "force": true }]);
    assert_eq!(client.done("queue.semaphore.drop", force).await, json!([true]));
    assert_eq!(client.done("queue.semaphore.list", json!([])).await, json!([[]]));
}

#[tokio::test]
async fn a_call_waits_for_events() {
    let server = TestServer::new().await;
    let (mut listener, mut client) = (server.connect().await, server.connect().await);
    client.done("queue.semaphore.create", json!(["yang"])).await;
    let sync = listener.post("queue.semaphore.events", json!([null, 1, 60])).await;
    client.done("queue.semaphore.enqueue", json!(["yang", 3, 0])).await;
    let events = listener.answer_to(sync).await.expect("events came");
    assert_eq!(events[0][0][2], 3);
}

/// A tube with a semaphore, created as Tarantool's clients create tubes.
#[tokio::test]
async fn a_tube_with_a_semaphore() {
    let server = TestServer::new().await;
    let mut client = server.connect().await;
    client.done("queue.semaphore.create", json!(["yang", { "active": 1, "try_release": 1 }])).await;
    client.done("queue.create_tube", json!(["mail", "fifottl", { "semaphore": "yang" }])).await;
    assert_eq!(client.done("queue.tube.mail:put", json!(["a"])).await, json!([[0, "r", "a"]]));
    assert_eq!(client.done("queue.tube.mail:put", json!(["b"])).await, json!([[1, "~", "b"]]));
    client.done("queue.tube.mail:take", json!([0])).await;
    client.done("queue.tube.mail:ack", json!([0])).await;
    assert_eq!(client.done("queue.tube.mail:take", json!([0])).await, json!([[1, "t", "b"]]));
    let missing = json!(["jobs", "fifo", { "semaphore": "nowhere" }]);
    client.refused("queue.create_tube", missing, 32, "does not exist").await;
    // A better task replaces a ready one, by the priority that its put names.
    client.done("queue.create_tube", json!(["lanes", "utube", { "semaphore": "yang" }])).await;
    client.done("queue.tube.mail:ack", json!([1])).await;
    let put = |own: f64| json!(["c", { "utube": "x", "semaphore_priority": own }]);
    assert_eq!(client.done("queue.tube.lanes:put", put(1.5)).await, json!([[0, "r", "c"]]));
    assert_eq!(client.done("queue.tube.lanes:put", put(2.0)).await, json!([[1, "r", "c"]]));
    assert_eq!(client.done("queue.tube.lanes:peek", json!([0])).await, json!([[0, "~", "c"]]));
    client.done("queue.create_tube", json!(["plain", "fifo"])).await;
    client.refused("queue.tube.plain:put", put(1.5), 32, "has no semaphore").await;
    client
        .refused("queue.create_tube", json!(["jobs", "fifo", { "semaphore": 7 }]), 32, "semaphore")
        .await;
}

#[tokio::test]
async fn wrong_calls_are_refused() {
    let server = TestServer::new().await;
    let mut client = server.connect().await;
    client.done("queue.semaphore.create", json!(["yang"])).await;
    for (verb, args, text) in [
        ("create", json!([7]), "must be text"),
        ("create", json!(["a/b"]), "must not contain"),
        ("set", json!(["yang", { "actve": 1 }]), "has no option"),
        ("set", json!(["yang", { "active": -1 }]), "active"),
        ("set", json!(["yang", { "active": "many" }]), "active"),
        ("enqueue", json!(["yang", 1]), "priority"),
        ("enqueue", json!(["nowhere", 1, 1]), "does not exist"),
        ("enqueue_many", json!(["yang", 7]), "must be a list"),
        ("extend", json!(["yang", 1]), "seconds"),
        ("release", json!(["yang", 1, "x"]), "grant"),
        ("events", json!([null, -1]), "whole number"),
        ("ack", json!([["x"]]), "whole number"),
        ("jump", json!([]), "not defined"),
    ] {
        let name = format!("queue.semaphore.{verb}");
        let code = if verb == "jump" { 33 } else { 32 };
        client.refused(&name, args, code, text).await;
    }
}

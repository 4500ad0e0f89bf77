//! Every verb has its documented effect.

use reqwest::Method;
use serde_json::json;

use crate::fixture::Fixture;

#[tokio::test]
async fn a_task_is_put_taken_and_acked() {
    let fixture = Fixture::new().await;
    let put =
        fixture.done("/v1/tubes/mail/put", json!({ "data": { "to": "ann" }, "pri": 3 })).await;
    assert_eq!(put, json!({ "tasks": [{ "id": 0, "state": "ready" }] }));
    let taken = fixture.done("/v1/tubes/mail/take", json!({})).await;
    let task = &taken["tasks"][0];
    assert_eq!(task["data"], json!({ "to": "ann" }));
    assert_eq!(task["attempts"], 0);
    let lasts = task["lease_until"].as_f64().unwrap() - task["start"].as_f64().unwrap();
    assert_eq!(lasts.round(), 60.0, "a lease has a default");
    let ack = json!({ "id": task["id"], "lease": task["lease"] });
    let acked = fixture.done("/v1/tubes/mail/ack", ack.clone()).await;
    assert_eq!(acked, json!({ "done": 1, "outcomes": ["done"] }));
    let again = fixture.done("/v1/tubes/mail/ack", ack).await;
    assert_eq!(again, json!({ "done": 0, "outcomes": ["missing"] }));
}

#[tokio::test]
async fn batches_are_answered_in_order() {
    let fixture = Fixture::new().await;
    let tasks: Vec<_> = (0..100).map(|n| json!({ "data": n })).collect();
    let put = fixture.done("/v1/tubes/mail/put", json!({ "tasks": tasks })).await;
    assert_eq!(put["tasks"].as_array().unwrap().len(), 100);
    let taken = fixture.done("/v1/tubes/mail/take", json!({ "count": 3 })).await;
    let taken = taken["tasks"].as_array().unwrap().clone();
    assert_eq!(taken.iter().map(|task| &task["data"]).collect::<Vec<_>>(), [0, 1, 2]);
    let parts = json!({ "tasks": [
        { "verb": "ack", "id": 0, "lease": taken[0]["lease"] },
        { "verb": "release", "id": 1, "lease": taken[1]["lease"], "delay": 100 },
        { "verb": "bury", "id": 2, "lease": 999_999 },
        { "verb": "ack", "id": 500 },
    ]});
    let finished = fixture.done("/v1/tubes/mail/finish", parts).await;
    assert_eq!(finished["outcomes"], json!(["done", "done", "stale", "missing"]));
    assert_eq!(fixture.get("/v1/tubes/mail/tasks/1").await.body["state"], "delayed");
}

#[tokio::test]
async fn a_task_is_released_touched_buried_kicked_and_deleted() {
    let fixture = Fixture::new().await;
    fixture.done("/v1/tubes/mail/put", json!({ "data": "x" })).await;
    let take = async || fixture.done("/v1/tubes/mail/take", json!({})).await["tasks"][0].clone();
    let task = take().await;
    let release = json!({ "id": 0, "lease": task["lease"], "show": true });
    let released = fixture.done("/v1/tubes/mail/release", release).await;
    assert_eq!(released["tasks"][0]["state"], "ready");
    let task = take().await;
    assert_eq!(task["attempts"], 1);
    let touch = json!({ "id": 0, "lease": task["lease"], "seconds": 40 });
    assert_eq!(fixture.done("/v1/tubes/mail/touch", touch).await["done"], 1);
    let bury = json!({ "tasks": [{ "id": 0, "lease": task["lease"] }] });
    assert_eq!(fixture.done("/v1/tubes/mail/bury", bury).await["done"], 1);
    assert_eq!(fixture.done("/v1/tubes/mail/kick", json!({ "count": 5 })).await["kicked"], 1);
    let deleted = fixture.done("/v1/tubes/mail/delete", json!({ "ids": [0, 7] })).await;
    assert_eq!(deleted["outcomes"], json!(["done", "missing"]));
}

#[tokio::test]
async fn peek_shows_why_tasks_do_not_run() {
    let fixture = Fixture::new().await;
    fixture.done("/v1/tubes/mail/put", json!({ "data": "x" })).await;
    let task = fixture.get("/v1/tubes/mail/tasks/0").await.body;
    assert_eq!(task["data"], "x");
    assert_eq!(task["reason"]["name"], "waits_for_consumer");
    let exact = fixture.get("/v1/tubes/mail/tasks/0?base64=true").await.body;
    assert_eq!(exact["data_base64"], "oXg=");
    let several = fixture.done("/v1/tubes/mail/peek", json!({ "ids": [4, 0] })).await;
    assert_eq!(several["tasks"].as_array().unwrap().len(), 1);
    fixture.send(Method::PATCH, "/v1/tubes/mail", json!({ "paused": true })).await;
    let task = fixture.get("/v1/tubes/mail/tasks/0").await.body;
    assert_eq!(task["reason"]["name"], "tube_paused");
}

#[tokio::test]
async fn tubes_are_created_shown_changed_and_dropped() {
    let fixture = Fixture::new().await;
    let options = json!({ "kind": "limfifottl", "capacity": 2, "ttr": 1.5 });
    let made = fixture.send(Method::PUT, "/v1/tubes/small", options).await;
    assert_eq!((made.status, made.body), (201, json!({ "created": true })));
    let there = json!({ "if_not_exists": true });
    let there = fixture.send(Method::PUT, "/v1/tubes/small", there).await;
    assert_eq!((there.status, there.body), (200, json!({ "created": false })));
    // Options that differ were ignored silently.
    let same = json!({ "kind": "limfifottl", "capacity": 2, "if_not_exists": true });
    assert_eq!(fixture.send(Method::PUT, "/v1/tubes/small", same).await.status, 200);
    let other = json!({ "kind": "fifottl", "capacity": 3, "paused": false, "if_not_exists": true });
    let other = fixture.send(Method::PUT, "/v1/tubes/small", other).await;
    let differs = "kind is limfifottl, not fifottl, capacity is 2, not 3";
    assert!(other.refused(409, "tube_exists").contains(differs));
    assert_eq!(other.body["error"]["differs"], differs);
    let lenient = json!({ "kind": "fifo", "if_not_exists": true, "lenient": true });
    assert_eq!(fixture.send(Method::PUT, "/v1/tubes/small", lenient).await.status, 200);
    let shown = fixture.get("/v1/tubes/small").await.body;
    assert_eq!((&shown["kind"], &shown["capacity"]), (&json!("limfifottl"), &json!(2)));
    let change = json!({ "capacity": 5, "ttr": null });
    let changed = fixture.send(Method::PATCH, "/v1/tubes/small", change).await.body;
    assert_eq!((&changed["capacity"], changed.get("ttr")), (&json!(5), None));
    let listed = fixture.get("/v1/tubes").await.body;
    assert_eq!(listed["tubes"][0]["name"], "small");
    let dropped = fixture.request(Method::DELETE, "/v1/tubes/small").send().await.unwrap();
    assert_eq!(dropped.status(), 200, "a DELETE needs no body and no content type");
    fixture.get("/v1/tubes/small").await.refused(404, "tube_not_found");
}

#[tokio::test]
async fn names_of_tubes_may_have_any_letters() {
    let fixture = Fixture::new().await;
    for (path, name) in [("%D0%BF%D0%BE%D1%87%D1%82%D0%B0", "почта"), ("a%20b%3F%25", "a b?%")]
    {
        fixture.done(&format!("/v1/tubes/{path}/put"), json!({ "data": 1 })).await;
        assert_eq!(fixture.get(&format!("/v1/tubes/{path}")).await.body["name"], name);
    }
}

#[tokio::test]
async fn a_tube_is_truncated_and_taken_tasks_are_released() {
    let fixture = Fixture::new().await;
    fixture.done("/v1/tubes/mail/put", json!({ "tasks": [{ "data": 1 }, { "data": 2 }] })).await;
    fixture.done("/v1/tubes/mail/take", json!({ "count": 2 })).await;
    let held = fixture.get("/v1/tubes/mail/deliveries").await.body;
    assert_eq!(held["deliveries"].as_array().unwrap().len(), 2);
    assert_eq!(held["deliveries"][0].get("task"), None);
    let shown = fixture.get("/v1/tubes/mail/deliveries?count=1&show=true").await.body;
    assert_eq!(shown["deliveries"].as_array().unwrap().len(), 1);
    assert_eq!(shown["deliveries"][0]["task"]["state"], "taken");
    assert_eq!(fixture.done("/v1/tubes/mail/release-all", json!({})).await, json!({}));
    assert_eq!(fixture.get("/v1/tubes/mail").await.body["tasks"]["ready"], 2);
    assert_eq!(fixture.done("/v1/tubes/mail/truncate", json!({})).await, json!({}));
    assert_eq!(fixture.get("/v1/tubes/mail").await.body["tasks"]["total"], 0);
}

#[tokio::test]
async fn statistics_have_totals() {
    let fixture = Fixture::new().await;
    for tube in ["a", "b"] {
        fixture.done(&format!("/v1/tubes/{tube}/put"), json!({ "data": 1 })).await;
    }
    let stats = fixture.get("/v1/stats").await.body;
    assert_eq!(stats["tubes"][1]["name"], "b");
    assert_eq!(stats["total"]["tasks"]["ready"], 2);
    assert_eq!(stats["total"]["calls"]["put"], 2);
    assert_eq!(stats["server"]["store"], "memory");
    assert_eq!(stats["server"]["durable"], false);
    assert!(stats["time"].as_f64().unwrap() > 1e9);
}

#[tokio::test]
async fn only_a_put_creates_a_tube_and_a_strict_server_does_not() {
    let fixture = Fixture::new().await;
    fixture.post("/v1/tubes/new/take", json!({})).await.refused(404, "tube_not_found");
    fixture.done("/v1/tubes/new/put", json!({ "data": null })).await;
    assert_eq!(fixture.get("/v1/tubes/new").await.body["kind"], "fifottl");
    let strict = Fixture::with(|config| config.strict_tubes = true).await;
    let refused = strict.post("/v1/tubes/new/put", json!({ "data": 1 })).await;
    assert!(refused.refused(404, "tube_not_found").contains("'new'"));
}

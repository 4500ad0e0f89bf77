//! Long polls: woken by a put, and without effect when the caller leaves.

use serde_json::json;

use crate::fixture::{Fixture, post_bytes};

#[tokio::test]
async fn a_waiting_take_is_woken_by_a_put() {
    let fixture = Fixture::new().await;
    fixture.done("/v1/tubes/mail/put", json!({ "tasks": [] })).await;
    let waiting = fixture.done("/v1/tubes/mail/take", json!({ "wait": 60 }));
    let putting = async {
        fixture.consumers("mail", 1).await;
        let shown = fixture.get("/v1/tubes/mail/consumers").await.body;
        assert_eq!(shown["consumers"].as_array().unwrap().len(), 1);
        assert_eq!(shown["consumers"][0]["tube"], "mail");
        assert_eq!(fixture.get("/v1/tubes/mail").await.body["consumers"], 1);
        fixture.done("/v1/tubes/mail/put", json!({ "data": "here" })).await;
    };
    let (taken, ()) = tokio::join!(waiting, putting);
    assert_eq!(taken["tasks"][0]["data"], "here");
}

#[tokio::test]
async fn a_take_that_finds_nothing_returns_no_tasks() {
    let fixture = Fixture::new().await;
    fixture.done("/v1/tubes/mail/put", json!({ "tasks": [] })).await;
    assert_eq!(fixture.done("/v1/tubes/mail/take", json!({})).await, json!({ "tasks": [] }));
    let short = json!({ "wait": 0.001 });
    assert_eq!(fixture.done("/v1/tubes/mail/take", short).await, json!({ "tasks": [] }));
}

#[tokio::test]
async fn a_caller_that_leaves_takes_nothing() {
    let fixture = Fixture::new().await;
    fixture.done("/v1/tubes/mail/put", json!({ "tasks": [] })).await;
    let leaving = fixture.raw(&post_bytes("/v1/tubes/mail/take", "{\"wait\": 300}")).await;
    fixture.consumers("mail", 1).await;
    drop(leaving);
    fixture.consumers("mail", 0).await;
    fixture.done("/v1/tubes/mail/put", json!({ "data": "still here" })).await;
    let taken = fixture.done("/v1/tubes/mail/take", json!({})).await;
    assert_eq!(taken["tasks"][0]["data"], "still here");
    assert_eq!(taken["tasks"][0]["attempts"], 0);
}

#[tokio::test]
async fn a_put_waits_for_capacity() {
    let fixture = Fixture::new().await;
    let small = json!({ "kind": "limfifottl", "capacity": 1 });
    fixture.send(reqwest::Method::PUT, "/v1/tubes/small", small).await;
    fixture.done("/v1/tubes/small/put", json!({ "data": 1 })).await;
    let waiting = fixture.done("/v1/tubes/small/put", json!({ "data": 2, "timeout": 60 }));
    let making_room = async {
        while fixture.engine.waiting().await.is_empty() {
            tokio::task::yield_now().await;
        }
        fixture.done("/v1/tubes/small/delete", json!({ "ids": [0] })).await;
    };
    let (put, ()) = tokio::join!(waiting, making_room);
    assert_eq!(put["tasks"][0]["id"], 1);
}

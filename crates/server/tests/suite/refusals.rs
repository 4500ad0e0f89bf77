//! Every wrong request gets a status, a code and a message that says what to do.

use reqwest::Method;
use serde_json::{Value, json};

use crate::fixture::{Answer, Fixture};

#[tokio::test]
async fn every_verb_but_put_needs_the_tube() {
    let fixture = Fixture::new().await;
    let one = json!({ "id": 0 });
    for (verb, body) in [
        ("take", json!({})),
        ("ack", one.clone()),
        ("release", one.clone()),
        ("bury", one.clone()),
        ("touch", json!({ "id": 0, "seconds": 1 })),
        ("finish", json!({ "tasks": [] })),
        ("kick", json!({})),
        ("delete", json!({ "ids": [0] })),
        ("peek", json!({ "ids": [0] })),
        ("truncate", json!({})),
        ("release-all", json!({})),
    ] {
        let answer = fixture.post(&format!("/v1/tubes/nowhere/{verb}"), body).await;
        assert!(answer.refused(404, "tube_not_found").contains("nowhere"), "{verb}");
    }
    for look in ["", "/deliveries", "/consumers", "/tasks/1"] {
        fixture.get(&format!("/v1/tubes/nowhere{look}")).await.refused(404, "tube_not_found");
    }
    let change = json!({ "paused": true });
    let answer = fixture.send(Method::PATCH, "/v1/tubes/nowhere", change).await;
    answer.refused(404, "tube_not_found");
    fixture
        .send(Method::DELETE, "/v1/tubes/nowhere", json!({}))
        .await
        .refused(404, "tube_not_found");
}

#[tokio::test]
async fn wrong_requests_say_what_is_wrong() {
    let fixture = Fixture::new().await;
    fixture.done("/v1/tubes/mail/put", json!({ "data": 1 })).await;
    for (path, body, hint) in [
        ("put", json!({}), "'data'"),
        ("put", json!({ "data": 1, "tasks": [] }), "'tasks'"),
        ("put", json!({ "data": 1, "prio": 1 }), "prio"),
        ("put", json!({ "data": 1, "ttl": -1 }), "'ttl'"),
        ("put", json!({ "data": 1, "pri": "high" }), "string"),
        ("put", json!({ "data": 1, "timeout": 301 }), "300"),
        ("put", json!([1]), "object"),
        ("take", json!({ "count": 0 }), "'count'"),
        ("take", json!({ "count": 10_001 }), "10000"),
        ("take", json!({ "wait": 301 }), "300"),
        ("take", json!({ "wait": -1 }), "'wait'"),
        ("take", json!({ "lease": 0 }), "'lease'"),
        ("ack", json!({}), "'id'"),
        ("finish", json!({ "tasks": [{ "verb": "touch", "id": 1 }] }), "'seconds'"),
        ("truncate", json!({ "all": true }), "all"),
    ] {
        let answer = fixture.post(&format!("/v1/tubes/mail/{path}"), body.clone()).await;
        let message = answer.refused(400, "invalid");
        assert!(message.contains(hint), "{path} {body}: {message}");
    }
}

#[tokio::test]
async fn wrong_paths_and_queries_are_refused() {
    let fixture = Fixture::new().await;
    fixture.done("/v1/tubes/mail/put", json!({ "data": 1 })).await;
    for path in [
        "/v1/tubes/a%2Fb",
        "/v1/tubes/a:b",
        "/v1/tubes/%FF",
        "/v1/tubes/%00",
        &format!("/v1/tubes/{}", "x".repeat(129)),
        "/v1/tubes/mail/tasks/first",
        "/v1/tubes/mail/tasks/-1",
        "/v1/tubes/mail/tasks/+1",
        "/v1/tubes/mail/tasks/99999999999999999999999",
        "/v1/tubes/mail/tasks/0?base64=maybe",
        "/v1/tubes/mail/tasks/0?base46=true",
        "/v1/tubes/mail/deliveries?count=0",
        "/v1/tubes/mail/deliveries?count=1&count=2",
        "/v1/tubes/mail/consumers?count=10001",
        "/v1/stats?tube=mail",
    ] {
        fixture.get(path).await.refused(400, "invalid");
    }
    let refused = fixture.post("/v1/tubes/mail/take?wait=5", json!({})).await;
    assert!(
        refused.refused(400, "invalid").contains("body"),
        "an ignored query must not look accepted"
    );
    let missing = fixture.get("/v1/tubes/mail/tasks/7").await;
    assert_eq!(missing.refused(404, "task_not_found"), "task 7 not found in tube 'mail'");
}

#[tokio::test]
async fn unknown_paths_and_methods_get_a_json_error() {
    let fixture = Fixture::new().await;
    for path in
        ["/nothing", "/v1", "/v1/tubes/", "/v1/tubes/mail/put/", "/v1/tubes/mail/frobnicate"]
    {
        fixture.get(path).await.refused(404, "route_not_found");
    }
    let answer = fixture.get("/v1/tubes/mail/put").await;
    answer.refused(405, "method_not_allowed");
    assert_eq!(answer.headers["allow"], "POST");
    fixture.post("/v1/stats", json!({})).await.refused(405, "method_not_allowed");
    let bare = fixture.request(Method::POST, "/healthz").send().await.unwrap();
    Answer::of(bare).await.refused(405, "method_not_allowed");
}

#[tokio::test]
async fn only_json_is_accepted() {
    let fixture = Fixture::new().await;
    fixture.done("/v1/tubes/mail/put", json!({ "data": 1 })).await;
    let take = || fixture.request(Method::POST, "/v1/tubes/mail/take");
    for request in [
        take(),
        take().body("{}"),
        take().header("content-type", "text/plain").body("{}"),
        take().header("content-type", "application/x-www-form-urlencoded").body("wait=1"),
        fixture.request(Method::PUT, "/v1/tubes/other"),
        fixture.request(Method::DELETE, "/v1/tubes/mail").body("x"),
    ] {
        let answer = Answer::of(request.send().await.unwrap()).await;
        assert!(answer.refused(415, "unsupported_media_type").contains("application/json"));
    }
    let json = |text: &'static str| take().header("content-type", "application/json").body(text);
    for text in ["{", "{} {}", "nil", "\u{feff}{}", "{\"wait\": 1e999}", "{\"wait\": NaN}"] {
        let answer = Answer::of(json(text).send().await.unwrap()).await;
        answer.refused(400, "invalid");
    }
    let charset = take().header("content-type", "application/json; charset=utf-8");
    let answer = Answer::of(charset.send().await.unwrap()).await;
    assert_eq!(answer.status, 200, "no body is an empty object: {}", answer.body);
}

/// Two tubes with one queue number: the error claimed that the other tube already exists.
#[tokio::test]
async fn the_error_of_a_taken_queue_number_names_its_tube() {
    let fixture = Fixture::new().await;
    let numbered = json!({ "kind": "fifottl", "queue_num": 7 });
    assert_eq!(fixture.send(Method::PUT, "/v1/tubes/emails", numbered.clone()).await.status, 201);
    let again = fixture.send(Method::PUT, "/v1/tubes/emails", numbered.clone()).await;
    assert_eq!(again.refused(409, "tube_exists"), "tube 'emails' already exists");
    let other = fixture.send(Method::PUT, "/v1/tubes/other", numbered).await;
    let belongs = "queue number 7 belongs to tube 'emails' for good; a number has one tube, a tube one number";
    assert_eq!(other.refused(409, "queue_num_taken"), belongs);
    let error = &other.body["error"];
    assert_eq!((&error["tube"], &error["queue_num"]), (&json!("emails"), &json!(7)));
    fixture.send(Method::PUT, "/v1/tubes/other", json!({ "kind": "fifottl" })).await;
    let named =
        fixture.post("/v1/tubes/other/name", json!({ "name": "new", "queue_num": 7 })).await;
    assert_eq!(named.refused(409, "queue_num_taken"), belongs);
    let moved =
        fixture.post("/v1/tubes/emails/name", json!({ "name": "new", "queue_num": 8 })).await;
    assert_eq!(moved.refused(409, "queue_num_taken"), belongs, "it has another");
    let taken =
        fixture.post("/v1/tubes/emails/name", json!({ "name": "other", "queue_num": 7 })).await;
    assert_eq!(taken.refused(409, "tube_exists"), "tube 'other' already exists");
}

#[tokio::test]
async fn conflicts_and_full_tubes_have_their_own_statuses() {
    let fixture = Fixture::new().await;
    let small = json!({ "kind": "limfifottl", "capacity": 1 });
    assert_eq!(fixture.send(Method::PUT, "/v1/tubes/small", small.clone()).await.status, 201);
    fixture.send(Method::PUT, "/v1/tubes/small", small).await.refused(409, "tube_exists");
    fixture.done("/v1/tubes/small/put", json!({ "data": 1 })).await;
    let full = fixture.post("/v1/tubes/small/put", json!({ "data": 2 })).await;
    full.refused(429, "tube_full");
    assert_eq!(full.headers["retry-after"], "1");
    assert_eq!(
        (&full.body["error"]["tube"], &full.body["error"]["limit"]),
        (&json!("small"), &json!(1))
    );
    fixture.done("/v1/tubes/small/take", json!({})).await;
    let held = fixture.send(Method::DELETE, "/v1/tubes/small", json!({})).await;
    held.refused(409, "tube_has_taken");
    fixture.send(Method::PUT, "/v1/tubes/plain", json!({ "kind": "fifo" })).await;
    fixture.done("/v1/tubes/plain/put", json!({ "data": 1 })).await;
    fixture.done("/v1/tubes/plain/take", json!({ "lease": null })).await;
    let touch: Value = json!({ "id": 0, "seconds": 1 });
    fixture.post("/v1/tubes/plain/touch", touch).await.refused(409, "unsupported");
}

#[tokio::test]
async fn a_server_whose_engine_stopped_reports_it() {
    let fixture = Fixture::new().await;
    fixture.engine.stop().await.unwrap();
    for path in ["/healthz", "/metrics", "/v1/stats", "/v1/tubes/mail"] {
        let answer = fixture.get(path).await;
        answer.refused(503, "shutting_down");
        assert_eq!(answer.headers["retry-after"], "1");
    }
    fixture.post("/v1/tubes/mail/put", json!({ "data": 1 })).await.refused(503, "shutting_down");
}

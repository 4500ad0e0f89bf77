//! The list of workers.

use reqwest::Method;
use reqwest::header::USER_AGENT;
use serde_json::{Value, json};

use crate::fixture::{Answer, Fixture, post_bytes};

async fn list(fixture: &Fixture, query: &str) -> Value {
    let answer = fixture.get(&format!("/v1/workers{query}")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

fn names(answer: &Value) -> Vec<&str> {
    let workers = answer["workers"].as_array().unwrap().iter();
    workers.map(|worker| worker["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_worker_is_shown_with_its_tasks_and_counts() {
    let fixture = Fixture::new().await;
    assert_eq!(list(&fixture, "").await["workers"], json!([]));
    let tasks = vec![json!({ "data": 1 }); 4];
    fixture.done("/v1/tubes/mail/put", json!({ "tasks": tasks })).await;
    let take = fixture
        .request(Method::POST, "/v1/tubes/mail/take")
        .header(USER_AGENT, "taskyard/1.2.3")
        .json(&json!({ "worker": "web1:4711:mailer", "count": 3 }));
    let taken = Answer::of(take.send().await.unwrap()).await;
    assert_eq!(taken.status, 200);
    fixture.done("/v1/tubes/mail/ack", json!({ "id": 0 })).await;
    let lease = &taken.body["tasks"][1]["lease"];
    let fail = json!({ "id": 1, "lease": lease, "error": "no route" });
    fixture.done("/v1/tubes/mail/fail", fail).await;
    // Without the lease it may be an operator, whose action is not the worker's failure.
    fixture.done("/v1/tubes/mail/take", json!({ "worker": "web1:4711:mailer" })).await;
    fixture.done("/v1/tubes/mail/bury", json!({ "id": 1, "error": "by hand" })).await;
    let answer = list(&fixture, "").await;
    let worker = &answer["workers"][0];
    for (field, expected) in [
        ("name", json!("web1:4711:mailer")),
        ("address", json!("127.0.0.1")),
        ("host", json!("web1")),
        ("process", json!(4711)),
        ("program", json!("mailer")),
        ("version", json!("1.2.3")),
        ("tubes", json!(["mail"])),
        ("running_count", json!(1)),
        ("done", json!(1)),
        ("failed", json!(1)),
        ("done_per_minute", json!(1)),
        ("failed_per_minute", json!(1)),
    ] {
        assert_eq!(worker[field], expected, "{field}");
    }
    assert_eq!(
        (&worker["running"][0]["tube"], &worker["running"][0]["id"]),
        (&json!("mail"), &json!(2))
    );
    let (age, time) =
        (worker["running"][0]["age"].as_f64().unwrap(), answer["time"].as_f64().unwrap());
    assert!(age >= 0.0 && worker["last_seen"].as_f64().unwrap() <= time);
    assert_eq!((answer.get("next"), answer.get("cut")), (None, None));
}

#[tokio::test]
async fn a_worker_without_a_name_is_shown_by_its_address() {
    let fixture = Fixture::new().await;
    fixture.done("/v1/tubes/mail/put", json!({ "data": 1 })).await;
    fixture.done("/v1/tubes/mail/take", json!({})).await;
    let answer = list(&fixture, "").await;
    let worker = &answer["workers"][0];
    assert_eq!((&worker["name"], &worker["address"]), (&json!("127.0.0.1"), &json!("127.0.0.1")));
    assert_eq!((worker.get("host"), worker.get("version")), (None, None));
    assert_eq!(worker["running_count"], 1);
    let held = fixture.get("/v1/tubes/mail/deliveries").await.body;
    assert_eq!(held["deliveries"][0]["worker"], "127.0.0.1");
}

#[tokio::test]
async fn an_idle_worker_is_shown_when_its_take_arrives() {
    let fixture = Fixture::new().await;
    fixture.done("/v1/tubes/mail/put", json!({ "tasks": [] })).await;
    let mut waiting = Vec::new();
    for name in ["a", "b"] {
        let take = format!("{{\"wait\": 300, \"worker\": \"{name}\"}}");
        waiting.push(fixture.raw(&post_bytes("/v1/tubes/mail/take", &take)).await);
    }
    fixture.consumers("mail", 2).await;
    assert_eq!(names(&list(&fixture, "").await), ["a", "b"]);
}

#[tokio::test]
async fn workers_of_internal_tubes_are_shown_only_on_request() {
    let fixture = Fixture::new().await;
    for (tube, worker) in [("mail", "a"), ("taskyard.x", "a"), ("taskyard.x", "b")] {
        let tasks = vec![json!({ "data": 1 }); 1];
        fixture.done(&format!("/v1/tubes/{tube}/put"), json!({ "tasks": tasks })).await;
        fixture.done(&format!("/v1/tubes/{tube}/take"), json!({ "worker": worker })).await;
    }
    let shown = list(&fixture, "").await;
    assert_eq!(names(&shown), ["a"]);
    assert_eq!(
        (&shown["workers"][0]["tubes"], &shown["workers"][0]["running_count"]),
        (&json!(["mail"]), &json!(1))
    );
    let all = list(&fixture, "?internal=true").await;
    assert_eq!(names(&all), ["a", "b"]);
    assert_eq!(all["workers"][0]["tubes"], json!(["mail", "taskyard.x"]));
}

#[tokio::test]
async fn a_list_has_pages() {
    let fixture = Fixture::new().await;
    fixture.done("/v1/tubes/mail/put", json!({ "tasks": [] })).await;
    for name in ["a b", "é", "c"] {
        fixture.done("/v1/tubes/mail/take", json!({ "worker": name })).await;
    }
    let first = list(&fixture, "?limit=2").await;
    assert_eq!((names(&first), &first["next"]), (vec!["a b", "c"], &json!("c")));
    let second = list(&fixture, "?limit=2&after=c").await;
    assert_eq!((names(&second), second.get("next")), (vec!["é"], None));
    for wrong in ["?limit=0", "?limit=1001", "?limit=x", "?state=x"] {
        fixture.get(&format!("/v1/workers{wrong}")).await.refused(400, "invalid");
    }
}

// The oldest of a worker's tasks are the ones that an operator looks for.
#[tokio::test]
async fn of_many_tasks_the_oldest_are_shown() {
    let fixture = Fixture::new().await;
    for _ in 0..3 {
        let tasks = vec![json!({ "data": 1 }); 100];
        fixture.done("/v1/tubes/mail/put", json!({ "tasks": tasks })).await;
        fixture.done("/v1/tubes/mail/take", json!({ "worker": "w", "count": 100 })).await;
    }
    let worker = &list(&fixture, "").await["workers"][0];
    let ids: Vec<_> = worker["running"]
        .as_array()
        .unwrap()
        .iter()
        .map(|task| task["id"].as_u64().unwrap())
        .collect();
    assert_eq!((worker["running_count"].as_u64(), ids), (Some(300), (0..100).collect()));
}

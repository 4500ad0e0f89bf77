//! Retry policies, rate limits and the number of attempts of a task.

use std::sync::Arc;

use reqwest::Method;
use serde_json::{Value, json};
use taskyard_core::{Span, Timestamp};
use taskyard_engine::{Engine, ManualClock, Settings};
use taskyard_store::MemoryStore;

use crate::fixture::{Answer, Fixture};

async fn create(fixture: &Fixture, options: Value) -> Answer {
    fixture.send(Method::PUT, "/v1/tubes/jobs", options).await
}

async fn alter(fixture: &Fixture, change: Value) -> Answer {
    fixture.send(Method::PATCH, "/v1/tubes/jobs", change).await
}

async fn put(fixture: &Fixture, task: Value) -> Value {
    fixture.done("/v1/tubes/jobs/put", task).await
}

/// Takes one task and reports that it failed; returns the task afterwards.
async fn fail(fixture: &Fixture, path: &str, part: Value) -> Value {
    let taken = fixture.done("/v1/tubes/jobs/take", json!({})).await;
    let mut part = part;
    part["id"] = taken["tasks"][0]["id"].clone();
    part["lease"] = taken["tasks"][0]["lease"].clone();
    part["error"] = json!("no route");
    let body = match path {
        "finish" => {
            part["verb"] = json!("fail");
            json!({ "tasks": [part], "show": true })
        }
        _ => {
            part["show"] = json!(true);
            part
        }
    };
    let failed = fixture.done(&format!("/v1/tubes/jobs/{path}"), body).await;
    let id = failed["tasks"][0]["id"].clone();
    fixture.get(&format!("/v1/tubes/jobs/tasks/{id}")).await.body
}

/// How many seconds a failed task waits.
fn waits(task: &Value) -> f64 {
    assert_eq!(task["state"], "delayed", "{task}");
    let wait = task["due"].as_f64().unwrap() - task["failed_at"].as_f64().unwrap();
    (wait * 1e3).round() / 1e3
}

#[tokio::test]
async fn the_options_are_shown_changed_and_removed() {
    let fixture = Fixture::new().await;
    let options = json!({
        "retry": { "delay": 2, "factor": 1.5, "delay_max": 60, "jitter": 0.25 },
        "retry_lost": true,
        "rate": { "count": 10, "per": 0.5, "burst": 3 },
    });
    assert_eq!(create(&fixture, options.clone()).await.status, 201);
    let tube = fixture.get("/v1/tubes/jobs").await.body;
    let policy = json!({ "delay": 2.0, "factor": 1.5, "delay_max": 60.0, "jitter": 0.25 });
    assert_eq!((&tube["retry"], &tube["retry_lost"]), (&policy, &json!(true)));
    assert_eq!(tube["rate"], json!({ "count": 10, "per": 0.5, "burst": 3 }));

    // One of the two options stays as it is when the other one changes.
    let tube = alter(&fixture, json!({ "retry": {} })).await.body;
    let usual = json!({ "delay": 5.0, "factor": 2.0, "delay_max": 3600.0, "jitter": 0.2 });
    assert_eq!((&tube["retry"], &tube["retry_lost"]), (&usual, &json!(true)));
    let tube = alter(&fixture, json!({ "retry_lost": false })).await.body;
    assert_eq!((&tube["retry"], &tube["retry_lost"]), (&usual, &Value::Null));
    let tube = alter(&fixture, json!({ "ttr": 9 })).await.body;
    assert_eq!((&tube["retry"], &tube["rate"]["count"]), (&usual, &json!(10)));

    let tube = alter(&fixture, json!({ "retry": null, "rate": null })).await.body;
    assert_eq!((&tube["retry"], &tube["rate"]), (&Value::Null, &Value::Null));
    let tube = alter(&fixture, json!({ "rate": { "count": 4, "per": 60 } })).await.body;
    assert_eq!(tube["rate"], json!({ "count": 4, "per": 60.0, "burst": 4 }));
}

#[tokio::test]
async fn an_existing_tube_must_have_the_options() {
    let fixture = Fixture::new().await;
    let options = json!({ "retry": {}, "rate": { "count": 1, "per": 1 }, "if_not_exists": true });
    assert_eq!(create(&fixture, options.clone()).await.status, 201);
    assert_eq!(create(&fixture, options).await.status, 200);
    let other = json!({ "retry": { "delay": 1 }, "rate": { "count": 2, "per": 1 } });
    for (field, value) in other.as_object().unwrap() {
        let differs = json!({ field: value, "if_not_exists": true });
        let refused = create(&fixture, differs).await;
        assert!(refused.refused(409, "tube_exists").contains(&format!("{field} is {{")));
    }
    let lost = json!({ "retry": {}, "retry_lost": true, "if_not_exists": true });
    let refused = create(&fixture, lost).await;
    assert!(refused.refused(409, "tube_exists").contains("retry_lost is false, not true"));
}

#[tokio::test]
async fn a_failure_without_a_delay_follows_the_policy() {
    let fixture = Fixture::new().await;
    let retry = json!({ "delay": 100, "factor": 3, "delay_max": 500, "jitter": 0 });
    create(&fixture, json!({ "retry": retry })).await;
    for path in ["fail", "finish"] {
        put(&fixture, json!({ "data": 1 })).await;
        assert_eq!(waits(&fail(&fixture, path, json!({})).await), 100.0);
        put(&fixture, json!({ "data": 2 })).await;
        assert_eq!(waits(&fail(&fixture, path, json!({ "delay": 7 })).await), 7.0);
        put(&fixture, json!({ "data": 3 })).await;
        assert_eq!(fail(&fixture, path, json!({ "delay": 0 })).await["state"], "ready");
        fixture.done("/v1/tubes/jobs/truncate", json!({})).await;
    }
    // The policy of the tube at the time of the failure counts, and the number of the attempt.
    put(&fixture, json!({ "data": 4 })).await;
    assert_eq!(fail(&fixture, "fail", json!({ "delay": 0 })).await["state"], "ready");
    assert_eq!(waits(&fail(&fixture, "fail", json!({})).await), 300.0);
}

#[tokio::test]
async fn jitter_is_random() {
    let fixture = Fixture::new().await;
    let retry = json!({ "delay": 1000, "factor": 1, "delay_max": 1000, "jitter": 0.5 });
    create(&fixture, json!({ "retry": retry })).await;
    let mut different = std::collections::BTreeSet::new();
    for n in 0..20 {
        // The id alone must not decide.
        fixture.send(Method::DELETE, "/v1/tubes/jobs", json!({})).await;
        create(&fixture, json!({ "retry": retry })).await;
        put(&fixture, json!({ "data": n })).await;
        let wait = waits(&fail(&fixture, "fail", json!({})).await);
        assert!((500.0..=1500.0).contains(&wait), "{wait}");
        different.insert(wait.to_bits());
    }
    assert!(different.len() > 10, "{different:?}");
}

#[tokio::test]
async fn without_a_policy_a_failed_task_is_ready_at_once() {
    let fixture = Fixture::new().await;
    create(&fixture, json!({})).await;
    put(&fixture, json!({ "data": 1 })).await;
    for path in ["fail", "finish"] {
        assert_eq!(fail(&fixture, path, json!({})).await["state"], "ready");
    }
    alter(&fixture, json!({ "retry": {} })).await;
    alter(&fixture, json!({ "retry": null })).await;
    let task = fail(&fixture, "fail", json!({})).await;
    assert_eq!((&task["state"], &task["attempts"]), (&json!("ready"), &json!(3)));
}

#[tokio::test]
async fn a_task_has_its_own_number_of_attempts() {
    let fixture = Fixture::new().await;
    create(&fixture, json!({ "attempts_max": 1 })).await;
    put(&fixture, json!({ "data": 1, "attempts_max": 2 })).await;
    let task = fail(&fixture, "fail", json!({})).await;
    assert_eq!((&task["state"], &task["attempts_max"]), (&json!("ready"), &json!(2)));
    let task = fail(&fixture, "fail", json!({})).await;
    assert_eq!(task["state"], "buried");
    assert_eq!(task["reason"]["name"], "attempts_used_up");
}

#[tokio::test]
async fn the_rate_is_limited_and_its_end_is_shown() {
    let fixture = Fixture::new().await;
    create(&fixture, json!({ "rate": { "count": 1, "per": 3600, "burst": 2 } })).await;
    put(&fixture, json!({ "tasks": [{ "data": 0 }, { "data": 1 }, { "data": 2 }] })).await;
    let taken = fixture.done("/v1/tubes/jobs/take", json!({ "count": 3 })).await;
    let taken = taken["tasks"].as_array().unwrap();
    assert_eq!(taken.len(), 2);
    let task = fixture.get("/v1/tubes/jobs/tasks/2").await.body;
    assert_eq!(task["reason"]["name"], "rate_limited");
    assert_eq!(task["reason"]["text"], "the rate limit of the tube is reached");
    let until = task["reason"]["until"].as_f64().unwrap();
    assert_eq!((until - taken[0]["start"].as_f64().unwrap()).round(), 3600.0);
    assert_eq!(fixture.get("/v1/tubes/jobs").await.body["takeable"], 0);
    alter(&fixture, json!({ "rate": null })).await;
    let taken = fixture.done("/v1/tubes/jobs/take", json!({})).await;
    assert_eq!(taken["tasks"][0]["data"], 2);
}

#[tokio::test]
async fn a_waiting_take_is_answered_when_the_rate_allows() {
    let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000)));
    let store = Box::new(MemoryStore::default());
    let engine = Engine::start(store, clock.clone(), Settings::default());
    let fixture = Fixture::over(engine, |_| {}).await;
    create(&fixture, json!({ "rate": { "count": 1, "per": 5, "burst": 1 } })).await;
    put(&fixture, json!({ "tasks": [{ "data": 0 }, { "data": 1 }, { "data": 2 }] })).await;
    let taken = fixture.done("/v1/tubes/jobs/take", json!({ "count": 3 })).await;
    assert_eq!(taken["tasks"].as_array().unwrap().len(), 1);
    let waiting = fixture.done("/v1/tubes/jobs/take", json!({ "count": 3, "wait": 60 }));
    let time = async {
        fixture.consumers("jobs", 1).await;
        clock.advance(Span::from_micros(4_999_999));
        fixture.consumers("jobs", 1).await;
        clock.advance(Span::from_micros(1));
    };
    let (taken, ()) = tokio::join!(waiting, time);
    let taken = taken["tasks"].as_array().unwrap();
    assert_eq!((taken.len(), &taken[0]["data"]), (1, &json!(1)));
    let shown = fixture.get("/v1/tubes/jobs/tasks/2").await.body;
    assert_eq!(shown["reason"]["name"], "rate_limited");
}

#[tokio::test]
async fn wrong_values_are_refused_by_the_name_of_the_field() {
    let fixture = Fixture::new().await;
    let wrong = [
        (json!({ "retry": { "delay": -1 } }), "retry.delay"),
        (json!({ "retry": { "delay": 9, "delay_max": 8 } }), "retry.delay_max"),
        (json!({ "retry": { "delay_max": 1e9 } }), "retry.delay_max"),
        (json!({ "retry": { "factor": 0.5 } }), "retry.factor"),
        (json!({ "retry": { "factor": 101 } }), "retry.factor"),
        (json!({ "retry": { "jitter": -0.1 } }), "retry.jitter"),
        (json!({ "retry": { "jitter": 1.1 } }), "retry.jitter"),
        (json!({ "retry": { "dealy": 1 } }), "dealy"),
        (json!({ "retry_lost": true }), "retry_lost"),
        (json!({ "rate": { "count": 0, "per": 1 } }), "rate.count"),
        (json!({ "rate": { "count": 1 } }), "per"),
        (json!({ "rate": { "count": 1, "per": 0 } }), "rate.per"),
        (json!({ "rate": { "count": 1, "per": -1 } }), "rate.per"),
        (json!({ "rate": { "count": 1, "per": 86_401 } }), "rate.per"),
        (json!({ "rate": { "count": 1, "per": 1, "burst": 0 } }), "rate.burst"),
    ];
    for (options, field) in &wrong {
        let refused = create(&fixture, options.clone()).await;
        assert!(refused.refused(400, "invalid").contains(field), "{options}: {}", refused.body);
    }
    create(&fixture, json!({})).await;
    for (change, field) in &wrong {
        let refused = alter(&fixture, change.clone()).await;
        assert!(refused.refused(400, "invalid").contains(field), "{change}: {}", refused.body);
    }
    let both = alter(&fixture, json!({ "retry": null, "retry_lost": true })).await;
    assert!(both.refused(400, "invalid").contains("retry_lost"));
    let put = fixture.post("/v1/tubes/jobs/put", json!({ "data": 1, "attempts_max": 0 })).await;
    assert!(put.refused(400, "invalid").contains("attempts_max"));
}

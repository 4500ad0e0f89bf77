//! Failures over HTTP, and actions on chosen tasks.

use reqwest::Method;
use serde_json::{Value, json};

use crate::fixture::Fixture;

const TASKS: &str = "/v1/tubes/mail/tasks";

async fn take(fixture: &Fixture, worker: &str) -> Value {
    let taken = fixture.done("/v1/tubes/mail/take", json!({ "worker": worker })).await;
    taken["tasks"][0].clone()
}

async fn show(fixture: &Fixture, id: u64) -> Value {
    fixture.get(&format!("{TASKS}/{id}")).await.body
}

async fn act(fixture: &Fixture, action: &str, request: Value) -> Value {
    fixture.done(&format!("{TASKS}/{action}"), request).await
}

/// Six tasks `{"to": n}`, all buried: even ones with the error `timeout`, odd ones with `no route`.
async fn failed() -> Fixture {
    let fixture = Fixture::new().await;
    let tasks: Vec<_> = (0..6).map(|n| json!({ "data": { "to": n } })).collect();
    fixture.done("/v1/tubes/mail/put", json!({ "tasks": tasks })).await;
    for id in 0..6 {
        let task = take(&fixture, &format!("host:{id}:w")).await;
        let error = if id % 2 == 0 { "timeout\nafter 5 s" } else { "no route" };
        let bury = json!({ "id": id, "lease": task["lease"], "error": error });
        fixture.done("/v1/tubes/mail/bury", bury).await;
    }
    fixture
}

#[tokio::test]
async fn a_failed_task_shows_its_failures() {
    let fixture = Fixture::new().await;
    fixture.done("/v1/tubes/mail/put", json!({ "data": 1 })).await;
    let task = take(&fixture, "host:7:mailer").await;
    assert_eq!(task.get("worker"), None, "the taker knows its name");
    assert_eq!(show(&fixture, 0).await["worker"], "host:7:mailer");
    let deliveries = fixture.get("/v1/tubes/mail/deliveries").await.body;
    assert_eq!(deliveries["deliveries"][0]["worker"], "host:7:mailer");
    let fail = json!({ "id": 0, "lease": task["lease"], "error": "no route", "delay": 60 });
    let failed = fixture.done("/v1/tubes/mail/fail", fail.clone()).await;
    assert_eq!(failed["outcomes"], json!(["done"]));
    assert_eq!(fixture.done("/v1/tubes/mail/fail", fail).await["outcomes"], json!(["stale"]));
    let shown = show(&fixture, 0).await;
    assert_eq!((&shown["state"], &shown["attempts"]), (&json!("delayed"), &json!(1)));
    assert_eq!((&shown["error"], shown.get("worker")), (&json!("no route"), None));
    let failure = &shown["failures"][0];
    assert_eq!((&failure["attempt"], &failure["worker"]), (&json!(1), &json!("host:7:mailer")));
    assert_eq!(shown["failed_at"], failure["at"]);
}

#[tokio::test]
async fn the_ways_to_end_deliveries_in_one_step_include_fail() {
    let fixture = Fixture::new().await;
    fixture.done("/v1/tubes/mail/put", json!({ "tasks": [{ "data": 1 }, { "data": 2 }] })).await;
    fixture.done("/v1/tubes/mail/take", json!({ "count": 2 })).await;
    let finish = json!({ "tasks": [
        { "verb": "fail", "id": 0, "error": "e1" },
        { "verb": "bury", "id": 1, "error": "e2" },
    ]});
    assert_eq!(fixture.done("/v1/tubes/mail/finish", finish).await["done"], 2);
    assert_eq!(show(&fixture, 0).await["error"], "e1");
    assert_eq!(show(&fixture, 1).await["state"], "buried");
    let incomplete = json!({ "tasks": [{ "verb": "fail", "id": 0 }] });
    let refused = fixture.post("/v1/tubes/mail/finish", incomplete).await;
    assert_eq!(refused.status, 400);
}

#[tokio::test]
async fn failed_tasks_are_found_by_error_and_worker() {
    let fixture = failed().await;
    let fixture = &fixture;
    let found = |query: &'static str| async move {
        let page = fixture.get(&format!("{TASKS}?{query}")).await.body;
        let tasks = page["tasks"].as_array().unwrap().clone();
        (tasks.iter().map(|task| task["id"].as_u64().unwrap()).collect::<Vec<_>>(), tasks)
    };
    let (ids, tasks) = found("error=timeout").await;
    assert_eq!(ids, [0, 2, 4]);
    assert_eq!(tasks[0]["error"], "timeout", "a page shows the first line");
    assert_eq!(tasks[0].get("failures"), None);
    assert_eq!(found("worker=host:3:w").await.0, [3]);
    assert_eq!(found("worker=host:3:w&error=timeout").await.0, [] as [u64; 0]);
}

#[tokio::test]
async fn tasks_are_retried_by_a_filter() {
    let fixture = failed().await;
    let filter = json!({ "error": "timeout" });
    let dry = act(&fixture, "kick", json!({ "filter": filter, "dry_run": true })).await;
    assert_eq!((&dry["matched"], &dry["changed"]), (&json!(3), &json!(0)));
    assert_eq!(show(&fixture, 0).await["state"], "buried");
    let first = act(&fixture, "kick", json!({ "filter": filter, "limit": 2 })).await;
    assert_eq!((&first["matched"], &first["changed"]), (&json!(2), &json!(2)));
    let next = json!({ "filter": filter, "after": first["next"], "reset_attempts": true });
    let rest = act(&fixture, "kick", next).await;
    assert_eq!((&rest["changed"], rest.get("next")), (&json!(1), None));
    let states: Vec<_> = vec![show(&fixture, 0).await, show(&fixture, 1).await];
    assert_eq!((&states[0]["state"], &states[1]["state"]), (&json!("ready"), &json!("buried")));
}

#[tokio::test]
async fn a_retry_keeps_the_attempts_or_resets_them() {
    let fixture = failed().await;
    let bury_after_a_failure = async || {
        for verb in ["fail", "bury"] {
            let task = take(&fixture, "w").await;
            let finish = json!({ "id": 0, "lease": task["lease"], "error": "timeout" });
            fixture.done(&format!("/v1/tubes/mail/{verb}"), finish).await;
        }
        show(&fixture, 0).await["attempts"].as_u64().unwrap()
    };
    let retry = async |request: Value| {
        assert_eq!(act(&fixture, "kick", request).await["changed"], 1);
        show(&fixture, 0).await["attempts"].as_u64().unwrap()
    };
    let only = json!({ "match": "\"to\":0" });
    retry(json!({ "ids": [0] })).await;
    let attempts = bury_after_a_failure().await;
    assert!(attempts > 0);
    assert_eq!(retry(json!({ "filter": only })).await, attempts);
    assert!(bury_after_a_failure().await > attempts);
    assert_eq!(retry(json!({ "filter": only, "reset_attempts": true })).await, 0);
    assert!(bury_after_a_failure().await > 0);
    assert_eq!(retry(json!({ "ids": [0], "reset_attempts": true })).await, 0);
}

#[tokio::test]
async fn chosen_ids_have_an_outcome_each() {
    let fixture = failed().await;
    let kicked = act(&fixture, "kick", json!({ "ids": [1, 9, 1] })).await;
    assert_eq!(kicked["outcomes"], json!(["done", "missing", "stale"]));
    assert_eq!((&kicked["matched"], &kicked["changed"]), (&json!(2), &json!(1)));
    let buried = act(&fixture, "bury", json!({ "ids": [1], "error": "by hand" })).await;
    assert_eq!(buried["changed"], 1);
    assert_eq!(show(&fixture, 1).await["error"], "by hand");
    let deleted = act(&fixture, "delete", json!({ "filter": { "match": "\"to\":5" } })).await;
    assert_eq!(deleted["changed"], 1);
    assert_eq!(fixture.get(&format!("{TASKS}/5")).await.status, 404);
    act(&fixture, "kick", json!({ "ids": [0, 2] })).await;
    take(&fixture, "w1").await;
    let released = act(&fixture, "release", json!({ "filter": { "worker": "w1" } })).await;
    assert_eq!((&released["matched"], &released["changed"]), (&json!(1), &json!(1)));
    assert_eq!(show(&fixture, 0).await["attempts"], 1);
}

#[tokio::test]
async fn unclear_actions_are_refused() {
    let fixture = failed().await;
    let refusals = [
        ("kick", json!({})),
        ("kick", json!({ "ids": [1], "filter": {} })),
        ("kick", json!({ "ids": [1], "error": "x" })),
        ("delete", json!({ "ids": [1], "reset_attempts": true })),
        ("delete", json!({ "filter": { "state": "gone" } })),
        ("delete", json!({ "filter": { "colour": "red" } })),
        ("delete", json!({ "filter": {}, "limit": 1001 })),
        ("release", json!({ "filter": {}, "after": "x" })),
    ];
    for (action, request) in refusals {
        let refused = fixture.post(&format!("{TASKS}/{action}"), request.clone()).await;
        assert_eq!(refused.status, 400, "{action} {request}");
    }
    assert_eq!(fixture.get("/v1/tubes/mail").await.body["tasks"]["buried"], 6);
}

// A task that one worker had failed, and that a client without a name held now, was released: it ran twice.
#[tokio::test]
async fn a_delivery_without_a_name_is_not_that_of_an_earlier_worker() {
    let fixture = failed().await;
    act(&fixture, "kick", json!({ "ids": [3] })).await;
    fixture.done("/v1/tubes/mail/take", json!({})).await;
    let released = act(&fixture, "release", json!({ "filter": { "worker": "host:3:w" } })).await;
    assert_eq!(released["matched"], 0);
    assert_eq!(show(&fixture, 3).await["state"], "taken");
    let counted = act(&fixture, "delete", json!({ "ids": [0, 1, 9], "dry_run": true })).await;
    assert_eq!((&counted["matched"], &counted["changed"]), (&json!(2), &json!(0)));
}

/// A tube with `keep_done` shows what became of its tasks.
#[tokio::test]
async fn done_tasks_are_kept_with_their_results() {
    let fixture = Fixture::new().await;
    let options = json!({ "kind": "fifo", "keep_done": 60, "keep_done_max": 5 });
    fixture.send(Method::PUT, "/v1/tubes/mail", options).await;
    let tube = fixture.get("/v1/tubes/mail").await.body;
    assert_eq!((&tube["keep_done"], &tube["keep_done_max"]), (&json!(60.0), &json!(5)));
    let tasks: Vec<_> = (0..3).map(|n| json!({ "data": { "to": n } })).collect();
    fixture.done("/v1/tubes/mail/put", json!({ "tasks": tasks })).await;
    for id in 0..2 {
        let lease = take(&fixture, "host:7:mailer").await["lease"].clone();
        let ack = json!({ "id": id, "lease": lease, "result": { "sent": id } });
        assert_eq!(fixture.done("/v1/tubes/mail/ack", ack).await["done"], 1);
    }
    let done = fixture.get(&format!("{TASKS}?state=done&match=1")).await.body;
    assert_eq!(
        (&done["tasks"][0]["id"], done["tasks"].as_array().map(Vec::len)),
        (&json!(1), Some(1))
    );
    assert_eq!(done["tasks"][0].get("result"), None, "a page is short");
    let all = fixture.get(TASKS).await.body;
    assert_eq!(all["tasks"].as_array().map(Vec::len), Some(1), "done tasks are listed on request");
    let shown = show(&fixture, 0).await;
    assert_eq!((&shown["state"], &shown["reason"]["name"]), (&json!("done"), &json!("finished")));
    assert_eq!(
        (&shown["worker"], &shown["result"]),
        (&json!("host:7:mailer"), &json!({ "sent": 0 }))
    );
    assert!(shown["finished"].is_number() && shown["run_ms"].is_number(), "{shown}");
    let by_worker = fixture.get(&format!("{TASKS}?state=done&worker=host:7:mailer")).await.body;
    assert_eq!(by_worker["tasks"].as_array().map(Vec::len), Some(2));
    let later = shown["finished"].as_f64().expect("a time") + 3600.0;
    let none = fixture.get(&format!("{TASKS}?state=done&finished_from={later}")).await.body;
    assert_eq!(none["tasks"], json!([]));
    let before =
        fixture.get(&format!("{TASKS}?state=done,ready&finished_until={later}")).await.body;
    assert_eq!(before["tasks"].as_array().map(Vec::len), Some(2));
    let deleted = act(&fixture, "delete", json!({ "filter": { "state": "done" } })).await;
    assert_eq!((&deleted["matched"], &deleted["changed"]), (&json!(2), &json!(2)));
    assert_eq!(fixture.get(&format!("{TASKS}/0")).await.status, 404);
}

#[tokio::test]
async fn results_are_checked() {
    let fixture = Fixture::new().await;
    fixture.done("/v1/tubes/mail/put", json!({ "data": 1 })).await;
    fixture.done("/v1/tubes/mail/take", json!({})).await;
    let large = json!({ "id": 0, "result": "x".repeat(70_000) });
    let refused = fixture.post("/v1/tubes/mail/ack", large).await;
    assert_eq!(
        (refused.status, &refused.body["error"]["code"]),
        (413.try_into().unwrap(), &json!("too_large")),
        "{}",
        refused.body
    );
    let both = json!({ "id": 0, "result": 1, "result_base64": "AQ==" });
    assert_eq!(fixture.post("/v1/tubes/mail/ack", both).await.status, 400);
    let finish = json!({ "tasks": [{ "verb": "bury", "id": 0, "result": 1 }] });
    assert_eq!(fixture.post("/v1/tubes/mail/finish", finish).await.status, 400);
    for change in [json!({ "keep_done": 0 }), json!({ "keep_done_max": 0 })] {
        assert_eq!(fixture.send(Method::PATCH, "/v1/tubes/mail", change).await.status, 400);
    }
    let ack = json!({ "tasks": [{ "verb": "ack", "id": 0, "result": null }] });
    assert_eq!(fixture.done("/v1/tubes/mail/finish", ack).await["done"], 1);
}

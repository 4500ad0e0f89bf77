//! Waiting tasks receive their position in the queue.

use serde_json::Value;

use crate::fixture::TestPool;

#[tokio::test]
async fn a_waiting_task_receives_an_estimate_and_a_reason() {
    let site = TestPool::new(1, "").await;
    let mut busy = site.start(r#"{"duration": 20}"#, "echo up; exec sleep 1000").await;
    busy.until_output("up").await;
    let mut fast = site.start(r#"{"duration": 3}"#, "echo x > result.txt").await;
    let position = fast.until("queue").await.body;
    assert_eq!((&position["ahead"], &position["reason"]), (&0.into(), &"limit_reached".into()));
    assert_eq!(position["words"], "all backends are busy");
    let estimate = position["estimate"].as_f64().unwrap();
    assert!(estimate > 0.0 && estimate < 22.0, "{estimate}");
    // No task has ended yet.
    assert_eq!((&position["p50"], &position["p90"]), (&Value::Null, &Value::Null));
    let mut slow = site.start(r#"{"duration": 30}"#, "true").await;
    let position = slow.until("queue").await.body;
    assert_eq!(position["ahead"], 1);
    assert!(position["estimate"].as_f64().unwrap() > estimate);
    drop(busy);
    assert_eq!(fast.until("complete").await.error(), "");
    let status = site.until(|status| status.counts.estimates.estimates_given >= 1).await;
    assert_eq!(status.counts.estimates.estimates_met, status.counts.estimates.estimates_given);
}

#[tokio::test]
async fn a_default_task_is_lowered_and_the_waiting_one_starts_within_its_estimate() {
    let classes = "classes:\n  - {name: fast, seconds: 0.2, limit: 100%}\n  - {name: slow, \
                   seconds: 30, limit: 100%}\n";
    let site = TestPool::new(1, classes).await;
    let mut default = site.start("{}", "echo up; exec sleep 1000").await;
    default.until_output("up").await;
    let mut fast = site.start(r#"{"duration": 0.2}"#, "echo x > result.txt").await;
    assert_eq!(default.until("complete").await.error(), "time limit (0.2 s)");
    assert_eq!(fast.until("complete").await.error(), "");
    assert_eq!(site.status().await.counts.lowered, 1);
}

#[tokio::test]
async fn a_paused_pool_is_the_reason_for_waiting() {
    let site = TestPool::new(1, "").await;
    site.pool.scheduler().pause(true).await.unwrap();
    let mut client = site.start("{}", "echo x > result.txt").await;
    assert_eq!(client.until("queue").await.body["reason"], "pool_paused");
    site.pool.scheduler().pause(false).await.unwrap();
    assert_eq!(client.until("complete").await.error(), "");
}

#[tokio::test]
async fn a_task_that_waits_too_long_is_denied() {
    let site = TestPool::new(1, "wait_seconds_max: 0.3").await;
    let mut busy = site.start(r#"{"duration": 30}"#, "echo up; exec sleep 1000").await;
    busy.until_output("up").await;
    let mut client = site.start(r#"{"duration": 3}"#, "true").await;
    let position = client.until("queue").await;
    assert_eq!(position.body["reason"], "limit_reached");
    let error = client.until("deny").await.error().to_owned();
    assert!(error.starts_with("overloaded"), "{error}");
    let status = site.status().await;
    assert_eq!((status.counts.denied, status.counts.classes[0].denied, status.queued), (1, 1, 0));
}

#[tokio::test]
async fn tasks_over_the_client_limit_wait_outside_the_queue() {
    let site = TestPool::new(2, "client_tasks_max: 1").await;
    let mut busy = site.start(r#"{"duration": 30}"#, "echo up; exec sleep 1000").await;
    busy.until_output("up").await;
    // A backend is free, and the same client still has to wait.
    let mut next = site.start(r#"{"duration": 10}"#, "echo x > result.txt").await;
    let position = next.until("queue").await.body;
    assert_eq!(
        (&position["reason"], &position["estimate"]),
        (&"client_limit".into(), &Value::Null)
    );
    next.send(r#"options {"duration": 5}"#).await;
    let mut gone = site.start("{}", "true").await;
    gone.until("queue").await;
    drop(gone);
    let mut session = site.connect("/pool/run/sh/interactive").await;
    session.send("start {}").await;
    assert!(session.until("deny").await.error().starts_with("client limit reached"));
    let status = site.status().await;
    assert_eq!((status.queued, status.running, status.counts.arrived), (0, 1, 1));
    drop(busy);
    assert_eq!(next.until("complete").await.error(), "");
    // The same over plain HTTP.
    let (first, second) = tokio::join!(site.run("echo x > result.txt"), site.run("exit 3"));
    assert!(first["ok"].is_object() && second["error"].is_object(), "{first} {second}");
    site.until_empty().await;
}

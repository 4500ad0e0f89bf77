//! A client that leaves at any moment frees everything.

use serde_json::json;
use tokio::time::{Duration, timeout};

use crate::rig::Site;

#[tokio::test]
async fn before_it_starts() {
    let site = Site::new(1, "").await;
    let mut client = site.client().await;
    client.file("a.sh", "true").await;
    drop(client);
    site.until_empty().await;
}

#[tokio::test]
async fn in_the_queue() {
    let site = Site::new(1, "").await;
    let mut busy = site.start(r#"{"duration": 30}"#, "echo up; exec sleep 1000").await;
    busy.until_output("up").await;
    let mut waiting = site.start(r#"{"duration": 3}"#, "true").await;
    waiting.until("queue").await;
    drop(waiting);
    site.until(|status| status.queued == 0 && status.counts.left == 1).await;
    drop(busy);
    site.until_empty().await;
}

#[tokio::test]
async fn while_the_program_runs() {
    let site = Site::new(1, "").await;
    let mut client = site.start("{}", "echo up; exec sleep 1000").await;
    client.until_output("up").await;
    drop(client);
    site.until_empty().await;
}

#[tokio::test]
async fn while_the_program_writes_and_nobody_reads() {
    let site = Site::new(1, "limits: {output_bytes_max: 100000000}").await;
    let client = site.start(r#"{"duration": 30}"#, "exec yes").await;
    site.until(|status| status.running == 1).await;
    drop(client);
    site.until_empty().await;
}

#[tokio::test]
async fn a_pool_that_stops_tells_everybody() {
    let site = Site::new(1, "").await;
    let mut running = site.start(r#"{"duration": 30}"#, "echo up; exec sleep 1000").await;
    running.until_output("up").await;
    let mut waiting = site.start(r#"{"duration": 3}"#, "true").await;
    waiting.until("queue").await;
    site.pool.stop(Duration::ZERO).await;
    assert_eq!(running.until("complete").await.error(), "the pool is stopping");
    assert_eq!(waiting.until("complete").await.error(), "the pool is stopping");
    assert_eq!(site.pool.backends().folders(), 0);
    let mut late = site.start("{}", "true").await;
    assert_eq!(late.until("deny").await.error(), "the pool is stopping");
}

#[tokio::test]
async fn over_plain_http() {
    let site = Site::new(1, "").await;
    let file = json!({ "filename": "a.sh", "text": "exec sleep 1000" });
    let post = site.post(json!({ "input": [file] }));
    let running = site.until(|status| status.running == 1);
    tokio::select! {
        _ = post => panic!("it cannot have ended"),
        _ = running => {}
    }
    timeout(Duration::from_secs(60), site.until_empty()).await.unwrap();
}

//! A client that disconnects at any moment frees everything.

use std::sync::Arc;

use serde_json::json;
use taskyard_pool::Config;
use taskyard_pool::backend::TaskSpec;
use taskyard_pool::gateway::{ClientTask, NextFrame};
use taskyard_pool::protocol::{Options, OutgoingFrame, StartHead};
use tokio::time::{Duration, timeout};

use crate::fixture::{PROGRAMS, TestPool};

#[tokio::test]
async fn before_the_start() {
    let site = TestPool::new(1, "").await;
    let mut client = site.client().await;
    client.file("a.sh", "true").await;
    drop(client);
    site.until_empty().await;
}

#[tokio::test]
async fn in_the_queue() {
    let site = TestPool::new(1, "").await;
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
    let site = TestPool::new(1, "").await;
    let mut client = site.start("{}", "echo up; exec sleep 1000").await;
    client.until_output("up").await;
    drop(client);
    site.until_empty().await;
}

#[tokio::test]
async fn while_the_program_writes_and_the_client_does_not_read() {
    let site = TestPool::new(1, "limits: {output_bytes_max: 100000000}").await;
    let client = site.start(r#"{"duration": 30}"#, "exec yes").await;
    site.until(|status| status.running == 1).await;
    drop(client);
    site.until_empty().await;
}

/// A slow client received the error that the pool is stopping and never saw the rest: its task had ended and was removed from
/// the scheduler, but its last frames were still buffered.
#[tokio::test]
async fn a_slow_client_receives_all_frames_of_an_ended_task() {
    let site = TestPool::new(1, "").await;
    let config = Config::parse(&format!("backends: 1\n{PROGRAMS}")).unwrap();
    let program = Arc::new(config.programs["sh"].clone());
    let script = "for i in $(seq 40); do echo $i; sleep 0.03; done; echo x > result.txt";
    let files = vec![("a.sh".to_owned(), script.as_bytes().to_vec())];
    let spec = TaskSpec::new(program, files, &Options::default(), &StartHead::default(), false);
    let mut task = ClientTask::submit(site.pool.gateway(), spec.unwrap()).await.unwrap();
    // The program starts, and no frame is read until it has ended.
    assert!(matches!(task.next_frame().await, NextFrame::Frame(OutgoingFrame::Output(..))));
    site.until(|status| status.counts.arrived == 1 && status.tracked == 0).await;
    let (mut output, mut frames) = (Vec::new(), Vec::new());
    while let NextFrame::Frame(frame) = task.next_frame().await {
        match frame {
            OutgoingFrame::Output(_, bytes) => output.extend(bytes),
            frame => frames.push(frame),
        }
    }
    let wanted: String = (1..=40).map(|number| format!("{number}\n")).collect();
    assert_eq!(String::from_utf8(output).unwrap(), wanted);
    assert!(
        matches!(frames[..], [OutgoingFrame::Result { .. }, OutgoingFrame::Complete(None)]),
        "{frames:?}"
    );
}

#[tokio::test]
async fn all_clients_of_a_stopping_pool_receive_a_final_frame() {
    let site = TestPool::new(1, "").await;
    let mut running = site.start(r#"{"duration": 30}"#, "echo up; exec sleep 1000").await;
    running.until_output("up").await;
    let mut waiting = site.start(r#"{"duration": 3}"#, "true").await;
    waiting.until("queue").await;
    site.pool.stop(Duration::ZERO).await;
    assert_eq!(running.until("complete").await.error(), "the pool is stopping");
    assert_eq!(waiting.until("complete").await.error(), "the pool is stopping");
    site.stop().await;
    let mut late = site.start("{}", "true").await;
    assert_eq!(late.until("deny").await.error(), "the pool is stopping");
}

#[tokio::test]
async fn over_plain_http() {
    let site = TestPool::new(1, "").await;
    let file = json!({ "filename": "a.sh", "text": "exec sleep 1000" });
    let post = site.post(json!({ "input": [file] }));
    let running = site.until(|status| status.running == 1);
    tokio::select! {
        _ = post => panic!("it cannot have ended"),
        _ = running => {}
    }
    timeout(Duration::from_secs(60), site.until_empty()).await.unwrap();
}

//! Interactive sessions.

use std::time::Duration;

use rustix::thread::gettid;
use taskyard_pool::Config;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::fixture::TestPool;

const SHELL: &str = "/pool/run/sh/interactive";

#[tokio::test]
async fn input_is_echoed_until_the_client_leaves() {
    let site = TestPool::new(1, "").await;
    let mut client = site.connect(SHELL).await;
    client.send("start {}").await;
    client.until("output").await;
    for line in ["one", "two", "three"] {
        client.stdin(line).await;
        client.until_output(line).await;
    }
    assert_eq!(site.status().await.counts.interactive, 1);
    drop(client);
    site.until_empty().await;
}

#[tokio::test]
async fn a_session_is_denied_if_all_backends_are_busy() {
    let site = TestPool::new(1, "").await;
    let mut busy = site.start("{}", "echo up; exec sleep 1000").await;
    busy.until_output("up").await;
    let mut client = site.connect(SHELL).await;
    client.send("start {}").await;
    let denied = client.rest().await;
    assert_eq!(denied.len(), 1);
    assert_eq!(denied[0].error(), "all backends are busy; try again later");
    // The denial lowered the default task by one class.
    assert_eq!(site.status().await.counts.lowered, 1);
}

#[tokio::test]
async fn a_session_is_halted_with_a_reason_if_a_task_needs_its_backend() {
    let site = TestPool::new(1, "").await;
    let mut client = site.connect(SHELL).await;
    client.send("start {}").await;
    client.until("output").await;
    assert!(site.run("echo x > result.txt").await["ok"].is_object());
    let end = client.rest().await.pop().unwrap();
    assert_eq!(
        (end.verb.as_str(), end.error()),
        ("complete", "halted: a waiting task needs its backend")
    );
    assert_eq!(site.status().await.counts.halted, 1);
    site.until_empty().await;
}

#[tokio::test]
async fn a_session_has_no_duration() {
    let site = TestPool::new(1, "").await;
    let mut client = site.connect(SHELL).await;
    client.send(r#"options {"duration": 3}"#).await;
    client.send("start {}").await;
    assert_eq!(client.until("deny").await.error(), "an interactive task has no duration");
}

/// A client that wrote faster than its program read lost every piece beyond the sixty-fourth, silently.
#[tokio::test]
async fn all_input_arrives_however_fast_it_is_sent() {
    let site = TestPool::new(1, "").await;
    let mut client = site.connect(SHELL).await;
    client.send("start {}").await;
    // Everything is sent before the program runs.
    for number in 0..2_000 {
        client.stdin(&format!("{number}\n")).await;
    }
    let wanted: String = (0..2_000).map(|number| format!("{number}\n")).collect();
    let mut received = String::new();
    while received.len() < wanted.len() {
        received.push_str(std::str::from_utf8(&client.next_frame().await.unwrap().bytes).unwrap());
    }
    assert_eq!(received, wanted);
}

/// Input before `start` was refused, and input right after it was sometimes lost.
#[tokio::test]
async fn input_before_the_start_comes_first() {
    let site = TestPool::new(1, "limits: {input_bytes_max: 1000}").await;
    let mut client = site.connect(SHELL).await;
    client.stdin("one ").await;
    client.stdin("two ").await;
    client.send("start {}").await;
    client.stdin("three").await;
    client.until_output("one two three").await;
    let mut client = site.connect(SHELL).await;
    client.stdin(&"x".repeat(600)).await;
    client.stdin(&"x".repeat(600)).await;
    let error = client.until("deny").await.error().to_owned();
    assert_eq!(error, "the input is larger than 1000 bytes");
    // Only a session has a standard input.
    let mut client = site.client().await;
    client.stdin("one").await;
    assert_eq!(client.until("deny").await.error(), "`input` needs `filename`");
}

#[tokio::test]
async fn more_input_than_a_program_reads_is_refused() {
    let more = "limits: {input_bytes_max: 100000}";
    let programs = "programs: {deaf: {command: [/bin/true], interactive: [/bin/sleep, '1000']}}";
    let config = format!("backends: 1\n{programs}\n{more}");
    let site = TestPool::of(Config::parse(&config).unwrap()).await;
    let mut client = site.connect("/pool/run/deaf/interactive").await;
    client.send("start {}").await;
    client.until("output").await;
    // More than the pipe and the buffers hold.
    for _ in 0..100 {
        client.stdin(&"x".repeat(10_000)).await;
    }
    let error = client.until("deny").await.error().to_owned();
    assert!(error.starts_with("the program does not read its standard input"), "{error}");
    site.until_empty().await;
}

/// Programs were started by arbitrary threads of the runtime, and the system ends a program that requests a signal at
/// the end of its parent when that thread ends: a large frame to the queue beside the pool was enough to end a
/// session.
#[test]
fn a_session_survives_the_thread_that_served_it_first() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_keep_alive(Duration::from_millis(1))
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let site = TestPool::new(1, "").await;
        let mut client = site.connect(SHELL).await;
        client.send("start {}").await;
        client.stdin("one").await;
        client.until_output("one").await;
        // The only worker thread is blocked, so a new one has to replace it.
        let (line, received) = oneshot::channel();
        let worker = tokio::spawn(async move {
            tokio::task::block_in_place(|| received.blocking_recv().unwrap());
            gettid()
        });
        tokio::spawn(async move { line.send(()).unwrap() });
        let worker = worker.await.unwrap();
        let entry = format!("/proc/self/task/{}", worker.as_raw_nonzero());
        let gone = async {
            while std::path::Path::new(&entry).exists() {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(60), gone).await.expect("the first worker ends");
        client.stdin("two").await;
        client.until_output("two").await;
    });
}

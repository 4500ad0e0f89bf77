//! Sessions with standard input.

use std::time::Duration;

use rustix::thread::gettid;
use taskyard_pool::Config;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::rig::Site;

const SHELL: &str = "/pool/run/sh/interactive";

#[tokio::test]
async fn words_go_in_and_come_back_until_the_client_leaves() {
    let site = Site::new(1, "").await;
    let mut client = site.connect(SHELL).await;
    client.say("start {}").await;
    client.until("output").await;
    for word in ["one", "two", "three"] {
        client.stdin(word).await;
        client.until_output(word).await;
    }
    assert_eq!(site.status().await.counts.interactive, 1);
    drop(client);
    site.until_empty().await;
}

#[tokio::test]
async fn a_session_is_denied_when_all_is_full() {
    let site = Site::new(1, "").await;
    let mut busy = site.start("{}", "echo up; exec sleep 1000").await;
    busy.until_output("up").await;
    let mut client = site.connect(SHELL).await;
    client.say("start {}").await;
    let denied = client.rest().await;
    assert_eq!(denied.len(), 1);
    assert_eq!(denied[0].error(), "all backends are busy; try again later");
    // The denial lowered the default task by one class.
    assert_eq!(site.status().await.counts.lowered, 1);
}

#[tokio::test]
async fn a_session_is_halted_with_a_word_when_a_task_needs_its_place() {
    let site = Site::new(1, "").await;
    let mut client = site.connect(SHELL).await;
    client.say("start {}").await;
    client.until("output").await;
    assert!(site.run("echo x > result.txt").await["ok"].is_object());
    let end = client.rest().await.pop().unwrap();
    assert_eq!((end.verb.as_str(), end.error()), ("complete", "halted: its place is needed"));
    assert_eq!(site.status().await.counts.halted, 1);
    site.until_empty().await;
}

#[tokio::test]
async fn a_session_has_no_duration() {
    let site = Site::new(1, "").await;
    let mut client = site.connect(SHELL).await;
    client.say(r#"options {"duration": 3}"#).await;
    client.say("start {}").await;
    assert_eq!(client.until("deny").await.error(), "an interactive task has no duration");
}

/// A client that wrote faster than its program read once lost every piece beyond the sixty-fourth, silently.
#[tokio::test]
async fn every_word_arrives_however_fast_they_come() {
    let site = Site::new(1, "").await;
    let mut client = site.connect(SHELL).await;
    client.say("start {}").await;
    // None of them waits until the program runs.
    for number in 0..2_000 {
        client.stdin(&format!("{number}\n")).await;
    }
    let wanted: String = (0..2_000).map(|number| format!("{number}\n")).collect();
    let mut heard = String::new();
    while heard.len() < wanted.len() {
        heard.push_str(std::str::from_utf8(&client.hear().await.unwrap().bytes).unwrap());
    }
    assert_eq!(heard, wanted);
}

/// What a client said before `start` was refused, and what it said right after it was sometimes lost.
#[tokio::test]
async fn words_before_the_start_come_first() {
    let site = Site::new(1, "limits: {input_bytes_max: 1000}").await;
    let mut client = site.connect(SHELL).await;
    client.stdin("one ").await;
    client.stdin("two ").await;
    client.say("start {}").await;
    client.stdin("three").await;
    client.until_output("one two three").await;
    let mut client = site.connect(SHELL).await;
    client.stdin(&"x".repeat(600)).await;
    client.stdin(&"x".repeat(600)).await;
    let error = client.until("deny").await.error().to_owned();
    assert_eq!(error, "the input has more than 1000 bytes, the most there is");
    // Only a session has a standard input.
    let mut client = site.client().await;
    client.stdin("one").await;
    assert_eq!(client.until("deny").await.error(), "`input` needs a filename");
}

#[tokio::test]
async fn who_writes_more_than_a_program_reads_is_told_so() {
    let more = "limits: {input_bytes_max: 100000}";
    let programs = "programs: {deaf: {command: [/bin/true], interactive: [/bin/sleep, '1000']}}";
    let config = format!("backends: 1\n{programs}\n{more}");
    let site = Site::of(Config::parse(&config).unwrap()).await;
    let mut client = site.connect("/pool/run/deaf/interactive").await;
    client.say("start {}").await;
    client.until("output").await;
    // What the pipe and the pieces under way hold, and then some.
    for _ in 0..100 {
        client.stdin(&"x".repeat(10_000)).await;
    }
    let error = client.until("deny").await.error().to_owned();
    assert!(error.starts_with("the program does not read its input"), "{error}");
    site.until_empty().await;
}

/// Programs were started by whichever thread of the runtime came first, and the system ends a program that wants to die
/// with its parent when that thread ends: a large frame to the queue beside the pool was enough to end a session.
#[test]
fn a_session_outlives_the_thread_that_served_it_first() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_keep_alive(Duration::from_millis(1))
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let site = Site::new(1, "").await;
        let mut client = site.connect(SHELL).await;
        client.say("start {}").await;
        client.stdin("one").await;
        client.until_output("one").await;
        // The only worker waits for another task, so a new one has to take its place.
        let (word, heard) = oneshot::channel();
        let worker = tokio::spawn(async move {
            tokio::task::block_in_place(|| heard.blocking_recv().unwrap());
            gettid()
        });
        tokio::spawn(async move { word.send(()).unwrap() });
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

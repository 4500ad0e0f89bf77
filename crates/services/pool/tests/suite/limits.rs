//! Limits on time, output and input.

use std::path::Path;
use std::time::Duration;

use tokio::time::{advance, pause, resume};

use crate::fixture::TestPool;

#[tokio::test]
async fn a_program_is_stopped_at_its_time_limit_and_its_output_is_kept() {
    let site = TestPool::new(1, "").await;
    let script = "echo partial > result.txt; exec sleep 1000";
    // On a busy machine even that takes a while.
    let mut client = site.start(r#"{"duration": 2}"#, script).await;
    let received = client.rest().await;
    let verbs: Vec<_> = received.iter().map(|one| one.verb.as_str()).collect();
    assert_eq!(verbs, ["output", "result", "complete"]);
    assert_eq!(received[1].bytes, b"partial\n");
    assert_eq!(received[2].error(), "time limit (2 s)");
    site.until_empty().await;
}

/// Whether a program runs in this folder of a pool.
fn runs(base: &Path) -> bool {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let expected = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let base = base.to_str().unwrap();
    expected.into_iter().any(|expected| String::from_utf8_lossy(&expected).contains(base))
}

/// A backend that was paused for six seconds reported a time limit for a program that had long ended by itself, and
/// all later estimates included those six seconds.
#[tokio::test]
async fn a_paused_pool_does_not_stop_programs() {
    let site = TestPool::new(1, "").await;
    let usual = site.status().await.stop_seconds_p95;
    let base = site.pool.backends().folder().to_owned();
    let stand_still = async || {
        pause();
        advance(Duration::from_secs(6)).await;
        resume();
    };
    for moment in ["before the start", "while it runs", "after its end"] {
        for _ in 0..3 {
            let script = "echo made > result.txt; sleep 0.1";
            let mut client = site.start(r#"{"duration": 2}"#, script).await;
            match moment {
                "before the start" => _ = site.until(|status| status.running == 1).await,
                "while it runs" => _ = client.until("output").await,
                _ => {
                    client.until("output").await;
                    // The pool is served by this thread alone, so it is paused.
                    while runs(&base) {
                        std::thread::yield_now();
                    }
                }
            }
            stand_still().await;
            let received = client.rest().await;
            assert_eq!(received.last().unwrap().error(), "", "{moment}: {received:?}");
        }
    }
    site.until_empty().await;
    let status = site.status().await;
    assert_eq!(status.stop_seconds_p95, usual);
    assert!(status.counts.classes[0].ran_seconds < 9.0 * 6.0, "{status:#?}");
}

/// Messages contained all digits of a third of a second.
#[tokio::test]
async fn numbers_in_errors_are_rounded() {
    let site = TestPool::new(1, "").await;
    let mut client = site.start(r#"{"duration": 0.33333333}"#, "exec sleep 1000").await;
    assert_eq!(client.until("complete").await.error(), "time limit (0.333 s)");
}

#[tokio::test]
async fn a_program_that_ignores_sigterm_is_killed() {
    let site = TestPool::new(1, "limits: {kill_after_seconds: 0.1}").await;
    let script = "trap '' TERM INT; while true; do sleep 1; done";
    let mut client = site.start(r#"{"duration": 0.2}"#, script).await;
    assert_eq!(client.until("complete").await.error(), "time limit (0.2 s)");
    site.until_empty().await;
}

/// Inside bubblewrap SIGTERM never reached the program: it was killed at once.
#[tokio::test]
async fn a_program_may_write_output_after_sigterm() {
    for isolation in ["", "sandbox: none"] {
        let more = format!("limits: {{kill_after_seconds: 50}}\n{isolation}");
        let site = TestPool::new(1, &more).await;
        let script = "trap 'echo late > result.txt; echo bye; exit 3' TERM; echo up\n\
                      while true; do sleep 0.05; done";
        let mut client = site.start(r#"{"duration": 20}"#, script).await;
        client.until_output("up").await;
        client.send(r#"options {"duration": 0}"#).await;
        client.until_output("bye").await;
        assert_eq!(client.until("result").await.bytes, b"late\n");
        assert_eq!(client.until("complete").await.error(), "time limit (0 s)");
        site.until_empty().await;
    }
}

/// The same inside bubblewrap, where the program has its own signals.
#[tokio::test]
async fn a_sandboxed_program_that_ignores_sigterm_is_killed_after_its_delay() {
    let site = TestPool::new(1, "limits: {kill_after_seconds: 0.3}").await;
    let script = "trap 'echo no' TERM; echo up; while true; do sleep 0.01; done";
    let mut client = site.start(r#"{"duration": 20}"#, script).await;
    client.until_output("up").await;
    client.send(r#"options {"duration": 0}"#).await;
    client.until_output("no").await;
    assert_eq!(client.until("complete").await.error(), "time limit (0 s)");
    site.until_empty().await;
}

#[tokio::test]
async fn a_client_may_lower_the_duration_of_a_running_task() {
    let site = TestPool::new(1, "").await;
    let mut client = site.start(r#"{"duration": 20}"#, "echo up; exec sleep 1000").await;
    client.until_output("up").await;
    client.send(r#"options {"duration": 25}"#).await;
    let status = client.until("status").await;
    assert_eq!(status.body["announcement"], "the duration can only be lowered");
    client.send(r#"options {"duration": 0}"#).await;
    assert_eq!(client.until("complete").await.error(), "time limit (0 s)");
}

#[tokio::test]
async fn endless_output_is_cut() {
    let site = TestPool::new(1, "limits: {output_bytes_max: 100000}").await;
    let mut client = site.start("{}", "exec yes").await;
    let received = client.rest().await;
    let size: usize = received.iter().map(|one| one.bytes.len()).sum();
    assert_eq!(size, 100_000);
    assert_eq!(received.last().unwrap().error(), "output limit");
    site.until_empty().await;
}

/// Output of a program that writes continuously was sent by a timer, so frames contained what it wrote in a
/// millisecond, and eight of them were buffered for each slow client.
#[tokio::test]
async fn frames_have_a_bounded_size() {
    let site = TestPool::new(1, "limits: {output_bytes_max: 100000000}").await;
    let mut client = site.start("{}", "head -c 20000000 /dev/zero; echo x > result.txt").await;
    let received = client.rest().await;
    assert_eq!(received.last().unwrap().error(), "");
    let sizes = received.iter().filter(|one| one.verb == "output").map(|one| one.bytes.len());
    assert_eq!(sizes.clone().sum::<usize>(), 20_000_000);
    // The last one contains the rest of the pipe.
    assert!(sizes.max().unwrap() <= 128 << 10);
}

#[tokio::test]
async fn too_much_input_is_refused() {
    let site = TestPool::new(1, "limits: {input_bytes_max: 1000, input_files_max: 2}").await;
    let mut client = site.client().await;
    client.file("a.sh", &"x".repeat(600)).await;
    client.file("b.sh", &"x".repeat(600)).await;
    let error = client.until("deny").await.error().to_string();
    assert_eq!(error, "the input is larger than 1000 bytes");
    let mut client = site.client().await;
    for name in ["a.sh", "b.sh", "c.sh"] {
        client.file(name, "").await;
    }
    let error = client.until("deny").await.error().to_string();
    assert_eq!(error, "more than 2 files");
    site.until_empty().await;
}

#[tokio::test]
async fn a_result_that_is_too_large_is_not_sent() {
    let site = TestPool::new(1, "limits: {result_bytes_max: 10}").await;
    let answer = site.run("echo much too much > result.txt").await;
    let error = answer["error"]["error"].as_str().unwrap();
    assert_eq!(error, "cannot read the result: the result is larger than 10 bytes");
}

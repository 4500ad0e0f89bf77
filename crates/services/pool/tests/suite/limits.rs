//! Time, output and input have limits.

use std::path::Path;
use std::time::Duration;

use tokio::time::{advance, pause, resume};

use crate::rig::Site;

#[tokio::test]
async fn a_program_is_stopped_when_its_time_is_over_and_what_it_made_is_kept() {
    let site = Site::new(1, "").await;
    let script = "echo partial > result.txt; exec sleep 1000";
    // On a busy machine even that takes a while.
    let mut client = site.start(r#"{"duration": 2}"#, script).await;
    let heard = client.rest().await;
    let verbs: Vec<_> = heard.iter().map(|one| one.verb.as_str()).collect();
    assert_eq!(verbs, ["output", "result", "complete"]);
    assert_eq!(heard[1].bytes, b"partial\n");
    assert_eq!(heard[2].error(), "time limit (2 s)");
    site.until_empty().await;
}

/// Whether a program runs in this folder of a pool.
fn runs(base: &Path) -> bool {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let words = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let base = base.to_str().unwrap();
    words.into_iter().any(|words| String::from_utf8_lossy(&words).contains(base))
}

/// A backend that was stopped for six seconds told the client of a program that had long ended by itself of its time
/// limit, and from then on all estimates had those six seconds on top.
#[tokio::test]
async fn a_pool_that_stood_still_blames_no_program() {
    let site = Site::new(1, "").await;
    let usual = site.status().await.ending_seconds;
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
                    // The pool is served by this thread alone, so it notices nothing.
                    while runs(&base) {
                        std::thread::yield_now();
                    }
                }
            }
            stand_still().await;
            let heard = client.rest().await;
            assert_eq!(heard.last().unwrap().error(), "", "{moment}: {heard:?}");
        }
    }
    site.until_empty().await;
    let status = site.status().await;
    assert_eq!(status.ending_seconds, usual);
    assert!(status.counts.classes[0].ran_seconds < 9.0 * 6.0, "{status:#?}");
}

/// Clients were told of all the digits that a third of a second has.
#[tokio::test]
async fn numbers_in_errors_are_rounded() {
    let site = Site::new(1, "").await;
    let mut client = site.start(r#"{"duration": 0.33333333}"#, "exec sleep 1000").await;
    assert_eq!(client.until("complete").await.error(), "time limit (0.333 s)");
}

#[tokio::test]
async fn a_program_that_does_not_want_to_end_is_killed() {
    let site = Site::new(1, "limits: {kill_after_seconds: 0.1}").await;
    let script = "trap '' TERM INT; while true; do sleep 1; done";
    let mut client = site.start(r#"{"duration": 0.2}"#, script).await;
    assert_eq!(client.until("complete").await.error(), "time limit (0.2 s)");
    site.until_empty().await;
}

/// Inside bubblewrap the request to end never came to the program: it was killed at once.
#[tokio::test]
async fn a_program_that_is_asked_to_end_may_say_what_it_has() {
    for isolation in ["isolation: {bubblewrap: true}", "isolation: {bubblewrap: false}"] {
        let more = format!("limits: {{kill_after_seconds: 50}}\n{isolation}");
        let site = Site::new(1, &more).await;
        let script = "trap 'echo late > result.txt; echo bye; exit 3' TERM; echo up\n\
                      while true; do sleep 0.05; done";
        let mut client = site.start(r#"{"duration": 20}"#, script).await;
        client.until_output("up").await;
        client.say(r#"options {"duration": 0}"#).await;
        client.until_output("bye").await;
        assert_eq!(client.until("result").await.bytes, b"late\n");
        assert_eq!(client.until("complete").await.error(), "time limit (0 s)");
        site.until_empty().await;
    }
}

/// The same inside bubblewrap, where the signals of the program are its own.
#[tokio::test]
async fn one_that_does_not_hear_is_killed_after_the_time_it_has() {
    let site = Site::new(1, "limits: {kill_after_seconds: 0.3}").await;
    let script = "trap 'echo no' TERM; echo up; while true; do sleep 0.01; done";
    let mut client = site.start(r#"{"duration": 20}"#, script).await;
    client.until_output("up").await;
    client.say(r#"options {"duration": 0}"#).await;
    client.until_output("no").await;
    assert_eq!(client.until("complete").await.error(), "time limit (0 s)");
    site.until_empty().await;
}

#[tokio::test]
async fn a_client_may_lower_its_time_while_the_program_runs() {
    let site = Site::new(1, "").await;
    let mut client = site.start(r#"{"duration": 20}"#, "echo up; exec sleep 1000").await;
    client.until_output("up").await;
    client.say(r#"options {"duration": 25}"#).await;
    let status = client.until("status").await;
    assert_eq!(status.body["announcement"], "the duration can only be lowered");
    client.say(r#"options {"duration": 0}"#).await;
    assert_eq!(client.until("complete").await.error(), "time limit (0 s)");
}

#[tokio::test]
async fn endless_output_ends() {
    let site = Site::new(1, "limits: {output_bytes_max: 100000}").await;
    let mut client = site.start("{}", "exec yes").await;
    let heard = client.rest().await;
    let size: usize = heard.iter().map(|one| one.bytes.len()).sum();
    assert_eq!(size, 100_000);
    assert_eq!(heard.last().unwrap().error(), "output limit");
    site.until_empty().await;
}

/// What was gathered from a program that writes on and on went by a timer, so frames had as much as it wrote in a
/// millisecond, and eight of them waited for each slow client.
#[tokio::test]
async fn a_frame_does_not_grow_while_a_program_writes() {
    let site = Site::new(1, "limits: {output_bytes_max: 100000000}").await;
    let mut client = site.start("{}", "head -c 20000000 /dev/zero; echo x > result.txt").await;
    let heard = client.rest().await;
    assert_eq!(heard.last().unwrap().error(), "");
    let sizes = heard.iter().filter(|one| one.verb == "output").map(|one| one.bytes.len());
    assert_eq!(sizes.clone().sum::<usize>(), 20_000_000);
    // The last one has what was still in the pipe.
    assert!(sizes.max().unwrap() <= 128 << 10);
}

#[tokio::test]
async fn too_much_input_is_refused() {
    let site = Site::new(1, "limits: {input_bytes_max: 1000, input_files_max: 2}").await;
    let mut client = site.client().await;
    client.file("a.sh", &"x".repeat(600)).await;
    client.file("b.sh", &"x".repeat(600)).await;
    let error = client.until("deny").await.error().to_string();
    assert_eq!(error, "the input has more than 1000 bytes, the most there is");
    let mut client = site.client().await;
    for name in ["a.sh", "b.sh", "c.sh"] {
        client.file(name, "").await;
    }
    let error = client.until("deny").await.error().to_string();
    assert_eq!(error, "there are more than 2 files, the most there is");
    site.until_empty().await;
}

#[tokio::test]
async fn a_result_that_is_too_large_is_not_sent() {
    let site = Site::new(1, "limits: {result_bytes_max: 10}").await;
    let answer = site.run("echo much too much > result.txt").await;
    let error = answer["error"]["error"].as_str().unwrap();
    assert_eq!(error, "cannot read the result: the result has more than 10 bytes");
}

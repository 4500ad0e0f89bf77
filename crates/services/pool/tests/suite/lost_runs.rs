//! A killed program or backend requeues its task, or its client receives an error.

use std::sync::Arc;

use taskyard_pool::Config;
use taskyard_pool::backend::TaskSpec;
use taskyard_pool::protocol::{Options, StartHead};
use taskyard_pool::scheduler::TaskEvent;

use crate::fixture::{PROGRAMS, TestPool};

#[tokio::test]
async fn a_program_that_is_killed_every_time_is_given_up() {
    let site = TestPool::new(1, "").await;
    let mut client = site.start("{}", "kill -9 $$").await;
    let end = client.until("complete").await;
    assert_eq!(end.error(), "the program was killed by signal 9");
    assert_eq!(site.status().await.counts.requeued, 2);
    site.until_empty().await;
}

/// Bubblewrap reports a kill as status 137, and a program may exit with that by itself: its client received the error
/// that the backend was lost and never saw the result; later the program was run three times.
#[tokio::test]
async fn a_status_that_looks_like_a_kill_is_reported_with_output_and_result() {
    for isolation in ["", "sandbox: none"] {
        let site = TestPool::new(1, isolation).await;
        for code in [137, 143] {
            let script = format!("echo part > result.txt; exit {code}");
            let mut client = site.start("{}", &script).await;
            assert_eq!(client.until("result").await.bytes, b"part\n");
            let end = client.until("complete").await;
            assert_eq!(end.error(), format!("the program exited with status {code}"));
            let script = format!("echo seen; echo part > result.txt; exit {code}");
            let answer = site.run(&script).await;
            assert_eq!(answer["error"]["output"][0]["text"], "seen\n", "{answer}");
            assert!(answer["error"]["result"].is_string(), "{answer}");
        }
        let counts = site.status().await.counts;
        assert_eq!((counts.requeued, counts.lost), (0, 0));
        site.until_empty().await;
    }
}

#[tokio::test]
async fn a_task_whose_output_was_seen_does_not_run_again() {
    let site = TestPool::new(1, "").await;
    let mut client = site.start("{}", "echo seen; exec sleep 1000").await;
    client.until_output("seen").await;
    site.pool.backends().fail_backend(0).await.unwrap();
    let end = client.until("complete").await;
    assert_eq!(end.error(), "the program or its backend was killed");
    assert_eq!(site.status().await.counts.requeued, 0);
    site.until_empty().await;
}

#[tokio::test]
async fn a_task_whose_backend_fails_waits_at_its_old_position_and_runs_again() {
    let site = TestPool::new(1, "").await;
    let mut first = site.start(r#"{"duration": 30}"#, "exec sleep 1000").await;
    first.until("output").await;
    let mut second = site.start(r#"{"duration": 30}"#, "exec sleep 1000").await;
    assert_eq!(second.until("queue").await.body["ahead"], 0);
    site.pool.backends().fail_backend(0).await.unwrap();
    let position = first.until("queue").await.body;
    assert_eq!((&position["ahead"], &position["reason"]), (&0.into(), &"no_backend".into()));
    assert!(position["estimate"].is_null());
    site.until(|status| status.queued == 2).await;
    site.pool.backends().restore_backend(0).await.unwrap();
    first.until("output").await;
    assert_eq!(site.status().await.queued, 1);
    drop((first, second));
    site.until_empty().await;
}

/// Output that was buffered for a client counted as seen only when the client took it. A task that was killed in
/// between ran again, and its client got the output of both runs.
#[tokio::test]
async fn output_on_its_way_to_the_client_counts_as_seen() {
    let site = TestPool::new(1, "").await;
    let config = Config::parse(&format!("backends: 1\n{PROGRAMS}")).unwrap();
    let program = Arc::new(config.programs["sh"].clone());
    let files = vec![("a.sh".to_owned(), b"echo seen; exec sleep 1000".to_vec())];
    let spec = TaskSpec::new(program, files, &Options::default(), &StartHead::default(), false);
    let spec = Arc::new(spec.unwrap());
    let mut queued = site.pool.scheduler().submit(spec.ask, Arc::default()).await.unwrap();
    let Some(TaskEvent::Start(allocation)) = queued.events.recv().await else {
        panic!("it starts")
    };
    let running = site.pool.backends().run(allocation, spec);
    // The first frame says that it runs, the second is the output.
    while running.frames.len() < 2 {
        tokio::task::yield_now().await;
    }
    site.pool.backends().fail_backend(0).await.unwrap();
    let ended = site.until(|status| status.counts.lost + status.counts.requeued == 1).await;
    assert_eq!(ended.counts.requeued, 0);
    assert!(matches!(queued.events.recv().await, Some(TaskEvent::Lost)));
}

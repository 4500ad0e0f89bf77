//! The path of a task from its gateway through the scheduler to a backend and back.

use std::time::Duration;

use super::fixture::{GatewayAddress, RedisFixture};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_runs_on_another_machine_and_its_output_and_result_come_back() {
    let Some(fixture) = RedisFixture::new(2, "") else { return };
    let (_scheduler, _backends, gateway) =
        (fixture.scheduler("one"), fixture.backends().await, fixture.gateway().await);
    let answer = gateway.run("echo out; echo made > result.txt").await;
    assert_eq!(answer["ok"]["output"][0]["text"], "out\n", "{answer}");
    assert_eq!(answer["ok"]["result"], "bWFkZQo=", "{answer}");
    let answer = gateway.run("exit 3").await;
    assert_eq!(answer["error"]["error"], "the program exited with status 3", "{answer}");
    fixture.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_task_gets_an_estimate_and_a_client_that_leaves_frees_its_slot() {
    // Long enough for a busy machine.
    let classes =
        "classes: [{name: fast, seconds: 3, limit: 100%}, {name: slow, seconds: 300, limit: 100%}]";
    let Some(fixture) = RedisFixture::new(1, classes) else { return };
    let (_scheduler, _backends, gateway) =
        (fixture.scheduler("one"), fixture.backends().await, fixture.gateway().await);
    let mut first = gateway.start(r#"{"duration": 300}"#, "echo up; exec sleep 1000").await;
    first.until_output("up").await;
    let mut second = gateway.start(r#"{"duration": 3}"#, "echo x > result.txt").await;
    let position = second.until("queue").await.body;
    assert_eq!((&position["ahead"], &position["reason"]), (&0.into(), &"limit_reached".into()));
    assert!(position["estimate"].as_f64().unwrap() > 200.0, "{position}");
    drop(first);
    assert_eq!(second.until("result").await.bytes, b"x\n");
    assert_eq!(second.until("complete").await.error(), "");
    fixture.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_works_through_two_machines_and_is_halted_for_a_waiting_task() {
    let Some(fixture) = RedisFixture::new(1, "") else { return };
    let (_scheduler, _backends, gateway) =
        (fixture.scheduler("one"), fixture.backends().await, fixture.gateway().await);
    fixture.until(|status| status["backends"] == 1 && status["paused"] == false).await;
    let mut session = gateway.session().await;
    session.until("output").await;
    session.stdin("hello\n").await;
    session.until_output("hello").await;
    let mut denied = gateway.session().await;
    assert!(denied.until("deny").await.error().starts_with("all backends are busy"));
    let mut task = gateway.start("{}", "echo x > result.txt").await;
    assert_eq!(session.until("complete").await.error(), "halted: a waiting task needs its backend");
    assert_eq!(task.until("result").await.bytes, b"x\n");
    drop((session, denied, task));
    fixture.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_default_task_is_lowered_and_a_client_may_lower_its_own() {
    let classes = "classes: [{name: fast, seconds: 0.2, limit: 100%}, {name: slow, seconds: 60, limit: 100%}]";
    let Some(fixture) = RedisFixture::new(1, classes) else { return };
    let (_scheduler, _backends, gateway) =
        (fixture.scheduler("one"), fixture.backends().await, fixture.gateway().await);
    let mut first = gateway.start("{}", "echo up; exec sleep 1000").await;
    first.until_output("up").await;
    let mut second = gateway.start(r#"{"duration": 50}"#, "echo up; exec sleep 1000").await;
    assert_eq!(first.until("complete").await.error(), "time limit (0.2 s)");
    second.until_output("up").await;
    second.send(r#"options {"duration": 55}"#).await;
    let refused = second.until("status").await;
    assert_eq!(refused.body["announcement"], "the duration can only be lowered");
    second.send(r#"options {"duration": 0}"#).await;
    assert_eq!(second.until("complete").await.error(), "time limit (0 s)");
    fixture.until_empty().await;
}

/// Tasks that end before their gateway has connected: their frames wait for it. A message for the gateway between a
/// frame and its bytes made it lose the frame, and its client received the error that the backend was killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_that_end_at_once_all_succeed() {
    let Some(fixture) = RedisFixture::new(16, "") else { return };
    let (_scheduler, _backends) = (fixture.scheduler("one"), fixture.stubs(Duration::ZERO).await);
    let gateway = fixture.gateway().await;
    fixture.until(|status| status["backends"] == 16 && status["paused"] == false).await;
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..32 {
        let far = GatewayAddress::clone(&gateway);
        clients.spawn(async move {
            for _ in 0..10 {
                let answer = far.run("").await;
                assert_eq!(answer["ok"]["output"][0]["text"], "done\n", "{answer}");
            }
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    let counts = &fixture.status().await["counts"];
    assert_eq!((&counts["requeued"], &counts["lost"]), (&0.into(), &0.into()));
    fixture.until_empty().await;
}

//! Retry policies of tubes: tasks that fail without an explicit delay follow them.

use std::time::Duration;

use taskyard::State;
use taskyard_core::{Command, Execute, RetryPolicy, Span, TaskId, TubeChange, TubeName};
use taskyard_testkit::server::block_on;
use taskyard_worker::testing::TestKit;
use taskyard_worker::{BatchOutcome, Dispatcher, Handler, HandlerStats, RawTask, Worker};

use crate::recording_handler::{Act, RecordingHandler, client, put_poison};

/// Gives the tube a policy of 100 s, 300 s, 900 s, without jitter.
async fn set_policy(kit: &TestKit, tube: &str) {
    let policy = RetryPolicy {
        delay: Span::from_secs(100),
        factor_permille: 3_000,
        delay_max: Span::from_secs(900),
        jitter_permille: 0,
        retry_lost: false,
    };
    let change = TubeChange { retry: Some(Some(Box::new(policy))), ..TubeChange::default() };
    let alter = Command::AlterTube { tube: TubeName::new(tube).unwrap(), change };
    kit.queue().execute(vec![alter]).await.remove(0).unwrap();
}

/// How many seconds the task waits from now.
async fn waits(kit: &TestKit, worker: &Worker, tube: &str, id: u64) -> f64 {
    let task = client(kit).peek(tube, TaskId(id)).await.unwrap().unwrap().task;
    assert_eq!(task.state, State::Delayed);
    task.due.unwrap().since(worker.store().now()).as_secs_f64()
}

/// A handler whose tasks fail.
fn failing() -> Dispatcher {
    let handler = Handler::raw(|_, store, tasks: Vec<RawTask>| async move {
        let mut outcome = BatchOutcome::new(&store);
        for RawTask { delivery, .. } in &tasks {
            outcome.retry(delivery.task_id, delivery.attempts, "no route");
        }
        outcome.commit().await
    });
    let idle = Handler::raw(|_, _, _| async { Ok(HandlerStats::default()) });
    Dispatcher::new([]).with_queue(7, "orders", handler).with_queue(1, "emails", idle)
}

#[test]
fn a_retried_task_follows_the_policy() {
    block_on(async {
        let kit = TestKit::new();
        let worker = kit.worker(failing()).build().unwrap();
        worker.init().await.unwrap();
        set_policy(&kit, "orders").await;
        client(&kit).put("orders", "x").await.unwrap();
        let running = kit.start(&worker).await;
        kit.wait_until("orders", |tube| tube.stats.tasks.delayed == 1).await;
        assert_eq!(waits(&kit, &worker, "orders", 0).await, 100.0);
        kit.advance(Duration::from_secs(100));
        kit.wait_until("orders", |tube| tube.stats.calls.release == 2).await;
        assert_eq!(waits(&kit, &worker, "orders", 0).await, 300.0);
        running.stop().await;
    });
}

#[test]
fn without_a_policy_the_delay_is_the_backoff() {
    block_on(async {
        let kit = TestKit::new();
        let worker = kit.worker(failing()).build().unwrap();
        let running = kit.start(&worker).await;
        client(&kit).put("orders", "x").await.unwrap();
        kit.wait_until("orders", |tube| tube.stats.tasks.delayed == 1).await;
        assert_eq!(waits(&kit, &worker, "orders", 0).await, 1.0);
        running.stop().await;
    });
}

#[test]
fn poison_follows_the_policy() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Done));
        let worker = recorder.worker(&kit).build().unwrap();
        worker.init().await.unwrap();
        set_policy(&kit, "emails").await;
        put_poison(&kit).await;
        let running = kit.start(&worker).await;
        kit.wait_until("emails", |tube| tube.stats.tasks.delayed == 1).await;
        assert_eq!(waits(&kit, &worker, "emails", 0).await, 100.0);
        running.stop().await;
    });
}

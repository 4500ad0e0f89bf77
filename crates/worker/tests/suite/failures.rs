//! Failures: a test for each row of the failure matrix in docs/workers.md.

use std::time::Duration;

use taskyard::{NewTask, State, TubeChange, new_task};
use taskyard_core::{Error, TaskId};
use taskyard_worker::testing::TestKit;
use taskyard_worker::{Metrics, PoisonPolicy, Settings, Worker};

use crate::faulty_queue::{Fault, FaultyQueue};
use crate::recording_handler::{Act, RecordingHandler, client, metric, notify, put, put_poison};
use taskyard_testkit::server::block_on;

const VISIBILITY: Duration = Duration::from_secs(60);

/// Runs a handler that does `act` with one e-mail; returns the metrics after its batch, and the kit and the recorder.
async fn after(act: Act) -> (TestKit, RecordingHandler, String) {
    let (kit, recorder) = (TestKit::new(), RecordingHandler::new(act));
    let worker = recorder.worker(&kit).build().unwrap();
    let running = kit.start(&worker).await;
    put(kit.queue(), "ann").await;
    recorder.started().await;
    // The next batch starts after the first.
    recorder.set_act(Act::Done);
    kit.wait_until("emails", |tube| tube.stats.tasks.taken <= 1).await;
    let text = loop {
        let text = worker.metrics().text();
        if metric(&text, "queue_job_processor_cycle_duration_seconds_count{queue_num=\"1\"}") > 0.0
        {
            break text;
        }
        tokio::task::yield_now().await;
    };
    // The worker continues.
    put(kit.queue(), "ben").await;
    kit.wait_until("emails", |tube| tube.stats.calls.ack >= 1).await;
    running.crash().await;
    (kit, recorder, text)
}

/// Checks that an unsettled task returns when its lease ends, with one more attempt.
async fn returns_after_its_lease(kit: &TestKit) {
    let task = || async { client(kit).peek("emails", TaskId(0)).await.unwrap().unwrap() };
    assert_eq!(task().await.task.state, State::Taken, "it must not be retried at once");
    kit.advance(VISIBILITY - Duration::from_secs(1));
    assert_eq!(task().await.task.state, State::Taken);
    kit.advance(Duration::from_secs(1));
    kit.wait_until("emails", |tube| tube.stats.tasks.ready == 1).await;
    assert_eq!(task().await.attempts(), 1);
}

#[test]
fn a_failed_batch_returns_after_its_lease() {
    block_on(async {
        let (kit, _, text) = after(Act::Fail).await;
        assert_eq!(metric(&text, "queue_handler_errors_total{queue_num=\"1\"}"), 1.0);
        assert_eq!(metric(&text, "queue_tasks_in_progress{queue_num=\"1\"}"), 0.0);
        returns_after_its_lease(&kit).await;
    });
}

/// Upstream a panic ended the whole process.
#[test]
fn a_panicked_batch_returns_after_its_lease() {
    block_on(async {
        let (kit, recorder, text) = after(Act::Panic).await;
        assert_eq!(metric(&text, "queue_handler_panics_total{queue_num=\"1\"}"), 1.0);
        assert_eq!(metric(&text, "queue_tasks_in_progress{queue_num=\"1\"}"), 0.0);
        assert_eq!(recorder.receivers(), ["ann", "ben"], "the processor continues");
        returns_after_its_lease(&kit).await;
    });
}

#[test]
fn unsettled_tasks_return_after_their_lease() {
    block_on(async {
        let (kit, _, text) = after(Act::LeaveUnsettled).await;
        assert_eq!(metric(&text, "queue_tasks_unsettled_total{queue_num=\"1\"}"), 1.0);
        returns_after_its_lease(&kit).await;
    });
}

#[test]
fn counts_larger_than_the_batch_are_limited() {
    block_on(async {
        let (_, _, text) = after(Act::Overreport).await;
        assert_eq!(metric(&text, "queue_tasks_processed_total{queue_num=\"1\"}"), 1.0);
    });
}

/// Upstream one payload that could not be decoded failed its whole batch, forever.
#[test]
fn poison_does_not_stop_the_rest_of_its_batch() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Done));
        let worker = recorder.worker(&kit).build().unwrap();
        worker.init().await.unwrap();
        put(kit.queue(), "ann").await;
        put_poison(&kit).await;
        put(kit.queue(), "ben").await;
        let running = kit.start(&worker).await;
        kit.wait_drained("emails").await;
        assert_eq!(recorder.receivers(), ["ann", "ben"]);
        let poison = || async { client(&kit).peek("emails", TaskId(1)).await.unwrap().unwrap() };
        assert_eq!(poison().await.task.state, State::Delayed);
        for (attempts, seconds) in [(2, 1), (3, 2), (4, 4)] {
            kit.advance(Duration::from_secs(seconds));
            kit.wait_until("emails", |tube| tube.stats.calls.release >= attempts).await;
            assert_eq!(u64::from(poison().await.attempts()), attempts, "with growing delays");
        }
        let text = worker.metrics().text();
        assert_eq!(metric(&text, "queue_tasks_poison_total{queue_num=\"1\"}"), 4.0);
        running.stop().await;
    });
}

/// Puts a payload that cannot be decoded and lets a worker try it until it is buried; returns how often. `attempts_max` of the
/// tube and of the task.
async fn tries_until_buried(of_tube: Option<u32>, of_task: Option<u32>) -> u64 {
    let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Done));
    let worker = recorder.worker(&kit).build().unwrap();
    worker.init().await.unwrap();
    let change = TubeChange { attempts_max: Some(of_tube), ..TubeChange::default() };
    client(&kit).alter("emails", change).await.unwrap();
    let poison = NewTask { attempts_max: of_task, ..new_task(&("a", 7)).unwrap() };
    let id = client(&kit).put_task("emails", poison).await.unwrap();
    let running = kit.start(&worker).await;
    let mut tries = 0;
    let task = loop {
        tries += 1;
        kit.wait_until("emails", |tube| {
            tube.stats.calls.take == tries && tube.stats.tasks.taken == 0
        })
        .await;
        let task = client(&kit).peek("emails", id).await.unwrap().unwrap().task;
        if task.state == State::Buried {
            break task;
        }
        assert_eq!(task.state, State::Delayed, "it must not return at once");
        kit.advance(Duration::from_secs(3600));
    };
    let failures = task.failures.unwrap();
    let last = failures.iter().last().unwrap();
    assert_eq!(&*last.error, "cannot decode the payload: subject: not a text");
    assert_eq!(u64::from(last.attempt), tries);
    assert!(recorder.mails().is_empty());
    running.stop().await;
    tries
}

/// A payload that could not be decoded was tried forever, once an hour, unless the tube limited the attempts.
#[test]
fn poison_is_buried_with_its_error_after_its_attempts() {
    block_on(async {
        assert_eq!(tries_until_buried(None, None).await, 10, "without a limit");
        assert_eq!(tries_until_buried(Some(3), None).await, 3, "the limit of the tube");
        assert_eq!(tries_until_buried(Some(12), None).await, 12);
        assert_eq!(tries_until_buried(None, Some(2)).await, 2, "the limit of the task");
        assert_eq!(tries_until_buried(Some(3), Some(12)).await, 12, "which wins");
        assert_eq!(tries_until_buried(None, Some(1)).await, 1);
    });
}

/// The worker asks for the limits before it buries: when it gets no answer, it buries, and the rest of the batch is handled.
#[test]
fn poison_is_buried_when_its_limits_are_unknown() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Done));
        let queue = FaultyQueue::new(kit.queue().clone());
        let worker = Worker::builder("test", queue.clone(), recorder.handlers());
        let worker = worker.timer(kit.timer()).build().unwrap();
        let running = kit.start(&worker).await;
        put_poison(&kit).await;
        for tries in 1..10 {
            kit.wait_until("emails", |tube| tube.stats.calls.release == tries).await;
            kit.advance(Duration::from_secs(3600));
            if tries == 8 {
                let denied = || Fault::Refuse(Error::Invalid("access denied".into()));
                queue.fail_next("tubes", 1, denied());
                queue.fail_next("peek", 1, denied());
            }
        }
        put(kit.queue(), "ann").await;
        kit.wait_until("emails", |tube| tube.stats.tasks.buried == 1).await;
        kit.wait_until("emails", |tube| tube.stats.calls.ack == 1).await;
        assert_eq!((recorder.receivers(), queue.faults()), (vec!["ann".into()], 2));
        running.stop().await;
    });
}

#[test]
fn poison_can_be_dropped() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Done));
        let settings = Settings { poison: PoisonPolicy::Drop, ..Settings::default() };
        let worker = recorder.worker(&kit).settings(settings).build().unwrap();
        let running = kit.start(&worker).await;
        put_poison(&kit).await;
        kit.wait_until("emails", |tube| tube.stats.calls.ack == 1).await;
        assert_eq!(kit.tube("emails").await.stats.tasks.total(), 0);
        assert!(recorder.mails().is_empty());
        running.stop().await;
    });
}

#[test]
fn a_slow_cycle_is_counted() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Wait));
        let worker = recorder.worker(&kit).build().unwrap();
        let running = kit.start(&worker).await;
        for seconds in [10, 11] {
            put(kit.queue(), "ann").await;
            recorder.started().await;
            kit.advance(Duration::from_secs(seconds));
            recorder.gate.add_permits(1);
            kit.wait_drained("emails").await;
        }
        running.stop().await;
        let text = worker.metrics().text();
        assert_eq!(metric(&text, "queue_slow_cycles_total{queue_num=\"1\"}"), 1.0);
        let sum = metric(&text, "queue_job_processor_cycle_duration_seconds_sum{queue_num=\"1\"}");
        assert!((21.0..22.0).contains(&sum), "{sum}");
    });
}

/// Three processors and one queue whose takes fail: one of them retries after 0.1 s, 0.2 s, 0.4 s, and the other queue is
/// not affected.
#[test]
fn a_failing_queue_is_paused_and_the_others_continue() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Done));
        let faulty = FaultyQueue::new(kit.queue().clone());
        let settings = Settings { max_processors: 3, ..Settings::default() };
        let worker =
            Worker::builder("test", faulty.clone(), recorder.handlers()).timer(kit.timer());
        let worker = worker.settings(settings).build().unwrap();
        worker.init().await.unwrap();
        put(kit.queue(), "ann").await;
        faulty.fail_next_of(
            "emails",
            "take",
            usize::MAX,
            Fault::Refuse(Error::Store("broken".into())),
        );
        let running = kit.start(&worker).await;
        let failures =
            || metric(&worker.metrics().text(), "queue_store_errors_total{queue_num=\"1\"}");
        while failures() == 0.0 {
            tokio::task::yield_now().await;
        }
        // All takes that were sent at the same time are answered when the other queue was served.
        notify(kit.queue(), "x").await;
        kit.wait_until("notifications", |tube| tube.stats.calls.ack == 1).await;
        let first = faulty.faults();
        assert!(first <= 3, "{first}");
        // A fifth longer by jitter.
        for (retry, millis) in [(1, 120), (2, 240), (3, 480)] {
            notify(kit.queue(), "x").await;
            kit.wait_until("notifications", |tube| tube.stats.calls.ack == retry + 1).await;
            assert_eq!(
                faulty.faults(),
                first + retry as usize - 1,
                "not before the end of the pause"
            );
            kit.advance(Duration::from_millis(millis));
            faulty.wait_for_faults(first + retry as usize).await;
        }
        assert!(recorder.mails().is_empty());
        faulty.clear_faults();
        kit.advance(Duration::from_secs(1));
        kit.wait_drained("emails").await;
        assert_eq!(recorder.receivers(), ["ann"]);
        running.stop().await;
    });
}

/// A handler that runs longer than the visibility timeout keeps its tasks.
#[test]
fn the_lease_of_a_long_batch_is_extended() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Wait));
        let worker = recorder.worker(&kit).build().unwrap();
        let running = kit.start(&worker).await;
        put(kit.queue(), "ann").await;
        recorder.started().await;
        for beat in 1..=9 {
            kit.advance(VISIBILITY / 3);
            kit.wait_until("emails", |tube| tube.stats.calls.touch >= beat).await;
        }
        recorder.gate.add_permits(1);
        kit.wait_drained("emails").await;
        let tube = kit.tube("emails").await;
        assert_eq!((tube.stats.calls.ack, tube.stats.calls.ttr), (1, 0));
        running.stop().await;
    });
}

/// The first of two deliveries of a task ends after the second has started. Both were registered under the task's number,
/// and the first handler acked the delivery of the second.
#[test]
fn a_stale_delivery_is_fenced() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Wait));
        let metrics = Metrics::default();
        let settings = Settings { max_processors: 2, ..Settings::default() };
        let worker =
            recorder.worker(&kit).settings(settings).metrics(metrics.clone()).build().unwrap();
        let running = kit.start(&worker).await;
        put(kit.queue(), "ann").await;
        recorder.started().await;
        kit.redeliver("emails").await;
        recorder.started().await;
        let attempts: Vec<_> = recorder.mails().iter().map(|mail| mail.attempts).collect();
        assert_eq!(attempts, [0, 1]);
        assert!(recorder.mails()[1].prev_start_time.is_some());
        recorder.gate.add_permits(2);
        kit.wait_drained("emails").await;
        running.stop().await;
        assert_eq!(kit.tube("emails").await.stats.calls.ack, 1);
        assert_eq!(metric(&metrics.text(), "queue_tasks_fenced_total{queue_num=\"1\"}"), 1.0);
    });
}

//! Stopping a worker in every order: handlers finish or are cancelled, batches that were not started are released.

use std::time::Duration;

use taskyard_worker::testing::TestKit;
use taskyard_worker::{InitError, Settings};

use crate::recording_handler::{Act, RecordingHandler, client, metric, notify, put};
use taskyard_testkit::server::block_on;

#[test]
fn a_graceful_stop_waits_for_the_handler_and_takes_no_more() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::WaitUntilCancelled));
        let worker =
            recorder.worker(&kit).settings(Settings { batch_size: 1, ..Settings::default() });
        let worker = worker.build().unwrap();
        let running = kit.start(&worker).await;
        put(kit.queue(), "ann").await;
        put(kit.queue(), "ben").await;
        recorder.started().await;
        let (first, second) = (worker.graceful_stop(), worker.graceful_stop());
        let text = worker.metrics().text();
        assert_eq!(metric(&text, "queue_running_workers"), 1.0);
        recorder.gate.add_permits(1);
        running.stop().await;
        tokio::join!(first, second);
        assert_eq!(recorder.receivers(), ["ann"], "it was not cancelled");
        let tube = kit.tube("emails").await;
        assert_eq!((tube.stats.calls.ack, tube.stats.tasks.ready), (1, 1));
        let text = worker.metrics().text();
        assert_eq!(metric(&text, "queue_running_workers"), 0.0);
        assert_eq!(metric(&text, "queue_running_job_processors"), 0.0);
    });
}

#[test]
fn a_shutdown_cancels_handlers_after_its_deadline() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::WaitUntilCancelled));
        let worker = recorder.worker(&kit).build().unwrap();
        let running = kit.start(&worker).await;
        put(kit.queue(), "ann").await;
        recorder.started().await;
        let stopping = worker.clone();
        let stopping = tokio::spawn(async move { stopping.shutdown(Duration::from_secs(5)).await });
        running.stop().await;
        stopping.await.unwrap().expect("the handler ends when it is cancelled");
        let text = worker.metrics().text();
        assert_eq!(metric(&text, "queue_handler_errors_total{queue_num=\"1\"}"), 1.0);
    });
}

/// Upstream a handler that hangs made Shutdown wait forever.
#[test]
fn a_handler_that_does_not_end_is_abandoned_and_named() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Wait));
        let worker = recorder.worker(&kit).build().unwrap();
        let running = kit.start(&worker).await;
        put(kit.queue(), "ann").await;
        recorder.started().await;
        let stopping = worker.clone();
        let stopping = tokio::spawn(async move { stopping.shutdown(Duration::ZERO).await });
        running.stop().await;
        let error = stopping.await.unwrap().unwrap_err();
        assert_eq!(error.0, ["processor 0 on queue 'emails'"]);
        assert_eq!(kit.tube("emails").await.stats.tasks.taken, 1, "it returns when its lease ends");
    });
}

/// Upstream Shutdown and GracefulStop hang when Run was never called.
#[test]
fn stopping_is_allowed_before_running() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Done));
        let worker = recorder.worker(&kit).build().unwrap();
        worker.graceful_stop().await;
        worker.shutdown(Duration::ZERO).await.unwrap();
        worker.run().await.unwrap();
        assert!(recorder.mails().is_empty());
        assert!(matches!(worker.run().await, Err(InitError::AlreadyRan)));
        worker.graceful_stop().await;
    });
}

/// Tasks that a stopping worker had taken and not started are released without an attempt.
#[test]
fn batches_that_were_not_started_are_released() {
    block_on(async {
        for _ in 0..20 {
            let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Done));
            let worker = recorder.worker(&kit).build().unwrap();
            let running = kit.start(&worker).await;
            put(kit.queue(), "ann").await;
            drop(worker.graceful_stop());
            put(kit.queue(), "ben").await;
            notify(kit.queue(), "x").await;
            running.stop().await;
            for queue in ["emails", "notifications"] {
                let tube = kit.tube(queue).await;
                assert_eq!(tube.stats.tasks.taken, 0, "{queue}");
                let waiting = client(&kit).peek_many(queue, &[0, 1].map(taskyard::TaskId)).await;
                assert!(waiting.unwrap().iter().all(|task| task.attempts() == 0), "{queue}");
            }
        }
    });
}

/// The next worker handles the tasks of a crashed one: nothing is lost.
#[test]
fn a_crash_in_the_middle_of_a_batch_loses_nothing() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Wait));
        let worker = recorder.worker(&kit).build().unwrap();
        let running = kit.start(&worker).await;
        for n in 0..25 {
            put(kit.queue(), &n.to_string()).await;
        }
        recorder.started().await;
        running.crash().await;
        let next = RecordingHandler::new(Act::Done);
        let worker = next.worker(&kit).build().unwrap();
        let running = kit.start(&worker).await;
        let lost = recorder.mails().len() as u64;
        kit.wait_until("emails", |tube| tube.stats.calls.ack == 25 - lost).await;
        kit.advance(Duration::from_secs(60));
        kit.wait_drained("emails").await;
        running.stop().await;
        let mut receivers: Vec<u32> =
            next.receivers().iter().map(|to| to.parse().unwrap()).collect();
        receivers.sort_unstable();
        assert_eq!(receivers, (0..25).collect::<Vec<_>>());
    });
}

#[test]
fn the_number_of_processors_changes_between_batches() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Wait));
        let of = |count| Settings { max_processors: count, batch_size: 1, ..Settings::default() };
        let worker = recorder.worker(&kit).settings(of(1)).build().unwrap();
        let running = kit.start(&worker).await;
        let processors = || metric(&worker.metrics().text(), "queue_running_job_processors");
        for _ in 0..4 {
            put(kit.queue(), "x").await;
        }
        recorder.started().await;
        worker.reconfigure(of(3)).unwrap();
        recorder.started().await;
        recorder.started().await;
        assert_eq!(processors(), 3.0);
        assert!(worker.reconfigure(of(0)).is_err());
        assert_eq!(worker.settings(), of(3), "an invalid setting changes nothing");
        worker.reconfigure(of(1)).unwrap();
        recorder.gate.add_permits(4);
        kit.wait_drained("emails").await;
        while processors() != 1.0 {
            tokio::task::yield_now().await;
        }
        running.stop().await;
    });
}

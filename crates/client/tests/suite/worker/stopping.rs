//! Stopping in every order: finish, cancel, give back.

use std::time::Duration;

use taskyard::worker::kit::Kit;
use taskyard::worker::{InitError, Settings};

use super::post::{Act, Post, metric, notify, put};
use crate::rig::block_on;

#[test]
fn a_graceful_stop_waits_for_the_handler_and_takes_no_more() {
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::WaitUntilCancelled));
        let worker = post.worker(&kit).settings(Settings { batch_size: 1, ..Settings::default() });
        let worker = worker.build().unwrap();
        let running = kit.start(&worker).await;
        put(kit.queue(), "ann").await;
        put(kit.queue(), "ben").await;
        post.begun().await;
        let (first, second) = (worker.graceful_stop(), worker.graceful_stop());
        let text = worker.metrics().text();
        assert_eq!(metric(&text, "queue_running_workers"), 1.0);
        post.gate.add_permits(1);
        running.stop().await;
        tokio::join!(first, second);
        assert_eq!(post.receivers(), ["ann"], "it was not cancelled");
        let tube = kit.tube("emails").await;
        assert_eq!((tube.stats.calls.ack, tube.stats.tasks.ready), (1, 1));
        let text = worker.metrics().text();
        assert_eq!(metric(&text, "queue_running_workers"), 0.0);
        assert_eq!(metric(&text, "queue_running_job_processors"), 0.0);
    });
}

#[test]
fn a_shutdown_cancels_what_does_not_end_in_time() {
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::WaitUntilCancelled));
        let worker = post.worker(&kit).build().unwrap();
        let running = kit.start(&worker).await;
        put(kit.queue(), "ann").await;
        post.begun().await;
        let stopping = worker.clone();
        let stopping = tokio::spawn(async move { stopping.shutdown(Duration::from_secs(5)).await });
        running.stop().await;
        stopping.await.unwrap().expect("the handler heeds it");
        let text = worker.metrics().text();
        assert_eq!(metric(&text, "queue_handler_errors_total{queue_num=\"1\"}"), 1.0);
    });
}

/// Upstream a handler that hangs made Shutdown wait for ever.
#[test]
fn a_handler_that_does_not_end_is_left_alone_and_named() {
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::Wait));
        let worker = post.worker(&kit).build().unwrap();
        let running = kit.start(&worker).await;
        put(kit.queue(), "ann").await;
        post.begun().await;
        let stopping = worker.clone();
        let stopping = tokio::spawn(async move { stopping.shutdown(Duration::ZERO).await });
        running.stop().await;
        let error = stopping.await.unwrap().unwrap_err();
        assert_eq!(error.0, ["processor 0 on queue 'emails'"]);
        assert_eq!(kit.tube("emails").await.stats.tasks.taken, 1, "it returns by its time");
    });
}

/// Upstream both hang when Run was never called.
#[test]
fn stopping_is_allowed_before_running() {
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::Done));
        let worker = post.worker(&kit).build().unwrap();
        worker.graceful_stop().await;
        worker.shutdown(Duration::ZERO).await.unwrap();
        worker.run().await.unwrap();
        assert!(post.mails().is_empty());
        assert!(matches!(worker.run().await, Err(InitError::RanBefore)));
        worker.graceful_stop().await;
    });
}

/// What a stopping worker had taken and not begun goes back without an attempt.
#[test]
fn what_was_not_begun_goes_back_untaken() {
    block_on(async {
        for _ in 0..20 {
            let (kit, post) = (Kit::new(), Post::new(Act::Done));
            let worker = post.worker(&kit).build().unwrap();
            let running = kit.start(&worker).await;
            put(kit.queue(), "ann").await;
            drop(worker.graceful_stop());
            put(kit.queue(), "ben").await;
            notify(kit.queue(), "x").await;
            running.stop().await;
            for queue in ["emails", "notifications"] {
                let tube = kit.tube(queue).await;
                assert_eq!(tube.stats.tasks.taken, 0, "{queue}");
                let waiting = kit.client().peek_many(queue, &[0, 1].map(taskyard::TaskId)).await;
                assert!(waiting.unwrap().iter().all(|task| task.attempts() == 0), "{queue}");
            }
        }
    });
}

/// What a crash left is handled by the next worker: nothing is lost.
#[test]
fn a_crash_in_the_middle_of_a_batch_loses_nothing() {
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::Wait));
        let worker = post.worker(&kit).build().unwrap();
        let running = kit.start(&worker).await;
        for n in 0..25 {
            put(kit.queue(), &n.to_string()).await;
        }
        post.begun().await;
        running.crash().await;
        let next = Post::new(Act::Done);
        let worker = next.worker(&kit).build().unwrap();
        let running = kit.start(&worker).await;
        let lost = post.mails().len() as u64;
        kit.until("emails", |tube| tube.stats.calls.ack == 25 - lost).await;
        kit.advance(Duration::from_secs(60));
        kit.drained("emails").await;
        running.stop().await;
        let mut receivers: Vec<u32> =
            next.receivers().iter().map(|to| to.parse().unwrap()).collect();
        receivers.sort_unstable();
        assert_eq!(receivers, (0..25).collect::<Vec<_>>());
    });
}

#[test]
fn fewer_processors_end_after_their_batch_and_more_begin() {
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::Wait));
        let of = |count| Settings { max_processors: count, batch_size: 1, ..Settings::default() };
        let worker = post.worker(&kit).settings(of(1)).build().unwrap();
        let running = kit.start(&worker).await;
        let processors = || metric(&worker.metrics().text(), "queue_running_job_processors");
        for _ in 0..4 {
            put(kit.queue(), "x").await;
        }
        post.begun().await;
        worker.reconfigure(of(3)).unwrap();
        post.begun().await;
        post.begun().await;
        assert_eq!(processors(), 3.0);
        assert!(worker.reconfigure(of(0)).is_err());
        assert_eq!(worker.settings(), of(3), "a wrong setting changes nothing");
        worker.reconfigure(of(1)).unwrap();
        post.gate.add_permits(4);
        kit.drained("emails").await;
        while processors() != 1.0 {
            tokio::task::yield_now().await;
        }
        running.stop().await;
    });
}

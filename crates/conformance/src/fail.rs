//! Fail: the error of a delivery is kept with its worker.

use taskyard_core::failure::{LEASE_EXPIRED, SESSION_ENDED};
use taskyard_core::limits::{ERROR_BYTES_MAX, FAILURES_MAX, WORKER_BYTES_MAX};
use taskyard_core::{
    Command, Error, Failure, Finish, Holder, Kind, Outcome, Reason, Span, State, Take, Task,
    TubeName, TubeOptions,
};

use super::Harness;
use super::commands::{QueueCommands, done, secs, session, take, task};

async fn take_named<H: Harness>(queue: &H, tube: &TubeName, worker: &str) -> Task {
    let take = Take { worker: Some(worker.into()), ..take(tube, 1) };
    queue.take_by(take).await.pop().expect("a task can be taken")
}

async fn failures<H: Harness>(queue: &H, tube: &TubeName, task: &Task) -> Vec<Failure> {
    let task = queue.peek_existing(tube, task.id).await;
    task.failures.map(|failures| failures.iter().collect()).unwrap_or_default()
}

fn texts(failures: &[Failure]) -> Vec<(u32, &str)> {
    failures.iter().map(|failure| (failure.attempt, &*failure.error)).collect()
}

/// A failed delivery counts as an attempt, the task is ready again, and a peek shows what happened.
pub async fn a_failure_is_kept<H: Harness>(queue: H) {
    for kind in Kind::ALL {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        queue.put(&tube, task("x")).await;
        let taken = take_named(&queue, &tube, "host:7:mail").await;
        queue.advance(secs(3));
        let failed = queue.finish_lease(&tube, &taken, Finish::fail("no route", Some(Span::ZERO)));
        let shown = done(failed.await);
        assert_eq!((shown.state, shown.attempts), (State::Ready, 1), "{kind:?}");
        assert_eq!((shown.worker, shown.failures), (None, None), "only a peek shows them");
        let start = taken.start.expect("it was taken");
        let expected = Failure {
            at: start + secs(3),
            attempt: 1,
            run: secs(3),
            worker: Some("host:7:mail".into()),
            error: "no route".into(),
        };
        assert_eq!(failures(&queue, &tube, &taken).await, [expected], "{kind:?}");
        assert_eq!(queue.calls(&tube).await.release, 1, "{kind:?}");
    }
}

/// The worker is shown while it holds the task.
pub async fn the_worker_is_shown_while_it_holds_the_task<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put_texts(&tube, &["a", "b"]).await;
    let first = take_named(&queue, &tube, "host:1:a").await;
    let second = queue.take(&tube).await;
    assert_eq!((&first.worker, &first.failures), (&None, &None), "the taker knows its name");
    let shown = queue.peek_existing(&tube, first.id).await;
    assert_eq!(shown.worker.as_deref(), Some("host:1:a"));
    assert_eq!(queue.peek_existing(&tube, second.id).await.worker, None);
    let held = queue.deliveries(&tube, 9).await;
    let workers: Vec<_> = held.iter().map(|task| task.worker.as_deref()).collect();
    assert_eq!(workers, [Some("host:1:a"), None]);
    queue.release(&tube, &first).await;
    assert_eq!(queue.peek_existing(&tube, first.id).await.worker, None);
    // The next delivery does not inherit the name.
    let again = queue.take(&tube).await;
    assert_eq!(again.id, first.id);
    assert_eq!(queue.peek_existing(&tube, first.id).await.worker, None);
}

/// A delay of the call is used, except in kinds without times.
pub async fn a_failed_task_is_delayed<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put(&tube, task("x")).await;
    let taken = queue.take(&tube).await;
    let shown = done(queue.finish_lease(&tube, &taken, Finish::fail("e", Some(secs(9)))).await);
    assert_eq!((shown.state, shown.attempts), (State::Delayed, 1));
    let plain = queue.tube_named("plain", TubeOptions::new(Kind::Fifo)).await;
    queue.put(&plain, task("x")).await;
    let taken = queue.take(&plain).await;
    let shown = done(queue.finish_lease(&plain, &taken, Finish::fail("e", Some(secs(9)))).await);
    assert_eq!(shown.state, State::Ready);
}

/// The last attempt buries the task with its failures.
pub async fn the_last_failed_attempt_buries<H: Harness>(queue: H) {
    let options = TubeOptions { attempts_max: Some(2), ..TubeOptions::new(Kind::FifoTtl) };
    let tube = queue.tube_with(options).await;
    queue.put(&tube, task("x")).await;
    for error in ["first", "second"] {
        let taken = queue.take(&tube).await;
        queue.finish_lease(&tube, &taken, Finish::fail(error, Some(Span::ZERO))).await;
    }
    let task = queue.peek_existing(&tube, taskyard_core::TaskId(0)).await;
    assert_eq!((task.state, task.reason), (State::Buried, Reason::AttemptsUsedUp));
    let kept: Vec<_> = task.failures.iter().flat_map(|failures| failures.iter()).collect();
    assert_eq!(texts(&kept), [(1, "first"), (2, "second")]);
}

/// The holder, and any client, can bury with an error. A second one changes nothing.
pub async fn a_bury_keeps_an_error<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put_texts(&tube, &["a", "b"]).await;
    let taken = take_named(&queue, &tube, "w").await;
    let shown = done(queue.finish_lease(&tube, &taken, Finish::fail("broken", None)).await);
    assert_eq!((shown.state, shown.attempts, shown.reason), (State::Buried, 0, Reason::Buried));
    let kept = failures(&queue, &tube, &taken).await;
    assert_eq!((texts(&kept), kept[0].worker.as_deref()), (vec![(1, "broken")], Some("w")));
    let again = queue.finish(&tube, taken.id, Holder::Any, Finish::fail("again", None)).await;
    assert_eq!(done(again).state, State::Buried);
    assert_eq!(failures(&queue, &tube, &taken).await.len(), 1);
    let ready = queue.peek_existing(&tube, taskyard_core::TaskId(1)).await;
    done(queue.finish(&tube, ready.id, Holder::Any, Finish::fail("by hand", None)).await);
    let kept = failures(&queue, &tube, &ready).await;
    assert_eq!((kept[0].run, kept[0].worker.as_deref()), (Span::ZERO, None));
    assert_eq!(queue.calls(&tube).await.bury, 2);
}

/// Only the holder of a delivery that has not expired can fail it.
pub async fn only_the_holder_can_fail<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put(&tube, task("x")).await;
    let fail = || Finish::fail("e", Some(Span::ZERO));
    let ready = taskyard_core::TaskId(0);
    assert_eq!(queue.finish(&tube, ready, Holder::Any, fail()).await, Outcome::Stale);
    let missing = taskyard_core::TaskId(9);
    assert_eq!(queue.finish(&tube, missing, Holder::Any, fail()).await, Outcome::Missing);
    let taken = queue.take_for(&tube, secs(5)).await;
    let other = Holder::Session(session(9));
    assert_eq!(queue.finish(&tube, ready, other, fail()).await, Outcome::Stale);
    queue.advance(secs(5));
    assert_eq!(queue.finish_lease(&tube, &taken, fail()).await, Outcome::Stale);
}

/// An expired lease is a failure, at the end of the lease.
pub async fn an_expired_lease_is_a_failure<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put(&tube, task("x")).await;
    let take = Take { worker: Some("w".into()), lease: Some(secs(5)), ..take(&tube, 1) };
    let taken = queue.take_by(take).await.pop().expect("a task");
    queue.advance(secs(20));
    let kept = failures(&queue, &tube, &taken).await;
    assert_eq!(texts(&kept), [(1, LEASE_EXPIRED)]);
    assert_eq!((Some(kept[0].at), kept[0].run), (taken.lease_until, secs(5)));
    assert_eq!(kept[0].worker.as_deref(), Some("w"));
}

/// The end of a session is a failure of its deliveries.
pub async fn an_ended_session_is_a_failure<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put(&tube, task("x")).await;
    queue.join(session(1)).await;
    let take = Take { worker: Some("w".into()), session: Some(session(1)), ..take(&tube, 1) };
    let taken = queue.take_by(take).await.pop().expect("a task");
    queue.advance(secs(2));
    queue.leave(session(1)).await;
    let kept = failures(&queue, &tube, &taken).await;
    assert_eq!(texts(&kept), [(1, SESSION_ENDED)]);
    assert_eq!((kept[0].run, kept[0].worker.as_deref()), (secs(2), Some("w")));
}

/// Nothing failed where a task was released, buried without an error, or kicked.
pub async fn other_ends_store_nothing<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put(&tube, task("x")).await;
    let taken = take_named(&queue, &tube, "w").await;
    queue.release(&tube, &taken).await;
    let taken = take_named(&queue, &tube, "w").await;
    let uncounted = Finish::Release { delay: Span::ZERO, counted: false };
    queue.finish_lease(&tube, &taken, uncounted).await;
    take_named(&queue, &tube, "w").await;
    queue.release_all(&tube).await;
    let taken = take_named(&queue, &tube, "w").await;
    queue.finish_lease(&tube, &taken, Finish::Bury).await;
    queue.kick(&tube, 1).await;
    assert_eq!(failures(&queue, &tube, &taken).await, []);
}

/// The latest failures are kept, in order, through kicks and later deliveries.
pub async fn the_latest_failures_are_kept<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put(&tube, task("x")).await;
    let count = FAILURES_MAX as u32 + 2;
    for attempt in 1..=count {
        let worker = format!("w{attempt}");
        // Every second one has no worker.
        let taken = match attempt % 2 {
            0 => queue.take(&tube).await,
            _ => take_named(&queue, &tube, &worker).await,
        };
        queue.advance(secs(1));
        let error = format!("é {attempt}");
        queue.finish_lease(&tube, &taken, Finish::fail(&error, Some(Span::ZERO))).await;
    }
    let taken = queue.take(&tube).await;
    let kept = failures(&queue, &tube, &taken).await;
    let attempts: Vec<u32> = kept.iter().map(|failure| failure.attempt).collect();
    assert_eq!(attempts, (3..=count).collect::<Vec<_>>());
    for failure in &kept {
        let named = failure.attempt % 2 == 1;
        let worker = named.then(|| format!("w{}", failure.attempt));
        assert_eq!(failure.worker.as_deref(), worker.as_deref());
        assert_eq!(&*failure.error, format!("é {}", failure.attempt));
    }
}

/// The longest error and the longest name are kept, five times.
pub async fn long_texts_are_kept<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put(&tube, task("x")).await;
    let (error, worker) = ("e".repeat(ERROR_BYTES_MAX), "w".repeat(WORKER_BYTES_MAX));
    for _ in 0..=FAILURES_MAX {
        let taken = take_named(&queue, &tube, &worker).await;
        queue.finish_lease(&tube, &taken, Finish::fail(&error, Some(Span::ZERO))).await;
    }
    let taken = queue.take(&tube).await;
    let kept = failures(&queue, &tube, &taken).await;
    assert_eq!(kept.len(), FAILURES_MAX);
    for failure in kept {
        assert_eq!((&*failure.error, failure.worker.as_deref()), (&*error, Some(&*worker)));
    }
}

/// The name of a worker has a limit and no control characters.
pub async fn a_bad_worker_name_is_refused<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put(&tube, task("x")).await;
    for name in ["", "a\nb", &"w".repeat(WORKER_BYTES_MAX + 1)] {
        let take = Take { worker: Some(name.into()), ..take(&tube, 1) };
        let refused = queue.execute(vec![Command::Take(take)]).await.remove(0);
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    }
    assert_eq!(queue.stats(&tube).await.tasks.ready, 1);
}

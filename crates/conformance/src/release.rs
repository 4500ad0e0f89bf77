//! Release: a holder returns a task to its tube.

use taskyard_core::{
    Finish, Holder, Kind, NewTask, Outcome, Reason, Span, State, TaskId, TubeOptions,
};

use super::Harness;
use super::commands::{NO_LEASE, QueueCommands, RELEASE, done, ids, secs, session, task};

/// A released task is ready again, and the attempt is counted.
pub async fn a_released_task_is_ready_and_counted<H: Harness>(queue: H) {
    for kind in Kind::ALL {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        queue.put(&tube, task("x")).await;
        let first = queue.take(&tube).await;
        queue.advance(secs(3));
        let back = done(queue.release(&tube, &first).await);
        assert_eq!((back.state, back.attempts), (State::Ready, 1), "{kind:?}");
        assert_eq!((back.start, back.previous_start), (None, first.start), "{kind:?}");
        assert_eq!((back.lease, back.lease_until), (None, None), "{kind:?}");
        assert_eq!(back.reason, Reason::WaitsForConsumer, "{kind:?}");
        let second = queue.take(&tube).await;
        assert_eq!((second.attempts, second.previous_start), (1, first.start), "{kind:?}");
        assert_ne!(second.lease, first.lease, "{kind:?}");
    }
}

/// An uncounted release leaves the task unchanged.
pub async fn an_uncounted_release_leaves_no_trace<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let id = queue.put(&tube, task("x")).await;
    let before = queue.peek_existing(&tube, id).await;
    let taken = queue.take(&tube).await;
    let uncounted = Finish::Release { delay: Span::ZERO, counted: false };
    done(queue.finish_lease(&tube, &taken, uncounted).await);
    assert_eq!(queue.peek_existing(&tube, id).await, before);
    assert_eq!(queue.calls(&tube).await.release, 1, "the call is still counted as a release");
}

/// A release with a delay: the task waits, and its ttl is extended by the delay.
pub async fn a_delay_moves_due_and_ttl<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let id = queue.put(&tube, NewTask { ttl: Some(secs(100)), ..task("x") }).await;
    let taken = queue.take(&tube).await;
    queue.advance(secs(10));
    let later = Finish::Release { delay: secs(30), counted: true };
    let back = done(queue.finish_lease(&tube, &taken, later).await);
    assert_eq!((back.state, back.attempts), (State::Delayed, 1));
    let due = queue.now() + secs(30);
    assert_eq!((back.due, back.reason), (Some(due), Reason::NotDue(due)));
    assert_eq!(back.expires, taken.expires + secs(30));
    assert_eq!(queue.take_many(&tube, 1).await, []);
    queue.advance(secs(30));
    assert_eq!(queue.take(&tube).await.id, id);
    let calls = queue.calls(&tube).await;
    assert_eq!((calls.release, calls.delay), (1, 1));
}

/// Kinds without times ignore the delay.
pub async fn kinds_without_times_ignore_the_delay<H: Harness>(queue: H) {
    for kind in [Kind::Fifo, Kind::Utube] {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        queue.put(&tube, task("x")).await;
        let taken = queue.take(&tube).await;
        let later = Finish::Release { delay: secs(30), counted: true };
        let back = done(queue.finish_lease(&tube, &taken, later).await);
        assert_eq!((back.state, back.due, back.attempts), (State::Ready, None, 1), "{kind:?}");
    }
}

/// Only the holder can release a task.
pub async fn only_the_holder_can_release<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let id = queue.put(&tube, task("x")).await;
    let other = queue.put(&tube, task("y")).await;
    queue.join(session(1)).await;
    queue.join(session(2)).await;
    let taken = queue.take_as(&tube, session(1)).await;
    for holder in [Holder::Session(session(2)), Holder::Lease(NO_LEASE)] {
        assert_eq!(queue.finish(&tube, id, holder, RELEASE).await, Outcome::Stale);
    }
    assert_eq!(queue.finish(&tube, other, Holder::Any, RELEASE).await, Outcome::Stale);
    assert_eq!(queue.finish(&tube, TaskId(9), Holder::Any, RELEASE).await, Outcome::Missing);
    for holder in [Holder::Session(session(1)), Holder::Any] {
        done(queue.finish(&tube, id, holder, RELEASE).await);
        assert_eq!(queue.take_as(&tube, session(1)).await.id, id);
    }
    assert_eq!(queue.release(&tube, &taken).await, Outcome::Stale, "the first lease is over");
}

/// An expired lease releases nothing, even before a tick has returned the task.
pub async fn an_expired_lease_is_stale_before_the_tick<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let id = queue.put(&tube, NewTask { ttr: Some(secs(10)), ..task("x") }).await;
    let taken = queue.take(&tube).await;
    queue.advance_unticked(secs(11));
    assert_eq!(queue.release(&tube, &taken).await, Outcome::Stale);
    let back = queue.peek_existing(&tube, id).await;
    assert_eq!((back.state, back.attempts), (State::Ready, 1), "counted once, by the tick");
    let calls = queue.calls(&tube).await;
    assert_eq!((calls.release, calls.ttr), (0, 1));
}

/// A task whose ttl ended while it was taken is removed when it is released.
pub async fn an_expired_task_is_removed_on_release<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let spans = NewTask { ttl: Some(secs(5)), ttr: Some(secs(60)), ..task("x") };
    let id = queue.put(&tube, spans).await;
    let taken = queue.take(&tube).await;
    queue.advance(secs(10));
    done(queue.release(&tube, &taken).await);
    assert_eq!(queue.take_many(&tube, 1).await, []);
    assert_eq!(queue.peek(&tube, id).await, None);
    let stats = queue.stats(&tube).await;
    assert_eq!((stats.calls.release, stats.calls.ttl, stats.calls.delete), (1, 1, 1));
    assert_eq!((stats.tasks.total(), stats.tasks.done), (0, 1));
}

/// A task that was released with a delay returns to its position in the order.
pub async fn a_delayed_release_keeps_the_order<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put_texts(&tube, &["a", "b"]).await;
    let taken = queue.take(&tube).await;
    let later = Finish::Release { delay: secs(1), counted: true };
    queue.finish_lease(&tube, &taken, later).await;
    queue.advance(secs(1));
    assert_eq!(ids(&queue.take_many(&tube, 2).await), [0, 1]);
}

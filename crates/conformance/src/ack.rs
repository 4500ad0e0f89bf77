//! Ack: which holders can complete a task.

use taskyard_core::{
    Finish, FinishItem, Holder, Kind, NewTask, Outcome, Reason, Span, State, TaskId, TubeOptions,
};

use super::Harness;
use super::commands::{NO_LEASE, QueueCommands, done, lease, secs, session, task};

/// The holder of the lease can ack the task.
pub async fn by_lease<H: Harness>(queue: H) {
    for kind in Kind::ALL {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        let id = queue.put(&tube, task("x")).await;
        let taken = queue.take(&tube).await;
        let after = done(queue.ack(&tube, &taken).await);
        assert_eq!((after.id, after.state), (id, State::Done), "{kind:?}");
        assert_eq!(after.reason, Reason::Finished, "{kind:?}");
        assert_eq!(queue.peek(&tube, id).await, None, "{kind:?}");
    }
}

/// The session that took the task can ack it, and so can the lease number of that delivery.
pub async fn by_session<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    queue.put_texts(&tube, &["a", "b"]).await;
    queue.join(session(1)).await;
    let first = queue.take_as(&tube, session(1)).await;
    let second = queue.take_as(&tube, session(1)).await;
    done(queue.finish(&tube, first.id, Holder::Session(session(1)), Finish::Ack).await);
    done(queue.ack(&tube, &second).await);
    assert_eq!(queue.calls(&tube).await.ack, 2);
}

/// A client that names neither lease nor session can ack a task as long as it is taken.
pub async fn without_a_holder_while_taken<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    let id = queue.put(&tube, task("x")).await;
    assert_eq!(queue.finish(&tube, id, Holder::Any, Finish::Ack).await, Outcome::Stale);
    queue.take(&tube).await;
    done(queue.finish(&tube, id, Holder::Any, Finish::Ack).await);
}

/// Another session, a session that took nothing, a wrong lease: all are refused.
pub async fn other_holders_are_refused<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    queue.put_texts(&tube, &["held by a session", "held by a lease"]).await;
    queue.join(session(1)).await;
    queue.join(session(2)).await;
    let first = queue.take_as(&tube, session(1)).await;
    let second = queue.take(&tube).await;
    let wrong = [
        (first.id, Holder::Session(session(2))),
        (first.id, Holder::Session(session(3))),
        (first.id, Holder::Lease(lease(&second))),
        (second.id, Holder::Session(session(1))),
        (second.id, Holder::Lease(NO_LEASE)),
    ];
    for (id, holder) in wrong {
        let outcome = queue.finish(&tube, id, holder, Finish::Ack).await;
        assert_eq!(outcome, Outcome::Stale, "{id} by {holder:?}");
    }
    assert_eq!(queue.stats(&tube).await.tasks.taken, 2);
    assert_eq!(queue.calls(&tube).await.ack, 0);
}

/// An ack of an absent task has the outcome `Missing`, for every holder.
pub async fn an_absent_task_is_missing<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    queue.put(&tube, task("x")).await;
    let taken = queue.take(&tube).await;
    for holder in [Holder::Any, Holder::Lease(lease(&taken)), Holder::Session(session(1))] {
        let outcome = queue.finish(&tube, TaskId(7), holder, Finish::Ack).await;
        assert_eq!(outcome, Outcome::Missing, "{holder:?}");
    }
    queue.ack(&tube, &taken).await;
    assert_eq!(queue.ack(&tube, &taken).await, Outcome::Missing, "the second ack");
}

/// The lease of an earlier delivery is stale, also when the same worker took the task again.
pub async fn an_earlier_lease_is_stale<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put(&tube, NewTask { ttr: Some(secs(10)), ..task("x") }).await;
    let first = queue.take(&tube).await;
    queue.release(&tube, &first).await;
    assert_eq!(queue.ack(&tube, &first).await, Outcome::Stale, "while it is ready");
    let second = queue.take(&tube).await;
    assert_eq!(queue.ack(&tube, &first).await, Outcome::Stale, "while it is taken again");
    queue.advance(secs(10));
    let third = queue.take(&tube).await;
    assert_eq!(queue.ack(&tube, &second).await, Outcome::Stale, "after its ttr");
    done(queue.ack(&tube, &third).await);
}

/// An expired lease is refused, even before a tick has returned the task.
pub async fn an_expired_lease_is_stale_before_the_tick<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.join(session(1)).await;
    for holder in [None, Some(Holder::Any), Some(Holder::Session(session(1)))] {
        let id = queue.put(&tube, NewTask { ttr: Some(secs(10)), ..task("x") }).await;
        let taken = queue.take_as(&tube, session(1)).await;
        assert_eq!(taken.id, id);
        let holder = holder.unwrap_or(Holder::Lease(lease(&taken)));
        queue.advance_unticked(secs(10));
        let outcome = queue.finish(&tube, id, holder, Finish::Ack).await;
        assert_eq!(outcome, Outcome::Stale, "{holder:?}");
        assert_eq!(queue.state(&tube, id).await, State::Ready, "{holder:?}");
        queue.delete(&tube, id).await;
    }
}

/// One microsecond before its end a lease is still valid.
pub async fn a_lease_is_valid_until_its_end<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put(&tube, NewTask { ttr: Some(secs(10)), ..task("x") }).await;
    let taken = queue.take(&tube).await;
    queue.advance(Span::from_micros(10_000_000 - 1));
    done(queue.ack(&tube, &taken).await);
}

/// A batch has an outcome for each item, and a refused item does not affect the others.
pub async fn a_batch_has_an_outcome_for_each<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    queue.put_texts(&tube, &["a", "b", "c"]).await;
    let taken = queue.take_many(&tube, 2).await;
    let ack = |id, holder| FinishItem { id, holder, finish: Finish::Ack };
    let items = vec![
        ack(taken[0].id, Holder::Lease(lease(&taken[0]))),
        ack(taken[0].id, Holder::Lease(lease(&taken[0]))),
        ack(TaskId(2), Holder::Any),
        ack(TaskId(99), Holder::Any),
        ack(taken[1].id, Holder::Lease(lease(&taken[1]))),
    ];
    let outcomes = queue.finish_many(&tube, items).await;
    assert!(matches!(outcomes[0], Outcome::Done(_)));
    assert_eq!(outcomes[1..4], [Outcome::Missing, Outcome::Stale, Outcome::Missing]);
    assert!(matches!(outcomes[4], Outcome::Done(_)));
    assert_eq!(queue.stats(&tube).await.tasks.total(), 1);
}

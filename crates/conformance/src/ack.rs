//! Ack: which holders can complete a task.

use taskyard_core::{
    Body, Finish, FinishItem, Holder, Kind, NewTask, Outcome, Reason, Span, State, Take, Task,
    TaskId, TubeOptions,
};

use super::Harness;
use super::commands::{NO_LEASE, QueueCommands, done, lease, secs, session, take, task};
use super::keys::keyed;

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

/// Tasks of one long take and ack that differ: some have keys, one a large payload, one is acked twice, one with a wrong lease,
/// and the order of the acks is not that of the ids.
pub async fn a_long_batch_may_mix_all_tasks<H: Harness>(queue: H) {
    const TASKS: usize = 40;
    let (tube, has_keys) = (queue.tube(Kind::Fifo).await, queue.capabilities().keys);
    // A text in MessagePack, with its length.
    let large = [&[0xda, 0x4e, 0x20][..], &[b'x'; 20_000]].concat();
    let new = |place: usize| match place {
        20 => NewTask::new(Body::new(&large)),
        _ if has_keys && place % 4 == 1 => keyed("x", &format!("key {place}")),
        _ => task("x"),
    };
    queue.put_many(&tube, (0..TASKS).map(new).collect()).await;
    for round in 0..2 {
        let long = Take { lease: Some(secs(60)), ..take(&tube, TASKS / 2) };
        let taken = queue.take_by(long).await;
        let mut order: Vec<&Task> = taken.iter().collect();
        if round == 1 {
            order.swap(10, 15);
        }
        let mut wrong = order[13].clone();
        wrong.lease = order[12].lease;
        order.insert(13, &wrong);
        order.insert(18, order[2]);
        let ack = |task: &&Task| {
            let holder = Holder::Lease(lease(task));
            FinishItem { id: task.id, holder, finish: Finish::Ack }
        };
        let outcomes = queue.finish_many(&tube, order.iter().map(ack).collect()).await;
        for (place, outcome) in outcomes.iter().enumerate() {
            match place {
                13 => assert_eq!(*outcome, Outcome::Stale, "round {round}"),
                18 => assert_eq!(*outcome, Outcome::Missing, "round {round}"),
                _ => assert!(matches!(outcome, Outcome::Done(_)), "{place} of round {round}"),
            }
        }
        let stats = queue.stats(&tube).await;
        assert_eq!((stats.tasks.taken, stats.calls.ack), (0, (round + 1) * 20));
    }
    if has_keys {
        // The keys are free.
        let again = (0..20).map(|place| keyed("y", &format!("key {}", 2 * place + 1))).collect();
        let placed = queue.put_many(&tube, again).await;
        assert!(placed.iter().all(|placed| !placed.existing));
    }
    assert_eq!(queue.stats(&tube).await.tasks.total(), if has_keys { 20 } else { 0 });
}

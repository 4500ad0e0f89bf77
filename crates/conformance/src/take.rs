//! Take: the order of tasks, and the properties of a delivery.

use std::collections::BTreeSet;

use taskyard_core::{
    Command, Error, Kind, NewTask, Reason, State, Take, TaskId, Timestamp, TubeOptions,
};

use super::Harness;
use super::commands::{QueueCommands, done, ids, lease, secs, session, take, task};

/// Without priorities the lowest id is taken first.
pub async fn the_lowest_id_is_taken_first<H: Harness>(queue: H) {
    for kind in Kind::ALL {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        queue.put_texts(&tube, &["a", "b"]).await;
        assert_eq!(queue.take(&tube).await.id, TaskId(0), "{kind:?}");
    }
}

/// The smallest priority is taken first, then the lowest id.
pub async fn order_is_priority_then_id<H: Harness>(queue: H) {
    for kind in [Kind::FifoTtl, Kind::LimFifoTtl] {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        for pri in [5, 0, u64::MAX, 5, 1, 0] {
            queue.put(&tube, NewTask { pri: Some(pri), ..task("x") }).await;
        }
        assert_eq!(ids(&queue.take_many(&tube, 6).await), [1, 5, 4, 0, 3, 2], "{kind:?}");
    }
}

/// A released task keeps its id and so returns to the front of its priority.
pub async fn a_released_task_returns_to_the_front<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    for pri in [1, 1, 0] {
        queue.put(&tube, NewTask { pri: Some(pri), ..task("x") }).await;
    }
    let taken = queue.take_many(&tube, 2).await;
    assert_eq!(ids(&taken), [2, 0]);
    queue.release(&tube, &taken[1]).await;
    assert_eq!(ids(&queue.take_many(&tube, 2).await), [0, 1]);
}

/// A delivery has a holder, a start and an end.
pub async fn a_delivery_has_a_lease<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let id = queue.put(&tube, NewTask { ttr: Some(secs(30)), ..task("x") }).await;
    let created = queue.now();
    queue.advance(secs(5));
    let taken = queue.take(&tube).await;
    assert_eq!((taken.id, taken.state), (id, State::Taken));
    assert_eq!((taken.created, taken.start), (created, Some(queue.now())));
    assert_eq!((taken.attempts, taken.previous_start), (0, None));
    assert_eq!(taken.lease_until, Some(queue.now() + secs(30)));
    assert_eq!((taken.reason, taken.due), (Reason::Running, Some(created)));
    assert!(taken.lease.is_some() && taken.body.is_some());
    assert_eq!(queue.peek_existing(&tube, id).await, taken, "a peek shows the same delivery");
}

/// An empty tube gives an empty reply, and so does a tube whose tasks are all taken.
pub async fn an_empty_tube_gives_an_empty_reply<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    assert_eq!(queue.take_many(&tube, 5).await, []);
    queue.put(&tube, task("x")).await;
    queue.take(&tube).await;
    assert_eq!(queue.take_many(&tube, 5).await, []);
    assert_eq!(queue.calls(&tube).await.take, 1);
}

/// A batch gives all available tasks, up to the requested count.
pub async fn a_batch_gives_at_most_the_requested_count<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    queue.put_texts(&tube, &["a", "b", "c", "d", "e"]).await;
    assert_eq!(queue.take_many(&tube, 0).await, []);
    assert_eq!(ids(&queue.take_many(&tube, 2).await), [0, 1]);
    assert_eq!(ids(&queue.take_many(&tube, 100).await), [2, 3, 4]);
}

/// No lease number is issued twice, in any tube.
pub async fn lease_numbers_are_unique<H: Harness>(queue: H) {
    let mut seen = BTreeSet::new();
    for text in ["one", "two"] {
        let tube = queue.tube_named(text, TubeOptions::new(Kind::Fifo)).await;
        queue.put_texts(&tube, &["a", "b", "c"]).await;
        for _ in 0..3 {
            for taken in queue.take_many(&tube, 3).await {
                assert!(seen.insert(lease(&taken)), "lease {} was issued twice", lease(&taken));
            }
            queue.release_all(&tube).await;
        }
    }
    assert_eq!(seen.len(), 18);
}

/// Each delivery of a task has a larger lease number than all before, independent of how the task returned: systems outside
/// of the queue use the number to find the current holder.
pub async fn a_later_delivery_has_a_larger_lease<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put(&tube, task("x")).await;
    let mut last = None;
    for way in 0..6 {
        queue.join(session(1)).await;
        let taken = match way {
            0 => queue.take_for(&tube, secs(10)).await,
            _ => queue.take_as(&tube, session(1)).await,
        };
        let before = last.replace(lease(&taken));
        assert!(before < last, "{last:?} was issued after {before:?}, way {way}");
        match way {
            0 => queue.advance(secs(10)),
            1 => _ = done(queue.release(&tube, &taken).await),
            2 => queue.release_all(&tube).await,
            3 => {
                queue.bury(&tube, taken.id).await;
                queue.kick(&tube, 1).await;
            }
            _ => {}
        }
        queue.leave(session(1)).await;
    }
}

/// The lease time of a take replaces the ttr, for this delivery only.
pub async fn a_lease_time_replaces_the_ttr<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put(&tube, NewTask { ttr: Some(secs(30)), ..task("x") }).await;
    let taken = queue.take_for(&tube, secs(90)).await;
    assert_eq!(taken.lease_until, Some(queue.now() + secs(90)));
    assert_eq!(taken.ttr, secs(30));
    queue.advance(secs(60));
    assert_eq!(queue.state(&tube, taken.id).await, State::Taken);
    queue.release(&tube, &taken).await;
    assert_eq!(queue.take(&tube).await.lease_until, Some(queue.now() + secs(30)));
}

/// A lease time works in kinds without times too: the task returns at its end.
pub async fn a_lease_time_works_in_every_kind<H: Harness>(queue: H) {
    for kind in Kind::ALL {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        let id = queue.put(&tube, task("x")).await;
        let taken = queue.take_for(&tube, secs(10)).await;
        assert_eq!(taken.lease_until, Some(queue.now() + secs(10)), "{kind:?}");
        queue.advance(secs(10));
        let back = queue.peek_existing(&tube, id).await;
        assert_eq!((back.state, back.attempts), (State::Ready, 1), "{kind:?}");
        assert_eq!(queue.calls(&tube).await.ttr, 1, "{kind:?}");
    }
}

/// An expired task is not delivered, even before a tick has removed it.
pub async fn an_expired_task_is_skipped_before_it_is_removed<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put(&tube, NewTask { ttl: Some(secs(5)), ..task("old") }).await;
    queue.put(&tube, task("fresh")).await;
    queue.advance_unticked(secs(5));
    assert_eq!(ids(&queue.take_many(&tube, 2).await), [1]);
}

/// A session that was not joined cannot take.
pub async fn an_unknown_session_cannot_take<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    let id = queue.put(&tube, task("x")).await;
    let stranger = Take { session: Some(session(9)), ..take(&tube, 1) };
    let refusal = queue.refused(Command::Take(stranger)).await;
    assert_eq!(refusal, Error::SessionUnknown(session(9)));
    assert_eq!(queue.state(&tube, id).await, State::Ready);
}

/// Without ttr a delivery lasts until a client ends it.
pub async fn a_delivery_without_ttr_does_not_expire<H: Harness>(queue: H) {
    for kind in Kind::ALL {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        queue.put(&tube, task("x")).await;
        let taken = queue.take(&tube).await;
        assert_eq!(taken.lease_until, Some(Timestamp::NEVER), "{kind:?}");
        queue.advance(secs(50 * 365 * 24 * 3600));
        assert_eq!(queue.state(&tube, taken.id).await, State::Taken, "{kind:?}");
    }
}

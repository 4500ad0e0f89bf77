//! Sub-queues: one running task for each.

use taskyard_core::{Error, Finish, Kind, NewTask, Reason, State, Take, TaskId, TubeOptions};

use super::Harness;
use super::commands::{QueueCommands, done, ids, put, secs, session, take, task, task_of};

/// While a task of a sub-queue runs, its other tasks wait.
pub async fn one_task_runs_at_a_time<H: Harness>(queue: H) {
    for kind in [Kind::Utube, Kind::UtubeTtl] {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        for subqueue in ["a", "a", "b", "a"] {
            queue.put(&tube, task_of(subqueue)).await;
        }
        let first = queue.take(&tube).await;
        assert_eq!(first.subqueue.as_deref(), Some("a"), "{kind:?}");
        assert_eq!(ids(&queue.take_many(&tube, 1).await), [2], "{kind:?}");
        assert_eq!(queue.take_many(&tube, 1).await, [], "{kind:?}");
        assert_eq!(
            queue.peek_existing(&tube, TaskId(1)).await.reason,
            Reason::SubqueueBusy,
            "{kind:?}"
        );
        queue.ack(&tube, &first).await;
        assert_eq!(ids(&queue.take_many(&tube, 9).await), [1], "{kind:?}");
    }
}

/// A batch gives at most one task of each sub-queue.
pub async fn a_batch_gives_one_of_each<H: Harness>(queue: H) {
    for kind in [Kind::Utube, Kind::UtubeTtl] {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        for subqueue in ["a", "b", "a", "c", "b"] {
            queue.put(&tube, task_of(subqueue)).await;
        }
        assert_eq!(ids(&queue.take_many(&tube, 9).await), [0, 1, 3], "{kind:?}");
        assert_eq!(queue.take_many(&tube, 9).await, [], "{kind:?}");
    }
}

/// A task without a sub-queue belongs to the one called "nil".
pub async fn the_default_sub_queue_is_nil<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Utube).await;
    let unnamed = queue.put(&tube, task("x")).await;
    queue.put(&tube, task_of("nil")).await;
    queue.put(&tube, task_of("")).await;
    assert_eq!(queue.peek_existing(&tube, unnamed).await.subqueue.as_deref(), Some("nil"));
    assert_eq!(ids(&queue.take_many(&tube, 9).await), [0, 2]);
}

/// Kinds without sub-queues ignore the name.
pub async fn other_kinds_ignore_sub_queues<H: Harness>(queue: H) {
    for kind in Kind::ALL.into_iter().filter(|kind| !kind.has_subqueues()) {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        queue.put_many(&tube, vec![task_of("a"), task_of("a")]).await;
        let taken = queue.take_many(&tube, 9).await;
        assert_eq!((taken.len(), &taken[0].subqueue), (2, &None), "{kind:?}");
    }
}

/// Buried and delayed tasks do not block their sub-queue.
pub async fn buried_and_delayed_tasks_do_not_block<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::UtubeTtl).await;
    let buried = queue.put(&tube, task_of("a")).await;
    queue.take(&tube).await;
    queue.bury(&tube, buried).await;
    queue.put(&tube, NewTask { delay: Some(secs(5)), ..task_of("a") }).await;
    queue.put(&tube, task_of("a")).await;
    assert_eq!(ids(&queue.take_many(&tube, 9).await), [2]);
}

/// Every end of a delivery frees its sub-queue.
pub async fn every_end_of_a_delivery_frees_the_sub_queue<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::UtubeTtl).await;
    let later = Finish::Release { delay: secs(1000), counted: true };
    for end in ["ack", "release", "release later", "bury", "delete", "ttr", "session", "all"] {
        queue.put_many(&tube, vec![task_of("a"), task_of("a")]).await;
        queue.join(session(1)).await;
        let held = Take { session: Some(session(1)), lease: Some(secs(5)), ..take(&tube, 9) };
        let taken = queue.take_by(held).await.remove(0);
        assert_eq!(queue.take_many(&tube, 9).await, [], "before {end}");
        match end {
            "ack" => drop(done(queue.ack(&tube, &taken).await)),
            "release" => drop(done(queue.release(&tube, &taken).await)),
            "release later" => drop(done(queue.finish_lease(&tube, &taken, later.clone()).await)),
            "bury" => drop(done(queue.bury(&tube, taken.id).await)),
            "delete" => drop(done(queue.delete(&tube, taken.id).await)),
            "ttr" => queue.advance(secs(5)),
            "session" => queue.leave(session(1)).await,
            _ => queue.release_all(&tube).await,
        }
        assert_eq!(queue.take_many(&tube, 9).await.len(), 1, "after {end}");
        queue.truncate(&tube).await;
        if end != "session" {
            queue.leave(session(1)).await;
        }
    }
}

/// Across sub-queues the order is (pri, id), and a returned task keeps its position.
pub async fn order_is_across_sub_queues<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::UtubeTtl).await;
    for (subqueue, pri) in [("a", 2), ("b", 1), ("a", 0), ("c", 1)] {
        queue.put(&tube, NewTask { pri: Some(pri), ..task_of(subqueue) }).await;
    }
    let taken = queue.take_many(&tube, 9).await;
    assert_eq!(ids(&taken), [2, 1, 3]);
    queue.release(&tube, &taken[0]).await;
    assert_eq!(ids(&queue.take_many(&tube, 9).await), [2]);
}

/// A task with a better priority, put while its sub-queue is busy, is first when the sub-queue is free.
pub async fn the_best_priority_is_first_in_a_free_sub_queue<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::UtubeTtl).await;
    for pri in [5, 5] {
        queue.put(&tube, NewTask { pri: Some(pri), ..task_of("a") }).await;
    }
    let first = queue.take(&tube).await;
    queue.put(&tube, NewTask { pri: Some(1), ..task_of("a") }).await;
    queue.ack(&tube, &first).await;
    assert_eq!(ids(&queue.take_many(&tube, 9).await), [2]);
}

/// A first task that expires, is deleted or buried does not block the next of its sub-queue.
pub async fn a_removed_task_does_not_block_the_next<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::UtubeTtl).await;
    queue.put(&tube, NewTask { ttl: Some(secs(5)), ..task_of("a") }).await;
    queue.put_many(&tube, vec![task_of("a"), task_of("a"), task_of("a")]).await;
    queue.advance(secs(5));
    queue.delete(&tube, TaskId(1)).await;
    queue.bury(&tube, TaskId(2)).await;
    assert_eq!(ids(&queue.take_many(&tube, 9).await), [3]);
    queue.kick(&tube, 1).await;
    assert_eq!(queue.take_many(&tube, 9).await, [], "kicked, but one runs");
    assert_eq!(queue.state(&tube, TaskId(2)).await, State::Ready);
}

/// An expired first task does not block the next, even before a tick has removed it.
pub async fn an_expired_task_does_not_block_the_next<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::UtubeTtl).await;
    queue.put(&tube, NewTask { ttl: Some(secs(5)), ..task_of("a") }).await;
    queue.put_many(&tube, vec![task_of("a"), task_of("a")]).await;
    queue.advance_unticked(secs(5));
    assert_eq!(ids(&queue.take_many(&tube, 9).await), [1]);
}

/// A name with a character that changes the direction of text looked like the name of another sub-queue. Such a put is
/// refused as a whole.
pub async fn a_sub_queue_that_changes_text_direction_is_refused<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Utube).await;
    for bad in ["nna\u{202e}", "\u{2066}ann", "ann\u{200f}"] {
        let refused = queue.refused(put(&tube, vec![task_of("ann"), task_of(bad)])).await;
        let explained =
            matches!(&refused, Error::Invalid(text) if text.contains("direction of text"));
        assert!(explained, "{bad:?}: {refused}");
    }
    assert_eq!(queue.put(&tube, task_of("ann")).await, TaskId(0));
}

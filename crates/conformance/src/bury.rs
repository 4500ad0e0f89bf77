//! Bury: a task is put aside until somebody kicks it.

use taskyard_core::{Finish, Holder, Kind, NewTask, Outcome, Reason, State, TaskId, TubeOptions};

use super::Harness;
use super::ask::{Ask, done, lease, secs, session, task};

/// Anybody may bury, in every state, without holding the task.
pub async fn it_needs_no_holder<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let taken = queue.put(&tube, task("taken")).await;
    queue.take(&tube).await;
    let ready = queue.put(&tube, task("ready")).await;
    let delayed = queue.put(&tube, NewTask { delay: Some(secs(5)), ..task("delayed") }).await;
    for id in [taken, ready, delayed] {
        let buried = done(queue.bury(&tube, id).await);
        assert_eq!((buried.state, buried.reason), (State::Buried, Reason::Buried), "{id}");
        assert_eq!((buried.due, buried.lease, buried.start), (None, None, None), "{id}");
    }
    let stats = queue.stats(&tube).await;
    assert_eq!((stats.tasks.buried, stats.tasks.total(), stats.calls.bury), (3, 3, 3));
}

/// It works in every kind, and the buried are not delivered.
pub async fn the_buried_are_not_delivered<H: Harness>(queue: H) {
    for kind in Kind::ALL {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        let id = queue.put(&tube, task("x")).await;
        done(queue.bury(&tube, id).await);
        assert_eq!(queue.take_many(&tube, 1).await, [], "{kind:?}");
        queue.advance(secs(1000));
        assert_eq!(queue.state(&tube, id).await, State::Buried, "{kind:?}");
    }
}

/// Who names a lease or a session must hold the task.
pub async fn a_named_holder_must_hold<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    let id = queue.put(&tube, task("x")).await;
    queue.join(session(1)).await;
    let first = queue.take_as(&tube, session(1)).await;
    queue.release(&tube, &first).await;
    queue.take(&tube).await;
    for holder in [Holder::Lease(lease(&first)), Holder::Session(session(1))] {
        let outcome = queue.finish(&tube, id, holder, Finish::Bury).await;
        assert_eq!(outcome, Outcome::Stale, "{holder:?}");
    }
    assert_eq!(queue.state(&tube, id).await, State::Taken);
}

/// A second bury is answered as done, changes nothing and is not counted.
pub async fn a_second_bury_changes_nothing<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    let id = queue.put(&tube, task("x")).await;
    queue.bury(&tube, id).await;
    let before = queue.look(&tube, id).await;
    assert_eq!(done(queue.bury(&tube, id).await).state, State::Buried);
    assert_eq!(queue.look(&tube, id).await, before);
    assert_eq!(queue.calls(&tube).await.bury, 1);
}

/// A task that is not there is missing.
pub async fn what_is_not_there_is_missing<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    assert_eq!(queue.bury(&tube, TaskId(0)).await, Outcome::Missing);
    assert_eq!(queue.calls(&tube).await.bury, 0);
}

/// A delivery that ends in a bury is no attempt.
pub async fn it_leaves_attempts_alone<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    queue.put(&tube, task("x")).await;
    let first = queue.take(&tube).await;
    queue.advance(secs(1));
    queue.release(&tube, &first).await;
    let second = queue.take(&tube).await;
    let buried = done(queue.finish_lease(&tube, &second, Finish::Bury).await);
    assert_eq!((buried.attempts, buried.previous_start), (1, first.start));
}

/// Who held a task that somebody buried has lost it.
pub async fn the_holder_loses_it<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put(&tube, NewTask { ttr: Some(secs(10)), ..task("x") }).await;
    let taken = queue.take(&tube).await;
    queue.bury(&tube, taken.id).await;
    assert_eq!(queue.ack(&tube, &taken).await, Outcome::Stale);
    queue.advance(secs(20));
    assert_eq!(queue.state(&tube, taken.id).await, State::Buried);
    assert_eq!(queue.calls(&tube).await.ttr, 0);
}

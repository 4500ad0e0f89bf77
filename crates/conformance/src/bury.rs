//! Bury: a task is set aside until a kick.

use taskyard_core::{Finish, Holder, Kind, NewTask, Outcome, Reason, State, TaskId, TubeOptions};

use super::Harness;
use super::commands::{QueueCommands, done, lease, secs, session, task};

/// Any client can bury a task in every state, without holding it.
pub async fn any_client_can_bury<H: Harness>(queue: H) {
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

/// Bury works in every kind, and buried tasks are not delivered.
pub async fn buried_tasks_are_not_delivered<H: Harness>(queue: H) {
    for kind in Kind::ALL {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        let id = queue.put(&tube, task("x")).await;
        done(queue.bury(&tube, id).await);
        assert_eq!(queue.take_many(&tube, 1).await, [], "{kind:?}");
        queue.advance(secs(1000));
        assert_eq!(queue.state(&tube, id).await, State::Buried, "{kind:?}");
    }
}

/// A client that names a lease or a session must hold the task.
pub async fn a_named_holder_must_hold_the_task<H: Harness>(queue: H) {
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

/// A second bury has the outcome `Done`, changes nothing and is not counted.
pub async fn a_second_bury_changes_nothing<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    let id = queue.put(&tube, task("x")).await;
    queue.bury(&tube, id).await;
    let before = queue.peek_existing(&tube, id).await;
    assert_eq!(done(queue.bury(&tube, id).await).state, State::Buried);
    assert_eq!(queue.peek_existing(&tube, id).await, before);
    assert_eq!(queue.calls(&tube).await.bury, 1);
}

/// A bury of an absent task has the outcome `Missing`.
pub async fn an_absent_task_is_missing<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    assert_eq!(queue.bury(&tube, TaskId(0)).await, Outcome::Missing);
    assert_eq!(queue.calls(&tube).await.bury, 0);
}

/// A delivery that ends with a bury is no attempt.
pub async fn a_bury_is_no_attempt<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    queue.put(&tube, task("x")).await;
    let first = queue.take(&tube).await;
    queue.advance(secs(1));
    queue.release(&tube, &first).await;
    let second = queue.take(&tube).await;
    let buried = done(queue.finish_lease(&tube, &second, Finish::Bury).await);
    assert_eq!((buried.attempts, buried.previous_start), (1, first.start));
}

/// The holder of a task that another client buried has lost it.
pub async fn the_holder_loses_the_task<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put(&tube, NewTask { ttr: Some(secs(10)), ..task("x") }).await;
    let taken = queue.take(&tube).await;
    queue.bury(&tube, taken.id).await;
    assert_eq!(queue.ack(&tube, &taken).await, Outcome::Stale);
    queue.advance(secs(20));
    assert_eq!(queue.state(&tube, taken.id).await, State::Buried);
    assert_eq!(queue.calls(&tube).await.ttr, 0);
}

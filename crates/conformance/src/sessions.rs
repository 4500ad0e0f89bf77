//! Sessions: tasks return when the session that took them ends.

use taskyard_core::{
    Command, Error, Finish, Holder, Kind, NewTask, Outcome, Span, State, TubeOptions,
};

use super::Harness;
use super::commands::{QueueCommands, done, secs, session, task};

/// When the last connection leaves, the session's tasks are released immediately and counted.
pub async fn tasks_return_when_the_last_connection_leaves<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    let other = queue.tube_named("other", TubeOptions::new(Kind::Utube)).await;
    queue.join(session(1)).await;
    for tube in [&tube, &other] {
        queue.put(tube, task("x")).await;
        queue.take_as(tube, session(1)).await;
    }
    queue.advance(secs(1));
    queue.leave(session(1)).await;
    for tube in [&tube, &other] {
        let back = queue.take(tube).await;
        assert_eq!(back.attempts, 1);
        assert!(back.previous_start.is_some_and(|start| start < queue.now()));
        let calls = queue.calls(tube).await;
        assert_eq!((calls.release, calls.ttr), (1, 0));
    }
}

/// Several connections share a session; it ends with the last of them.
pub async fn connections_share_a_session<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let id = queue.put(&tube, task("x")).await;
    queue.join(session(1)).await;
    queue.join(session(1)).await;
    queue.take_as(&tube, session(1)).await;
    queue.leave(session(1)).await;
    assert_eq!(queue.state(&tube, id).await, State::Taken);
    done(queue.finish(&tube, id, Holder::Session(session(1)), Finish::Touch(Span::ZERO)).await);
    queue.leave(session(1)).await;
    assert_eq!(queue.state(&tube, id).await, State::Ready);
    assert_unknown(&queue).await;
}

/// A session that was never begun cannot be joined.
pub async fn an_unknown_session_cannot_be_joined<H: Harness>(queue: H) {
    assert_unknown(&queue).await;
    queue.join(session(1)).await;
    queue.must(Command::JoinSession { session: session(1), create: false }).await;
}

/// A session that was never begun cannot be left.
pub async fn an_unknown_session_cannot_be_left<H: Harness>(queue: H) {
    let leave = Command::LeaveSession { session: session(1) };
    assert_eq!(queue.refused(leave).await, Error::SessionUnknown(session(1)));
}

/// Tasks taken without a session, or by another session, stay taken.
pub async fn tasks_of_other_holders_stay_taken<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    queue.put_texts(&tube, &["a", "b", "c"]).await;
    queue.join(session(1)).await;
    queue.join(session(2)).await;
    let leaving = queue.take_as(&tube, session(1)).await;
    queue.take_as(&tube, session(2)).await;
    queue.take(&tube).await;
    queue.leave(session(1)).await;
    let tasks = queue.stats(&tube).await.tasks;
    assert_eq!((tasks.ready, tasks.taken), (1, 2));
    assert_eq!(queue.state(&tube, leaving.id).await, State::Ready);
}

/// The end of a session releases only the tasks that it holds then, not earlier ones.
pub async fn only_currently_held_tasks_return<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put_texts(&tube, &["released", "acked", "buried"]).await;
    queue.put(&tube, NewTask { ttr: Some(secs(5)), ..task("overdue") }).await;
    queue.join(session(1)).await;
    queue.join(session(2)).await;
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(queue.take_as(&tube, session(1)).await);
    }
    queue.release(&tube, &held[0]).await;
    queue.ack(&tube, &held[1]).await;
    queue.bury(&tube, held[2].id).await;
    queue.advance(secs(5));
    queue.take_as(&tube, session(2)).await;
    queue.take_as(&tube, session(2)).await;
    queue.leave(session(1)).await;
    let stats = queue.stats(&tube).await;
    assert_eq!((stats.tasks.taken, stats.tasks.buried, stats.tasks.ready), (2, 1, 0));
    assert_eq!(stats.calls.release, 1);
}

/// With a timeout, a session without connections keeps its tasks that long.
pub async fn a_session_timeout_keeps_tasks<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    let id = queue.put(&tube, task("x")).await;
    keep_for(&queue, secs(10)).await;
    queue.join(session(1)).await;
    let taken = queue.take_as(&tube, session(1)).await;
    queue.leave(session(1)).await;
    queue.advance(Span::from_micros(10_000_000 - 1));
    assert_eq!(queue.state(&tube, id).await, State::Taken);
    queue.advance(Span::from_micros(1));
    let back = queue.peek_existing(&tube, id).await;
    assert_eq!((back.state, back.attempts), (State::Ready, 1));
    assert_eq!(back.previous_start, taken.start);
    assert_eq!(queue.calls(&tube).await.release, 1);
    assert_unknown(&queue).await;
    assert_eq!(queue.ack(&tube, &taken).await, Outcome::Stale);
}

/// A client that joins within the timeout finds the session and its tasks.
pub async fn a_session_that_is_joined_in_time_keeps_its_tasks<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    let id = queue.put(&tube, task("x")).await;
    keep_for(&queue, secs(10)).await;
    queue.join(session(1)).await;
    queue.take_as(&tube, session(1)).await;
    queue.leave(session(1)).await;
    queue.advance(secs(9));
    queue.must(Command::JoinSession { session: session(1), create: false }).await;
    queue.advance(secs(100));
    assert_eq!(queue.state(&tube, id).await, State::Taken);
    done(queue.finish(&tube, id, Holder::Session(session(1)), Finish::Ack).await);
}

/// While no connection is open the lease number is still valid.
pub async fn a_lease_outlives_the_connection<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    queue.put(&tube, task("x")).await;
    keep_for(&queue, secs(10)).await;
    queue.join(session(1)).await;
    let taken = queue.take_as(&tube, session(1)).await;
    queue.leave(session(1)).await;
    queue.advance(secs(5));
    done(queue.ack(&tube, &taken).await);
}

/// A ttr that ends before the session returns the task without waiting for the session.
pub async fn a_ttr_does_not_wait_for_the_session<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let id = queue.put(&tube, NewTask { ttr: Some(secs(5)), ..task("x") }).await;
    keep_for(&queue, secs(10)).await;
    queue.join(session(1)).await;
    queue.take_as(&tube, session(1)).await;
    queue.leave(session(1)).await;
    queue.advance(secs(5));
    assert_eq!(queue.state(&tube, id).await, State::Ready);
    queue.advance(secs(5));
    let calls = queue.calls(&tube).await;
    assert_eq!((calls.ttr, calls.release), (1, 0));
}

/// A session that ended and is begun again holds nothing.
pub async fn a_session_begun_again_holds_nothing<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    let id = queue.put(&tube, task("x")).await;
    queue.join(session(1)).await;
    queue.take_as(&tube, session(1)).await;
    queue.leave(session(1)).await;
    queue.join(session(1)).await;
    queue.take(&tube).await;
    let outcome = queue.finish(&tube, id, Holder::Session(session(1)), Finish::Ack).await;
    assert_eq!(outcome, Outcome::Stale);
}

async fn keep_for<H: Harness>(queue: &H, ttr: Span) {
    queue.must_reply_nothing(Command::ConfigureSessions { ttr }).await;
}

async fn assert_unknown<H: Harness>(queue: &H) {
    let join = Command::JoinSession { session: session(1), create: false };
    assert_eq!(queue.refused(join).await, Error::SessionUnknown(session(1)));
}

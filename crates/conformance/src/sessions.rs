//! Sessions: tasks return when those who took them leave.

use taskyard_core::{
    Command, Error, Finish, Holder, Kind, NewTask, Outcome, Span, State, TubeOptions,
};

use super::Harness;
use super::ask::{Ask, done, secs, session, task};

/// When the last connection leaves, its tasks are ready at once: released and counted.
pub async fn tasks_return_when_the_last_leaves<H: Harness>(queue: H) {
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

/// A session that nobody began cannot be joined.
pub async fn an_unknown_session_cannot_be_joined<H: Harness>(queue: H) {
    assert_unknown(&queue).await;
    queue.join(session(1)).await;
    queue.must(Command::JoinSession { session: session(1), create: false }).await;
}

/// Nor can it be left.
pub async fn an_unknown_session_cannot_be_left<H: Harness>(queue: H) {
    let leave = Command::LeaveSession { session: session(1) };
    assert_eq!(queue.refused(leave).await, Error::SessionUnknown(session(1)));
}

/// Tasks taken without a session, or by another, stay where they are.
pub async fn others_keep_their_tasks<H: Harness>(queue: H) {
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

/// A session gives back only what it holds now, not what it once held.
pub async fn only_what_it_holds_now_returns<H: Harness>(queue: H) {
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

/// With a time set, a session without connections keeps its tasks that long.
pub async fn a_time_keeps_them_a_while<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    let id = queue.put(&tube, task("x")).await;
    keep_for(&queue, secs(10)).await;
    queue.join(session(1)).await;
    let taken = queue.take_as(&tube, session(1)).await;
    queue.leave(session(1)).await;
    queue.advance(Span::from_micros(10_000_000 - 1));
    assert_eq!(queue.state(&tube, id).await, State::Taken);
    queue.advance(Span::from_micros(1));
    let back = queue.look(&tube, id).await;
    assert_eq!((back.state, back.attempts), (State::Ready, 1));
    assert_eq!(back.previous_start, taken.start);
    assert_eq!(queue.calls(&tube).await.release, 1);
    assert_unknown(&queue).await;
    assert_eq!(queue.ack(&tube, &taken).await, Outcome::Stale);
}

/// Who comes back in time finds the session and its tasks.
pub async fn who_comes_back_in_time_keeps_them<H: Harness>(queue: H) {
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

/// While nobody is connected the lease number still counts.
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

/// A ttr that is over before the session is does not wait for it.
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

/// A session that ended is a new one when it is begun again: it holds nothing.
pub async fn a_session_begun_again_is_new<H: Harness>(queue: H) {
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
    queue.silent(Command::ConfigureSessions { ttr }).await;
}

async fn assert_unknown<H: Harness>(queue: &H) {
    let join = Command::JoinSession { session: session(1), create: false };
    assert_eq!(queue.refused(join).await, Error::SessionUnknown(session(1)));
}

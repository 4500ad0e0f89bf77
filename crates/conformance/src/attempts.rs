//! Attempts: what counts as one, and what happens when they are used up.

use taskyard_core::{
    Command, Finish, Kind, NewTask, Reason, Reply, Span, State, TaskId, TubeChange, TubeName,
    TubeOptions,
};

use super::Harness;
use super::commands::{QueueCommands, done, secs, session, task};

/// Every return of a delivery counts once and keeps the time at which the task had become ready.
pub async fn every_return_counts<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let id = queue.put(&tube, NewTask { ttr: Some(secs(10)), ..task("x") }).await;
    let mut ready = queue.now();
    for (attempts, way) in (1..).zip(COUNTED_RETURNS) {
        queue.join(session(1)).await;
        queue.advance(secs(2));
        let over = queue.now() + secs(10);
        queue.take_as(&tube, session(1)).await;
        queue.advance(secs(1));
        return_task(&queue, &tube, way, id).await;
        let back = queue.peek_existing(&tube, id).await;
        assert_eq!((back.state, back.attempts), (State::Ready, attempts), "{way}");
        assert_eq!(back.previous_start, Some(ready), "{way}");
        // An overdue delivery ended at its deadline, independent of when the tick ran.
        ready = if way == "ttr" { over } else { queue.now() };
        if way != "session end" {
            queue.leave(session(1)).await;
        }
    }
}

/// The previous start is when the task had become ready for the previous attempt, not when it was taken: at the end of a
/// delay of its put or of a release, or when it was released or kicked. Events that are not attempts do not change it.
pub async fn the_previous_start_is_when_it_became_ready<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let id = queue.put(&tube, NewTask { delay: Some(secs(10)), ..task("x") }).await;
    let put_due = queue.now() + secs(10);
    queue.advance(secs(15));
    let first = queue.take(&tube).await;
    assert_eq!((first.previous_start, first.due), (None, Some(put_due)));
    queue.advance(secs(1));
    let later = Finish::Release { delay: secs(20), counted: true };
    let back = done(queue.finish_lease(&tube, &first, later).await);
    assert_eq!(back.previous_start, Some(put_due));
    let retry_due = queue.now() + secs(20);
    assert_eq!(back.due, Some(retry_due));

    queue.advance(secs(25));
    let second = queue.take(&tube).await;
    queue.advance(secs(1));
    let uncounted = Finish::Release { delay: Span::ZERO, counted: false };
    let back = done(queue.finish_lease(&tube, &second, uncounted).await);
    assert_eq!((back.previous_start, back.due), (Some(put_due), None));
    queue.advance(secs(1));
    let third = queue.take(&tube).await;
    assert_eq!((third.previous_start, third.due), (Some(put_due), Some(retry_due)));
    queue.advance(secs(1));
    done(queue.release(&tube, &third).await);
    let released = queue.now();
    queue.advance(secs(1));
    let fourth = queue.take(&tube).await;
    assert_eq!((fourth.previous_start, fourth.due), (Some(retry_due), Some(released)));

    queue.bury(&tube, id).await;
    queue.advance(secs(5));
    assert_eq!(queue.kick(&tube, 1).await, 1);
    let kicked = queue.now();
    queue.advance(secs(1));
    let fifth = queue.take(&tube).await;
    assert_eq!(fifth.previous_start, Some(retry_due), "a bury is no attempt");
    assert_eq!(fifth.due, Some(kicked));
    let back = done(queue.release(&tube, &fifth).await);
    assert_eq!((back.previous_start, back.attempts), (Some(kicked), 3));
}

/// The take, a peek and the list of deliveries show when a taken task became ready, in every kind; a waiting task has no such
/// time.
pub async fn a_taken_task_shows_when_it_became_ready<H: Harness>(queue: H) {
    for kind in Kind::ALL {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        let id = queue.put(&tube, task("x")).await;
        let put = queue.now();
        queue.advance(secs(3));
        assert_eq!(queue.peek_existing(&tube, id).await.due, None, "{kind:?}: ready");
        for since in [put, put + secs(4)] {
            let taken = queue.take(&tube).await;
            assert_eq!(taken.due, Some(since), "{kind:?}: taken");
            assert_eq!(queue.peek_existing(&tube, id).await.due, Some(since), "{kind:?}: peeked");
            let listed = queue.must(Command::Deliveries { tube: tube.clone(), count: 9 }).await;
            let Reply::Tasks(listed) = listed else { panic!("{listed:?}") };
            assert_eq!(listed[0].due, Some(since), "{kind:?}: listed");
            queue.advance(secs(1));
            let back = done(queue.release(&tube, &taken).await);
            assert_eq!(back.due, None, "{kind:?}: released");
            queue.advance(secs(2));
        }
    }
}

/// A task is buried when its last attempt fails, for every kind of failure.
pub async fn the_last_failed_attempt_buries<H: Harness>(queue: H) {
    for way in COUNTED_RETURNS {
        let tube = queue.tube_named(way, limited(2)).await;
        let id = queue.put(&tube, NewTask { ttr: Some(secs(10)), ..task("x") }).await;
        for expected in [State::Ready, State::Buried] {
            queue.join(session(1)).await;
            queue.take_as(&tube, session(1)).await;
            return_task(&queue, &tube, way, id).await;
            assert_eq!(queue.state(&tube, id).await, expected, "{way}");
            if way != "session end" {
                queue.leave(session(1)).await;
            }
        }
        let dead = queue.peek_existing(&tube, id).await;
        assert_eq!((dead.attempts, dead.reason), (2, Reason::AttemptsUsedUp), "{way}");
        assert_eq!((dead.lease, dead.start), (None, None), "{way}");
        let calls = queue.calls(&tube).await;
        assert_eq!((calls.bury, calls.release + calls.ttr), (1, 2), "{way}");
        assert_eq!(calls.ttr, if way == "ttr" { 2 } else { 0 }, "{way}");
        assert_eq!(queue.take_many(&tube, 1).await, [], "{way}");
    }
}

/// A release with a delay that was the last attempt buries as well; the reply shows it.
pub async fn a_delayed_release_buries_too<H: Harness>(queue: H) {
    let tube = queue.tube_with(limited(1)).await;
    queue.put(&tube, task("x")).await;
    let taken = queue.take(&tube).await;
    let later = Finish::Release { delay: secs(5), counted: true };
    let after = done(queue.finish_lease(&tube, &taken, later).await);
    assert_eq!((after.state, after.reason), (State::Buried, Reason::AttemptsUsedUp));
    queue.advance(secs(10));
    assert_eq!(queue.state(&tube, taken.id).await, State::Buried);
    assert_eq!(queue.calls(&tube).await.delay, 0);
}

/// An uncounted release uses no attempt.
pub async fn an_uncounted_release_is_no_attempt<H: Harness>(queue: H) {
    let tube = queue.tube_with(limited(1)).await;
    queue.put(&tube, task("x")).await;
    for _ in 0..3 {
        let taken = queue.take(&tube).await;
        let uncounted = Finish::Release { delay: Span::ZERO, counted: false };
        assert_eq!(done(queue.finish_lease(&tube, &taken, uncounted).await).state, State::Ready);
    }
}

/// A kick gives one more attempt: the next failure buries again.
pub async fn a_kick_allows_one_more_attempt<H: Harness>(queue: H) {
    let tube = queue.tube_with(limited(1)).await;
    let id = queue.put(&tube, task("x")).await;
    for attempts in 1..4 {
        let taken = queue.take(&tube).await;
        let after = done(queue.release(&tube, &taken).await);
        assert_eq!((after.state, after.attempts), (State::Buried, attempts));
        assert_eq!(queue.kick(&tube, 1).await, 1);
        let back = queue.peek_existing(&tube, id).await;
        assert_eq!((back.state, back.attempts), (State::Ready, attempts));
        assert_eq!(back.reason, Reason::WaitsForConsumer);
    }
}

/// A task that a client buries after its attempts were used up has the reason of a plain bury.
pub async fn a_plain_bury_has_its_own_reason<H: Harness>(queue: H) {
    let tube = queue.tube_with(limited(5)).await;
    let id = queue.put(&tube, task("x")).await;
    queue.take(&tube).await;
    queue.bury(&tube, id).await;
    assert_eq!(queue.peek_existing(&tube, id).await.reason, Reason::Buried);
}

/// The limit can be set on a tube that has tasks.
pub async fn the_limit_can_be_set_later<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put(&tube, task("x")).await;
    for _ in 0..3 {
        let taken = queue.take(&tube).await;
        queue.release(&tube, &taken).await;
    }
    let change = TubeChange { attempts_max: Some(Some(2)), ..TubeChange::default() };
    queue.alter(&tube, change).await;
    assert_eq!(queue.state(&tube, TaskId(0)).await, State::Ready, "only a failure buries");
    let taken = queue.take(&tube).await;
    assert_eq!(done(queue.release(&tube, &taken).await).state, State::Buried);
}

/// The returns of a delivery that count as attempts.
const COUNTED_RETURNS: [&str; 4] = ["release", "ttr", "release all", "session end"];

async fn return_task<H: Harness>(queue: &H, tube: &TubeName, way: &str, id: TaskId) {
    match way {
        "release" => {
            let held = queue.peek_existing(tube, id).await;
            done(queue.release(tube, &held).await);
        }
        "ttr" => queue.advance(secs(10)),
        "release all" => queue.release_all(tube).await,
        _ => queue.leave(session(1)).await,
    }
}

fn limited(attempts_max: u32) -> TubeOptions {
    TubeOptions { attempts_max: Some(attempts_max), ..TubeOptions::new(Kind::FifoTtl) }
}

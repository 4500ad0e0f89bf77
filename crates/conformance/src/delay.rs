//! Delay and start time: tasks for later.

use taskyard_core::{Error, Kind, NewTask, Reason, Span, State, Timestamp, TubeOptions};

use super::Harness;
use super::ask::{Ask, ids, put, secs, task};

/// A delayed task waits for its time, in every kind that has times; the end is counted as `delay`.
pub async fn a_delayed_task_waits<H: Harness>(queue: H) {
    for kind in [Kind::FifoTtl, Kind::LimFifoTtl, Kind::UtubeTtl] {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        let id = queue.put(&tube, NewTask { delay: Some(secs(10)), ..task("x") }).await;
        let due = queue.now() + secs(10);
        let seen = queue.look(&tube, id).await;
        assert_eq!((seen.state, seen.due), (State::Delayed, Some(due)), "{kind:?}");
        assert_eq!(seen.reason, Reason::NotDue(due), "{kind:?}");
        queue.advance(Span::from_micros(10_000_000 - 1));
        assert_eq!(queue.take_many(&tube, 1).await, [], "{kind:?}");
        queue.advance(Span::from_micros(1));
        let seen = queue.look(&tube, id).await;
        assert_eq!((seen.state, seen.due), (State::Ready, None), "{kind:?}");
        assert_eq!(queue.take(&tube).await.id, id, "{kind:?}");
        assert_eq!(queue.calls(&tube).await.delay, 1, "{kind:?}");
    }
}

/// A delay of no time is none.
pub async fn no_time_is_no_delay<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let id = queue.put(&tube, NewTask { delay: Some(Span::ZERO), ..task("x") }).await;
    assert_eq!(queue.state(&tube, id).await, State::Ready);
    assert_eq!(queue.calls(&tube).await.delay, 0);
}

/// A start time is kept as it is, and lengthens life as a delay does.
pub async fn a_start_time_is_a_delay<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let at = queue.now() + secs(40);
    let timed = NewTask { at: Some(at), ttl: Some(secs(5)), ..task("x") };
    let id = queue.put(&tube, timed).await;
    let seen = queue.look(&tube, id).await;
    assert_eq!((seen.state, seen.due), (State::Delayed, Some(at)));
    assert_eq!(seen.expires, at + secs(5));
    queue.advance(secs(40));
    assert_eq!(queue.take(&tube).await.id, id);
}

/// A start time wins over the delay of the tube; together with a delay of the put it is refused, whatever the two say.
pub async fn a_start_time_excludes_a_delay<H: Harness>(queue: H) {
    let options = TubeOptions { delay: Some(secs(99)), ..TubeOptions::new(Kind::FifoTtl) };
    let tube = queue.tube_with(options).await;
    let at = queue.now() + secs(7);
    let id = queue.put(&tube, NewTask { at: Some(at), ..task("x") }).await;
    assert_eq!(queue.look(&tube, id).await.due, Some(at));
    for delay in [secs(50), Span::ZERO] {
        let both = NewTask { at: Some(at), delay: Some(delay), ..task("x") };
        let refused = queue.refused(put(&tube, vec![task("fine"), both])).await;
        assert!(matches!(&refused, Error::Invalid(why) if why.contains("not both")), "{refused:?}");
    }
    assert_eq!(queue.stats(&tube).await.tasks.total(), 1, "nothing of such a put is kept");
}

/// A start time that is not in the future is now.
pub async fn a_past_start_time_is_now<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let past = Timestamp::from_micros(queue.now().as_micros() - 1);
    for at in [queue.now(), past, Timestamp::EPOCH] {
        let timed = NewTask { at: Some(at), ttl: Some(secs(9)), ..task("x") };
        let id = queue.put(&tube, timed).await;
        let seen = queue.look(&tube, id).await;
        assert_eq!((seen.state, seen.due), (State::Ready, None), "{at:?}");
        assert_eq!(seen.expires, queue.now() + secs(9), "{at:?}");
    }
}

/// When their time has come, tasks stand in the order of (pri, id), not of their times.
pub async fn due_tasks_stand_in_order<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    for (pri, delay) in [(1, 3), (0, 9), (1, 1), (0, 2)] {
        let later = NewTask { pri: Some(pri), delay: Some(secs(delay)), ..task("x") };
        queue.put(&tube, later).await;
    }
    queue.advance(secs(2));
    assert_eq!(ids(&queue.take_many(&tube, 1).await), [3]);
    queue.advance(secs(10));
    assert_eq!(ids(&queue.take_many(&tube, 9).await), [1, 0, 2]);
}

/// Many delays that end at the same moment all end.
pub async fn many_may_end_at_once<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let later = NewTask { delay: Some(secs(1)), ..task("x") };
    queue.put_many(&tube, vec![later; 50]).await;
    queue.advance(secs(1));
    assert_eq!(queue.take_many(&tube, 100).await.len(), 50);
    assert_eq!(queue.calls(&tube).await.delay, 50);
}

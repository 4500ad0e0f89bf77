//! Delay and start time: tasks that become ready later.

use taskyard_core::{Error, Kind, NewTask, Reason, Span, State, Timestamp, TubeOptions};

use super::Harness;
use super::commands::{QueueCommands, ids, put, secs, task};

/// A delayed task becomes ready at its time, in every kind that has times; this is counted as `delay`.
pub async fn a_delayed_task_waits<H: Harness>(queue: H) {
    for kind in [Kind::FifoTtl, Kind::LimFifoTtl, Kind::UtubeTtl] {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        let id = queue.put(&tube, NewTask { delay: Some(secs(10)), ..task("x") }).await;
        let due = queue.now() + secs(10);
        let seen = queue.peek_existing(&tube, id).await;
        assert_eq!((seen.state, seen.due), (State::Delayed, Some(due)), "{kind:?}");
        assert_eq!(seen.reason, Reason::NotDue(due), "{kind:?}");
        queue.advance(Span::from_micros(10_000_000 - 1));
        assert_eq!(queue.take_many(&tube, 1).await, [], "{kind:?}");
        queue.advance(Span::from_micros(1));
        let seen = queue.peek_existing(&tube, id).await;
        assert_eq!((seen.state, seen.due), (State::Ready, None), "{kind:?}");
        assert_eq!(queue.take(&tube).await.id, id, "{kind:?}");
        assert_eq!(queue.calls(&tube).await.delay, 1, "{kind:?}");
    }
}

/// A delay of zero is no delay.
pub async fn a_delay_of_zero_is_no_delay<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let id = queue.put(&tube, NewTask { delay: Some(Span::ZERO), ..task("x") }).await;
    assert_eq!(queue.state(&tube, id).await, State::Ready);
    assert_eq!(queue.calls(&tube).await.delay, 0);
}

/// A start time is stored as given, and extends the ttl as a delay does.
pub async fn a_start_time_is_a_delay<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let at = queue.now() + secs(40);
    let timed = NewTask { at: Some(at), ttl: Some(secs(5)), ..task("x") };
    let id = queue.put(&tube, timed).await;
    let seen = queue.peek_existing(&tube, id).await;
    assert_eq!((seen.state, seen.due), (State::Delayed, Some(at)));
    assert_eq!(seen.expires, at + secs(5));
    queue.advance(secs(40));
    assert_eq!(queue.take(&tube).await.id, id);
}

/// A start time overrides the delay of the tube; together with a delay of the put it is always refused.
pub async fn a_start_time_excludes_a_delay<H: Harness>(queue: H) {
    let options = TubeOptions { delay: Some(secs(99)), ..TubeOptions::new(Kind::FifoTtl) };
    let tube = queue.tube_with(options).await;
    let at = queue.now() + secs(7);
    let id = queue.put(&tube, NewTask { at: Some(at), ..task("x") }).await;
    assert_eq!(queue.peek_existing(&tube, id).await.due, Some(at));
    for delay in [secs(50), Span::ZERO] {
        let both = NewTask { at: Some(at), delay: Some(delay), ..task("x") };
        let refused = queue.refused(put(&tube, vec![task("fine"), both])).await;
        assert!(matches!(&refused, Error::Invalid(why) if why.contains("not both")), "{refused:?}");
    }
    assert_eq!(queue.stats(&tube).await.tasks.total(), 1, "such a put adds no task");
}

/// A start time in the past means now.
pub async fn a_past_start_time_is_now<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let past = Timestamp::from_micros(queue.now().as_micros() - 1);
    for at in [queue.now(), past, Timestamp::EPOCH] {
        let timed = NewTask { at: Some(at), ttl: Some(secs(9)), ..task("x") };
        let id = queue.put(&tube, timed).await;
        let seen = queue.peek_existing(&tube, id).await;
        assert_eq!((seen.state, seen.due), (State::Ready, None), "{at:?}");
        assert_eq!(seen.expires, queue.now() + secs(9), "{at:?}");
    }
}

/// Tasks that have become due are ordered by (pri, id), not by their times.
pub async fn due_tasks_are_ordered_by_priority_and_id<H: Harness>(queue: H) {
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

/// Many delays that end at the same time all end.
pub async fn many_delays_end_at_once<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let later = NewTask { delay: Some(secs(1)), ..task("x") };
    queue.put_many(&tube, vec![later; 50]).await;
    queue.advance(secs(1));
    assert_eq!(queue.take_many(&tube, 100).await.len(), 50);
    assert_eq!(queue.calls(&tube).await.delay, 50);
}

//! Put: the properties of a new task.

use taskyard_core::{
    Body, Command, Error, Kind, NewTask, Reason, Reply, Span, State, Timestamp, TubeOptions,
};

use super::Harness;
use super::commands::{QueueCommands, ids, name, put, secs, task};

/// Ids count up from 0.
pub async fn ids_count_up_from_zero<H: Harness>(queue: H) {
    for kind in Kind::ALL {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        for expected in 0..3 {
            assert_eq!(queue.put(&tube, task("x")).await.0, expected, "{kind:?}");
        }
    }
}

/// The reply to a batch has its order, each task with its own state.
pub async fn a_batch_is_answered_in_order<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let later = NewTask { delay: Some(secs(5)), ..task("later") };
    let placed = queue.put_many(&tube, vec![task("a"), later, task("c")]).await;
    let states: Vec<State> = placed.iter().map(|placed| placed.state).collect();
    assert_eq!(states, [State::Ready, State::Delayed, State::Ready]);
    assert!(placed.is_sorted_by_key(|placed| placed.id));
    let texts = queue.take_many(&tube, 3).await;
    assert_eq!(ids(&texts), [placed[0].id.0, placed[2].id.0]);
}

/// An id is never reused, independent of how its task was removed.
pub async fn ids_are_never_used_again<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    let first = queue.put(&tube, task("acked")).await;
    let taken = queue.take(&tube).await;
    queue.ack(&tube, &taken).await;
    let second = queue.put(&tube, task("deleted")).await;
    queue.delete(&tube, second).await;
    let third = queue.put(&tube, task("truncated")).await;
    queue.truncate(&tube).await;
    let fourth = queue.put(&tube, task("here")).await;
    assert!(first < second && second < third && third < fourth, "ids must only grow");
}

/// Payload and meta are returned byte for byte, for every kind of MessagePack value.
pub async fn bodies_are_kept_byte_for_byte<H: Harness>(queue: H) {
    let mut bytes = vec![0xc5, 0x01, 0x00];
    bytes.extend(0..=255);
    let payloads: [&[u8]; 6] = [
        &[0xc0],
        // The number 1 in its longest encoding.
        &[0xcf, 0, 0, 0, 0, 0, 0, 0, 1],
        // 50.0: must not become the integer 50.
        &[0xcb, 0x40, 0x49, 0, 0, 0, 0, 0, 0],
        // A string that is not UTF-8.
        &[0xa2, 0xff, 0xfe],
        // A map with a number as key.
        &[0x81, 0x01, 0x90],
        &bytes,
    ];
    let tube = queue.tube(Kind::Fifo).await;
    for payload in payloads {
        let meta: &[u8] = &[0x81, 0xa1, b'k', 0xa1, b'v'];
        for body in [Body::new(payload), Body::with_meta(payload, meta)] {
            let id = queue.put(&tube, NewTask::new(body.clone())).await;
            assert_eq!(queue.peek_existing(&tube, id).await.body.as_ref(), Some(&body));
            let taken = queue.take(&tube).await;
            let got = taken.body.as_ref().expect("a delivery has its body");
            assert_eq!((got.payload(), got.meta()), (body.payload(), body.meta()));
            queue.ack(&tube, &taken).await;
        }
    }
}

/// A new task of a plain tube has no deadline, no attempts and no holder.
pub async fn a_new_task_has_no_deadline_and_no_holder<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let id = queue.put(&tube, task("x")).await;
    let seen = queue.peek_existing(&tube, id).await;
    assert_eq!((seen.id, seen.state, seen.pri), (id, State::Ready, 0));
    assert_eq!((seen.created, seen.due, seen.expires), (queue.now(), None, Timestamp::NEVER));
    assert_eq!((seen.ttr, seen.attempts), (Span::FOREVER, 0));
    assert_eq!((seen.start, seen.previous_start), (None, None));
    assert_eq!((seen.lease, seen.lease_until), (None, None));
    assert_eq!((seen.subqueue, seen.reason), (None, Reason::WaitsForConsumer));
}

/// Kinds without times ignore priority, ttl, ttr, delay and start time.
pub async fn kinds_without_times_ignore_them<H: Harness>(queue: H) {
    for kind in [Kind::Fifo, Kind::Utube] {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        let times = (Some(secs(1)), Some(secs(1)));
        let full = NewTask { pri: Some(9), ttl: times.0, ttr: times.1, ..task("x") };
        let delayed = NewTask { delay: Some(secs(1)), ..full.clone() };
        let id = queue.put(&tube, delayed).await;
        let timed = queue.put(&tube, NewTask { at: Some(queue.now() + secs(100)), ..full }).await;
        assert_eq!(queue.state(&tube, timed).await, State::Ready, "{kind:?}");
        let seen = queue.peek_existing(&tube, id).await;
        assert_eq!((seen.state, seen.pri, seen.due), (State::Ready, 0, None), "{kind:?}");
        assert_eq!((seen.expires, seen.ttr), (Timestamp::NEVER, Span::FOREVER), "{kind:?}");
        let taken = queue.take(&tube).await;
        assert_eq!(taken.lease_until, Some(Timestamp::NEVER), "{kind:?}");
        queue.advance(secs(1000));
        assert_eq!(queue.state(&tube, id).await, State::Taken, "{kind:?}");
    }
}

/// Kinds without times also ignore the tube options for them.
pub async fn kinds_without_times_ignore_their_defaults<H: Harness>(queue: H) {
    for kind in [Kind::Fifo, Kind::Utube] {
        let options = TubeOptions {
            pri: 4,
            ttl: Some(secs(1)),
            ttr: Some(secs(1)),
            delay: Some(secs(1)),
            ..TubeOptions::new(kind)
        };
        let tube = queue.tube_named(kind.name(), options).await;
        let id = queue.put(&tube, task("x")).await;
        queue.advance(secs(10));
        let seen = queue.peek_existing(&tube, id).await;
        assert_eq!((seen.state, seen.pri), (State::Ready, 0), "{kind:?}");
        assert_eq!((seen.expires, seen.ttr), (Timestamp::NEVER, Span::FOREVER), "{kind:?}");
    }
}

/// Values that a put does not give come from the tube.
pub async fn missing_values_come_from_the_tube<H: Harness>(queue: H) {
    let options = TubeOptions {
        pri: 7,
        ttl: Some(secs(60)),
        ttr: Some(secs(20)),
        delay: Some(secs(3)),
        ..TubeOptions::new(Kind::FifoTtl)
    };
    let tube = queue.tube_with(options).await;
    let id = queue.put(&tube, task("x")).await;
    let seen = queue.peek_existing(&tube, id).await;
    assert_eq!((seen.state, seen.pri, seen.ttr), (State::Delayed, 7, secs(20)));
    assert_eq!(seen.due, Some(queue.now() + secs(3)));
    assert_eq!(seen.expires, queue.now() + secs(63));
}

/// Values that a put gives override those of the tube.
pub async fn values_of_a_put_override_the_tube<H: Harness>(queue: H) {
    let options = TubeOptions {
        pri: 7,
        ttl: Some(secs(60)),
        ttr: Some(secs(20)),
        delay: Some(secs(3)),
        ..TubeOptions::new(Kind::FifoTtl)
    };
    let tube = queue.tube_with(options).await;
    let own = NewTask {
        pri: Some(0),
        ttl: Some(secs(5)),
        ttr: Some(secs(2)),
        delay: Some(Span::ZERO),
        ..task("x")
    };
    let id = queue.put(&tube, own).await;
    let seen = queue.peek_existing(&tube, id).await;
    assert_eq!((seen.state, seen.pri, seen.ttr), (State::Ready, 0, secs(2)));
    assert_eq!(seen.expires, queue.now() + secs(5));
}

/// Values are checked before the tube is looked for. PostgreSQL did that, the other stores refused the missing tube; Redis also that of
/// a tube which an earlier command of the batch creates.
pub async fn values_are_checked_before_the_tube<H: Harness>(queue: H) {
    let both = NewTask { delay: Some(secs(1)), at: Some(queue.now()), ..task("x") };
    let refusal = queue.refused(put(&name("nowhere"), vec![both.clone()])).await;
    assert!(matches!(refusal, Error::Invalid(_)), "{refusal:?}");
    let missing = queue.refused(put(&name("nowhere"), vec![task("x")])).await;
    assert_eq!(missing, Error::TubeNotFound(name("nowhere")));
    let options = TubeOptions::new(Kind::FifoTtl);
    let create = Command::CreateTube { tube: name("new"), options, if_not_exists: false };
    let replies = queue.execute(vec![create, put(&name("new"), vec![both])]).await;
    assert_eq!(replies[0], Ok(Reply::Created(true)));
    assert!(matches!(replies[1], Err(Error::Invalid(_))), "{:?}", replies[1]);
}

//! Touch: a holder extends its lease.

use taskyard_core::{
    Command, Error, Finish, FinishItem, Holder, Kind, NewTask, Outcome, Span, State, TaskId,
    Timestamp, TubeName, TubeOptions,
};

use super::Harness;
use super::commands::{NO_LEASE, QueueCommands, done, lease, secs, session, task};

/// A touch extends the lease, the ttl and the ttr by the same span.
pub async fn a_touch_extends_lease_ttl_and_ttr<H: Harness>(queue: H) {
    for kind in [Kind::FifoTtl, Kind::LimFifoTtl, Kind::UtubeTtl] {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        let spans = NewTask { ttl: Some(secs(100)), ttr: Some(secs(10)), ..task("x") };
        queue.put(&tube, spans).await;
        let taken = queue.take(&tube).await;
        queue.advance(secs(4));
        let after = done(queue.touch(&tube, &taken, secs(7)).await);
        assert_eq!(after.state, State::Taken, "{kind:?}");
        assert_eq!(after.lease_until, taken.lease_until.map(|until| until + secs(7)), "{kind:?}");
        assert_eq!(after.expires, taken.expires + secs(7), "{kind:?}");
        assert_eq!((after.ttr, after.lease), (secs(17), taken.lease), "{kind:?}");
        queue.advance(secs(12));
        assert_eq!(queue.state(&tube, taken.id).await, State::Taken, "{kind:?}");
        queue.advance(secs(1));
        assert_eq!(queue.state(&tube, taken.id).await, State::Ready, "{kind:?}");
        let again = queue.take(&tube).await;
        assert_eq!(
            again.lease_until,
            Some(queue.now() + secs(17)),
            "{kind:?}: the next delivery keeps the extended ttr"
        );
    }
}

/// A span of more than a century is stored as forever.
pub async fn a_touch_is_capped_at_forever<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let spans = NewTask { ttl: Some(secs(100)), ttr: Some(secs(10)), ..task("x") };
    queue.put(&tube, spans).await;
    let taken = queue.take(&tube).await;
    let after = done(queue.touch(&tube, &taken, Span::FOREVER).await);
    assert_eq!(after.lease_until, Some(Timestamp::NEVER));
    assert_eq!((after.expires, after.ttr), (Timestamp::NEVER, Span::FOREVER));
    let after = done(queue.touch(&tube, &taken, Span::FOREVER).await);
    assert_eq!((after.expires, after.ttr), (Timestamp::NEVER, Span::FOREVER));
}

/// A touch of zero has the outcome `Done`, changes nothing and is not counted.
pub async fn a_touch_of_zero_changes_nothing<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put(&tube, NewTask { ttr: Some(secs(10)), ..task("x") }).await;
    let taken = queue.take(&tube).await;
    done(queue.touch(&tube, &taken, Span::ZERO).await);
    assert_eq!(queue.peek_existing(&tube, taken.id).await, taken);
    assert_eq!(queue.calls(&tube).await.touch, 0);
}

/// A touch is counted once.
pub async fn a_touch_counts_once<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put(&tube, task("x")).await;
    let taken = queue.take(&tube).await;
    done(queue.touch(&tube, &taken, secs(1)).await);
    queue.finish(&tube, taken.id, Holder::Lease(NO_LEASE), Finish::Touch(secs(1))).await;
    assert_eq!(queue.calls(&tube).await.touch, 1);
}

/// Only the holder can touch a task.
pub async fn only_the_holder_can_touch<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put_texts(&tube, &["held", "ready"]).await;
    queue.join(session(1)).await;
    queue.join(session(2)).await;
    let taken = queue.take_as(&tube, session(1)).await;
    let touch = Finish::Touch(secs(5));
    for holder in [Holder::Lease(NO_LEASE), Holder::Session(session(2))] {
        assert_eq!(queue.finish(&tube, taken.id, holder, touch.clone()).await, Outcome::Stale);
    }
    assert_eq!(queue.finish(&tube, TaskId(1), Holder::Any, touch.clone()).await, Outcome::Stale);
    assert_eq!(queue.finish(&tube, TaskId(5), Holder::Any, touch.clone()).await, Outcome::Missing);
    for holder in [Holder::Session(session(1)), Holder::Any, Holder::Lease(lease(&taken))] {
        done(queue.finish(&tube, taken.id, holder, touch.clone()).await);
    }
}

/// An expired lease cannot be extended, even before a tick has returned the task.
pub async fn an_expired_lease_is_stale_before_the_tick<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put(&tube, NewTask { ttr: Some(secs(10)), ..task("x") }).await;
    let taken = queue.take(&tube).await;
    queue.advance_unticked(secs(10));
    assert_eq!(queue.touch(&tube, &taken, secs(60)).await, Outcome::Stale);
}

/// Kinds without times refuse a touch, and the other items of the command have no effect.
pub async fn kinds_without_times_refuse_a_touch<H: Harness>(queue: H) {
    for kind in [Kind::Fifo, Kind::Utube] {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        queue.put(&tube, task("x")).await;
        let taken = queue.take(&tube).await;
        let item = |finish| FinishItem { id: taken.id, holder: Holder::Any, finish };
        let touch = item(Finish::Touch(secs(5)));
        let refusal = queue.refused(finish(&tube, vec![touch.clone()])).await;
        assert_eq!(refusal, Error::Unsupported { kind: kind.name(), verb: "touch" });
        queue.put(&tube, NewTask { subqueue: Some("other".into()), ..task("y") }).await;
        let second = queue.take(&tube).await;
        let ack = FinishItem { id: second.id, holder: Holder::Any, finish: Finish::Ack };
        queue.refused(finish(&tube, vec![ack, touch])).await;
        assert_eq!(queue.state(&tube, second.id).await, State::Taken, "a command is atomic");
        assert_eq!(queue.calls(&tube).await.ack, 0);
    }
}

/// A delivery with its own lease time can be extended in every kind.
pub async fn a_lease_time_can_be_extended_in_every_kind<H: Harness>(queue: H) {
    for kind in Kind::ALL {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        queue.put(&tube, task("x")).await;
        let taken = queue.take_for(&tube, secs(10)).await;
        let after = done(queue.touch(&tube, &taken, secs(5)).await);
        assert_eq!(after.lease_until, Some(queue.now() + secs(15)), "{kind:?}");
        queue.advance(secs(14));
        assert_eq!(queue.state(&tube, taken.id).await, State::Taken, "{kind:?}");
        queue.advance(secs(1));
        assert_eq!(queue.state(&tube, taken.id).await, State::Ready, "{kind:?}");
    }
}

fn finish(tube: &TubeName, items: Vec<FinishItem>) -> Command {
    Command::Finish { tube: tube.clone(), items, show: true }
}

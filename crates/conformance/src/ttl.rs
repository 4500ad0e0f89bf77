//! Time to live: what nobody took in time is removed.

use taskyard_core::{Kind, NewTask, Outcome, Span, State, TubeOptions};

use super::Harness;
use super::ask::{Ask, done, secs, task};

/// A task that nobody took in time is removed: deleted, expired and done by the numbers.
pub async fn what_nobody_took_is_removed<H: Harness>(queue: H) {
    for kind in [Kind::FifoTtl, Kind::LimFifoTtl, Kind::UtubeTtl] {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        let id = queue.put(&tube, NewTask { ttl: Some(secs(10)), ..task("x") }).await;
        queue.advance(Span::from_micros(10_000_000 - 1));
        assert_eq!(queue.state(&tube, id).await, State::Ready, "{kind:?}");
        queue.advance(Span::from_micros(1));
        assert_eq!(queue.peek(&tube, id).await, None, "{kind:?}");
        let stats = queue.stats(&tube).await;
        assert_eq!((stats.calls.ttl, stats.calls.delete), (1, 1), "{kind:?}");
        assert_eq!((stats.tasks.done, stats.tasks.total()), (1, 0), "{kind:?}");
    }
}

/// A task without time to live is accepted and then removed.
pub async fn no_time_to_live_is_accepted<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let placed = queue.put_many(&tube, vec![NewTask { ttl: Some(Span::ZERO), ..task("x") }]).await;
    assert_eq!(placed[0].state, State::Ready);
    assert_eq!(queue.take_many(&tube, 1).await, []);
    assert_eq!(queue.peek(&tube, placed[0].id).await, None);
    let calls = queue.calls(&tube).await;
    assert_eq!((calls.put, calls.ttl), (1, 1));
}

/// It never ends a delivery: the task lives on in the hands of its holder.
pub async fn it_never_ends_a_delivery<H: Harness>(queue: H) {
    for kind in [Kind::FifoTtl, Kind::LimFifoTtl, Kind::UtubeTtl] {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        let id = queue.put(&tube, mortal()).await;
        let taken = queue.take(&tube).await;
        assert_eq!(taken.lease_until, Some(queue.now() + secs(60)), "{kind:?}");
        queue.advance(secs(30));
        assert_eq!(queue.state(&tube, id).await, State::Taken, "{kind:?}");
        done(queue.ack(&tube, &taken).await);
        let calls = queue.calls(&tube).await;
        assert_eq!((calls.ack, calls.ttl, calls.delete), (1, 0, 0), "{kind:?}");
    }
}

/// When its lease runs out after its ttl, it comes back and dies.
pub async fn it_dies_when_it_comes_back<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put(&tube, mortal()).await;
    let taken = queue.take(&tube).await;
    queue.advance(secs(60));
    assert_eq!(queue.ack(&tube, &taken).await, Outcome::Missing);
    let stats = queue.stats(&tube).await;
    assert_eq!((stats.calls.ttr, stats.calls.ttl, stats.calls.delete), (1, 1, 1));
    assert_eq!((stats.tasks.done, stats.tasks.total()), (1, 0));
}

/// A tube that wants it as upstream has it: the end of life ends the delivery.
pub async fn it_may_end_deliveries_as_upstream<H: Harness>(queue: H) {
    for kind in [Kind::FifoTtl, Kind::LimFifoTtl, Kind::UtubeTtl] {
        let options = TubeOptions { ttl_kills_taken: true, ..TubeOptions::new(kind) };
        let tube = queue.tube_named(kind.name(), options).await;
        queue.put(&tube, mortal()).await;
        let taken = queue.take(&tube).await;
        assert_eq!(taken.lease_until, Some(queue.now() + secs(10)), "{kind:?}");
        queue.advance(secs(10));
        assert_eq!(queue.ack(&tube, &taken).await, Outcome::Missing, "{kind:?}");
        let calls = queue.calls(&tube).await;
        assert_eq!((calls.ttr, calls.ttl, calls.delete), (1, 1, 1), "{kind:?}");
    }
}

/// There a short ttr still ends the delivery first.
pub async fn a_short_ttr_is_still_first<H: Harness>(queue: H) {
    let options = TubeOptions { ttl_kills_taken: true, ..TubeOptions::new(Kind::FifoTtl) };
    let tube = queue.tube_with(options).await;
    let short = NewTask { ttl: Some(secs(60)), ttr: Some(secs(10)), ..task("x") };
    let id = queue.put(&tube, short).await;
    assert_eq!(queue.take(&tube).await.lease_until, Some(queue.now() + secs(10)));
    queue.advance(secs(10));
    assert_eq!(queue.state(&tube, id).await, State::Ready);
}

/// A delay is not part of the life: the task lives its ttl after it.
pub async fn a_delay_is_added<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let later = NewTask { ttl: Some(secs(5)), delay: Some(secs(20)), ..task("x") };
    let id = queue.put(&tube, later).await;
    assert_eq!(queue.look(&tube, id).await.expires, queue.now() + secs(25));
    queue.advance(secs(24));
    assert_eq!(queue.state(&tube, id).await, State::Ready);
    queue.advance(secs(1));
    assert_eq!(queue.peek(&tube, id).await, None);
}

/// A task without life after its delay becomes ready, then dies.
pub async fn no_life_after_a_delay<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let later = NewTask { ttl: Some(Span::ZERO), delay: Some(secs(20)), ..task("x") };
    let id = queue.put(&tube, later).await;
    queue.advance(secs(19));
    assert_eq!(queue.state(&tube, id).await, State::Delayed);
    queue.advance(secs(1));
    assert_eq!(queue.peek(&tube, id).await, None);
    let calls = queue.calls(&tube).await;
    assert_eq!((calls.delay, calls.ttl, calls.delete), (1, 1, 1));
}

/// Buried tasks die of it too.
pub async fn the_buried_die_too<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let id = queue.put(&tube, NewTask { ttl: Some(secs(10)), ..task("x") }).await;
    queue.bury(&tube, id).await;
    queue.advance(secs(9));
    assert_eq!(queue.state(&tube, id).await, State::Buried);
    queue.advance(secs(1));
    assert_eq!(queue.peek(&tube, id).await, None);
    assert_eq!(queue.calls(&tube).await.ttl, 1);
}

/// The tube's ttl is that of tasks that name none.
pub async fn the_tube_may_give_it<H: Harness>(queue: H) {
    let options = TubeOptions { ttl: Some(secs(10)), ..TubeOptions::new(Kind::FifoTtl) };
    let tube = queue.tube_with(options).await;
    let mortal = queue.put(&tube, task("mortal")).await;
    let endless = queue.put(&tube, NewTask { ttl: Some(Span::FOREVER), ..task("endless") }).await;
    queue.advance(secs(10));
    assert_eq!(queue.peek(&tube, mortal).await, None);
    assert_eq!(queue.state(&tube, endless).await, State::Ready);
}

fn mortal() -> NewTask {
    NewTask { ttl: Some(secs(10)), ttr: Some(secs(60)), ..task("x") }
}

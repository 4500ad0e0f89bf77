//! Time to live: a task that is not taken in time is removed.

use taskyard_core::{Kind, NewTask, Outcome, Span, State, TubeOptions};

use super::Harness;
use super::commands::{QueueCommands, done, secs, task};

/// A task that is not taken in time is removed, and the counters `delete`, `ttl` and `done` count it.
pub async fn an_untaken_task_is_removed<H: Harness>(queue: H) {
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

/// A task with a ttl of zero is accepted and then removed.
pub async fn a_ttl_of_zero_is_accepted<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let placed = queue.put_many(&tube, vec![NewTask { ttl: Some(Span::ZERO), ..task("x") }]).await;
    assert_eq!(placed[0].state, State::Ready);
    assert_eq!(queue.take_many(&tube, 1).await, []);
    assert_eq!(queue.peek(&tube, placed[0].id).await, None);
    let calls = queue.calls(&tube).await;
    assert_eq!((calls.put, calls.ttl), (1, 1));
}

/// The ttl does not end a delivery: a taken task stays until its holder returns it.
pub async fn the_ttl_does_not_end_a_delivery<H: Harness>(queue: H) {
    for kind in [Kind::FifoTtl, Kind::LimFifoTtl, Kind::UtubeTtl] {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        let id = queue.put(&tube, short_lived()).await;
        let taken = queue.take(&tube).await;
        assert_eq!(taken.lease_until, Some(queue.now() + secs(60)), "{kind:?}");
        queue.advance(secs(30));
        assert_eq!(queue.state(&tube, id).await, State::Taken, "{kind:?}");
        done(queue.ack(&tube, &taken).await);
        let calls = queue.calls(&tube).await;
        assert_eq!((calls.ack, calls.ttl, calls.delete), (1, 0, 0), "{kind:?}");
    }
}

/// When the lease ends after the ttl, the task is removed.
pub async fn an_expired_task_is_removed_after_its_lease<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put(&tube, short_lived()).await;
    let taken = queue.take(&tube).await;
    queue.advance(secs(60));
    assert_eq!(queue.ack(&tube, &taken).await, Outcome::Missing);
    let stats = queue.stats(&tube).await;
    assert_eq!((stats.calls.ttr, stats.calls.ttl, stats.calls.delete), (1, 1, 1));
    assert_eq!((stats.tasks.done, stats.tasks.total()), (1, 0));
}

/// In a tube with the upstream option the end of the ttl ends the delivery.
pub async fn the_ttl_can_end_deliveries_as_upstream<H: Harness>(queue: H) {
    for kind in [Kind::FifoTtl, Kind::LimFifoTtl, Kind::UtubeTtl] {
        let options = TubeOptions { ttl_kills_taken: true, ..TubeOptions::new(kind) };
        let tube = queue.tube_named(kind.name(), options).await;
        queue.put(&tube, short_lived()).await;
        let taken = queue.take(&tube).await;
        assert_eq!(taken.lease_until, Some(queue.now() + secs(10)), "{kind:?}");
        queue.advance(secs(10));
        assert_eq!(queue.ack(&tube, &taken).await, Outcome::Missing, "{kind:?}");
        let calls = queue.calls(&tube).await;
        assert_eq!((calls.ttr, calls.ttl, calls.delete), (1, 1, 1), "{kind:?}");
    }
}

/// In such a tube a shorter ttr still ends the delivery first.
pub async fn a_shorter_ttr_ends_the_delivery_first<H: Harness>(queue: H) {
    let options = TubeOptions { ttl_kills_taken: true, ..TubeOptions::new(Kind::FifoTtl) };
    let tube = queue.tube_with(options).await;
    let short = NewTask { ttl: Some(secs(60)), ttr: Some(secs(10)), ..task("x") };
    let id = queue.put(&tube, short).await;
    assert_eq!(queue.take(&tube).await.lease_until, Some(queue.now() + secs(10)));
    queue.advance(secs(10));
    assert_eq!(queue.state(&tube, id).await, State::Ready);
}

/// The ttl begins after the delay.
pub async fn a_delay_extends_the_ttl<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let later = NewTask { ttl: Some(secs(5)), delay: Some(secs(20)), ..task("x") };
    let id = queue.put(&tube, later).await;
    assert_eq!(queue.peek_existing(&tube, id).await.expires, queue.now() + secs(25));
    queue.advance(secs(24));
    assert_eq!(queue.state(&tube, id).await, State::Ready);
    queue.advance(secs(1));
    assert_eq!(queue.peek(&tube, id).await, None);
}

/// A task with a ttl of zero becomes ready after its delay, then expires.
pub async fn a_ttl_of_zero_ends_after_the_delay<H: Harness>(queue: H) {
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

/// Buried tasks expire too.
pub async fn buried_tasks_expire<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let id = queue.put(&tube, NewTask { ttl: Some(secs(10)), ..task("x") }).await;
    queue.bury(&tube, id).await;
    queue.advance(secs(9));
    assert_eq!(queue.state(&tube, id).await, State::Buried);
    queue.advance(secs(1));
    assert_eq!(queue.peek(&tube, id).await, None);
    assert_eq!(queue.calls(&tube).await.ttl, 1);
}

/// The ttl of the tube applies to tasks without one.
pub async fn the_tube_has_a_default_ttl<H: Harness>(queue: H) {
    let options = TubeOptions { ttl: Some(secs(10)), ..TubeOptions::new(Kind::FifoTtl) };
    let tube = queue.tube_with(options).await;
    let short_lived = queue.put(&tube, task("short_lived")).await;
    let endless = queue.put(&tube, NewTask { ttl: Some(Span::FOREVER), ..task("endless") }).await;
    queue.advance(secs(10));
    assert_eq!(queue.peek(&tube, short_lived).await, None);
    assert_eq!(queue.state(&tube, endless).await, State::Ready);
}

fn short_lived() -> NewTask {
    NewTask { ttl: Some(secs(10)), ttr: Some(secs(60)), ..task("x") }
}

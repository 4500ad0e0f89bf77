//! Time to run: a holder that does not finish in time loses the task.

use taskyard_core::{Kind, NewTask, Outcome, Span, State, Task, TubeOptions};

use super::Harness;
use super::commands::{QueueCommands, ids, secs, task};

/// After the ttr the task is ready again, and the attempt is counted.
pub async fn the_task_is_ready_again<H: Harness>(queue: H) {
    for kind in [Kind::FifoTtl, Kind::LimFifoTtl, Kind::UtubeTtl] {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        let id = queue.put(&tube, NewTask { ttr: Some(secs(10)), ..task("x") }).await;
        let taken = queue.take(&tube).await;
        queue.advance(Span::from_micros(10_000_000 - 1));
        assert_eq!(queue.state(&tube, id).await, State::Taken, "{kind:?}");
        queue.advance(Span::from_micros(1));
        let back = queue.peek_existing(&tube, id).await;
        assert_eq!((back.state, back.attempts), (State::Ready, 1), "{kind:?}");
        assert_eq!((back.lease, back.lease_until, back.start), (None, None, None), "{kind:?}");
        assert_eq!(back.previous_start, taken.start, "{kind:?}");
        let calls = queue.calls(&tube).await;
        assert_eq!((calls.ttr, calls.release), (1, 0), "{kind:?}");
    }
}

/// The ttr is that of the put, else of the tube, else the task's own ttl.
pub async fn the_ttr_comes_from_put_tube_or_ttl<H: Harness>(queue: H) {
    let plain = queue.tube_named("plain", TubeOptions::new(Kind::FifoTtl)).await;
    let ttl_only = TubeOptions { ttl: Some(secs(70)), ..TubeOptions::new(Kind::FifoTtl) };
    let both = TubeOptions { ttr: Some(secs(30)), ..ttl_only.clone() };
    let ttl_only = queue.tube_named("ttl only", ttl_only).await;
    let both = queue.tube_named("both", both).await;
    let own = |ttl: Option<u64>, ttr: Option<u64>| NewTask {
        ttl: ttl.map(secs),
        ttr: ttr.map(secs),
        ..task("x")
    };
    let expected = [
        (&plain, own(None, None), Span::FOREVER),
        (&plain, own(Some(5), None), secs(5)),
        (&plain, own(Some(5), Some(9)), secs(9)),
        (&ttl_only, own(None, None), secs(70)),
        (&ttl_only, own(Some(5), None), secs(5)),
        (&both, own(None, None), secs(30)),
        (&both, own(Some(5), None), secs(30)),
        (&both, own(Some(5), Some(9)), secs(9)),
    ];
    for (tube, task, ttr) in expected {
        let id = queue.put(tube, task.clone()).await;
        assert_eq!(queue.peek_existing(tube, id).await.ttr, ttr, "{tube}: {task:?}");
    }
}

/// A delay extends the ttl, not the ttr.
pub async fn a_delay_does_not_change_the_ttr<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let later = NewTask { ttl: Some(secs(5)), delay: Some(secs(20)), ..task("x") };
    let id = queue.put(&tube, later).await;
    assert_eq!(queue.peek_existing(&tube, id).await.ttr, secs(5));
}

/// A late holder cannot end the next delivery.
pub async fn a_late_holder_has_lost_the_task<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put(&tube, NewTask { ttr: Some(secs(10)), ..task("x") }).await;
    let late = queue.take(&tube).await;
    queue.advance(secs(10));
    let next = queue.take(&tube).await;
    assert_eq!((next.id, next.attempts), (late.id, 1));
    assert_eq!(queue.ack(&tube, &late).await, Outcome::Stale);
    assert_eq!(queue.release(&tube, &late).await, Outcome::Stale);
    assert_eq!(queue.touch(&tube, &late, secs(1)).await, Outcome::Stale);
    let shown = queue.peek_existing(&tube, next.id).await;
    assert_eq!(Task { failures: None, ..shown }, next);
}

/// Each delivery has its own ttr; many can end at once.
pub async fn each_delivery_has_its_own_ttr<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    for ttr in [30, 10, 20, 10] {
        queue.put(&tube, NewTask { ttr: Some(secs(ttr)), ..task("x") }).await;
    }
    queue.take_many(&tube, 9).await;
    queue.advance(secs(10));
    assert_eq!(ids(&queue.take_many(&tube, 9).await), [1, 3]);
    queue.advance(secs(10));
    assert_eq!(ids(&queue.take_many(&tube, 9).await), [1, 2, 3]);
}

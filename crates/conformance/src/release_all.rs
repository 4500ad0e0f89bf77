//! Release all: every taken task of a tube returns.

use taskyard_core::{Kind, NewTask, Outcome, State, TubeOptions};

use super::Harness;
use super::commands::{QueueCommands, ids, secs, session, task};

/// All deliveries end, each counted as a release and as an attempt; nothing else changes.
pub async fn every_delivery_ends<H: Harness>(queue: H) {
    for kind in Kind::ALL {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        for subqueue in ["a", "b", "c"] {
            queue.put(&tube, NewTask { subqueue: Some(subqueue.into()), ..task("x") }).await;
        }
        let taken = queue.take_many(&tube, 2).await;
        queue.advance(secs(1));
        queue.release_all(&tube).await;
        for delivery in &taken {
            let back = queue.peek_existing(&tube, delivery.id).await;
            assert_eq!((back.state, back.attempts), (State::Ready, 1), "{kind:?}");
            assert_eq!(back.previous_start, delivery.start, "{kind:?}");
            assert_eq!(queue.ack(&tube, delivery).await, Outcome::Stale, "{kind:?}");
        }
        assert_eq!(queue.calls(&tube).await.release, 2, "{kind:?}");
        assert_eq!(ids(&queue.take_many(&tube, 9).await), [0, 1, 2], "{kind:?}");
    }
}

/// It concerns one tube, and the sessions continue.
pub async fn sessions_continue<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    let other = queue.tube_named("other", TubeOptions::new(Kind::Fifo)).await;
    queue.put(&tube, task("x")).await;
    queue.put(&other, task("y")).await;
    queue.join(session(1)).await;
    queue.take_as(&tube, session(1)).await;
    let kept = queue.take_as(&other, session(1)).await;
    queue.release_all(&tube).await;
    assert_eq!(queue.state(&other, kept.id).await, State::Taken);
    queue.take_as(&tube, session(1)).await;
}

/// Without taken tasks nothing changes.
pub async fn a_tube_without_deliveries_is_accepted<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    let id = queue.put(&tube, task("x")).await;
    queue.release_all(&tube).await;
    assert_eq!(queue.peek_existing(&tube, id).await.attempts, 0);
    assert_eq!(queue.calls(&tube).await.release, 0);
}

//! Kick: the buried come back.

use taskyard_core::{Kind, NewTask, Reason, State, TubeOptions};

use super::Harness;
use super::ask::{Ask, done, ids, secs, task};

/// The lowest (pri, id) comes back first, and the answer is how many really came.
pub async fn lowest_first_and_counted<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    for pri in [3, 1, 2, 1] {
        let id = queue.put(&tube, NewTask { pri: Some(pri), ..task("x") }).await;
        queue.bury(&tube, id).await;
    }
    assert_eq!(queue.kick(&tube, 2).await, 2);
    assert_eq!(ids(&queue.take_many(&tube, 9).await), [1, 3]);
    assert_eq!(queue.kick(&tube, 9).await, 2);
    assert_eq!(ids(&queue.take_many(&tube, 9).await), [2, 0]);
    assert_eq!(queue.calls(&tube).await.kick, 4);
}

/// In a tube of every kind the answer is the number that came, though more were asked for.
pub async fn more_than_there_are_is_fine<H: Harness>(queue: H) {
    for kind in Kind::ALL {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        let id = queue.put(&tube, task("x")).await;
        queue.bury(&tube, id).await;
        assert_eq!(queue.kick(&tube, 3).await, 1, "{kind:?}");
        assert_eq!(queue.take(&tube).await.id, id, "{kind:?}");
    }
}

/// A kick of nothing is not counted.
pub async fn nothing_to_kick_is_zero<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    let id = queue.put(&tube, task("ready")).await;
    assert_eq!(queue.kick(&tube, 5).await, 0);
    queue.bury(&tube, id).await;
    assert_eq!(queue.kick(&tube, 0).await, 0);
    assert_eq!(queue.state(&tube, id).await, State::Buried);
    assert_eq!(queue.calls(&tube).await.kick, 0);
}

/// A kicked task is ready at once, with the attempts it had.
pub async fn attempts_stay<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    let id = queue.put(&tube, task("x")).await;
    let taken = queue.take(&tube).await;
    queue.release(&tube, &taken).await;
    queue.bury(&tube, id).await;
    assert_eq!(queue.kick(&tube, 1).await, 1);
    let back = queue.look(&tube, id).await;
    assert_eq!((back.state, back.attempts), (State::Ready, 1));
    assert_eq!((back.previous_start, back.reason), (taken.start, Reason::WaitsForConsumer));
}

/// A delayed task that was buried is ready when it is kicked, and its delay does not come back.
pub async fn a_delay_is_forgotten<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let id = queue.put(&tube, NewTask { delay: Some(secs(50)), ..task("x") }).await;
    done(queue.bury(&tube, id).await);
    queue.kick(&tube, 1).await;
    assert_eq!(queue.look(&tube, id).await.due, None);
    assert_eq!(queue.take(&tube).await.id, id);
    queue.advance(secs(60));
    assert_eq!(queue.state(&tube, id).await, State::Taken);
    assert_eq!(queue.calls(&tube).await.delay, 0);
}

/// A kick leaves the ttl as it is.
pub async fn the_ttl_runs_on<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let id = queue.put(&tube, NewTask { ttl: Some(secs(10)), ..task("x") }).await;
    let expires = queue.look(&tube, id).await.expires;
    queue.bury(&tube, id).await;
    queue.advance(secs(5));
    queue.kick(&tube, 1).await;
    assert_eq!(queue.look(&tube, id).await.expires, expires);
    queue.advance(secs(5));
    assert_eq!(queue.peek(&tube, id).await, None);
}

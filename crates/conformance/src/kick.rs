//! Kick: buried tasks become ready.

use taskyard_core::{Kind, NewTask, Outcome, Reason, State, TaskId, TubeOptions};

use super::Harness;
use super::commands::{QueueCommands, done, ids, secs, task};

/// The lowest (pri, id) is kicked first, and the reply is the number of kicked tasks.
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

/// In every kind the reply is the number of kicked tasks, also when the count was larger.
pub async fn a_count_above_the_buried_is_accepted<H: Harness>(queue: H) {
    for kind in Kind::ALL {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        let id = queue.put(&tube, task("x")).await;
        queue.bury(&tube, id).await;
        assert_eq!(queue.kick(&tube, 3).await, 1, "{kind:?}");
        assert_eq!(queue.take(&tube).await.id, id, "{kind:?}");
    }
}

/// A kick without buried tasks is not counted.
pub async fn an_empty_kick_returns_zero<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    let id = queue.put(&tube, task("ready")).await;
    assert_eq!(queue.kick(&tube, 5).await, 0);
    queue.bury(&tube, id).await;
    assert_eq!(queue.kick(&tube, 0).await, 0);
    assert_eq!(queue.state(&tube, id).await, State::Buried);
    assert_eq!(queue.calls(&tube).await.kick, 0);
}

/// A kicked task is ready immediately and keeps its attempts.
pub async fn attempts_are_kept<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    let id = queue.put(&tube, task("x")).await;
    let taken = queue.take(&tube).await;
    queue.release(&tube, &taken).await;
    queue.bury(&tube, id).await;
    assert_eq!(queue.kick(&tube, 1).await, 1);
    let back = queue.peek_existing(&tube, id).await;
    assert_eq!((back.state, back.attempts), (State::Ready, 1));
    assert_eq!((back.previous_start, back.reason), (taken.start, Reason::WaitsForConsumer));
}

/// A delayed task that was buried is ready when it is kicked, and its delay has ended.
pub async fn a_kicked_task_has_no_delay<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let id = queue.put(&tube, NewTask { delay: Some(secs(50)), ..task("x") }).await;
    done(queue.bury(&tube, id).await);
    queue.kick(&tube, 1).await;
    assert_eq!(queue.peek_existing(&tube, id).await.due, None);
    assert_eq!(queue.take(&tube).await.id, id);
    queue.advance(secs(60));
    assert_eq!(queue.state(&tube, id).await, State::Taken);
    assert_eq!(queue.calls(&tube).await.delay, 0);
}

/// A kick does not change the ttl.
pub async fn the_ttl_is_unchanged<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let id = queue.put(&tube, NewTask { ttl: Some(secs(10)), ..task("x") }).await;
    let expires = queue.peek_existing(&tube, id).await.expires;
    queue.bury(&tube, id).await;
    queue.advance(secs(5));
    queue.kick(&tube, 1).await;
    assert_eq!(queue.peek_existing(&tube, id).await.expires, expires);
    queue.advance(secs(5));
    assert_eq!(queue.peek(&tube, id).await, None);
}

/// Chosen tasks are kicked; the outcome of the others says why not.
pub async fn chosen_tasks_are_kicked<H: Harness>(queue: H) {
    for kind in Kind::ALL {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        queue.put_texts(&tube, &["a", "b", "c", "d"]).await;
        for id in [0, 1, 3] {
            queue.bury(&tube, TaskId(id)).await;
        }
        let outcomes = queue.kick_tasks(&tube, &[3, 2, 0, 9, 3], false).await;
        let done = || Outcome::Done(None);
        let expected = [done(), Outcome::Stale, done(), Outcome::Missing, Outcome::Stale];
        assert_eq!(outcomes, expected, "{kind:?}");
        assert_eq!(queue.state(&tube, TaskId(1)).await, State::Buried, "{kind:?}");
        assert_eq!(queue.state(&tube, TaskId(3)).await, State::Ready, "{kind:?}");
        assert_eq!(queue.calls(&tube).await.kick, 2, "{kind:?}");
    }
}

/// A kick of chosen tasks keeps or resets their attempts.
pub async fn a_kick_can_reset_the_attempts<H: Harness>(queue: H) {
    let options = TubeOptions { attempts_max: Some(1), ..TubeOptions::new(Kind::FifoTtl) };
    let tube = queue.tube_with(options).await;
    for reset in [false, true] {
        let id = queue.put(&tube, task("x")).await;
        let taken = queue.take(&tube).await;
        queue.release(&tube, &taken).await;
        assert_eq!(queue.state(&tube, id).await, State::Buried);
        assert_eq!(queue.kick_tasks(&tube, &[id.0], reset).await, [Outcome::Done(None)]);
        let kicked = queue.peek_existing(&tube, id).await;
        assert_eq!((kicked.state, kicked.attempts), (State::Ready, u32::from(!reset)));
        queue.delete(&tube, id).await;
    }
}

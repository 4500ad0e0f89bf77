//! Truncate: all tasks of a tube are removed.

use taskyard_core::{Kind, NewTask, Outcome, TubeOptions};

use super::Harness;
use super::commands::{QueueCommands, secs, session, task};

/// Tasks of every state are removed, taken ones too, and nothing is counted.
pub async fn all_tasks_are_removed_uncounted<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put_texts(&tube, &["taken", "ready", "buried"]).await;
    queue.take(&tube).await;
    queue.put(&tube, NewTask { delay: Some(secs(5)), ..task("delayed") }).await;
    let before = queue.stats(&tube).await;
    queue.truncate(&tube).await;
    let after = queue.stats(&tube).await;
    assert_eq!((after.tasks.total(), after.tasks.done), (0, 0));
    assert_eq!(after.calls, before.calls);
    queue.advance(secs(10));
    assert_eq!(queue.stats(&tube).await, after, "no deadline of them is left");
    assert_eq!(queue.info(&tube).await.next_wakeup, None);
}

/// The holder of a task finds it missing; its session ends without an error.
pub async fn holders_find_their_tasks_missing<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    queue.put(&tube, task("x")).await;
    queue.join(session(1)).await;
    let taken = queue.take_as(&tube, session(1)).await;
    queue.truncate(&tube).await;
    assert_eq!(queue.ack(&tube, &taken).await, Outcome::Missing);
    let fresh = queue.put(&tube, task("y")).await;
    assert!(fresh > taken.id, "ids continue");
    queue.leave(session(1)).await;
    assert_eq!(queue.calls(&tube).await.release, 0);
}

/// Upstream kept the records of taken tasks, and the tube could not be dropped afterwards.
pub async fn the_tube_can_be_dropped_afterwards<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    queue.put(&tube, task("x")).await;
    queue.take(&tube).await;
    queue.truncate(&tube).await;
    queue.drop_tube(&tube).await;
}

/// Busy sub-queues are free, and a full tube accepts puts.
pub async fn sub_queues_and_capacity_are_free_again<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Utube).await;
    queue.put(&tube, task("x")).await;
    queue.take(&tube).await;
    queue.truncate(&tube).await;
    queue.put(&tube, task("y")).await;
    queue.take(&tube).await;

    let options = TubeOptions { capacity: Some(1), ..TubeOptions::new(Kind::LimFifoTtl) };
    let small = queue.tube_named("small", options).await;
    queue.put(&small, task("x")).await;
    queue.truncate(&small).await;
    queue.put(&small, task("y")).await;
}

//! Capacity: the limit of tasks in a tube.

use taskyard_core::{Error, Kind, NewTask, TubeChange, TubeName, TubeOptions};

use super::Harness;
use super::commands::{QueueCommands, done, put, secs, task};

/// Tasks of every state count.
pub async fn every_state_counts<H: Harness>(queue: H) {
    let tube = queue.tube_with(limited(4)).await;
    queue.put_texts(&tube, &["taken", "buried", "ready"]).await;
    let taken = queue.take(&tube).await;
    let buried = queue.take(&tube).await;
    queue.bury(&tube, buried.id).await;
    queue.put(&tube, NewTask { delay: Some(secs(5)), ..task("delayed") }).await;
    assert_full(&queue, &tube, 4).await;
    queue.release(&tube, &taken).await;
    assert_full(&queue, &tube, 4).await;
}

/// A batch that exceeds the capacity is refused as a whole.
pub async fn a_batch_is_put_whole_or_not_at_all<H: Harness>(queue: H) {
    let tube = queue.tube_with(limited(3)).await;
    let last = queue.put(&tube, task("a")).await;
    let batch = || vec![task("x"), task("y"), task("z")];
    let refusal = queue.refused(put(&tube, batch())).await;
    assert_eq!(refusal, Error::TubeFull { tube: tube.clone(), capacity: 3 });
    let stats = queue.stats(&tube).await;
    assert_eq!((stats.tasks.total(), stats.calls.put), (1, 1));
    let placed = queue.put_many(&tube, batch()[..2].to_vec()).await;
    assert!(placed[0].id > last && placed[1].id > placed[0].id);
}

/// Every removal of a task frees capacity.
pub async fn removed_tasks_free_capacity<H: Harness>(queue: H) {
    let tube = queue.tube_with(limited(1)).await;
    queue.put(&tube, task("acked")).await;
    let taken = queue.take(&tube).await;
    assert_full(&queue, &tube, 1).await;
    done(queue.ack(&tube, &taken).await);
    let deleted = queue.put(&tube, task("deleted")).await;
    assert_full(&queue, &tube, 1).await;
    done(queue.delete(&tube, deleted).await);
    queue.put(&tube, NewTask { ttl: Some(secs(5)), ..task("expired") }).await;
    assert_full(&queue, &tube, 1).await;
    queue.advance(secs(5));
    queue.put(&tube, task("fits")).await;
}

/// The capacity can be changed; a value below the current number of tasks only refuses puts.
pub async fn the_capacity_can_be_changed<H: Harness>(queue: H) {
    let tube = queue.tube_with(limited(1)).await;
    queue.put(&tube, task("a")).await;
    capacity(&queue, &tube, Some(3)).await;
    queue.put_texts(&tube, &["b", "c"]).await;
    capacity(&queue, &tube, Some(2)).await;
    assert_full(&queue, &tube, 2).await;
    assert_eq!(queue.stats(&tube).await.tasks.ready, 3);
    capacity(&queue, &tube, None).await;
    queue.put_texts(&tube, &["d", "e"]).await;
}

// A capacity of 0 was refused, so a tube that tarantool/queue creates with a negative capacity could not exist.
/// A tube with a capacity of 0 accepts nothing until it is altered.
pub async fn no_task_fits_into_a_capacity_of_zero<H: Harness>(queue: H) {
    let tube = queue.tube_with(limited(0)).await;
    assert_full(&queue, &tube, 0).await;
    assert_eq!(queue.put_many(&tube, Vec::new()).await, []);
    assert_eq!(queue.info(&tube).await.options.capacity, Some(0));
    capacity(&queue, &tube, Some(1)).await;
    queue.put(&tube, task("a")).await;
    capacity(&queue, &tube, Some(0)).await;
    assert_full(&queue, &tube, 0).await;
    let taken = queue.take(&tube).await;
    done(queue.ack(&tube, &taken).await);
    assert_full(&queue, &tube, 0).await;
    capacity(&queue, &tube, None).await;
    queue.put_texts(&tube, &["b", "c"]).await;
}

/// Tubes of every kind obey the capacity.
pub async fn every_kind_has_a_capacity<H: Harness>(queue: H) {
    for kind in Kind::ALL {
        let options = TubeOptions { capacity: Some(1), ..TubeOptions::new(kind) };
        let tube = queue.tube_named(kind.name(), options).await;
        queue.put_texts(&tube, &["a"]).await;
        assert_full(&queue, &tube, 1).await;
    }
}

/// Without a capacity there is no limit.
pub async fn no_capacity_is_no_limit<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::LimFifoTtl).await;
    queue.put_many(&tube, vec![task("x"); 100]).await;
    assert_eq!(queue.stats(&tube).await.tasks.ready, 100);
}

fn limited(capacity: u64) -> TubeOptions {
    TubeOptions { capacity: Some(capacity), ..TubeOptions::new(Kind::LimFifoTtl) }
}

async fn capacity<H: Harness>(queue: &H, tube: &TubeName, capacity: Option<u64>) {
    let change = TubeChange { capacity: Some(capacity), ..TubeChange::default() };
    queue.alter(tube, change).await;
}

async fn assert_full<H: Harness>(queue: &H, tube: &TubeName, capacity: u64) {
    let refusal = queue.refused(put(tube, vec![task("one more")])).await;
    assert_eq!(refusal, Error::TubeFull { tube: tube.clone(), capacity });
}

//! Statistics: every effect is counted once, in the counter of its tube.

use taskyard_core::limits::OLDEST_LOOKED_MAX;
use taskyard_core::{
    Calls, Counts, Finish, Holder, Kind, NewTask, Span, TaskId, Timestamp, TubeName, TubeOptions,
    TubeStats,
};

use super::Harness;
use super::commands::{NO_LEASE, QueueCommands, RELEASE, done, secs, task};

/// Runs every command on a tube and checks every counter.
pub async fn every_effect_has_its_counter<H: Harness>(queue: H) {
    for kind in [Kind::FifoTtl, Kind::LimFifoTtl, Kind::UtubeTtl] {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        for subqueue in ["acked", "released", "touched", "buried", "deleted"] {
            queue.put(&tube, NewTask { subqueue: Some(subqueue.into()), ..task("x") }).await;
        }
        let taken = queue.take_many(&tube, 3).await;
        done(queue.ack(&tube, &taken[0]).await);
        done(queue.release(&tube, &taken[1]).await);
        done(queue.touch(&tube, &taken[2], secs(1)).await);
        queue.bury(&tube, TaskId(3)).await;
        queue.delete(&tube, TaskId(4)).await;
        queue.put(&tube, NewTask { delay: Some(secs(1)), ..task("delayed") }).await;
        queue.put(&tube, NewTask { ttl: Some(secs(1)), ..task("mortal") }).await;
        let tasks = Counts { ready: 2, taken: 1, buried: 1, delayed: 1, done: 2, kept: 0 };
        assert_eq!(queue.stats(&tube).await.tasks, tasks, "{kind:?}");
        assert_eq!(tasks.total(), 5);

        queue.advance(secs(1));
        assert_eq!(queue.kick(&tube, 9).await, 1);
        let overdue = queue.take_for(&tube, secs(1)).await;
        assert_eq!(overdue.id, taken[1].id, "{kind:?}");
        queue.advance(secs(1));
        let tasks = Counts { ready: 3, taken: 1, buried: 0, delayed: 0, done: 3, kept: 0 };
        let calls = Calls {
            ack: 1,
            bury: 1,
            delete: 2,
            kick: 1,
            put: 7,
            release: 1,
            take: 4,
            touch: 1,
            ttl: 1,
            ttr: 1,
            delay: 1,
        };
        assert_eq!(queue.stats(&tube).await, TubeStats { tasks, calls }, "{kind:?}");
    }
}

/// Commands without an effect are not counted.
pub async fn commands_without_effect_are_not_counted<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.take_many(&tube, 3).await;
    queue.kick(&tube, 3).await;
    queue.delete(&tube, TaskId(0)).await;
    queue.bury(&tube, TaskId(0)).await;
    queue.release_all(&tube).await;
    queue.truncate(&tube).await;
    for finish in [Finish::Ack, Finish::Touch(secs(1)), RELEASE, Finish::Bury] {
        queue.finish(&tube, TaskId(0), Holder::Lease(NO_LEASE), finish).await;
    }
    assert_eq!(queue.stats(&tube).await, TubeStats::default());
}

/// Each tube has its own counters.
pub async fn each_tube_has_its_own_counters<H: Harness>(queue: H) {
    let one = queue.tube_named("one", TubeOptions::new(Kind::Fifo)).await;
    let two = queue.tube_named("two", TubeOptions::new(Kind::Fifo)).await;
    queue.put_texts(&one, &["a", "b"]).await;
    queue.take(&one).await;
    assert_eq!(queue.stats(&two).await, TubeStats::default());
    let stats = queue.stats(&one).await;
    assert_eq!((stats.calls.put, stats.calls.take, stats.tasks.taken), (2, 1, 1));
}

/// Since when the oldest ready task of the tube waits.
async fn oldest<H: Harness>(queue: &H, tube: &TubeName) -> Option<Timestamp> {
    queue.info(tube).await.oldest_ready
}

/// The statistics show the longest waiting task, not the first in order, which may have a better priority or a lower id.
pub async fn the_oldest_ready_task_is_shown<H: Harness>(queue: H) {
    for kind in [Kind::FifoTtl, Kind::LimFifoTtl, Kind::UtubeTtl] {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        let new =
            |pri, key: &str| NewTask { pri: Some(pri), subqueue: Some(key.into()), ..task("x") };
        assert_eq!(oldest(&queue, &tube).await, None, "{kind:?}");
        let first = queue.now();
        queue.put(&tube, new(5, "a")).await;
        queue.advance(secs(1));
        let second = queue.now();
        queue.put(&tube, new(1, "b")).await;
        queue.advance(secs(1));
        assert_eq!(oldest(&queue, &tube).await, Some(first), "{kind:?}: the last in order");
        queue.pause(&tube, true).await;
        assert_eq!(oldest(&queue, &tube).await, Some(first), "{kind:?}: paused");
        queue.pause(&tube, false).await;

        let b = queue.take(&tube).await;
        let a = queue.take(&tube).await;
        assert_eq!((b.id, a.id), (TaskId(1), TaskId(0)), "{kind:?}");
        assert_eq!(oldest(&queue, &tube).await, None, "{kind:?}: taken");
        let uncounted = Finish::Release { delay: Span::ZERO, counted: false };
        done(queue.finish_lease(&tube, &b, uncounted).await);
        assert_eq!(oldest(&queue, &tube).await, Some(second), "{kind:?}: an uncounted release");
        let b = queue.take(&tube).await;

        let third = queue.now();
        queue.put(&tube, NewTask { delay: Some(secs(10)), ..new(5, "c") }).await;
        queue.advance(secs(1));
        assert_eq!(oldest(&queue, &tube).await, None, "{kind:?}: delayed");
        queue.advance(secs(11));
        assert_eq!(oldest(&queue, &tube).await, Some(third + secs(10)), "{kind:?}: due");
        done(queue.release(&tube, &a).await);
        let waits = oldest(&queue, &tube).await;
        assert_eq!(waits, Some(third + secs(10)), "{kind:?}: the returned task is first in order");
        let back = queue.now();
        queue.delete(&tube, TaskId(2)).await;
        queue.advance(secs(1));
        assert_eq!(oldest(&queue, &tube).await, Some(back), "{kind:?}: since its return");
        queue.bury(&tube, a.id).await;
        assert_eq!(oldest(&queue, &tube).await, None, "{kind:?}: buried");
        queue.kick(&tube, 1).await;
        assert_eq!(oldest(&queue, &tube).await, Some(queue.now()), "{kind:?}: kicked");
        done(queue.ack(&tube, &b).await);
    }
}

/// A task behind a running task of its sub-queue waits for that task, and not for a consumer.
pub async fn the_oldest_ready_task_can_be_taken<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Utube).await;
    let put = queue.now();
    queue.put_texts(&tube, &["runs", "waits"]).await;
    let runs = queue.take(&tube).await;
    queue.advance(secs(1));
    assert_eq!(oldest(&queue, &tube).await, None);
    done(queue.ack(&tube, &runs).await);
    assert_eq!(oldest(&queue, &tube).await, Some(put));
}

/// Behind very many returned tasks the oldest is not searched for: the time shown is not before the time of the true
/// oldest, and the search stays cheap.
pub async fn the_search_for_the_oldest_is_limited<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let tasks = vec![task("x"); OLDEST_LOOKED_MAX];
    queue.put_many(&tube, tasks).await;
    queue.take_many(&tube, OLDEST_LOOKED_MAX).await;
    let behind = queue.now();
    queue.put(&tube, task("behind")).await;
    queue.advance(secs(1));
    queue.release_all(&tube).await;
    queue.advance(secs(1));
    let back = behind + secs(1);
    assert_eq!(oldest(&queue, &tube).await, Some(back));
    let first = queue.take(&tube).await;
    done(queue.ack(&tube, &first).await);
    assert_eq!(oldest(&queue, &tube).await, Some(behind));
}

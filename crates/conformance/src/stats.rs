//! Statistics: every effect is counted once, where it belongs.

use taskyard_core::limits::OLDEST_LOOKED_MAX;
use taskyard_core::{
    Calls, Counts, Finish, Holder, Kind, NewTask, Span, TaskId, Timestamp, TubeName, TubeOptions,
    TubeStats,
};

use super::Harness;
use super::ask::{Ask, NO_LEASE, RELEASE, done, secs, task};

/// A scripted day of a tube, with every number of it.
pub async fn every_effect_has_its_number<H: Harness>(queue: H) {
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
        let tasks = Counts { ready: 2, taken: 1, buried: 1, delayed: 1, done: 2 };
        assert_eq!(queue.stats(&tube).await.tasks, tasks, "{kind:?}");
        assert_eq!(tasks.total(), 5);

        queue.advance(secs(1));
        assert_eq!(queue.kick(&tube, 9).await, 1);
        let overdue = queue.take_for(&tube, secs(1)).await;
        assert_eq!(overdue.id, taken[1].id, "{kind:?}");
        queue.advance(secs(1));
        let tasks = Counts { ready: 3, taken: 1, buried: 0, delayed: 0, done: 3 };
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

/// What has no effect is not counted.
pub async fn what_has_no_effect_is_not_counted<H: Harness>(queue: H) {
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

/// Each tube has its own numbers.
pub async fn each_tube_has_its_own<H: Harness>(queue: H) {
    let one = queue.tube_named("one", TubeOptions::new(Kind::Fifo)).await;
    let two = queue.tube_named("two", TubeOptions::new(Kind::Fifo)).await;
    queue.put_texts(&one, &["a", "b"]).await;
    queue.take(&one).await;
    assert_eq!(queue.stats(&two).await, TubeStats::default());
    let stats = queue.stats(&one).await;
    assert_eq!((stats.calls.put, stats.calls.take, stats.tasks.taken), (2, 1, 1));
}

/// Since when the oldest task waits that could be taken.
async fn oldest<H: Harness>(queue: &H, tube: &TubeName) -> Option<Timestamp> {
    queue.info(tube).await.oldest_ready
}

/// The task that waits for longest is told, whoever goes first: a better priority, or an older task that came back.
pub async fn the_oldest_ready_is_told<H: Harness>(queue: H) {
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
        assert_eq!(oldest(&queue, &tube).await, Some(first), "{kind:?}: who goes last");
        queue.pause(&tube, true).await;
        assert_eq!(oldest(&queue, &tube).await, Some(first), "{kind:?}: a pause does not matter");
        queue.pause(&tube, false).await;

        let b = queue.take(&tube).await;
        let a = queue.take(&tube).await;
        assert_eq!((b.id, a.id), (TaskId(1), TaskId(0)), "{kind:?}");
        assert_eq!(oldest(&queue, &tube).await, None, "{kind:?}: taken");
        let uncounted = Finish::Release { delay: Span::ZERO, counted: false };
        done(queue.finish_lease(&tube, &b, uncounted).await);
        assert_eq!(oldest(&queue, &tube).await, Some(second), "{kind:?}: as if never taken");
        let b = queue.take(&tube).await;

        let third = queue.now();
        queue.put(&tube, NewTask { delay: Some(secs(10)), ..new(5, "c") }).await;
        queue.advance(secs(1));
        assert_eq!(oldest(&queue, &tube).await, None, "{kind:?}: delayed");
        queue.advance(secs(11));
        assert_eq!(oldest(&queue, &tube).await, Some(third + secs(10)), "{kind:?}: due");
        done(queue.release(&tube, &a).await);
        let waits = oldest(&queue, &tube).await;
        assert_eq!(waits, Some(third + secs(10)), "{kind:?}: who came back stands in front");
        let back = queue.now();
        queue.delete(&tube, TaskId(2)).await;
        queue.advance(secs(1));
        assert_eq!(oldest(&queue, &tube).await, Some(back), "{kind:?}: since it came back");
        queue.bury(&tube, a.id).await;
        assert_eq!(oldest(&queue, &tube).await, None, "{kind:?}: buried");
        queue.kick(&tube, 1).await;
        assert_eq!(oldest(&queue, &tube).await, Some(queue.now()), "{kind:?}: kicked");
        done(queue.ack(&tube, &b).await);
    }
}

/// Who waits behind a running task of its sub-queue waits for that, and not for a consumer.
pub async fn the_oldest_could_be_taken<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Utube).await;
    let put = queue.now();
    queue.put_texts(&tube, &["runs", "waits"]).await;
    let runs = queue.take(&tube).await;
    queue.advance(secs(1));
    assert_eq!(oldest(&queue, &tube).await, None);
    done(queue.ack(&tube, &runs).await);
    assert_eq!(oldest(&queue, &tube).await, Some(put));
}

/// Where very many came back and stand in front, the oldest behind them is not looked for: what is told is not older than
/// it, and the look stays cheap.
pub async fn the_look_for_the_oldest_ends<H: Harness>(queue: H) {
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

//! Statistics: every effect is counted once, where it belongs.

use taskyard_core::{Calls, Counts, Finish, Holder, Kind, NewTask, TaskId, TubeOptions, TubeStats};

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

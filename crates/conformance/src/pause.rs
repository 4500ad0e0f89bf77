//! Pause and resume of a tube.

use taskyard_core::{Kind, NewTask, Reason, State, TubeOptions};

use super::Harness;
use super::commands::{QueueCommands, done, ids, secs, task};

/// A paused tube delivers nothing; after a resume it delivers as before.
pub async fn a_paused_tube_gives_nothing<H: Harness>(queue: H) {
    for kind in Kind::ALL {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        let id = queue.put(&tube, task("x")).await;
        let info = queue.pause(&tube, true).await;
        assert_eq!((info.options.paused, info.takeable), (true, 0), "{kind:?}");
        assert_eq!(queue.take_many(&tube, 1).await, [], "{kind:?}");
        let seen = queue.peek_existing(&tube, id).await;
        assert_eq!((seen.state, seen.reason), (State::Ready, Reason::TubePaused), "{kind:?}");
        let info = queue.pause(&tube, false).await;
        assert_eq!((info.options.paused, info.takeable), (false, 1), "{kind:?}");
        assert_eq!(queue.take(&tube).await.id, id, "{kind:?}");
    }
}

/// A tube can be created paused.
pub async fn a_tube_may_begin_paused<H: Harness>(queue: H) {
    let options = TubeOptions { paused: true, ..TubeOptions::new(Kind::Fifo) };
    let tube = queue.tube_with(options).await;
    queue.put(&tube, task("x")).await;
    assert_eq!(queue.take_many(&tube, 1).await, []);
}

/// In a paused tube deliveries end, tasks are put and deleted, and deadlines pass.
pub async fn other_commands_work_while_paused<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put_texts(&tube, &["acked", "released", "overdue"]).await;
    let taken = queue.take_many(&tube, 2).await;
    queue.take_for(&tube, secs(5)).await;
    queue.pause(&tube, true).await;
    done(queue.ack(&tube, &taken[0]).await);
    assert_eq!(done(queue.release(&tube, &taken[1]).await).reason, Reason::TubePaused);
    let buried = queue.put(&tube, task("buried")).await;
    done(queue.bury(&tube, buried).await);
    let delayed = queue.put(&tube, NewTask { delay: Some(secs(5)), ..task("delayed") }).await;
    let mortal = queue.put(&tube, NewTask { ttl: Some(secs(5)), ..task("mortal") }).await;
    queue.advance(secs(5));
    assert_eq!(queue.kick(&tube, 1).await, 1);
    assert_eq!(queue.peek(&tube, mortal).await, None);
    let tasks = queue.stats(&tube).await.tasks;
    assert_eq!((tasks.ready, tasks.total()), (4, 4));
    queue.pause(&tube, false).await;
    let expected = [taken[1].id.0, 2, buried.0, delayed.0];
    assert_eq!(ids(&queue.take_many(&tube, 9).await), expected);
}

//! Restart: the data that a durable store keeps; a store that is not durable starts empty.

use taskyard_core::{
    Body, Calls, Command, Error, Finish, FinishItem, Holder, Kind, NewTask, Outcome, Reply, Span,
    State, Task, TaskId, TubeName, TubeOptions, TubeStats,
};

use super::Harness;
use super::commands::{QueueCommands, done, ids, lease, name, put, secs, session, task, task_of};
use super::keys::{existing, keyed, place, replacing, unique_for};

/// Restarts the queue. `None` when its store is not durable: then it is empty, and the case ends.
async fn restarted<H: Harness>(queue: H) -> Option<H> {
    let durable = queue.capabilities().durable;
    let tube = name("jobs");
    assert!(!queue.tubes().await.is_empty(), "a case restarts a queue that has tubes");
    let queue = queue.restart().await;
    assert_eq!(queue.capabilities().durable, durable);
    if durable {
        return Some(queue);
    }
    assert_eq!(queue.tubes().await, [], "a store that is not durable begins empty");
    let refusal = queue.refused(put(&tube, vec![task("x")])).await;
    assert_eq!(refusal, Error::TubeNotFound(tube));
    None
}

/// Tasks that were not taken are unchanged, bodies included.
pub async fn tasks_are_unchanged<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::UtubeTtl).await;
    let bytes: Vec<u8> = [0xc4, 0xff].into_iter().chain(0..255).collect();
    let body = Body::with_meta(&bytes, &[0x81, 0xa1, b'k', 0xc0]);
    let full = NewTask {
        pri: Some(3),
        ttl: Some(secs(100)),
        ttr: Some(secs(9)),
        subqueue: Some("key".into()),
        ..NewTask::new(body)
    };
    queue.put(&tube, full).await;
    queue.put(&tube, NewTask { delay: Some(secs(50)), ..task("delayed") }).await;
    let buried = queue.put(&tube, task("buried")).await;
    let tried = queue.take(&tube).await;
    queue.release(&tube, &tried).await;
    queue.bury(&tube, buried).await;
    let before = everything(&queue, &tube).await;
    let Some(queue) = restarted(queue).await else { return };
    assert_eq!(everything(&queue, &tube).await, before);
}

/// Taken tasks are ready again, the delivery is counted, and its lease is stale.
pub async fn taken_tasks_are_ready_again<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put_texts(&tube, &["taken", "ready"]).await;
    queue.join(session(1)).await;
    let taken = queue.take_as(&tube, session(1)).await;
    let Some(queue) = restarted(queue).await else { return };
    assert_eq!(queue.ack(&tube, &taken).await, Outcome::Stale);
    let back = queue.peek_existing(&tube, taken.id).await;
    assert_eq!((back.state, back.attempts), (State::Ready, 1));
    assert_eq!((back.previous_start, back.start, back.lease), (taken.start, None, None));
    let again = queue.take_many(&tube, 9).await;
    assert_eq!(ids(&again), [0, 1], "it is at the front");
    for delivery in &again {
        assert_ne!(delivery.lease, taken.lease, "no lease number is issued twice");
    }
}

/// Lease numbers continue, independent of how the deliveries ended.
pub async fn lease_numbers_continue<H: Harness>(mut queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    queue.put(&tube, task("x")).await;
    let mut last = None;
    for _ in 0..3 {
        for _ in 0..3 {
            let taken = queue.take(&tube).await;
            let before = last.replace(lease(&taken));
            assert!(before < last, "{last:?} was issued after {before:?}");
            done(queue.release(&tube, &taken).await);
        }
        let Some(next) = restarted(queue).await else { return };
        queue = next;
    }
}

/// Ids continue, also where the last tasks were removed.
pub async fn ids_continue<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    let other = queue.tube_named("truncated", TubeOptions::new(Kind::Fifo)).await;
    queue.put_texts(&tube, &["a", "b", "c"]).await;
    queue.put_texts(&other, &["a", "b", "c"]).await;
    for taken in queue.take_many(&tube, 9).await {
        done(queue.ack(&tube, &taken).await);
    }
    queue.truncate(&other).await;
    let Some(queue) = restarted(queue).await else { return };
    for tube in [&tube, &other] {
        assert_eq!(queue.stats(tube).await.tasks.total(), 0);
        assert!(queue.put(tube, task("d")).await.0 >= 3, "an id of {tube} was used again");
    }
}

/// Tubes keep their options, including changes and the pause.
pub async fn tubes_keep_their_options<H: Harness>(queue: H) {
    let options = TubeOptions {
        capacity: Some(2),
        ttl: Some(secs(60)),
        ttr: Some(secs(30)),
        delay: Some(secs(1)),
        pri: 4,
        attempts_max: Some(3),
        keep_done: Some(secs(90)),
        keep_done_max: 77,
        ttl_kills_taken: true,
        ..TubeOptions::new(Kind::LimFifoTtl)
    };
    let tube = queue.tube_with(options.clone()).await;
    queue.pause(&tube, true).await;
    let dropped = queue.tube_named("dropped", TubeOptions::new(Kind::Fifo)).await;
    queue.drop_tube(&dropped).await;
    queue.put_texts(&tube, &["a", "b"]).await;
    let Some(queue) = restarted(queue).await else { return };
    let tubes = queue.tubes().await;
    assert_eq!(tubes.len(), 1);
    assert_eq!(tubes[0].options, TubeOptions { paused: true, ..options });
    let refusal = queue.refused(put(&tube, vec![task("one more")])).await;
    assert!(matches!(refusal, Error::TubeFull { .. }), "the capacity counts the restored tasks");
}

/// Removed tasks and tubes stay removed.
pub async fn removed_tasks_and_tubes_stay_removed<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let acked = queue.put(&tube, task("acked")).await;
    let taken = queue.take(&tube).await;
    done(queue.ack(&tube, &taken).await);
    let deleted = queue.put(&tube, task("deleted")).await;
    queue.delete(&tube, deleted).await;
    let expired = queue.put(&tube, NewTask { ttl: Some(secs(1)), ..task("expired") }).await;
    queue.advance(secs(1));
    assert_eq!(queue.peek(&tube, expired).await, None);
    let Some(queue) = restarted(queue).await else { return };
    for id in [acked, deleted, expired] {
        assert_eq!(queue.peek(&tube, id).await, None, "{id}");
    }
}

/// Counters start at zero when the store is opened.
pub async fn counters_start_at_zero<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    queue.put_texts(&tube, &["acked", "taken", "ready"]).await;
    let taken = queue.take_many(&tube, 2).await;
    done(queue.ack(&tube, &taken[0]).await);
    let Some(queue) = restarted(queue).await else { return };
    let TubeStats { tasks, calls } = queue.stats(&tube).await;
    assert_eq!((tasks.ready, tasks.total(), tasks.done), (2, 2, 0));
    assert_eq!(calls, Calls::default());
}

/// Sessions end with the server.
pub async fn sessions_end<H: Harness>(queue: H) {
    queue.tube(Kind::Fifo).await;
    queue.join(session(1)).await;
    let Some(queue) = restarted(queue).await else { return };
    let join = Command::JoinSession { session: session(1), create: false };
    assert_eq!(queue.refused(join).await, Error::SessionUnknown(session(1)));
}

/// A temporary tube exists and is empty.
pub async fn temporary_tubes_are_empty<H: Harness>(queue: H) {
    let options = TubeOptions { temporary: true, ..TubeOptions::new(Kind::UtubeTtl) };
    let tube = queue.tube_with(options.clone()).await;
    queue.put_many(&tube, vec![task_of("a"), task_of("b"), task_of("a")]).await;
    queue.take(&tube).await;
    queue.bury(&tube, queue.take(&tube).await.id).await;
    let Some(queue) = restarted(queue).await else { return };
    let info = queue.info(&tube).await;
    assert_eq!((info.options, info.stats), (options, TubeStats::default()));
    queue.put(&tube, task_of("a")).await;
    queue.take(&tube).await;
}

/// Deadlines that passed while the queue was down have taken effect after the restart.
pub async fn time_passes_while_it_is_down<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let mortal = queue.put(&tube, NewTask { ttl: Some(secs(5)), ..task("mortal") }).await;
    let delayed = queue.put(&tube, NewTask { delay: Some(secs(5)), ..task("delayed") }).await;
    let Some(queue) = restarted(queue).await else { return };
    queue.advance(secs(5));
    assert_eq!(queue.peek(&tube, mortal).await, None);
    assert_eq!(queue.take(&tube).await.id, delayed);
}

/// Order and sub-queues work on restored tasks.
pub async fn order_is_kept<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::UtubeTtl).await;
    for (subqueue, pri) in [("a", 2), ("b", 1), ("a", 1), ("c", 0)] {
        queue.put(&tube, NewTask { pri: Some(pri), ..task_of(subqueue) }).await;
    }
    let Some(queue) = restarted(queue).await else { return };
    let taken = queue.take_many(&tube, 9).await;
    assert_eq!(ids(&taken), [3, 1, 2]);
    done(queue.ack(&tube, &taken[2]).await);
    assert_eq!(ids(&queue.take_many(&tube, 9).await), [0]);
}

/// Every task among the first ten ids of a tube.
async fn everything<H: Harness>(queue: &H, tube: &TubeName) -> Vec<Task> {
    let ids = (0..10).map(TaskId).collect();
    match queue.must(Command::Peek { tube: tube.clone(), ids }).await {
        Reply::Tasks(tasks) => tasks,
        other => panic!("a peek answers tasks, not {other:?}"),
    }
}

/// A renamed tube keeps its new name and its queue number.
pub async fn names_and_queue_numbers_are_kept<H: Harness>(queue: H) {
    let options = TubeOptions { queue_num: Some(5), ..TubeOptions::new(Kind::FifoTtl) };
    let tube = queue.tube_named("jobs", options.clone()).await;
    queue.put_texts(&tube, &["a", "b"]).await;
    let rename = Command::NameTube { tube, name: name("works"), queue_num: None };
    queue.must(rename).await;
    let Some(queue) = restarted(queue).await else { return };
    let tubes = queue.tubes().await;
    assert_eq!(tubes.len(), 1);
    assert_eq!((&tubes[0].name, &tubes[0].options), (&name("works"), &options));
    assert_eq!(queue.put(&name("works"), task("c")).await, TaskId(2));
}

/// The failures of a task are kept.
pub async fn failures_are_kept<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let id = queue.put(&tube, task("x")).await;
    for error in ["first", "second"] {
        let taken = queue.take(&tube).await;
        queue.finish_lease(&tube, &taken, Finish::fail(error, Some(Span::ZERO))).await;
    }
    // In one batch the task leaves its state and returns to it; only its failures change.
    queue.bury(&tube, id).await;
    let kick = Command::KickTasks { tube: tube.clone(), ids: vec![id], reset_attempts: false };
    let item = FinishItem { id, holder: Holder::Any, finish: Finish::fail("third", None) };
    let bury = Command::Finish { tube: tube.clone(), items: vec![item], show: false };
    queue.execute(vec![kick, bury]).await;
    let before = queue.peek_existing(&tube, id).await;
    assert_eq!(before.failures.iter().flat_map(|failures| failures.iter()).count(), 3);
    let Some(queue) = restarted(queue).await else { return };
    assert_eq!(queue.peek_existing(&tube, id).await.failures, before.failures);
}

/// Done tasks are kept with their results, and removed when they are over age.
pub async fn done_tasks_are_kept<H: Harness>(queue: H) {
    let options = TubeOptions { keep_done: Some(secs(90)), ..TubeOptions::new(Kind::FifoTtl) };
    let tube = queue.tube_with(options).await;
    queue.put_texts(&tube, &["a", "b"]).await;
    let failed = queue.take(&tube).await;
    queue.finish_lease(&tube, &failed, Finish::fail("no route", Some(Span::ZERO))).await;
    let taken = queue.take(&tube).await;
    done(queue.finish_lease(&tube, &taken, Finish::ack_with(b"\xa2ok")).await);
    let other = queue.take(&tube).await;
    done(queue.ack(&tube, &other).await);
    queue.delete(&tube, other.id).await;
    let before = queue.peek_existing(&tube, taken.id).await;
    let Some(queue) = restarted(queue).await else { return };
    assert_eq!(queue.peek_existing(&tube, taken.id).await, before);
    assert_eq!(queue.peek(&tube, other.id).await, None, "it was deleted");
    assert!(queue.put(&tube, task("c")).await.0 >= 2, "ids continue");
    queue.advance(secs(90));
    assert_eq!(queue.peek(&tube, taken.id).await, None);
}

/// Living and ended tasks hold their keys as before, replaced tasks have their new payload.
pub async fn keys_are_kept<H: Harness>(queue: H) {
    if !queue.capabilities().keys {
        return;
    }
    let options = TubeOptions { keep_done: Some(secs(900)), ..TubeOptions::new(Kind::FifoTtl) };
    let tube = queue.tube_with(options).await;
    let acked = queue.put(&tube, unique_for(secs(60), keyed("x", "acked"))).await;
    let taken = queue.take(&tube).await;
    done(queue.ack(&tube, &taken).await);
    let deleted = queue.put(&tube, unique_for(secs(30), keyed("x", "deleted"))).await;
    done(queue.delete(&tube, deleted).await);
    let free = queue.put(&tube, keyed("x", "free")).await;
    done(queue.delete(&tube, free).await);
    let held = queue.put(&tube, unique_for(secs(20), keyed("x", "taken"))).await;
    queue.take(&tube).await;
    let old = NewTask { delay: Some(secs(9)), pri: Some(4), ..keyed("old", "replaced") };
    let replaced = queue.put(&tube, old).await;
    let meta = Body::with_meta(b"\xa3new", &[0x81, 0xa1, b'k', 0xc0]);
    let new = NewTask { body: meta, ..unique_for(secs(50), replacing(keyed("", "replaced"))) };
    place(&queue, &tube, new).await;
    let before = everything(&queue, &tube).await;
    let Some(queue) = restarted(queue).await else { return };
    for task in before.into_iter().filter(|task| task.id != held) {
        assert_eq!(queue.peek_existing(&tube, task.id).await, task);
    }
    let again = async |name: &str| place(&queue, &tube, keyed("y", name)).await;
    assert_eq!(again("acked").await, existing(acked, State::Done));
    assert_eq!(again("deleted").await, existing(deleted, State::Done));
    assert_eq!(again("taken").await, existing(held, State::Ready));
    assert_eq!(again("replaced").await, existing(replaced, State::Ready));
    assert!(!again("free").await.existing);
    queue.advance(secs(30));
    assert!(!again("deleted").await.existing);
    assert_eq!(again("acked").await, existing(acked, State::Done));
    done(queue.delete(&tube, replaced).await);
    queue.advance(secs(49));
    assert_eq!(again("replaced").await, existing(replaced, State::Done));
    assert!(!again("acked").await.existing);
    queue.advance(secs(1));
    assert!(!again("replaced").await.existing);
}

/// A temporary tube forgets all keys.
pub async fn temporary_tubes_forget_keys<H: Harness>(queue: H) {
    if !queue.capabilities().keys {
        return;
    }
    let options = TubeOptions { temporary: true, ..TubeOptions::new(Kind::FifoTtl) };
    let tube = queue.tube_with(options).await;
    let ended = queue.put(&tube, unique_for(secs(99), keyed("x", "ended"))).await;
    done(queue.delete(&tube, ended).await);
    queue.put(&tube, keyed("x", "living")).await;
    let Some(queue) = restarted(queue).await else { return };
    for key in ["ended", "living"] {
        assert!(!place(&queue, &tube, keyed("y", key)).await.existing, "{key}");
    }
}

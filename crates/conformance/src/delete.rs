//! Delete: a task is removed, held or not.

use taskyard_core::{Command, Kind, NewTask, Outcome, Reason, Reply, State, TaskId};

use super::Harness;
use super::commands::{QueueCommands, done, secs, session, task};

/// A delete works in every state and needs no holder.
pub async fn a_delete_works_in_every_state<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let taken = queue.put(&tube, task("taken")).await;
    queue.take(&tube).await;
    let ready = queue.put(&tube, task("ready")).await;
    let delayed = queue.put(&tube, NewTask { delay: Some(secs(5)), ..task("delayed") }).await;
    let buried = queue.put(&tube, task("buried")).await;
    queue.bury(&tube, buried).await;
    for id in [taken, ready, delayed, buried] {
        let after = done(queue.delete(&tube, id).await);
        assert_eq!((after.id, after.state, after.reason), (id, State::Done, Reason::Finished));
        assert_eq!(queue.peek(&tube, id).await, None);
    }
    let stats = queue.stats(&tube).await;
    assert_eq!((stats.calls.delete, stats.tasks.done, stats.tasks.total()), (4, 4, 0));
    queue.advance(secs(10));
    assert_eq!(queue.stats(&tube).await, stats, "no deadline of them is left");
}

/// A batch has an outcome for each id.
pub async fn a_batch_has_an_outcome_for_each<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    queue.put_texts(&tube, &["a", "b"]).await;
    let ids = [1, 7, 1, 0].map(TaskId).to_vec();
    let Reply::Finished(outcomes) =
        queue.must(Command::Delete { tube: tube.clone(), ids, show: true }).await
    else {
        panic!("a delete answers outcomes");
    };
    assert!(matches!(outcomes[0], Outcome::Done(_)));
    assert_eq!(outcomes[1..3], [Outcome::Missing, Outcome::Missing]);
    assert!(matches!(outcomes[3], Outcome::Done(_)));
    assert_eq!(queue.calls(&tube).await.delete, 2);
}

/// The holder of a deleted task finds it missing, and its session ends without an error.
pub async fn the_holder_finds_the_task_missing<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    queue.put(&tube, task("x")).await;
    queue.join(session(1)).await;
    let taken = queue.take_as(&tube, session(1)).await;
    queue.delete(&tube, taken.id).await;
    assert_eq!(queue.ack(&tube, &taken).await, Outcome::Missing);
    queue.leave(session(1)).await;
    let stats = queue.stats(&tube).await;
    assert_eq!((stats.calls.release, stats.tasks.total()), (0, 0));
}

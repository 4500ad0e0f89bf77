//! Drop: a tube is removed.

use taskyard_core::{Command, Error, Kind, NewTask, Outcome, TaskId, TubeOptions, TubeStats};

use super::Harness;
use super::commands::{QueueCommands, secs, session, task};

/// Taken tasks prevent a drop, and the refusal changes nothing.
pub async fn taken_tasks_prevent_a_drop<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    queue.put_texts(&tube, &["taken", "ready"]).await;
    let taken = queue.take(&tube).await;
    let refusal = queue.refused(Command::DropTube { tube: tube.clone() }).await;
    assert_eq!(refusal, Error::TubeHasTaken(tube.clone()));
    assert_eq!(queue.stats(&tube).await.tasks.total(), 2);
    queue.ack(&tube, &taken).await;
    queue.drop_tube(&tube).await;
}

/// Ready, buried and delayed tasks are removed with the tube.
pub async fn other_tasks_are_removed<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put(&tube, task("ready")).await;
    queue.put(&tube, NewTask { delay: Some(secs(5)), ..task("delayed") }).await;
    let buried = queue.put(&tube, task("buried")).await;
    queue.bury(&tube, buried).await;
    queue.drop_tube(&tube).await;
    assert_eq!(queue.tubes().await, []);
    queue.advance(secs(10));
    assert_eq!(queue.tubes().await, []);
}

/// A second drop finds no tube.
pub async fn a_second_drop_finds_no_tube<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    queue.drop_tube(&tube).await;
    let refusal = queue.refused(Command::DropTube { tube: tube.clone() }).await;
    assert_eq!(refusal, Error::TubeNotFound(tube));
}

/// A new tube of the same name is new: other options, no tasks, no counters, ids from 0.
pub async fn the_name_can_be_used_again<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    queue.put_texts(&tube, &["a", "b"]).await;
    let old = queue.take(&tube).await;
    queue.release(&tube, &old).await;
    queue.drop_tube(&tube).await;

    let tube = queue.tube(Kind::UtubeTtl).await;
    let info = queue.info(&tube).await;
    assert_eq!((info.options.kind, info.stats), (Kind::UtubeTtl, TubeStats::default()));
    assert_eq!(queue.put(&tube, task("new")).await, TaskId(0));
    assert_eq!(queue.ack(&tube, &old).await, Outcome::Stale, "a lease of the old tube");
    queue.take(&tube).await;
    assert_eq!(queue.ack(&tube, &old).await, Outcome::Stale, "a lease of the old tube");
}

/// The end of a session does not affect a new tube of the name of a dropped tube from which it held tasks.
pub async fn old_sessions_do_not_reach_a_new_tube<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    queue.put(&tube, task("old")).await;
    queue.join(session(1)).await;
    queue.take_as(&tube, session(1)).await;
    queue.truncate(&tube).await;
    queue.drop_tube(&tube).await;

    queue.tube_with(TubeOptions::new(Kind::Fifo)).await;
    queue.put(&tube, task("new")).await;
    let taken = queue.take(&tube).await;
    queue.leave(session(1)).await;
    assert_eq!(queue.deliveries(&tube, 1).await[0].lease, taken.lease);
}

//! Batches: commands run in order, each with its own result.

use taskyard_core::{Command, Error, Kind, Reply, TaskId, TubeOptions};

use super::Harness;
use super::commands::{QueueCommands, name, put, take, task};

/// Commands run in order, and each sees the effects of those before it.
pub async fn commands_run_in_order<H: Harness>(queue: H) {
    let tube = name("jobs");
    let create = Command::CreateTube {
        tube: tube.clone(),
        options: TubeOptions::new(Kind::Fifo),
        if_not_exists: false,
    };
    let replies = queue
        .execute(vec![
            create,
            put(&tube, vec![task("x")]),
            Command::Take(take(&tube, 1)),
            Command::Delete { tube: tube.clone(), ids: vec![TaskId(0)], show: true },
            Command::Take(take(&tube, 1)),
        ])
        .await;
    assert_eq!(replies.len(), 5);
    assert_eq!(replies[0], Ok(Reply::Created(true)));
    assert!(matches!(&replies[2], Ok(Reply::Taken(tasks)) if tasks.len() == 1));
    assert_eq!(replies[4], Ok(Reply::Taken(Vec::new())));
}

/// A refused command does not affect the commands after it.
pub async fn a_refused_command_does_not_stop_the_others<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    let nowhere = name("nowhere");
    let commands = vec![
        put(&tube, vec![task("a")]),
        put(&nowhere, vec![task("b")]),
        put(&tube, vec![task("c")]),
    ];
    let replies = queue.execute(commands).await;
    assert!(replies[0].is_ok() && replies[2].is_ok());
    assert_eq!(replies[1], Err(Error::TubeNotFound(nowhere)));
    assert_eq!(queue.stats(&tube).await.tasks.ready, 2);
}

/// An empty batch has an empty reply.
pub async fn an_empty_batch_is_accepted<H: Harness>(queue: H) {
    assert_eq!(queue.execute(Vec::new()).await, []);
}

/// A command with an empty list has no effect and replies with an empty list.
pub async fn an_empty_command_is_accepted<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let before = queue.info(&tube).await;
    let finish = Command::Finish { tube: tube.clone(), items: Vec::new(), show: true };
    let delete = Command::Delete { tube: tube.clone(), ids: Vec::new(), show: true };
    let peek = Command::Peek { tube: tube.clone(), ids: Vec::new() };
    assert_eq!(queue.must(put(&tube, Vec::new())).await, Reply::Put(Vec::new()));
    assert_eq!(queue.must(finish).await, Reply::Finished(Vec::new()));
    assert_eq!(queue.must(delete).await, Reply::Finished(Vec::new()));
    assert_eq!(queue.must(peek).await, Reply::Tasks(Vec::new()));
    assert_eq!(queue.info(&tube).await, before);
}

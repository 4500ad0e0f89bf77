//! Limits: a command over a limit is refused as a whole, and the limit itself is allowed.

use taskyard_core::limits::{BATCH_TASKS_MAX, META_BYTES_MAX, SUBQUEUE_BYTES_MAX, TUBES_MAX};
use taskyard_core::{
    Body, Command, Error, Finish, FinishItem, Holder, Kind, NewTask, Reply, TaskId, TubeName,
    TubeOptions,
};

use super::Harness;
use super::commands::{QueueCommands, name, put, take, task};

/// A put has at most so many tasks.
pub async fn tasks_in_a_put<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    assert_too_large(&queue, put(&tube, vec![task("x"); BATCH_TASKS_MAX + 1])).await;
    assert_eq!(queue.stats(&tube).await.tasks.total(), 0);
    assert_eq!(
        queue.put_many(&tube, vec![task("x"); BATCH_TASKS_MAX]).await.len(),
        BATCH_TASKS_MAX
    );
}

/// The same limit applies to the other verbs that change tasks.
pub async fn items_in_other_commands<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    let id = queue.put(&tube, task("x")).await;
    assert_too_large(&queue, Command::Take(take(&tube, BATCH_TASKS_MAX + 1))).await;
    queue.take(&tube).await;
    let ids = vec![id; BATCH_TASKS_MAX + 1];
    let ack = |id: &TaskId| FinishItem { id: *id, holder: Holder::Any, finish: Finish::Ack };
    let items = ids.iter().map(ack).collect();
    assert_too_large(&queue, Command::Finish { tube: tube.clone(), items, show: true }).await;
    assert_too_large(&queue, Command::Delete { tube: tube.clone(), ids, show: true }).await;
    assert_eq!(queue.stats(&tube).await.tasks.taken, 1);
}

/// The same limit applies to a peek, because its reply has as many tasks.
pub async fn ids_in_a_peek<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    let ids: Vec<TaskId> = (0..=BATCH_TASKS_MAX as u64).map(TaskId).collect();
    let most = Command::Peek { tube: tube.clone(), ids: ids[1..].to_vec() };
    assert_eq!(queue.must(most).await, Reply::Tasks(Vec::new()));
    assert_too_large(&queue, Command::Peek { tube, ids }).await;
}

/// A meta map has at most so many bytes; one oversized task makes the whole batch fail.
pub async fn bytes_in_a_meta<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    let with_meta = |bytes| NewTask::new(Body::with_meta(&[0xc0], &meta(bytes)));
    let batch = vec![task("fine"), with_meta(META_BYTES_MAX + 1)];
    assert_too_large(&queue, put(&tube, batch)).await;
    assert_eq!(queue.stats(&tube).await.tasks.total(), 0);
    let id = queue.put(&tube, with_meta(META_BYTES_MAX)).await;
    let body = queue.peek_existing(&tube, id).await.body.expect("a peek shows the body");
    assert_eq!(body.meta().map(<[u8]>::len), Some(META_BYTES_MAX));
}

/// The key of a sub-queue has at most so many bytes.
pub async fn bytes_in_a_subqueue_key<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Utube).await;
    let of = |bytes| NewTask { subqueue: Some("k".repeat(bytes).into()), ..task("x") };
    assert_too_large(&queue, put(&tube, vec![of(SUBQUEUE_BYTES_MAX + 1)])).await;
    let id = queue.put(&tube, of(SUBQUEUE_BYTES_MAX)).await;
    let seen = queue.peek_existing(&tube, id).await;
    assert_eq!(seen.subqueue.map(|key| key.len()), Some(SUBQUEUE_BYTES_MAX));
}

/// A store has at most so many tubes; a drop allows another one.
pub async fn tubes_in_a_store<H: Harness>(queue: H) {
    let names: Vec<TubeName> = (0..TUBES_MAX).map(|n| name(&format!("tube {n}"))).collect();
    for chunk in names.chunks(100) {
        let replies = queue.execute(chunk.iter().map(create).collect()).await;
        assert!(replies.iter().all(|reply| *reply == Ok(Reply::Created(true))));
    }
    let extra = name("one more");
    assert_eq!(queue.refused(create(&extra)).await, Error::TooManyTubes(TUBES_MAX));
    let again = Command::CreateTube {
        tube: names[0].clone(),
        options: TubeOptions::new(Kind::Fifo),
        if_not_exists: true,
    };
    assert_eq!(queue.must(again).await, Reply::Created(false));
    queue.drop_tube(&names[0]).await;
    assert_eq!(queue.must(create(&extra)).await, Reply::Created(true));
}

/// A MessagePack map of this many bytes.
fn meta(bytes: usize) -> Vec<u8> {
    let value = bytes - 6;
    let [high, low] = u16::try_from(value).expect("meta is small").to_be_bytes();
    let mut map = vec![0x81, 0xa1, b'k', 0xc5, high, low];
    map.resize(bytes, b'v');
    map
}

fn create(tube: &TubeName) -> Command {
    let options = TubeOptions::new(Kind::Fifo);
    Command::CreateTube { tube: tube.clone(), options, if_not_exists: false }
}

async fn assert_too_large<H: Harness>(queue: &H, command: Command) {
    let verb = command.verb();
    let refusal = queue.refused(command).await;
    assert!(matches!(refusal, Error::TooLarge { .. }), "{verb} answered {refusal:?}");
}

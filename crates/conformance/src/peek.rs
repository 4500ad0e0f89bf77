//! Peek and deliveries: show tasks without changing them.

use taskyard_core::{Command, Kind, NewTask, Reason, Reply, State, TaskId, TubeOptions};

use super::Harness;
use super::commands::{QueueCommands, ids, secs, session, task, task_of};

/// Tasks are in the order of the request, and missing ones are omitted.
pub async fn missing_tasks_are_omitted<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    queue.put_texts(&tube, &["a", "b", "c"]).await;
    queue.delete(&tube, TaskId(1)).await;
    let asked = [2, 1, 9, 0].map(TaskId).to_vec();
    match queue.must(Command::Peek { tube: tube.clone(), ids: asked }).await {
        Reply::Tasks(tasks) => assert_eq!(ids(&tasks), [2, 0]),
        other => panic!("a peek answers tasks, not {other:?}"),
    }
}

/// A search peeks at many consecutive ids. Each task is shown as alone, whatever its state is.
pub async fn consecutive_ids_show_the_same_tasks<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::UtubeTtl).await;
    for number in 0..40 {
        let delay = (number % 7 == 6).then(|| secs(5));
        let key = if number % 2 == 0 { "even" } else { "odd" };
        queue.put(&tube, NewTask { delay, pri: Some(number % 3), ..task_of(key) }).await;
    }
    queue.take_many(&tube, 2).await;
    queue.bury(&tube, TaskId(20)).await;
    for gone in [11, 12, 35] {
        queue.delete(&tube, TaskId(gone)).await;
    }
    for asked in [0..60_u64, 12..36] {
        let mut alone = Vec::new();
        for id in asked.clone() {
            alone.extend(queue.peek(&tube, TaskId(id)).await);
        }
        let asked = asked.map(TaskId).collect();
        match queue.must(Command::Peek { tube: tube.clone(), ids: asked }).await {
            Reply::Tasks(tasks) => assert_eq!(tasks, alone),
            other => panic!("a peek answers tasks, not {other:?}"),
        }
    }
}

/// A peek changes and counts nothing.
pub async fn a_peek_changes_nothing<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let id = queue.put(&tube, NewTask { ttl: Some(secs(9)), ..task("x") }).await;
    let before = queue.info(&tube).await;
    let seen = queue.peek_existing(&tube, id).await;
    assert_eq!(queue.peek_existing(&tube, id).await, seen);
    queue.deliveries(&tube, 10).await;
    assert_eq!(queue.info(&tube).await, before);
}

/// A task has the reason why it does not run now.
pub async fn a_task_shows_why_it_waits<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::UtubeTtl).await;
    let running = queue.put(&tube, task_of("a")).await;
    queue.take(&tube).await;
    let behind = queue.put(&tube, task_of("a")).await;
    let free = queue.put(&tube, task_of("b")).await;
    let later = queue.put(&tube, NewTask { delay: Some(secs(5)), ..task_of("b") }).await;
    let buried = queue.put(&tube, task_of("b")).await;
    queue.bury(&tube, buried).await;
    let expected = [
        (running, Reason::Running),
        (behind, Reason::SubqueueBusy),
        (free, Reason::WaitsForConsumer),
        (later, Reason::NotDue(queue.now() + secs(5))),
        (buried, Reason::Buried),
    ];
    for (id, reason) in expected {
        assert_eq!(queue.peek_existing(&tube, id).await.reason, reason, "{id}");
    }
}

/// An expired task is not shown as waiting.
pub async fn an_expired_task_is_not_shown_as_waiting<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let id = queue.put(&tube, NewTask { ttl: Some(secs(5)), ..task("x") }).await;
    queue.advance_unticked(secs(5));
    // Whether the row is already removed depends on the store.
    if let Some(seen) = queue.peek(&tube, id).await {
        assert_eq!(seen.reason, Reason::Expired);
    }
    assert_eq!(queue.peek(&tube, id).await, None, "removed by a tick");
}

/// Deliveries are shown by id, without bodies, up to the requested count.
pub async fn deliveries_show_their_holders<H: Harness>(queue: H) {
    let tube = queue.tube_with(TubeOptions::new(Kind::FifoTtl)).await;
    for pri in [3, 2, 1, 0] {
        queue.put(&tube, NewTask { pri: Some(pri), ..task("x") }).await;
    }
    queue.join(session(1)).await;
    queue.take_as(&tube, session(1)).await;
    let taken = queue.take_many(&tube, 2).await;
    let shown = queue.deliveries(&tube, 10).await;
    assert_eq!(ids(&shown), [1, 2, 3]);
    assert!(shown.iter().all(|task| task.body.is_none() && task.state == State::Taken));
    assert_eq!((shown[0].lease, shown[0].start), (taken[1].lease, taken[1].start));
    assert_eq!(ids(&queue.deliveries(&tube, 2).await), [1, 2]);
    queue.release_all(&tube).await;
    assert_eq!(queue.deliveries(&tube, 10).await, []);
}

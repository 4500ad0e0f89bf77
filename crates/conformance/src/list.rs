//! Lists of tasks: pages by id and in the order of delivery.

use taskyard_core::limits::LIST_TASKS_MAX;
use taskyard_core::{
    Command, Error, Kind, List, ListOrder, ListedTask, NewTask, State, StateSet, TaskId, TubeName,
};

use super::Harness;
use super::commands::{QueueCommands, secs, task, task_of};

fn by_id(tube: &TubeName, states: StateSet, after: Option<TaskId>, limit: usize) -> Command {
    Command::List(List {
        tube: tube.clone(),
        order: ListOrder::Id { states, after },
        limit,
        key: None,
    })
}

fn in_queue(tube: &TubeName, after: Option<(u64, TaskId)>, limit: usize) -> Command {
    Command::List(List { tube: tube.clone(), order: ListOrder::Queue { after }, limit, key: None })
}

fn ids(tasks: &[ListedTask]) -> Vec<u64> {
    tasks.iter().map(|task| task.id.0).collect()
}

/// The ids of the tasks in this state, in one page.
async fn ids_of<H: Harness>(queue: &H, tube: &TubeName, state: State) -> Vec<u64> {
    ids(&queue.list(by_id(tube, StateSet::EMPTY.with(state), None, 100)).await)
}

/// A page begins after the last task of the page before, and the last page is not full.
pub async fn pages_by_id_follow_each_other<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    for pri in [5, 4, 3, 2, 1] {
        queue.put(&tube, NewTask { pri: Some(pri), ..task("x") }).await;
    }
    let page = queue.list(by_id(&tube, StateSet::ALL, None, 2)).await;
    assert_eq!(page, [5, 4].map(|pri| ListedTask { id: TaskId(5 - pri), pri }));
    let page = queue.list(by_id(&tube, StateSet::ALL, Some(TaskId(1)), 2)).await;
    assert_eq!(ids(&page), [2, 3]);
    let page = queue.list(by_id(&tube, StateSet::ALL, Some(TaskId(3)), 2)).await;
    assert_eq!(ids(&page), [4]);
    assert_eq!(queue.list(by_id(&tube, StateSet::ALL, Some(TaskId(4)), 2)).await, []);
    assert_eq!(queue.list(by_id(&tube, StateSet::ALL, Some(TaskId(u64::MAX)), 2)).await, []);
}

/// The last task of a page may be gone when the next page is read.
pub async fn a_page_may_begin_after_a_removed_task<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    queue.put_texts(&tube, &["a", "b", "c", "d"]).await;
    assert_eq!(ids(&queue.list(by_id(&tube, StateSet::ALL, None, 2)).await), [0, 1]);
    queue.delete(&tube, TaskId(1)).await;
    queue.put_texts(&tube, &["e"]).await;
    let page = queue.list(by_id(&tube, StateSet::ALL, Some(TaskId(1)), 9)).await;
    assert_eq!(ids(&page), [2, 3, 4]);
}

/// Only tasks in the given states are listed.
pub async fn states_are_selected<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put_texts(&tube, &["a", "b", "c", "d", "e"]).await;
    queue.put(&tube, NewTask { delay: Some(secs(5)), ..task("later") }).await;
    queue.take_many(&tube, 2).await;
    queue.bury(&tube, TaskId(4)).await;
    queue.bury(&tube, TaskId(2)).await;
    assert_eq!(ids_of(&queue, &tube, State::Ready).await, [3]);
    assert_eq!(ids_of(&queue, &tube, State::Taken).await, [0, 1]);
    assert_eq!(ids_of(&queue, &tube, State::Delayed).await, [5]);
    assert_eq!(ids_of(&queue, &tube, State::Buried).await, [2, 4]);
    let rare = StateSet::EMPTY.with(State::Taken).with(State::Buried);
    assert_eq!(ids(&queue.list(by_id(&tube, rare, None, 3)).await), [0, 1, 2]);
    assert_eq!(ids(&queue.list(by_id(&tube, rare, Some(TaskId(2)), 3)).await), [4]);
    queue.advance(secs(5));
    assert_eq!(ids_of(&queue, &tube, State::Ready).await, [3, 5]);
}

/// Few tasks are left of many: old ones, then none for a long time, then new ones.
pub async fn gaps_between_ids_are_skipped<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    for _ in 0..2 {
        queue.put_many(&tube, vec![task("x"); 5_000]).await;
    }
    let gone = (3..9_998).map(TaskId).collect();
    queue.must(Command::Delete { tube: tube.clone(), ids: gone, show: false }).await;
    queue.bury(&tube, TaskId(9_999)).await;
    assert_eq!(
        ids(&queue.list(by_id(&tube, StateSet::ALL, None, 9)).await),
        [0, 1, 2, 9_998, 9_999]
    );
    assert_eq!(ids(&queue.list(by_id(&tube, StateSet::ALL, Some(TaskId(1)), 2)).await), [2, 9_998]);
    assert_eq!(ids_of(&queue, &tube, State::Buried).await, [9_999]);
}

/// A task whose ttl is over is not listed, even before it is removed.
pub async fn expired_tasks_are_not_listed<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    for _ in 0..2 {
        queue.put(&tube, NewTask { ttl: Some(secs(5)), ..task("short") }).await;
    }
    queue.bury(&tube, TaskId(1)).await;
    queue.put(&tube, task("long")).await;
    queue.advance_unticked(secs(5));
    assert_eq!(ids(&queue.list(by_id(&tube, StateSet::ALL, None, 9)).await), [2]);
    assert_eq!(ids(&queue.list(in_queue(&tube, None, 9)).await), [2]);
}

/// The task behind an expired one could be taken, whether or not the expired one is removed already.
pub async fn an_expired_task_does_not_hide_the_next<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::UtubeTtl).await;
    queue.put(&tube, NewTask { ttl: Some(secs(5)), ..task_of("a") }).await;
    queue.put(&tube, task_of("b")).await;
    queue.put(&tube, task_of("a")).await;
    queue.advance_unticked(secs(5));
    assert_eq!(ids(&queue.list(in_queue(&tube, None, 9)).await), [1, 2]);
    assert_eq!(ids(&queue.list(in_queue(&tube, Some((0, TaskId(1))), 9)).await), [2]);
}

/// In the order of the queue, the list is the order of delivery, also while the tube is paused.
pub async fn the_queue_is_listed_in_the_order_of_delivery<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    for pri in [3, 1, 2, 1, 0] {
        queue.put(&tube, NewTask { pri: Some(pri), ..task("x") }).await;
    }
    queue.put(&tube, NewTask { delay: Some(secs(5)), ..task("later") }).await;
    let first = queue.take(&tube).await;
    queue.pause(&tube, true).await;
    let page = queue.list(in_queue(&tube, None, 3)).await;
    let expected = [(1, 1), (3, 1), (2, 2)];
    assert_eq!(page, expected.map(|(id, pri)| ListedTask { id: TaskId(id), pri }));
    assert_eq!(ids(&queue.list(in_queue(&tube, Some((2, TaskId(2))), 3)).await), [0]);
    queue.release(&tube, &first).await;
    assert_eq!(ids(&queue.list(in_queue(&tube, None, 9)).await), [4, 1, 3, 2, 0]);
    assert_eq!(queue.list(in_queue(&tube, Some((u64::MAX, TaskId(0))), 9)).await, []);
}

/// Of each idle sub-queue the first task could be taken.
pub async fn a_subqueue_has_one_task_in_the_queue<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Utube).await;
    for key in ["a", "a", "b", "c", "b"] {
        queue.put(&tube, task_of(key)).await;
    }
    assert_eq!(ids(&queue.list(in_queue(&tube, None, 9)).await), [0, 2, 3]);
    queue.take(&tube).await;
    assert_eq!(ids(&queue.list(in_queue(&tube, None, 9)).await), [2, 3]);
    assert_eq!(ids_of(&queue, &tube, State::Ready).await, [1, 2, 3, 4]);
}

/// A page has at least one state, and a limit.
pub async fn states_and_limit_are_checked<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    for limit in [0, LIST_TASKS_MAX + 1, usize::MAX] {
        let refused = queue.refused(by_id(&tube, StateSet::ALL, None, limit)).await;
        assert!(
            matches!(&refused, Error::Invalid(why) if why.contains("between 1 and")),
            "{refused}"
        );
    }
    let refused = queue.refused(by_id(&tube, StateSet::EMPTY, None, 1)).await;
    assert_eq!(refused, Error::Invalid("a list needs at least one state".into()));
    assert_eq!(queue.list(by_id(&tube, StateSet::ALL, None, LIST_TASKS_MAX)).await, []);
}

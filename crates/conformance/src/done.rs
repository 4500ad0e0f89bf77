//! Done tasks: a tube can keep them for a time, with their results.

use taskyard_core::limits::{KEEP_DONE_MAX, RESULT_BYTES_MAX};
use taskyard_core::{
    Command, Error, Finish, FinishItem, Holder, Kind, List, ListOrder, Outcome, Reason, Span,
    State, StateSet, Take, Task, TaskId, TubeChange, TubeName, TubeOptions,
};

use super::Harness;
use super::commands::{QueueCommands, done, lease, secs, take, task};

/// The MessagePack text `ok`.
const RESULT: &[u8] = b"\xa2ok";

/// A tube that keeps done tasks for 100 s.
fn keeping(kind: Kind) -> TubeOptions {
    TubeOptions { keep_done: Some(secs(100)), ..TubeOptions::new(kind) }
}

async fn put_and_ack<H: Harness>(queue: &H, tube: &TubeName) -> Task {
    queue.put(tube, task("x")).await;
    let taken = queue.take(tube).await;
    done(queue.ack(tube, &taken).await);
    taken
}

async fn listed<H: Harness>(queue: &H, tube: &TubeName, states: StateSet) -> Vec<u64> {
    page(queue, tube, states, None, 100).await
}

async fn page<H: Harness>(
    queue: &H,
    tube: &TubeName,
    states: StateSet,
    after: Option<u64>,
    limit: usize,
) -> Vec<u64> {
    let order = ListOrder::Id { states, after: after.map(TaskId) };
    let page = queue.list(Command::List(List { tube: tube.clone(), order, limit })).await;
    page.iter().map(|task| task.id.0).collect()
}

fn only_done() -> StateSet {
    StateSet::EMPTY.with(State::Done)
}

/// Worker, running time and result of a kept task are shown, and its counters are those of any ack.
pub async fn a_done_task_is_kept<H: Harness>(queue: H) {
    for kind in Kind::ALL {
        let tube = queue.tube_named(kind.name(), keeping(kind)).await;
        let put = queue.put(&tube, task("payload")).await;
        let take = Take { worker: Some("host:7:mail".into()), ..take(&tube, 1) };
        let taken = queue.take_by(take).await.pop().expect("a task can be taken");
        queue.advance(secs(3));
        let shown = done(queue.finish_lease(&tube, &taken, Finish::ack_with(RESULT)).await);
        assert_eq!((shown.state, shown.finished), (State::Done, None), "as any ack");
        let kept = queue.peek_existing(&tube, put).await;
        assert_eq!((kept.state, kept.reason), (State::Done, Reason::Finished), "{kind:?}");
        assert_eq!((kept.created, kept.subqueue), (taken.created, taken.subqueue), "{kind:?}");
        assert_eq!((kept.session, kept.lease, kept.start), (None, None, None), "{kind:?}");
        assert_eq!((kept.worker, kept.attempts, kept.body), (None, 0, taken.body), "{kind:?}");
        let finished = kept.finished.expect("it is done");
        let start = taken.start.expect("it was taken");
        assert_eq!((finished.at(), finished.run()), (start + secs(3), secs(3)), "{kind:?}");
        assert_eq!(finished.worker(), Some("host:7:mail"), "{kind:?}");
        assert_eq!(finished.result(), Some(RESULT), "{kind:?}");
        let stats = queue.stats(&tube).await;
        assert_eq!((stats.tasks.total(), stats.tasks.done, stats.calls.ack), (0, 1, 1));
        assert_eq!(listed(&queue, &tube, only_done()).await, [0], "{kind:?}");
        assert_eq!(listed(&queue, &tube, StateSet::UNFINISHED).await, [0; 0], "{kind:?}");
    }
}

/// Without the option nothing is kept, and a result is ignored.
pub async fn other_tubes_keep_nothing<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put(&tube, task("x")).await;
    let taken = queue.take(&tube).await;
    done(queue.finish_lease(&tube, &taken, Finish::ack_with(RESULT)).await);
    assert_eq!(queue.peek(&tube, taken.id).await, None);
    assert_eq!(listed(&queue, &tube, StateSet::ALL).await, [0; 0]);
}

/// A task without worker and result shows neither.
pub async fn a_plain_ack_has_no_result<H: Harness>(queue: H) {
    let tube = queue.tube_with(keeping(Kind::Fifo)).await;
    let taken = put_and_ack(&queue, &tube).await;
    let finished = queue.peek_existing(&tube, taken.id).await.finished.expect("it is done");
    assert_eq!((finished.worker(), finished.result(), finished.run()), (None, None, Span::ZERO));
}

/// Earlier failures stay with the task.
pub async fn a_done_task_keeps_its_failures<H: Harness>(queue: H) {
    let tube = queue.tube_with(keeping(Kind::FifoTtl)).await;
    queue.put(&tube, task("x")).await;
    let taken = queue.take(&tube).await;
    queue.finish_lease(&tube, &taken, Finish::fail("no route", Some(Span::ZERO))).await;
    let failures = queue.peek_existing(&tube, taken.id).await.failures;
    assert!(failures.is_some());
    let again = queue.take(&tube).await;
    done(queue.ack(&tube, &again).await);
    let kept = queue.peek_existing(&tube, taken.id).await;
    assert_eq!((kept.state, kept.attempts, kept.failures), (State::Done, 1, failures));
}

/// A task over age is gone at that moment.
pub async fn done_tasks_are_removed_by_age<H: Harness>(queue: H) {
    let tube = queue.tube_with(keeping(Kind::FifoTtl)).await;
    let first = put_and_ack(&queue, &tube).await;
    queue.advance(secs(60));
    let second = put_and_ack(&queue, &tube).await;
    queue.advance(secs(39));
    assert_eq!(listed(&queue, &tube, only_done()).await, [0, 1]);
    queue.advance(secs(1));
    assert_eq!(listed(&queue, &tube, only_done()).await, [1]);
    assert_eq!(queue.peek(&tube, first.id).await, None);
    assert_eq!(queue.delete(&tube, first.id).await, Outcome::Missing);
    queue.advance(secs(60));
    assert_eq!(queue.peek(&tube, second.id).await, None);
}

/// The oldest ones are removed if there are too many.
pub async fn done_tasks_are_removed_by_count<H: Harness>(queue: H) {
    let tube = queue.tube_with(TubeOptions { keep_done_max: 2, ..keeping(Kind::FifoTtl) }).await;
    queue.put_texts(&tube, &["a", "b", "c", "d"]).await;
    let taken = queue.take_by(take(&tube, 4)).await;
    // Not in the order of ids.
    for task in taken.iter().rev() {
        done(queue.ack(&tube, task).await);
        queue.advance(secs(1));
    }
    assert_eq!(listed(&queue, &tube, only_done()).await, [0, 1]);
    assert_eq!(queue.peek(&tube, TaskId(3)).await, None);
}

/// Done tasks use no capacity and block no sub-queue.
pub async fn done_tasks_do_not_count<H: Harness>(queue: H) {
    let options = TubeOptions { capacity: Some(1), ..keeping(Kind::LimFifoTtl) };
    let tube = queue.tube_with(options).await;
    for _ in 0..3 {
        put_and_ack(&queue, &tube).await;
    }
    let grouped = queue.tube_named("grouped", keeping(Kind::Utube)).await;
    put_and_ack(&queue, &grouped).await;
    put_and_ack(&queue, &grouped).await;
    assert_eq!(listed(&queue, &grouped, StateSet::ALL).await, [0, 1]);
}

/// For all other commands a done task does not exist.
pub async fn a_done_task_is_never_delivered<H: Harness>(queue: H) {
    let tube = queue.tube_with(keeping(Kind::FifoTtl)).await;
    let taken = put_and_ack(&queue, &tube).await;
    assert_eq!(queue.take_by(take(&tube, 9)).await, []);
    for finish in [Finish::Ack, Finish::Bury, Finish::fail("e", None), Finish::Touch(secs(1))] {
        let outcome = queue.finish(&tube, taken.id, Holder::Any, finish).await;
        assert_eq!(outcome, Outcome::Missing);
    }
    assert_eq!(queue.ack(&tube, &taken).await, Outcome::Missing);
    assert_eq!(queue.kick(&tube, 9).await, 0);
    assert_eq!(queue.kick_tasks(&tube, &[0], false).await, [Outcome::Missing]);
    assert_eq!(queue.deliveries(&tube, 9).await, []);
    assert_eq!(listed(&queue, &tube, only_done()).await, [0]);
}

/// A delete removes it and counts as one.
pub async fn a_done_task_can_be_deleted<H: Harness>(queue: H) {
    let tube = queue.tube_with(keeping(Kind::FifoTtl)).await;
    let taken = put_and_ack(&queue, &tube).await;
    let shown = done(queue.delete(&tube, taken.id).await);
    assert_eq!((shown.state, shown.body), (State::Done, taken.body.clone()));
    assert!(shown.finished.is_some(), "it was kept");
    assert_eq!(queue.delete(&tube, taken.id).await, Outcome::Missing);
    assert_eq!(queue.peek(&tube, taken.id).await, None);
    let stats = queue.stats(&tube).await;
    assert_eq!((stats.tasks.done, stats.calls.delete, stats.calls.ack), (1, 1, 1));
}

/// Acks add to the number of kept tasks; age, `keep_done_max`, deletes, truncate and the end of retention take from it. It is not
/// part of the total.
pub async fn kept_tasks_are_counted<H: Harness>(queue: H) {
    for kind in Kind::ALL {
        let options = TubeOptions { keep_done_max: 8, ..keeping(kind) };
        let tube = queue.tube_named(kind.name(), options).await;
        let kept = async || {
            let tasks = queue.stats(&tube).await.tasks;
            (tasks.kept, tasks.total())
        };
        assert_eq!(kept().await, (0, 0), "{kind:?}");
        for _ in 0..3 {
            put_and_ack(&queue, &tube).await;
        }
        let deleted = queue.put(&tube, task("never taken")).await;
        assert_eq!(kept().await, (3, 1), "{kind:?}");
        done(queue.delete(&tube, deleted).await);
        assert_eq!(kept().await, (3, 0), "only acked tasks are kept, {kind:?}");
        done(queue.delete(&tube, TaskId(1)).await);
        assert_eq!(queue.delete(&tube, TaskId(1)).await, Outcome::Missing);
        assert_eq!(kept().await, (2, 0), "{kind:?}");
        queue.advance(secs(60));
        put_and_ack(&queue, &tube).await;
        queue.advance(secs(40));
        assert_eq!(kept().await, (1, 0), "two are over age, {kind:?}");
        for _ in 0..8 {
            put_and_ack(&queue, &tube).await;
        }
        assert_eq!(kept().await, (9, 0), "an eighth more is allowed, {kind:?}");
        put_and_ack(&queue, &tube).await;
        queue.advance(secs(1));
        assert_eq!(kept().await, (8, 0), "{kind:?}");
        queue.truncate(&tube).await;
        assert_eq!(kept().await, (0, 0), "{kind:?}");
        put_and_ack(&queue, &tube).await;
        assert_eq!(kept().await, (1, 0), "{kind:?}");
        queue.alter(&tube, TubeChange { keep_done: Some(None), ..TubeChange::default() }).await;
        queue.advance(secs(1));
        assert_eq!(kept().await, (0, 0), "{kind:?}");
    }
}

/// Truncate and drop remove done tasks too, and they do not prevent a drop.
pub async fn done_tasks_go_with_their_tube<H: Harness>(queue: H) {
    let tube = queue.tube_with(keeping(Kind::FifoTtl)).await;
    put_and_ack(&queue, &tube).await;
    queue.truncate(&tube).await;
    assert_eq!(listed(&queue, &tube, StateSet::ALL).await, [0; 0]);
    let taken = put_and_ack(&queue, &tube).await;
    queue.must_reply_nothing(Command::DropTube { tube: tube.clone() }).await;
    queue.tube_with(keeping(Kind::FifoTtl)).await;
    assert_eq!(listed(&queue, &tube, StateSet::ALL).await, [0; 0]);
    assert_eq!(queue.peek(&tube, taken.id).await, None);
}

/// A change applies to the tasks that are kept already; without the option all are removed.
pub async fn retention_can_be_changed<H: Harness>(queue: H) {
    let tube = queue.tube_with(keeping(Kind::FifoTtl)).await;
    put_and_ack(&queue, &tube).await;
    queue.advance(secs(10));
    put_and_ack(&queue, &tube).await;
    let change = |keep_done| TubeChange { keep_done: Some(keep_done), ..TubeChange::default() };
    let info = queue.alter(&tube, change(Some(secs(5)))).await;
    assert_eq!(info.options.keep_done, Some(secs(5)));
    assert_eq!(listed(&queue, &tube, only_done()).await, [1]);
    queue.alter(&tube, change(None)).await;
    assert_eq!(listed(&queue, &tube, only_done()).await, [0; 0]);
    queue.alter(&tube, change(Some(secs(100)))).await;
    // Possibly removed by a tick meanwhile, and never visible again afterwards.
    queue.advance(secs(100));
    assert_eq!(listed(&queue, &tube, only_done()).await, [0; 0]);
    let fewer = TubeChange { keep_done_max: Some(1), ..TubeChange::default() };
    for _ in 0..3 {
        put_and_ack(&queue, &tube).await;
    }
    assert_eq!(listed(&queue, &tube, only_done()).await, [2, 3, 4]);
    assert_eq!(queue.alter(&tube, fewer).await.options.keep_done_max, 1);
    queue.advance(secs(1));
    assert_eq!(listed(&queue, &tube, only_done()).await, [4]);
}

/// Pages of all states are in the order of ids.
pub async fn done_tasks_are_listed_among_others<H: Harness>(queue: H) {
    let tube = queue.tube_with(keeping(Kind::FifoTtl)).await;
    queue.put_texts(&tube, &["a", "b", "c", "d", "e"]).await;
    let taken = queue.take_by(take(&tube, 4)).await;
    done(queue.ack(&tube, &taken[1]).await);
    done(queue.ack(&tube, &taken[3]).await);
    assert_eq!(page(&queue, &tube, StateSet::ALL, None, 3).await, [0, 1, 2]);
    assert_eq!(page(&queue, &tube, StateSet::ALL, Some(2), 3).await, [3, 4]);
    assert_eq!(page(&queue, &tube, only_done(), Some(1), 3).await, [3]);
    assert_eq!(page(&queue, &tube, only_done(), None, 1).await, [1]);
    let some = only_done().with(State::Ready);
    assert_eq!(page(&queue, &tube, some, None, 9).await, [1, 3, 4]);
    assert_eq!(page(&queue, &tube, StateSet::UNFINISHED, None, 9).await, [0, 2, 4]);
}

/// Options without a meaning are refused.
pub async fn retention_options_are_checked<H: Harness>(queue: H) {
    let refused = [
        TubeOptions { keep_done: Some(Span::ZERO), ..keeping(Kind::Fifo) },
        TubeOptions { keep_done_max: 0, ..keeping(Kind::Fifo) },
        TubeOptions { keep_done_max: KEEP_DONE_MAX + 1, ..keeping(Kind::Fifo) },
    ];
    for options in refused {
        let tube = TubeName::new("refused").expect("a valid name");
        let create = Command::CreateTube { tube, options, if_not_exists: false };
        assert!(matches!(queue.refused(create).await, Error::Invalid(_)));
    }
    let tube = queue.tube(Kind::Fifo).await;
    let changes = [
        TubeChange { keep_done: Some(Some(Span::ZERO)), ..TubeChange::default() },
        TubeChange { keep_done_max: Some(0), ..TubeChange::default() },
    ];
    for change in changes {
        let alter = Command::AlterTube { tube: tube.clone(), change };
        assert!(matches!(queue.refused(alter).await, Error::Invalid(_)));
    }
}

/// A result that is too large is refused, and the whole command with it.
pub async fn a_large_result_is_refused<H: Harness>(queue: H) {
    let tube = queue.tube_with(keeping(Kind::Fifo)).await;
    queue.put_texts(&tube, &["a", "b"]).await;
    let taken = queue.take_by(take(&tube, 2)).await;
    // A MessagePack binary of this many bytes.
    let sized = |bytes: usize| {
        let length = u32::try_from(bytes - 5).expect("small").to_be_bytes();
        let mut result = vec![0xc6];
        result.extend(length);
        result.resize(bytes, 7);
        result
    };
    let item = |task: &Task, finish| FinishItem {
        id: task.id,
        holder: Holder::Lease(lease(task)),
        finish,
    };
    let large = Finish::ack_with(&sized(RESULT_BYTES_MAX + 1));
    let items = vec![item(&taken[0], Finish::Ack), item(&taken[1], large)];
    let finish = Command::Finish { tube: tube.clone(), items, show: false };
    assert!(matches!(queue.refused(finish).await, Error::TooLarge { .. }));
    assert_eq!(queue.state(&tube, taken[0].id).await, State::Taken, "nothing was done");
    let largest = sized(RESULT_BYTES_MAX);
    done(queue.finish_lease(&tube, &taken[1], Finish::ack_with(&largest)).await);
    let kept = queue.peek_existing(&tube, taken[1].id).await.finished.expect("it is done");
    assert_eq!(kept.result(), Some(&largest[..]));
}

//! Positions of waiting tasks in the queue.

use taskyard_core::limits::POSITIONS_MAX;
use taskyard_core::{
    Command, Error, Kind, NewTask, Position, Span, SubqueuePosition, TaskId, Timestamp, TubeName,
    TubeOptions,
};

use super::Harness;
use super::commands::{QueueCommands, almost, name, secs, task, task_of};

/// The position of a ready task with so many ahead.
pub(super) fn position(id: u64, pri: u64, ahead: u64) -> Position {
    Position {
        id: TaskId(id),
        pri,
        due: None,
        ahead,
        delayed_ahead: Vec::new(),
        subqueue: None,
        gate_ahead: None,
        is_exact: true,
        estimate: None,
    }
}

fn with_pri(pri: u64) -> NewTask {
    NewTask { pri: Some(pri), ..task("x") }
}

fn delayed(delay: Span, pri: u64) -> NewTask {
    NewTask { delay: Some(delay), ..with_pri(pri) }
}

/// The numbers of tasks ahead, of all tasks that have a position.
async fn ahead<H: Harness>(queue: &H, tube: &TubeName, ids: &[u64]) -> Vec<(u64, u64)> {
    let positions = queue.positions(tube, ids).await;
    assert!(positions.iter().all(|position| position.is_exact), "few tasks are counted exactly");
    positions.iter().map(|position| (position.id.0, position.ahead)).collect()
}

/// The position counts the tasks that are delivered first; the reply has the order of the command.
pub async fn positions_are_by_priority_and_id<H: Harness>(queue: H) {
    for kind in [Kind::Fifo, Kind::FifoTtl, Kind::LimFifoTtl] {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        if kind == Kind::Fifo {
            queue.put_texts(&tube, &["a", "b", "c"]).await;
            assert_eq!(ahead(&queue, &tube, &[2, 0, 1]).await, [(2, 2), (0, 0), (1, 1)]);
            continue;
        }
        for pri in [3, 1, 2, 1] {
            queue.put(&tube, with_pri(pri)).await;
        }
        let expected = [position(0, 3, 3), position(3, 1, 1), position(1, 1, 0), position(2, 2, 2)];
        assert_eq!(queue.positions(&tube, &[0, 3, 1, 2]).await, expected, "{kind:?}");
        let first = queue.take(&tube).await;
        assert_eq!(ahead(&queue, &tube, &[0, 3]).await, [(0, 2), (3, 0)], "{kind:?}");
        queue.release(&tube, &first).await;
        assert_eq!(ahead(&queue, &tube, &[0, 0]).await, [(0, 3), (0, 3)], "{kind:?}");
        assert_eq!(queue.positions(&tube, &[]).await, [], "{kind:?}");
    }
}

/// Tasks that are taken, buried or unknown are omitted, and so is everything in another tube.
pub async fn only_waiting_tasks_have_a_position<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let other = queue.tube_named("other", TubeOptions::new(Kind::FifoTtl)).await;
    queue.put_texts(&other, &["x", "x", "x", "x", "x"]).await;
    queue.put_texts(&tube, &["a", "b", "c", "d"]).await;
    queue.take(&tube).await;
    queue.bury(&tube, TaskId(1)).await;
    queue.delete(&tube, TaskId(2)).await;
    assert_eq!(ahead(&queue, &tube, &[0, 1, 2, 3, 4, u64::MAX]).await, [(3, 0)]);
    queue.pause(&tube, true).await;
    assert_eq!(ahead(&queue, &tube, &[3]).await, [(3, 0)], "a pause changes no position");
    queue.kick(&tube, 1).await;
    assert_eq!(ahead(&queue, &tube, &[1, 3]).await, [(1, 0), (3, 1)]);
}

/// Delayed tasks go first if they are before the task when they are due.
pub async fn delayed_tasks_are_counted_by_periods<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    for (delay, pri) in [(1, 1), (2, 5), (3, 1), (200, 0), (100_000, 0)] {
        queue.put(&tube, delayed(secs(delay), pri)).await;
    }
    queue.put(&tube, with_pri(1)).await;
    queue.put(&tube, with_pri(9)).await;
    let now = queue.now();
    let [first, last] = &queue.positions(&tube, &[5, 6]).await[..] else { panic!("two") };
    assert_eq!((first.ahead, &first.delayed_ahead[..]), (0, &[1, 1, 2, 2, 2, 2, 2, 2, 3][..]));
    assert_eq!((last.ahead, &last.delayed_ahead[..]), (1, &[1, 2, 3, 3, 3, 3, 3, 3, 4][..]));
    let expected = Position {
        due: Some(now + secs(2)),
        delayed_ahead: vec![1, 1, 2, 2, 2, 2, 2, 2, 3],
        ..position(1, 5, 1)
    };
    assert_eq!(queue.positions(&tube, &[1]).await, [expected], "a delayed task has a position");
    let best = Position { due: Some(now + secs(200)), ..position(3, 0, 0) };
    assert_eq!(queue.positions(&tube, &[3]).await, [best], "it goes first itself");
    queue.advance(secs(1));
    let moved = &queue.positions(&tube, &[6]).await[0];
    assert_eq!((moved.ahead, &moved.delayed_ahead[..3]), (2, &[1, 2, 2][..]));
}

/// A task whose delay is over is ready, also if it had a start time.
pub async fn a_due_task_is_counted_as_ready<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let at = Timestamp::from_micros(queue.now().as_micros() + 5_000_000);
    queue.put(&tube, NewTask { at: Some(at), ..with_pri(1) }).await;
    queue.put(&tube, with_pri(2)).await;
    queue.advance(almost(5));
    let waiting = &queue.positions(&tube, &[0, 1]).await;
    assert_eq!((waiting[0].due, waiting[1].ahead), (Some(at), 0));
    assert_eq!(waiting[1].delayed_ahead, [1]);
    queue.advance(Span::from_micros(1));
    assert_eq!(queue.positions(&tube, &[0, 1]).await, [position(0, 1, 0), position(1, 2, 1)]);
}

/// All ready tasks are counted, and those of the own sub-queue once more.
pub async fn sub_queues_are_counted_separately<H: Harness>(queue: H) {
    for kind in [Kind::Utube, Kind::UtubeTtl] {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        for subqueue in ["a", "a", "b", "ab", "a", "", "b"] {
            queue.put(&tube, task_of(subqueue)).await;
        }
        queue.put(&tube, task("nil")).await;
        let taken = queue.take(&tube).await;
        let own = |id, all, ahead, is_busy| Position {
            subqueue: Some(SubqueuePosition { ahead, is_busy }),
            ..position(id, 0, all)
        };
        let expected = [
            own(1, 0, 0, true),
            own(2, 1, 0, false),
            own(3, 2, 0, false),
            own(4, 3, 1, true),
            own(5, 4, 0, false),
            own(6, 5, 1, false),
            own(7, 6, 0, false),
        ];
        let ids: Vec<u64> = (0..9).collect();
        assert_eq!(queue.positions(&tube, &ids).await, expected, "{kind:?}");
        queue.ack(&tube, &taken).await;
        assert_eq!(queue.positions(&tube, &[4]).await, [own(4, 3, 1, false)], "{kind:?}");
        queue.bury(&tube, TaskId(1)).await;
        assert_eq!(queue.positions(&tube, &[4]).await, [own(4, 2, 0, false)], "{kind:?}");
    }
}

/// A task whose time to live is over has no position and is not counted, before it is removed and when a take has seen it.
pub async fn an_expired_task_is_not_counted<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    for ttl in [5, 60, 5, 60] {
        queue.put(&tube, NewTask { ttl: Some(secs(ttl)), ..task("x") }).await;
    }
    queue.put(&tube, NewTask { ttl: Some(secs(1)), ..delayed(secs(60), 0) }).await;
    queue.advance_unticked(secs(5));
    assert_eq!(ahead(&queue, &tube, &[0, 1, 2, 3]).await, [(1, 0), (3, 1)]);
    let seen = queue.positions(&tube, &[4]).await;
    assert_eq!((seen[0].ahead, seen[0].due), (2, Some(queue.now() + secs(55))));
    queue.take(&tube).await;
    assert_eq!(ahead(&queue, &tube, &[0, 1, 2, 3, 4]).await, [(3, 0), (4, 1)]);
}

/// The same in a sub-queue.
pub async fn an_expired_task_of_a_sub_queue_is_not_counted<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::UtubeTtl).await;
    for (subqueue, ttl) in [("a", 5), ("b", 5), ("a", 60), ("a", 60)] {
        queue.put(&tube, NewTask { ttl: Some(secs(ttl)), ..task_of(subqueue) }).await;
    }
    let last = |ahead, own, is_busy| Position {
        subqueue: Some(SubqueuePosition { ahead: own, is_busy }),
        ..position(3, 0, ahead)
    };
    assert_eq!(queue.positions(&tube, &[3]).await, [last(3, 2, false)]);
    queue.advance_unticked(secs(5));
    assert_eq!(queue.positions(&tube, &[0, 1, 3]).await, [last(1, 1, false)]);
    assert_eq!(queue.take(&tube).await.id, TaskId(2));
    assert_eq!(queue.positions(&tube, &[0, 1, 3]).await, [last(0, 0, true)]);
}

/// Priorities are 64 bits without a sign.
pub async fn any_priority_is_counted<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let middle = 1 << 63;
    for pri in [u64::MAX, middle, u64::MAX - 1, 0, middle - 1, u64::MAX] {
        queue.put(&tube, with_pri(pri)).await;
    }
    queue.put(&tube, delayed(secs(1), u64::MAX - 1)).await;
    let expected = [(0, 4), (1, 2), (2, 3), (3, 0), (4, 1), (5, 5), (6, 4)];
    assert_eq!(ahead(&queue, &tube, &[0, 1, 2, 3, 4, 5, 6]).await, expected);
    assert_eq!(queue.positions(&tube, &[0]).await[0].delayed_ahead, [1]);
}

/// Too many at once are refused, before the tube is looked for.
pub async fn the_number_of_positions_is_limited<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    let ids = |count: usize| vec![TaskId(0); count];
    for tube in [tube.clone(), name("missing")] {
        let many = Command::Positions { tube, ids: ids(POSITIONS_MAX + 1) };
        let refused = queue.refused(many).await;
        assert!(matches!(refused, Error::TooLarge { limit: POSITIONS_MAX, .. }), "{refused}");
    }
    let missing = Command::Positions { tube: name("missing"), ids: ids(1) };
    assert_eq!(queue.refused(missing).await, Error::TubeNotFound(name("missing")));
    queue.put_texts(&tube, &["x"]).await;
    assert_eq!(queue.positions(&tube, &[0; POSITIONS_MAX]).await.len(), POSITIONS_MAX);
}

/// The number of tasks ahead is exact or nearly so, and smaller for a task that goes first.
pub async fn many_tasks_ahead_are_counted<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put_many(&tube, vec![with_pri(7); 3_000]).await;
    queue.put_many(&tube, vec![with_pri(3); 1_000]).await;
    for (id, exact) in [(2_999_u64, 3_999_u64), (1_000, 2_000), (3_500, 500), (999, 1_999)] {
        let found = &queue.positions(&tube, &[id]).await[0];
        let difference = found.ahead.abs_diff(exact);
        assert!(difference * 20 <= exact, "task {id}: {} of {exact}", found.ahead);
        assert!(!found.is_exact || difference == 0, "task {id}: {} of {exact}", found.ahead);
        assert!(found.is_exact || exact >= 2_000, "few tasks are counted exactly");
    }
}

//! Unique keys: which task holds a key, for how long, and what a put with a held key does.
//!
//! A store without unique keys passes these cases unseen: its own tests check that it refuses keys.

use taskyard_core::limits::UNIQUE_FOR_SECS_MAX;
use taskyard_core::{
    Body, Command, Error, Finish, Holder, Key, KeyRequest, Kind, List, ListOrder, NewTask,
    OnConflict, Placed, Span, State, StateSet, TaskId, TubeChange, TubeName, TubeOptions,
};

use super::Harness;
use super::commands::{QueueCommands, done, ids, message_pack, name, put, secs, take, task};

/// A key of a case.
pub(super) fn key(text: &str) -> Key {
    Key::new(text).expect("keys of cases are valid")
}

/// A task with this key.
pub(super) fn keyed(text: &str, name: &str) -> NewTask {
    NewTask { key: Some(Box::new(KeyRequest::new(key(name)))), ..task(text) }
}

/// The task, whose key stays held for this long after its end.
pub(super) fn unique_for(span: Span, mut task: NewTask) -> NewTask {
    task.key.as_mut().expect("a task with a key").held.unique_for = span;
    task
}

/// The task, which replaces a ready or delayed holder of its key.
pub(super) fn replacing(mut task: NewTask) -> NewTask {
    task.key.as_mut().expect("a task with a key").on_conflict = OnConflict::Replace;
    task
}

/// The reply of a put that added a ready task.
fn added(id: TaskId) -> Placed {
    Placed { id, state: State::Ready, existing: false }
}

/// The reply of a put whose key this task held.
pub(super) fn existing(id: TaskId, state: State) -> Placed {
    Placed { id, state, existing: true }
}

/// Puts one task and gives its reply.
pub(super) async fn place<H: Harness>(queue: &H, tube: &TubeName, task: NewTask) -> Placed {
    queue.put_many(tube, vec![task]).await[0]
}

/// The payload of a task.
async fn payload<H: Harness>(queue: &H, tube: &TubeName, id: TaskId) -> Body {
    queue.peek_existing(tube, id).await.body.expect("a peek shows the payload")
}

fn body(text: &str) -> Body {
    Body::new(&message_pack(text))
}

/// The ids of the tasks with a key.
async fn with_key<H: Harness>(queue: &H, tube: &TubeName, name: &str) -> Vec<u64> {
    let order = ListOrder::Id { states: StateSet::ALL, after: None };
    let list = List { tube: tube.clone(), order, limit: 9, key: Some(key(name)) };
    queue.list(Command::List(list)).await.iter().map(|task| task.id.0).collect()
}

/// A put with a held key adds nothing and replies with the holder; other keys, other tubes and tasks without a
/// key are not concerned.
pub async fn a_held_key_adds_nothing<H: Harness>(queue: H) {
    if !queue.capabilities().keys {
        return;
    }
    for kind in Kind::ALL {
        let tube = queue.tube_named(kind.name(), TubeOptions::new(kind)).await;
        let first = place(&queue, &tube, keyed("first", "k")).await;
        assert_eq!(first, added(TaskId(0)), "{kind:?}");
        let again = place(&queue, &tube, keyed("second", "k")).await;
        assert_eq!(again, existing(first.id, State::Ready), "{kind:?}");
        assert_eq!(payload(&queue, &tube, first.id).await, body("first"), "{kind:?}");
        let stats = queue.stats(&tube).await;
        assert_eq!((stats.tasks.total(), stats.calls.put), (1, 1), "{kind:?}");
        assert_eq!(place(&queue, &tube, keyed("x", "K")).await, added(TaskId(1)), "{kind:?}");
        assert_eq!(place(&queue, &tube, task("x")).await, added(TaskId(2)), "{kind:?}");
        assert_eq!(place(&queue, &tube, task("x")).await, added(TaskId(3)), "{kind:?}");
    }
}

/// A ready, delayed, taken or buried task holds its key; the reply shows its state.
pub async fn every_state_holds_the_key<H: Harness>(queue: H) {
    if !queue.capabilities().keys {
        return;
    }
    let tube = queue.tube(Kind::FifoTtl).await;
    let delayed = NewTask { delay: Some(secs(5)), ..keyed("x", "k") };
    let id = queue.put(&tube, delayed).await;
    let again = || place(&queue, &tube, keyed("y", "k"));
    assert_eq!(again().await, existing(id, State::Delayed));
    queue.advance(secs(5));
    assert_eq!(again().await, existing(id, State::Ready));
    queue.take(&tube).await;
    assert_eq!(again().await, existing(id, State::Taken));
    queue.bury(&tube, id).await;
    assert_eq!(again().await, existing(id, State::Buried));
    queue.kick(&tube, 1).await;
    assert_eq!(again().await, existing(id, State::Ready));
}

/// A released or failed task keeps its key, also one whose lease or session ended, or whose time to live is
/// over while it is taken.
pub async fn a_returned_task_keeps_its_key<H: Harness>(queue: H) {
    if !queue.capabilities().keys {
        return;
    }
    let tube = queue.tube(Kind::FifoTtl).await;
    let id = queue.put(&tube, keyed("x", "k")).await;
    let again = || place(&queue, &tube, keyed("y", "k"));
    let taken = queue.take(&tube).await;
    done(queue.release(&tube, &taken).await);
    assert_eq!(again().await, existing(id, State::Ready));
    let taken = queue.take(&tube).await;
    done(queue.finish_lease(&tube, &taken, Finish::fail("e", Some(secs(3)))).await);
    assert_eq!(again().await, existing(id, State::Delayed));
    queue.advance(secs(3));
    queue.take_for(&tube, secs(5)).await;
    queue.advance_unticked(secs(6));
    let late = again().await;
    assert_eq!((late.id, late.existing), (id, true));
    queue.advance(secs(1));
    assert_eq!(again().await, existing(id, State::Ready));
    let mortal = queue.put(&tube, NewTask { ttl: Some(secs(5)), ..keyed("x", "mortal") }).await;
    queue.bury(&tube, id).await;
    queue.take_for(&tube, secs(50)).await;
    queue.advance(secs(9));
    let held = place(&queue, &tube, keyed("y", "mortal")).await;
    assert_eq!(held, existing(mortal, State::Taken));
}

/// Without `unique_for` a key is free as soon as its task has ended.
pub async fn the_end_frees_the_key<H: Harness>(queue: H) {
    if !queue.capabilities().keys {
        return;
    }
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put(&tube, keyed("acked", "k")).await;
    let taken = queue.take(&tube).await;
    done(queue.ack(&tube, &taken).await);
    let deleted = place(&queue, &tube, keyed("deleted", "k")).await;
    assert_eq!(deleted, added(TaskId(1)));
    queue.bury(&tube, deleted.id).await;
    done(queue.delete(&tube, deleted.id).await);
    let mortal = NewTask { ttl: Some(secs(5)), ..keyed("expired", "k") };
    assert_eq!(place(&queue, &tube, mortal).await, added(TaskId(2)));
    queue.advance_unticked(secs(5));
    assert_eq!(place(&queue, &tube, keyed("last", "k")).await, added(TaskId(3)));
    let stats = queue.stats(&tube).await;
    assert_eq!((stats.tasks.total(), stats.calls.ttl, stats.calls.put), (1, 1, 4));
}

/// With `unique_for` a key stays held after an ack or a delete until that time is over, and is free at that
/// moment itself. The reply is the former id, and the state is done.
pub async fn a_key_stays_held_after_the_end<H: Harness>(queue: H) {
    if !queue.capabilities().keys {
        return;
    }
    let tube = queue.tube(Kind::Fifo).await;
    let micro = Span::from_micros(1);
    for round in 0..2 {
        let id = queue.put(&tube, unique_for(secs(10), keyed("x", "k"))).await;
        assert_eq!(id, TaskId(round));
        queue.advance(secs(60));
        if round == 0 {
            let taken = queue.take(&tube).await;
            done(queue.ack(&tube, &taken).await);
        } else {
            done(queue.delete(&tube, id).await);
        }
        assert_eq!(queue.peek(&tube, id).await, None);
        for held in [keyed("y", "k"), replacing(keyed("y", "k"))] {
            assert_eq!(place(&queue, &tube, held).await, existing(id, State::Done));
        }
        assert_eq!(with_key(&queue, &tube, "k").await, [0; 0]);
        queue.advance(Span::from_micros(secs(10).as_micros() - 1));
        // A put that adds nothing does not change for how long the key is held.
        let longer = unique_for(secs(99), keyed("y", "k"));
        assert_eq!(place(&queue, &tube, longer).await, existing(id, State::Done));
        queue.advance(micro);
    }
    assert_eq!(place(&queue, &tube, keyed("z", "k")).await, added(TaskId(2)));
}

/// An expired task has ended when its time to live was over, whether or not a tick has removed it.
pub async fn an_expired_task_ended_with_its_time_to_live<H: Harness>(queue: H) {
    if !queue.capabilities().keys {
        return;
    }
    let tube = queue.tube(Kind::FifoTtl).await;
    let mortal = |name| NewTask { ttl: Some(secs(5)), ..unique_for(secs(10), keyed("x", name)) };
    let ids: Vec<_> = queue
        .put_many(&tube, vec![mortal("a"), mortal("b"), mortal("c")])
        .await
        .iter()
        .map(|placed| placed.id)
        .collect();
    queue.advance_unticked(secs(14));
    assert_eq!(place(&queue, &tube, keyed("y", "a")).await, existing(ids[0], State::Done));
    assert_eq!(place(&queue, &tube, keyed("y", "b")).await, existing(ids[1], State::Done));
    queue.advance_unticked(secs(1));
    // Not one of them was held since the tick, and the last one is met for the first time.
    for (index, name) in ["a", "b", "c"].into_iter().enumerate() {
        let placed = place(&queue, &tube, keyed("z", name)).await;
        assert_eq!(placed, added(TaskId(3 + index as u64)));
    }
    assert_eq!(queue.calls(&tube).await.ttl, 3);
}

/// A ready or delayed holder gets payload, priority and times of the put, and the defaults of the tube for
/// those that the put does not give.
pub async fn a_waiting_task_is_replaced<H: Harness>(queue: H) {
    if !queue.capabilities().keys {
        return;
    }
    let options = TubeOptions { pri: 7, ttr: Some(secs(30)), ..TubeOptions::new(Kind::FifoTtl) };
    let tube = queue.tube_with(options).await;
    let meta = Body::with_meta(&message_pack("old"), &[0x81, 0xa1, b'k', 0xc0]);
    let old = NewTask { pri: Some(3), delay: Some(secs(50)), body: meta, ..keyed("", "k") };
    let id = queue.put(&tube, old).await;
    let created = queue.peek_existing(&tube, id).await.created;
    queue.advance(secs(2));
    let new = replacing(keyed("a longer payload", "k"));
    assert_eq!(place(&queue, &tube, new).await, existing(id, State::Ready));
    let shown = queue.peek_existing(&tube, id).await;
    assert_eq!((shown.state, shown.pri, shown.ttr), (State::Ready, 7, secs(30)));
    assert_eq!((shown.created, shown.due, shown.attempts), (created, None, 0));
    assert_eq!((shown.body, shown.key), (Some(body("a longer payload")), Some(Box::new(key("k")))));
    let times = NewTask {
        pri: Some(1),
        delay: Some(secs(8)),
        ttl: Some(secs(20)),
        ttr: Some(secs(4)),
        ..replacing(keyed("", "k"))
    };
    assert_eq!(place(&queue, &tube, times).await, existing(id, State::Delayed));
    let shown = queue.peek_existing(&tube, id).await;
    assert_eq!((shown.pri, shown.ttr, shown.created), (1, secs(4), created));
    assert_eq!((shown.due, shown.body), (Some(queue.now() + secs(8)), Some(body(""))));
    queue.advance(secs(27));
    assert_eq!(queue.state(&tube, id).await, State::Ready);
    queue.advance(secs(1));
    assert_eq!(queue.peek(&tube, id).await, None, "the time to live began when the delay was over");
    let stats = queue.stats(&tube).await;
    assert_eq!((stats.calls.put, stats.calls.ttl), (1, 1), "a replaced task is not put");
}

/// A replaced task starts at the time that the put names, as a new one does.
pub async fn a_replaced_task_may_have_a_start_time<H: Harness>(queue: H) {
    if !queue.capabilities().keys {
        return;
    }
    let tube = queue.tube(Kind::FifoTtl).await;
    let id = queue.put(&tube, keyed("x", "k")).await;
    let at = queue.now() + secs(30);
    let new = NewTask { at: Some(at), ..replacing(keyed("y", "k")) };
    assert_eq!(place(&queue, &tube, new).await, existing(id, State::Delayed));
    assert_eq!(queue.take_many(&tube, 1).await, []);
    queue.advance(secs(30));
    assert_eq!(queue.take(&tube).await.body, Some(body("y")));
}

/// A replaced task keeps its id, its place among equal priorities, its sub-queue, its attempts and failures.
pub async fn a_replaced_task_keeps_its_place<H: Harness>(queue: H) {
    if !queue.capabilities().keys {
        return;
    }
    let tube = queue.tube(Kind::UtubeTtl).await;
    let red = NewTask { subqueue: Some("red".into()), ..keyed("old", "k") };
    let id = queue.put(&tube, red).await;
    queue.put(&tube, NewTask { subqueue: Some("blue".into()), ..task("other") }).await;
    let taken = queue.take(&tube).await;
    done(queue.finish_lease(&tube, &taken, Finish::fail("no route", Some(Span::ZERO))).await);
    let before = queue.peek_existing(&tube, id).await;
    assert!(before.failures.is_some());
    queue.advance(secs(1));
    let blue = NewTask { subqueue: Some("blue".into()), ..replacing(keyed("new", "k")) };
    assert_eq!(place(&queue, &tube, blue).await, existing(id, State::Ready));
    let after = queue.peek_existing(&tube, id).await;
    assert_eq!((after.attempts, &after.failures), (1, &before.failures));
    assert_eq!((after.subqueue.as_deref(), after.created), (Some("red"), before.created));
    let all = queue.take_many(&tube, 9).await;
    assert_eq!(ids(&all), [0, 1], "they have different sub-queues");
    assert_eq!(all[0].body, Some(body("new")));
}

/// A taken, buried or ended holder is not replaced, and nothing of it changes.
pub async fn other_holders_are_not_replaced<H: Harness>(queue: H) {
    if !queue.capabilities().keys {
        return;
    }
    let tube = queue.tube(Kind::FifoTtl).await;
    let id = queue.put(&tube, keyed("old", "k")).await;
    let replace = || NewTask { pri: Some(1), ..unique_for(secs(9), replacing(keyed("new", "k"))) };
    let taken = queue.take(&tube).await;
    assert_eq!(place(&queue, &tube, replace()).await, existing(id, State::Taken));
    done(queue.finish(&tube, id, Holder::Any, Finish::Bury).await);
    assert_eq!(place(&queue, &tube, replace()).await, existing(id, State::Buried));
    let shown = queue.peek_existing(&tube, id).await;
    assert_eq!((shown.pri, shown.body), (taken.pri, taken.body));
    done(queue.delete(&tube, id).await);
    assert_eq!(place(&queue, &tube, replace()).await, added(TaskId(1)), "unique_for is as it was");
    done(queue.delete(&tube, TaskId(1)).await);
    assert_eq!(place(&queue, &tube, replace()).await, existing(TaskId(1), State::Done));
    assert_eq!(queue.stats(&tube).await.tasks.total(), 0);
}

/// A key is held for the `unique_for` of the put that added the task, or of the latest that replaced it.
pub async fn a_replacement_sets_unique_for<H: Harness>(queue: H) {
    if !queue.capabilities().keys {
        return;
    }
    let tube = queue.tube(Kind::FifoTtl).await;
    let first = queue.put(&tube, unique_for(secs(100), keyed("a", "k"))).await;
    place(&queue, &tube, unique_for(secs(3), replacing(keyed("b", "k")))).await;
    place(&queue, &tube, unique_for(secs(50), keyed("c", "k"))).await;
    let taken = queue.take(&tube).await;
    assert_eq!(taken.body, Some(body("b")));
    done(queue.ack(&tube, &taken).await);
    queue.advance(secs(2));
    assert_eq!(place(&queue, &tube, keyed("d", "k")).await, existing(first, State::Done));
    queue.advance(secs(1));
    assert_eq!(place(&queue, &tube, keyed("d", "k")).await, added(TaskId(1)));
    place(&queue, &tube, unique_for(secs(5), replacing(keyed("e", "k")))).await;
    done(queue.delete(&tube, TaskId(1)).await);
    assert_eq!(place(&queue, &tube, keyed("f", "k")).await, existing(TaskId(1), State::Done));
}

/// The tasks of a put are handled in order.
pub async fn a_batch_is_handled_in_order<H: Harness>(queue: H) {
    if !queue.capabilities().keys {
        return;
    }
    let tube = queue.tube(Kind::FifoTtl).await;
    let tasks = vec![
        keyed("a", "k"),
        task("without a key"),
        keyed("b", "k"),
        keyed("c", "other"),
        NewTask { delay: Some(secs(9)), ..replacing(keyed("d", "k")) },
        keyed("e", "k"),
    ];
    let placed = queue.put_many(&tube, tasks).await;
    let replaced = existing(TaskId(0), State::Delayed);
    assert_eq!(placed[0], added(TaskId(0)));
    assert_eq!(placed[1], added(TaskId(1)));
    assert_eq!(placed[2], existing(TaskId(0), State::Ready));
    assert_eq!(placed[3], added(TaskId(2)));
    assert_eq!(placed[4..], [replaced, replaced]);
    assert_eq!(payload(&queue, &tube, TaskId(0)).await, body("d"));
    let stats = queue.stats(&tube).await;
    assert_eq!((stats.tasks.total(), stats.calls.put), (3, 3));
}

/// One key may occur in all tasks of a large put; each reply has the state that the tasks up to its own gave the holder.
pub async fn a_key_may_occur_in_every_task_of_a_put<H: Harness>(queue: H) {
    if !queue.capabilities().keys {
        return;
    }
    let tube = queue.tube(Kind::FifoTtl).await;
    let new = |number: usize| {
        let task = keyed(&number.to_string(), "k");
        let delay = number.is_multiple_of(5).then(|| secs(9));
        if number.is_multiple_of(3) { task } else { NewTask { delay, ..replacing(task) } }
    };
    let placed = queue.put_many(&tube, (0..10_000).map(new).collect()).await;
    assert_eq!(placed[0], added(TaskId(0)));
    let mut state = State::Ready;
    for (number, placed) in placed.into_iter().enumerate().skip(1) {
        if number % 3 != 0 {
            state = if number % 5 == 0 { State::Delayed } else { State::Ready };
        }
        assert_eq!(placed, existing(TaskId(0), state), "task {number}");
    }
    assert_eq!(payload(&queue, &tube, TaskId(0)).await, body("9998"), "9999 replaces nothing");
    let taken = queue.take(&tube).await;
    assert_eq!(taken.id, TaskId(0));
    let placed = queue.put_many(&tube, (1..1000).map(new).collect()).await;
    assert!(placed.iter().all(|placed| *placed == existing(TaskId(0), State::Taken)));
    done(queue.ack(&tube, &taken).await);
    let stats = queue.stats(&tube).await;
    assert_eq!((stats.tasks.total(), stats.calls.put), (0, 1));
}

/// A task of a put whose time to live is zero is over before the next one.
pub async fn a_key_of_a_task_that_is_over_is_free_in_the_same_put<H: Harness>(queue: H) {
    if !queue.capabilities().keys {
        return;
    }
    let tube = queue.tube(Kind::FifoTtl).await;
    let brief = |text| NewTask { ttl: Some(Span::ZERO), ..keyed(text, "k") };
    let tasks = vec![brief("a"), replacing(brief("b")), brief("c"), keyed("d", "k")];
    let placed = queue.put_many(&tube, tasks).await;
    assert_eq!(placed, (0..4).map(|id| added(TaskId(id))).collect::<Vec<_>>());
    assert_eq!(queue.take(&tube).await.body, Some(body("d")));
}

/// Several commands of one batch see what those before them did to the key.
pub async fn commands_of_a_batch_see_the_key<H: Harness>(queue: H) {
    if !queue.capabilities().keys {
        return;
    }
    let tube = queue.tube(Kind::FifoTtl).await;
    let delete = |id| Command::Delete { tube: tube.clone(), ids: vec![TaskId(id)], show: false };
    let one = |task| put(&tube, vec![task]);
    let batch = vec![
        one(keyed("a", "k")),
        one(replacing(keyed("b", "k"))),
        delete(0),
        one(unique_for(secs(5), keyed("c", "k"))),
        delete(1),
        one(keyed("d", "k")),
        one(keyed("e", "other")),
        one(replacing(keyed("f", "other"))),
    ];
    let replies: Vec<_> = queue.execute(batch).await.into_iter().collect();
    let placed = |index: usize| match &replies[index] {
        Ok(taskyard_core::Reply::Put(placed)) => placed[0],
        other => panic!("a put answered {other:?}"),
    };
    assert_eq!((placed(0), placed(1)), (added(TaskId(0)), existing(TaskId(0), State::Ready)));
    assert_eq!((placed(3), placed(5)), (added(TaskId(1)), existing(TaskId(1), State::Done)));
    assert_eq!((placed(6), placed(7)), (added(TaskId(2)), existing(TaskId(2), State::Ready)));
    assert_eq!(payload(&queue, &tube, TaskId(2)).await, body("f"));
    queue.advance(secs(5));
    assert_eq!(place(&queue, &tube, keyed("g", "k")).await, added(TaskId(3)));
}

/// Only tasks that are added need capacity; a refused put changes nothing.
pub async fn only_added_tasks_need_capacity<H: Harness>(queue: H) {
    if !queue.capabilities().keys {
        return;
    }
    let options = TubeOptions { capacity: Some(2), ..TubeOptions::new(Kind::LimFifoTtl) };
    let tube = queue.tube_with(options).await;
    let twice = vec![keyed("a", "k"), keyed("b", "k"), keyed("c", "other")];
    assert_eq!(queue.put_many(&tube, twice).await.len(), 3, "two of them have one key");
    let kept = place(&queue, &tube, keyed("d", "k")).await;
    assert_eq!(kept, existing(TaskId(0), State::Ready));
    let replaced = place(&queue, &tube, replacing(keyed("e", "k"))).await;
    assert_eq!(replaced, existing(TaskId(0), State::Ready));
    let refused = put(&tube, vec![replacing(keyed("f", "k")), keyed("g", "new")]);
    let refusal = queue.refused(refused).await;
    assert_eq!(refusal, Error::TubeFull { tube: tube.clone(), capacity: 2 });
    assert_eq!(payload(&queue, &tube, TaskId(0)).await, body("e"), "nothing was replaced");
    // The key of the refused task is free.
    let change = TubeChange { capacity: Some(Some(3)), ..TubeChange::default() };
    queue.alter(&tube, change).await;
    assert_eq!(place(&queue, &tube, keyed("h", "new")).await, added(TaskId(2)));
}

/// Truncate and drop forget the keys of living and of ended tasks; a new name keeps them.
pub async fn keys_go_with_their_tube<H: Harness>(queue: H) {
    if !queue.capabilities().keys {
        return;
    }
    let tube = queue.tube(Kind::FifoTtl).await;
    let fill = async |tube: &TubeName| {
        let ended = queue.put(tube, unique_for(secs(99), keyed("x", "ended"))).await;
        done(queue.delete(tube, ended).await);
        (ended, queue.put(tube, keyed("x", "living")).await)
    };
    let (ended, living) = fill(&tube).await;
    let rename = Command::NameTube { tube, name: name("works"), queue_num: None };
    queue.must(rename).await;
    let tube = name("works");
    let held = queue.put_many(&tube, vec![keyed("y", "ended"), keyed("y", "living")]).await;
    assert_eq!(held, [existing(ended, State::Done), existing(living, State::Ready)]);
    queue.truncate(&tube).await;
    let free = queue.put_many(&tube, vec![keyed("y", "ended"), keyed("y", "living")]).await;
    assert_eq!(free, [added(TaskId(2)), added(TaskId(3))]);
    queue.truncate(&tube).await;
    fill(&tube).await;
    queue.drop_tube(&tube).await;
    let tube = queue.tube_named("works", TubeOptions::new(Kind::FifoTtl)).await;
    let free = queue.put_many(&tube, vec![keyed("y", "ended"), keyed("y", "living")]).await;
    assert_eq!(free, [added(TaskId(0)), added(TaskId(1))]);
}

/// Whether a done task is kept, or deleted later, does not matter for its key; a kept one shows it.
pub async fn kept_tasks_do_not_hold_keys<H: Harness>(queue: H) {
    if !queue.capabilities().keys {
        return;
    }
    let options = TubeOptions { keep_done: Some(secs(90)), ..TubeOptions::new(Kind::FifoTtl) };
    let tube = queue.tube_with(options).await;
    let put_and_ack = async |task: NewTask| {
        let placed = place(&queue, &tube, task).await;
        let taken = queue.take(&tube).await;
        done(queue.ack(&tube, &taken).await);
        placed
    };
    assert_eq!(put_and_ack(keyed("a", "k")).await, added(TaskId(0)));
    assert_eq!(put_and_ack(unique_for(secs(5), keyed("b", "k"))).await, added(TaskId(1)));
    let kept = queue.peek_existing(&tube, TaskId(1)).await;
    assert_eq!((kept.state, kept.key), (State::Done, Some(Box::new(key("k")))));
    assert_eq!(with_key(&queue, &tube, "k").await, [0, 1]);
    done(queue.delete(&tube, TaskId(1)).await);
    assert_eq!(place(&queue, &tube, keyed("c", "k")).await, existing(TaskId(1), State::Done));
    queue.advance(secs(5));
    assert_eq!(place(&queue, &tube, keyed("d", "k")).await, added(TaskId(2)));
    assert_eq!(with_key(&queue, &tube, "k").await, [0, 2]);
}

/// A list can be limited to a key, by id, with the states and the cursor of any list.
pub async fn tasks_are_listed_by_key<H: Harness>(queue: H) {
    if !queue.capabilities().keys {
        return;
    }
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put_many(&tube, vec![task("x"), keyed("y", "k"), keyed("z", "other")]).await;
    assert_eq!(with_key(&queue, &tube, "k").await, [1]);
    assert_eq!(with_key(&queue, &tube, "none").await, [0; 0]);
    let page = async |states, after: Option<u64>| {
        let order = ListOrder::Id { states, after: after.map(TaskId) };
        let list = List { tube: tube.clone(), order, limit: 9, key: Some(key("k")) };
        queue.list(Command::List(list)).await.len()
    };
    assert_eq!(page(StateSet::EMPTY.with(State::Buried), None).await, 0);
    assert_eq!(page(StateSet::EMPTY.with(State::Ready), Some(0)).await, 1);
    assert_eq!(page(StateSet::ALL, Some(1)).await, 0);
    let order = ListOrder::Queue { after: None };
    let list = List { tube: tube.clone(), order, limit: 9, key: Some(key("k")) };
    assert!(matches!(queue.refused(Command::List(list)).await, Error::Invalid(_)));
    queue.bury(&tube, TaskId(1)).await;
    assert_eq!(page(StateSet::EMPTY.with(State::Buried), None).await, 1);
    done(queue.delete(&tube, TaskId(1)).await);
    assert_eq!(with_key(&queue, &tube, "k").await, [0; 0]);
}

/// A task shows its key; one without a key shows none.
pub async fn a_task_shows_its_key<H: Harness>(queue: H) {
    if !queue.capabilities().keys {
        return;
    }
    let tube = queue.tube(Kind::FifoTtl).await;
    let longest = "\u{e9}".repeat(64);
    for text in ["k", " ", "order:17/3", &longest] {
        let id = queue.put(&tube, keyed("x", text)).await;
        assert_eq!(queue.peek_existing(&tube, id).await.key, Some(Box::new(key(text))));
        queue.take_by(take(&tube, 1)).await;
        let shown = queue.peek_existing(&tube, id).await;
        assert_eq!(shown.key, Some(Box::new(key(text))), "while it is taken");
    }
    let plain = queue.put(&tube, task("x")).await;
    assert_eq!(queue.peek_existing(&tube, plain).await.key, None);
}

/// A key cannot be held for more than seven days after the end, and a put that asks for it is refused whole.
pub async fn unique_for_is_limited<H: Harness>(queue: H) {
    if !queue.capabilities().keys {
        return;
    }
    let tube = queue.tube(Kind::Fifo).await;
    let week = secs(UNIQUE_FOR_SECS_MAX);
    let longer = Span::from_micros(week.as_micros() + 1);
    let refused = put(&tube, vec![keyed("a", "a"), unique_for(longer, keyed("b", "b"))]);
    assert!(matches!(queue.refused(refused).await, Error::Invalid(_)));
    assert_eq!(queue.stats(&tube).await.tasks.total(), 0, "nothing was put");
    let id = queue.put(&tube, unique_for(week, keyed("b", "b"))).await;
    done(queue.delete(&tube, id).await);
    queue.advance(Span::from_micros(week.as_micros() - 1));
    assert_eq!(place(&queue, &tube, keyed("c", "b")).await, existing(id, State::Done));
    queue.advance(Span::from_micros(1));
    assert_eq!(place(&queue, &tube, keyed("c", "b")).await, added(TaskId(1)));
}

//! Tubes with a semaphore: their tasks are ready only while they hold a grant.

use taskyard_core::{
    Command, Error, EventKind, Finish, GrantFinish, Kind, MemberGroup, NewTask, Outcome, Position,
    Priority, Reason, Reply, SemaphoreChange, SemaphoreCommand, SemaphoreReply, Span, State,
    Status, Task, TaskId, TubeName, TubeOptions,
};

use super::super::Harness;
use super::super::commands::{
    QueueCommands, RELEASE, done, ids, lease, name, secs, session, task, task_of,
};
use super::super::keys::{existing, keyed, place, replacing};
use super::super::positions::position;
use super::commands::{SemaphoreCommands, YANG, key};

fn gated_by(text: &str) -> TubeOptions {
    TubeOptions { semaphore: Some(key(text)), ..TubeOptions::new(Kind::FifoTtl) }
}

/// A tube with the semaphore `yang` of this capacity.
async fn gated<H: Harness>(queue: &H, active: i64) -> TubeName {
    queue.limits(active, active).await;
    queue.tube_with(gated_by(YANG)).await
}

fn with_pri(pri: u64) -> NewTask {
    NewTask { pri: Some(pri), ..task("work") }
}

/// The states of the first tasks of a tube.
async fn states<H: Harness>(queue: &H, tube: &TubeName, count: u64) -> Vec<State> {
    let mut states = Vec::new();
    for id in 0..count {
        states.push(queue.peek_existing(tube, TaskId(id)).await.state);
    }
    states
}

use State::{Delayed, Ready, Taken};

/// Only as many tasks are ready as the semaphore admits; the others have the reason `Semaphore`.
pub async fn only_admitted_tasks_are_ready<H: Harness>(queue: H) {
    let tube = gated(&queue, 2).await;
    queue.put_texts(&tube, &["a", "b", "c"]).await;
    assert_eq!(states(&queue, &tube, 3).await, [Ready, Ready, Delayed]);
    let waiting = queue.peek_existing(&tube, TaskId(2)).await;
    assert_eq!((waiting.reason, waiting.due), (Reason::Semaphore, None));
    let info = SemaphoreCommands::info(&queue).await;
    assert_eq!(
        (info.acquired, info.waiting, info.events),
        (2, 1, 0),
        "admission in a tube causes no events"
    );
    assert_eq!(ids(&queue.take_many(&tube, 9).await), [0, 1]);
    let shown = queue.tubes().await;
    assert_eq!(shown[0].options.semaphore, Some(key(YANG)));
    assert_eq!((shown[0].stats.tasks.taken, shown[0].stats.tasks.delayed), (2, 1));
}

/// Every end of a task frees its grant: ack, delete, bury, the end of its ttl, truncate and drop.
pub async fn every_end_of_a_task_frees_its_grant<H: Harness>(queue: H) {
    let tube = gated(&queue, 1).await;
    queue.put(&tube, NewTask { ttl: Some(secs(10)), ..task("expires") }).await;
    queue.put_texts(&tube, &["acked", "deleted", "buried", "last"]).await;
    assert_eq!(states(&queue, &tube, 2).await, [Ready, Delayed]);
    queue.advance(secs(10));
    let acked = queue.take(&tube).await;
    assert_eq!(acked.id, TaskId(1));
    queue.ack(&tube, &acked).await;
    let deleted = queue.peek_existing(&tube, TaskId(2)).await;
    assert_eq!(deleted.state, Ready);
    queue.delete(&tube, deleted.id).await;
    queue.bury(&tube, TaskId(3)).await;
    assert_eq!(queue.peek_existing(&tube, TaskId(4)).await.state, Ready);
    assert_eq!(SemaphoreCommands::info(&queue).await.acquired, 1);
    queue.must(Command::Kick { tube: tube.clone(), count: 1 }).await;
    assert_eq!(
        queue.peek_existing(&tube, TaskId(3)).await.reason,
        Reason::Semaphore,
        "a kicked task waits"
    );
    queue.must(Command::Truncate { tube: tube.clone() }).await;
    let info = SemaphoreCommands::info(&queue).await;
    assert_eq!((info.acquired, info.waiting), (0, 0));
    queue.put_texts(&tube, &["a", "b"]).await;
    queue.must(Command::DropTube { tube }).await;
    let info = SemaphoreCommands::info(&queue).await;
    assert_eq!((info.acquired, info.waiting), (0, 0));
}

/// The smaller priority of a tube is admitted first, and takes the grant of a ready task without an event.
pub async fn a_better_task_replaces_a_ready_one<H: Harness>(queue: H) {
    let tube = gated(&queue, 1).await;
    queue.put(&tube, with_pri(5)).await;
    queue.put(&tube, with_pri(2)).await;
    assert_eq!(states(&queue, &tube, 2).await, [Delayed, Ready]);
    queue.put(&tube, with_pri(2)).await;
    assert_eq!(
        states(&queue, &tube, 3).await,
        [Delayed, Ready, Delayed],
        "the first of equal priorities"
    );
    assert_eq!(queue.fetch(None).await, []);
}

/// The holder of a taken task is asked to release it; the release is a yield.
pub async fn a_better_task_waits_for_a_taken_one<H: Harness>(queue: H) {
    let tube = gated(&queue, 1).await;
    queue.put(&tube, with_pri(5)).await;
    let held = queue.take(&tube).await;
    queue.put(&tube, with_pri(2)).await;
    assert_eq!(states(&queue, &tube, 2).await, [Taken, Delayed]);
    let events = queue.fetch(Some(YANG)).await;
    let events: Vec<_> =
        events.iter().map(|event| (event.tube.clone(), event.task, event.kind)).collect();
    assert_eq!(events, [(Some(tube.clone()), held.id, EventKind::TryRelease)]);
    let back = done(queue.finish_lease(&tube, &held, RELEASE).await);
    assert_eq!((back.state, back.reason), (Delayed, Reason::Semaphore));
    assert_eq!(states(&queue, &tube, 2).await, [Delayed, Ready]);
    assert_eq!(queue.fetch(Some(YANG)).await, [], "pending events are removed");
}

/// Without a request a released task keeps its grant.
pub async fn a_released_task_keeps_its_grant<H: Harness>(queue: H) {
    let tube = gated(&queue, 1).await;
    queue.put_texts(&tube, &["a", "b"]).await;
    let held = queue.take(&tube).await;
    let back = done(queue.finish_lease(&tube, &held, RELEASE).await);
    assert_eq!((back.state, back.reason), (Ready, Reason::WaitsForConsumer));
    assert_eq!(queue.take(&tube).await.id, held.id);
}

/// A release with a delay gives up the grant; the task is enqueued again when it is due.
pub async fn a_delay_gives_up_the_grant<H: Harness>(queue: H) {
    let tube = gated(&queue, 1).await;
    queue.put(&tube, NewTask { delay: Some(secs(30)), ..task("later") }).await;
    queue.put_texts(&tube, &["a", "b"]).await;
    assert_eq!(
        SemaphoreCommands::info(&queue).await.waiting,
        1,
        "a task that is not due is not enqueued"
    );
    let held = queue.take(&tube).await;
    let later = Finish::Release { delay: secs(20), counted: true };
    let back = done(queue.finish_lease(&tube, &held, later).await);
    assert!(matches!(back.reason, Reason::NotDue(_)), "{back:?}");
    assert_eq!(states(&queue, &tube, 3).await, [Delayed, Delayed, Ready]);
    queue.advance(secs(20));
    assert_eq!(queue.peek_existing(&tube, held.id).await.reason, Reason::Semaphore);
}

/// The end of a lease or of a session returns the task, which keeps its grant.
pub async fn an_ended_delivery_keeps_the_grant<H: Harness>(queue: H) {
    let tube = gated(&queue, 2).await;
    queue.put_texts(&tube, &["a", "b", "c"]).await;
    queue.join(session(1)).await;
    let by_session = queue.take_as(&tube, session(1)).await;
    let by_lease = queue.take_for(&tube, secs(10)).await;
    queue.must(Command::LeaveSession { session: session(1) }).await;
    queue.advance(secs(10));
    for task in [&by_session, &by_lease] {
        let back = queue.peek_existing(&tube, task.id).await;
        assert_eq!((back.state, back.attempts), (Ready, 1));
        assert_eq!(queue.ack(&tube, task).await, Outcome::Stale);
    }
    assert_eq!(SemaphoreCommands::info(&queue).await.acquired, 2);
}

/// The ttl of a task runs while it waits for the semaphore.
pub async fn a_waiting_task_expires<H: Harness>(queue: H) {
    let tube = gated(&queue, 1).await;
    queue.put_texts(&tube, &["a"]).await;
    queue.put(&tube, NewTask { ttl: Some(secs(10)), ..task("expires") }).await;
    queue.advance(secs(10));
    assert!(queue.peek(&tube, TaskId(1)).await.is_none());
    assert_eq!(SemaphoreCommands::info(&queue).await.waiting, 0);
}

/// The tasks of several tubes and tasks enqueued directly share one queue.
pub async fn tubes_and_direct_tasks_share_one_queue<H: Harness>(queue: H) {
    let tube = gated(&queue, 2).await;
    let other = queue.tube_named("other", gated_by(YANG)).await;
    queue.enqueue(7, -3.0).await;
    queue.put(&tube, with_pri(4)).await;
    queue.put(&other, with_pri(1)).await;
    assert_eq!(queue.peek_existing(&tube, TaskId(0)).await.state, Delayed);
    assert_eq!(queue.peek_existing(&other, TaskId(0)).await.state, Ready);
    assert_eq!(queue.status(7).await, Some(Status::Acquired));
    queue.finish_grant(7, None, GrantFinish::Release).await;
    assert_eq!(queue.peek_existing(&tube, TaskId(0)).await.state, Ready);
    queue.change(SemaphoreChange { active: Some(0), ..SemaphoreChange::default() }).await;
    queue.put(&tube, with_pri(0)).await;
    assert_eq!(queue.peek_existing(&tube, TaskId(1)).await.state, Delayed, "no task is admitted");
    queue.change(SemaphoreChange { active: Some(3), ..SemaphoreChange::default() }).await;
    assert_eq!(queue.peek_existing(&tube, TaskId(1)).await.state, Ready);
}

// The grant of a taken task ended by the semaphore's own lease, or by force: another task got it, and two tasks ran where one
// is allowed. A worker could not prevent it, because only grants of directly enqueued tasks can be extended.
/// The number of taken tasks never exceeds the capacity, independent of how long they run and which tasks wait.
pub async fn a_taken_task_keeps_its_grant<H: Harness>(queue: H) {
    let tube = gated(&queue, 1).await;
    let change = SemaphoreChange {
        lease: Some(Some(secs(10))),
        revoke_grace: Some(secs(5)),
        force: Some(true),
        drop_expired: Some(true),
        ..SemaphoreChange::default()
    };
    queue.change(change).await;
    queue.put(&tube, with_pri(5)).await;
    let held = queue.take_for(&tube, secs(1000)).await;
    queue.put(&tube, with_pri(2)).await;
    for _ in 0..3 {
        queue.advance(secs(20));
        assert_eq!(states(&queue, &tube, 2).await, [Taken, Delayed]);
        let events = queue.drain_events().await;
        assert_eq!(events, [(held.id.0, EventKind::TryRelease)], "the request is repeated");
    }
    let info = SemaphoreCommands::info(&queue).await;
    assert_eq!((info.acquired, info.revoking, info.waiting), (0, 1, 1));
    done(queue.finish_lease(&tube, &held, RELEASE).await);
    assert_eq!(states(&queue, &tube, 2).await, [Delayed, Ready], "its release is a yield");
    queue.advance(secs(100));
    assert_eq!(states(&queue, &tube, 2).await, [Delayed, Ready], "a ready task waits for a worker");
}

/// A tube with an absent semaphore is refused.
pub async fn an_absent_semaphore_is_refused<H: Harness>(queue: H) {
    let options = gated_by("nowhere");
    let create = Command::CreateTube { tube: name("jobs"), options, if_not_exists: false };
    let refusal = queue.refused(create).await;
    assert_eq!(refusal, Error::SemaphoreNotFound(key("nowhere")));
    assert_eq!(queue.tubes().await, []);
}

/// A semaphore of a tube is not dropped, even by force: the tube would never deliver a task again.
pub async fn a_semaphore_of_a_tube_is_not_dropped<H: Harness>(queue: H) {
    let tube = gated(&queue, 1).await;
    queue.put_many(&tube, vec![with_pri(1), with_pri(2)]).await;
    let yang = || key(super::commands::YANG);
    for force in [false, true] {
        let refusal = queue.semaphore(SemaphoreCommand::Drop { key: yang(), force }).await;
        let expected = Error::SemaphoreHasTube { key: yang(), tube: tube.clone() };
        assert_eq!(refusal, Err(expected));
    }
    for (part, id) in [(MemberGroup::Holders, 0), (MemberGroup::Waiting, 1)] {
        let [member] = queue.members(part, None, 10).await.members.try_into().expect("one");
        assert_eq!((member.tube, member.info.task), (Some(tube.clone()), TaskId(id)));
    }
    queue.must(Command::DropTube { tube }).await;
    let drop = SemaphoreCommand::Drop { key: yang(), force: false };
    assert_eq!(queue.semaphore(drop).await, Ok(SemaphoreReply::Dropped));
}

fn important(priority: f64, pri: u64) -> NewTask {
    let priority = Priority::new(priority).expect("a number");
    NewTask { semaphore_priority: Some(priority), ..with_pri(pri) }
}

/// The semaphore priority of a put replaces `pri` in the semaphore, each time the task is enqueued.
pub async fn a_task_may_have_a_priority_of_its_own<H: Harness>(queue: H) {
    let tube = gated(&queue, 1).await;
    queue.put_many(&tube, vec![with_pri(2), important(-3.5, 0), important(-1.5, 9)]).await;
    assert_eq!(states(&queue, &tube, 3).await, [Delayed, Delayed, Ready]);
    let shown = queue.peek_existing(&tube, TaskId(2)).await;
    assert_eq!((shown.semaphore_priority, shown.pri), (important(-1.5, 0).semaphore_priority, 9));
    assert_eq!(queue.peek_existing(&tube, TaskId(0)).await.semaphore_priority, None);
    let held = queue.take(&tube).await;
    let later = Finish::Release { delay: secs(20), counted: true };
    done(queue.finish_lease(&tube, &held, later).await);
    assert_eq!(states(&queue, &tube, 3).await, [Ready, Delayed, Delayed]);
    queue.advance(secs(20));
    assert_eq!(
        states(&queue, &tube, 3).await,
        [Delayed, Delayed, Ready],
        "again by its own priority"
    );
    let queue = queue.restart().await;
    if queue.capabilities().durable {
        queue.bury(&tube, TaskId(2)).await;
        queue.must(Command::Kick { tube: tube.clone(), count: 1 }).await;
        assert_eq!(
            states(&queue, &tube, 3).await,
            [Delayed, Delayed, Ready],
            "the priority is kept"
        );
    }
}

/// In a tube without a semaphore a semaphore priority is an error, and no task of the put is added.
pub async fn a_priority_of_its_own_needs_a_semaphore<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let put = |tasks| Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO };
    let batch = vec![put(vec![task("good")]), put(vec![task("also"), important(1.0, 0)])];
    let answers = queue.execute(batch).await;
    assert!(matches!(answers[0], Ok(Reply::Put(_))), "{answers:?}");
    assert!(matches!(&answers[1], Err(Error::NoSemaphore(_))));
    assert_eq!(queue.tubes().await[0].stats.tasks.ready, 1);
}

/// A tube with sub-queues and a semaphore: each task is enqueued by itself, and one task of each sub-queue runs.
pub async fn sub_queues_work_with_a_semaphore<H: Harness>(queue: H) {
    queue.limits(2, 2).await;
    for kind in [Kind::Utube, Kind::UtubeTtl] {
        let tube = queue.tube_named(kind.name(), TubeOptions { kind, ..gated_by(YANG) }).await;
        for subqueue in ["a", "a", "b", "b"] {
            queue.put(&tube, task_of(subqueue)).await;
        }
        assert_eq!(states(&queue, &tube, 4).await, [Ready, Ready, Delayed, Delayed]);
        let first = queue.take_many(&tube, 9).await;
        assert_eq!(ids(&first), [0]);
        assert_eq!(queue.peek_existing(&tube, TaskId(1)).await.reason, Reason::SubqueueBusy);
        queue.ack(&tube, &first[0]).await;
        let next = queue.take_many(&tube, 9).await;
        assert_eq!(ids(&next), [1, 2], "one of each, as many as have a grant");
        queue.ack(&tube, &next[0]).await;
        assert_eq!(queue.peek_existing(&tube, TaskId(3)).await.reason, Reason::SubqueueBusy);
        queue.must(Command::Truncate { tube: tube.clone() }).await;
        assert_eq!(SemaphoreCommands::info(&queue).await.acquired, 0);
    }
}

/// A task that loses its grant is no longer the first of its sub-queue.
pub async fn a_task_without_grant_does_not_block_its_sub_queue<H: Harness>(queue: H) {
    queue.limits(1, 1).await;
    let tube = queue.tube_with(TubeOptions { kind: Kind::UtubeTtl, ..gated_by(YANG) }).await;
    queue.put(&tube, NewTask { pri: Some(5), ..task_of("a") }).await;
    queue.put(&tube, NewTask { pri: Some(1), ..task_of("b") }).await;
    assert_eq!(states(&queue, &tube, 2).await, [Delayed, Ready]);
    let held = queue.take_many(&tube, 9).await;
    assert_eq!(ids(&held), [1]);
    queue.ack(&tube, &held[0]).await;
    assert_eq!(ids(&queue.take_many(&tube, 9).await), [0]);
}

/// A restart removes the tasks of a temporary tube and frees their grants.
pub async fn a_temporary_tube_leaves_no_grants<H: Harness>(queue: H) {
    let durable = queue.capabilities().durable;
    queue.limits(2, 2).await;
    let tube = queue.tube_with(TubeOptions { temporary: true, ..gated_by(YANG) }).await;
    queue.put_texts(&tube, &["a", "b", "c"]).await;
    let held = queue.take(&tube).await;
    queue.enqueue(7, -1.0).await;
    assert_eq!(states(&queue, &tube, 3).await, [Taken, Ready, Delayed]);
    queue.ack(&tube, &held).await;
    assert_eq!(SemaphoreCommands::info(&queue).await.acquired, 2);
    let queue = queue.restart().await;
    if durable {
        queue.advance(secs(1));
        let info = SemaphoreCommands::info(&queue).await;
        assert_eq!((info.acquired, info.waiting), (1, 0), "only the directly enqueued task");
        let id = queue.put(&tube, task("new")).await;
        assert_eq!(queue.peek_existing(&tube, id).await.state, Ready);
    }
}

/// After a restart the same tasks are admitted; a taken task is ready, or waits if it was asked to release.
pub async fn a_restart_keeps_the_order<H: Harness>(queue: H) {
    let durable = queue.capabilities().durable;
    let tube = gated(&queue, 2).await;
    for pri in [5, 6, 7] {
        queue.put(&tube, with_pri(pri)).await;
    }
    let held: Vec<Task> = queue.take_many(&tube, 2).await;
    assert_eq!(ids(&held), [0, 1]);
    queue.put(&tube, with_pri(1)).await;
    assert_eq!(SemaphoreCommands::info(&queue).await.revoking, 1);
    let queue = queue.restart().await;
    if !durable {
        return;
    }
    assert_eq!(states(&queue, &tube, 4).await, [Ready, Delayed, Delayed, Ready]);
    let info = SemaphoreCommands::info(&queue).await;
    assert_eq!((info.acquired, info.revoking, info.waiting), (2, 0, 2));
    assert_eq!(queue.ack(&tube, &held[0]).await, Outcome::Stale);
    assert_ne!(lease(&queue.take(&tube).await), lease(&held[0]));
}

/// A put that replaces a task of a tube changes its place in the semaphore: by its new priority, or by a delay, which gives
/// up the grant. A taken one keeps its grant.
pub async fn a_replaced_task_is_queued_again<H: Harness>(queue: H) {
    let capabilities = queue.capabilities();
    if !capabilities.keys || !capabilities.gates {
        return;
    }
    let tube = gated(&queue, 1).await;
    let pri = |pri, task| NewTask { pri: Some(pri), ..task };
    queue.put(&tube, pri(3, keyed("a", "a"))).await;
    queue.put(&tube, pri(5, keyed("b", "b"))).await;
    assert_eq!(states(&queue, &tube, 2).await, [Ready, Delayed]);
    let better = pri(1, replacing(keyed("c", "b")));
    assert_eq!(place(&queue, &tube, better).await, existing(TaskId(1), Ready));
    assert_eq!(states(&queue, &tube, 2).await, [Delayed, Ready]);
    let worse = pri(9, replacing(keyed("d", "b")));
    assert_eq!(place(&queue, &tube, worse).await, existing(TaskId(1), Delayed));
    assert_eq!(states(&queue, &tube, 2).await, [Ready, Delayed]);
    let priority = Some(Priority::new(7.0).expect("a number"));
    let own = NewTask { semaphore_priority: priority, ..pri(9, replacing(keyed("e", "b"))) };
    assert_eq!(place(&queue, &tube, own).await, existing(TaskId(1), Ready));
    assert_eq!(queue.peek_existing(&tube, TaskId(1)).await.semaphore_priority, priority);
    let later = NewTask { delay: Some(secs(5)), ..replacing(keyed("f", "b")) };
    assert_eq!(place(&queue, &tube, later).await, existing(TaskId(1), Delayed));
    let delayed = queue.peek_existing(&tube, TaskId(1)).await;
    assert_eq!((delayed.semaphore_priority, delayed.due), (None, Some(queue.now() + secs(5))));
    assert_eq!(states(&queue, &tube, 2).await, [Ready, Delayed], "the grant is free");
    let held = queue.take(&tube).await;
    assert_eq!(place(&queue, &tube, replacing(keyed("g", "a"))).await, existing(held.id, Taken));
    let info = SemaphoreCommands::info(&queue).await;
    assert_eq!((info.acquired, info.waiting), (1, 0));
    done(queue.ack(&tube, &held).await);
    queue.advance(secs(5));
    assert_eq!(queue.take(&tube).await.body, keyed("f", "b").body.into());
}

/// The position of a task without a grant counts the waiting members of the semaphore that get one first, of any tube, and the tasks of
/// its own tube that have one.
pub async fn the_members_ahead_are_counted<H: Harness>(queue: H) {
    let tube = gated(&queue, 2).await;
    let other = queue.tube_named("other", gated_by(YANG)).await;
    for pri in [5, 5, 3, 5, 4] {
        queue.put(&tube, with_pri(pri)).await;
    }
    queue.put(&other, with_pri(4)).await;
    queue.put(&tube, with_pri(5)).await;
    let own = |id, pri, ahead, gate| Position { gate_ahead: gate, ..position(id, pri, ahead) };
    let expected = [
        own(0, 5, 2, Some(1)),
        own(1, 5, 2, Some(2)),
        own(2, 3, 0, None),
        own(3, 5, 2, Some(3)),
        own(4, 4, 1, None),
        own(5, 5, 2, Some(4)),
    ];
    let ids: Vec<u64> = (0..8).collect();
    assert_eq!(queue.positions(&tube, &ids).await, expected);
    assert_eq!(queue.positions(&other, &[0]).await, [own(0, 4, 0, Some(0))]);
    let first = queue.take(&tube).await;
    queue.ack(&tube, &first).await;
    assert_eq!(queue.positions(&tube, &[1]).await, [own(1, 5, 1, Some(1))]);
    assert_eq!(queue.positions(&other, &[0]).await, [own(0, 4, 0, None)]);
    queue.put(&tube, NewTask { delay: Some(secs(5)), ..with_pri(1) }).await;
    let waiting = &queue.positions(&tube, &[1]).await[0];
    assert_eq!((waiting.gate_ahead, &waiting.delayed_ahead[..]), (Some(1), &[0, 0, 0, 1][..]));
}

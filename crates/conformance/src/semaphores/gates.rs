//! Tubes with a semaphore before them: their tasks are ready only while they hold a grant.

use taskyard_core::{
    Command, Error, EventKind, Finish, GrantFinish, Kind, MemberGroup, NewTask, Outcome, Priority,
    Reason, Reply, SemaphoreChange, SemaphoreCommand, SemaphoreReply, Span, State, Status, Task,
    TaskId, TubeName, TubeOptions,
};

use super::super::Harness;
use super::super::ask::{Ask, RELEASE, done, ids, lease, name, secs, session, task, task_of};
use super::ask::{SemaphoreAsk, YANG, key};

fn behind(text: &str) -> TubeOptions {
    TubeOptions { semaphore: Some(key(text)), ..TubeOptions::new(Kind::FifoTtl) }
}

/// A tube before which `yang` stands and lets so many in.
async fn gated<H: Harness>(queue: &H, active: i64) -> TubeName {
    queue.limits(active, active).await;
    queue.tube_with(behind(YANG)).await
}

fn with_pri(pri: u64) -> NewTask {
    NewTask { pri: Some(pri), ..task("work") }
}

/// The states of the first tasks of a tube.
async fn states<H: Harness>(queue: &H, tube: &TubeName, count: u64) -> Vec<State> {
    let mut states = Vec::new();
    for id in 0..count {
        states.push(queue.look(tube, TaskId(id)).await.state);
    }
    states
}

use State::{Delayed, Ready, Taken};

/// Only as many are ready as the semaphore lets in; the others say why not.
pub async fn only_the_admitted_are_ready<H: Harness>(queue: H) {
    let tube = gated(&queue, 2).await;
    queue.put_texts(&tube, &["a", "b", "c"]).await;
    assert_eq!(states(&queue, &tube, 3).await, [Ready, Ready, Delayed]);
    let waiting = queue.look(&tube, TaskId(2)).await;
    assert_eq!((waiting.reason, waiting.due), (Reason::Semaphore, None));
    let info = SemaphoreAsk::info(&queue).await;
    assert_eq!((info.acquired, info.waiting, info.events), (2, 1, 0), "nobody needs to be told");
    assert_eq!(ids(&queue.take_many(&tube, 9).await), [0, 1]);
    let shown = queue.tubes().await;
    assert_eq!(shown[0].options.semaphore, Some(key(YANG)));
    assert_eq!((shown[0].stats.tasks.taken, shown[0].stats.tasks.delayed), (2, 1));
}

/// Whatever ends a task frees its place: ack, delete, bury, the end of its ttl, truncate and drop.
pub async fn every_end_frees_the_place<H: Harness>(queue: H) {
    let tube = gated(&queue, 1).await;
    queue.put(&tube, NewTask { ttl: Some(secs(10)), ..task("dies") }).await;
    queue.put_texts(&tube, &["acked", "deleted", "buried", "last"]).await;
    assert_eq!(states(&queue, &tube, 2).await, [Ready, Delayed]);
    queue.advance(secs(10));
    let acked = queue.take(&tube).await;
    assert_eq!(acked.id, TaskId(1));
    queue.ack(&tube, &acked).await;
    let deleted = queue.look(&tube, TaskId(2)).await;
    assert_eq!(deleted.state, Ready);
    queue.delete(&tube, deleted.id).await;
    queue.bury(&tube, TaskId(3)).await;
    assert_eq!(queue.look(&tube, TaskId(4)).await.state, Ready);
    assert_eq!(SemaphoreAsk::info(&queue).await.acquired, 1);
    queue.must(Command::Kick { tube: tube.clone(), count: 1 }).await;
    assert_eq!(queue.look(&tube, TaskId(3)).await.reason, Reason::Semaphore, "kicked, it waits");
    queue.must(Command::Truncate { tube: tube.clone() }).await;
    let info = SemaphoreAsk::info(&queue).await;
    assert_eq!((info.acquired, info.waiting), (0, 0));
    queue.put_texts(&tube, &["a", "b"]).await;
    queue.must(Command::DropTube { tube }).await;
    let info = SemaphoreAsk::info(&queue).await;
    assert_eq!((info.acquired, info.waiting), (0, 0));
}

/// The smaller priority of a tube goes first, and takes the place of a ready one without a word.
pub async fn a_better_task_takes_the_place_of_a_ready_one<H: Harness>(queue: H) {
    let tube = gated(&queue, 1).await;
    queue.put(&tube, with_pri(5)).await;
    queue.put(&tube, with_pri(2)).await;
    assert_eq!(states(&queue, &tube, 2).await, [Delayed, Ready]);
    queue.put(&tube, with_pri(2)).await;
    assert_eq!(states(&queue, &tube, 3).await, [Delayed, Ready, Delayed], "of equals the first");
    assert_eq!(queue.fetch(None).await, []);
}

/// One that somebody works on is asked; its release is a yield.
pub async fn a_better_task_waits_for_a_taken_one<H: Harness>(queue: H) {
    let tube = gated(&queue, 1).await;
    queue.put(&tube, with_pri(5)).await;
    let held = queue.take(&tube).await;
    queue.put(&tube, with_pri(2)).await;
    assert_eq!(states(&queue, &tube, 2).await, [Taken, Delayed]);
    let events = queue.fetch(Some(YANG)).await;
    let told: Vec<_> =
        events.iter().map(|event| (event.tube.clone(), event.task, event.kind)).collect();
    assert_eq!(told, [(Some(tube.clone()), held.id, EventKind::TryRelease)]);
    let back = done(queue.finish_lease(&tube, &held, RELEASE).await);
    assert_eq!((back.state, back.reason), (Delayed, Reason::Semaphore));
    assert_eq!(states(&queue, &tube, 2).await, [Delayed, Ready]);
    assert_eq!(queue.fetch(Some(YANG)).await, [], "what was still to be said is not said");
}

/// Without such a request a released task keeps its place.
pub async fn a_released_task_keeps_its_place<H: Harness>(queue: H) {
    let tube = gated(&queue, 1).await;
    queue.put_texts(&tube, &["a", "b"]).await;
    let held = queue.take(&tube).await;
    let back = done(queue.finish_lease(&tube, &held, RELEASE).await);
    assert_eq!((back.state, back.reason), (Ready, Reason::WaitsForConsumer));
    assert_eq!(queue.take(&tube).await.id, held.id);
}

/// What is released for later leaves, and stands in line again when its time has come.
pub async fn a_delay_gives_the_place_away<H: Harness>(queue: H) {
    let tube = gated(&queue, 1).await;
    queue.put(&tube, NewTask { delay: Some(secs(30)), ..task("later") }).await;
    queue.put_texts(&tube, &["a", "b"]).await;
    assert_eq!(
        SemaphoreAsk::info(&queue).await.waiting,
        1,
        "what is not due does not stand in line"
    );
    let held = queue.take(&tube).await;
    let later = Finish::Release { delay: secs(20), counted: true };
    let back = done(queue.finish_lease(&tube, &held, later).await);
    assert!(matches!(back.reason, Reason::NotDue(_)), "{back:?}");
    assert_eq!(states(&queue, &tube, 3).await, [Delayed, Delayed, Ready]);
    queue.advance(secs(20));
    assert_eq!(queue.look(&tube, held.id).await.reason, Reason::Semaphore);
}

/// A lease that runs out and a session that ends give the task back, not its place.
pub async fn a_holder_that_is_gone_keeps_nothing<H: Harness>(queue: H) {
    let tube = gated(&queue, 2).await;
    queue.put_texts(&tube, &["a", "b", "c"]).await;
    queue.join(session(1)).await;
    let by_session = queue.take_as(&tube, session(1)).await;
    let by_lease = queue.take_for(&tube, secs(10)).await;
    queue.must(Command::LeaveSession { session: session(1) }).await;
    queue.advance(secs(10));
    for task in [&by_session, &by_lease] {
        let back = queue.look(&tube, task.id).await;
        assert_eq!((back.state, back.attempts), (Ready, 1));
        assert_eq!(queue.ack(&tube, task).await, Outcome::Stale);
    }
    assert_eq!(SemaphoreAsk::info(&queue).await.acquired, 2);
}

/// The time to live runs while a task waits.
pub async fn who_waits_too_long_dies<H: Harness>(queue: H) {
    let tube = gated(&queue, 1).await;
    queue.put_texts(&tube, &["a"]).await;
    queue.put(&tube, NewTask { ttl: Some(secs(10)), ..task("dies") }).await;
    queue.advance(secs(10));
    assert!(queue.peek(&tube, TaskId(1)).await.is_none());
    assert_eq!(SemaphoreAsk::info(&queue).await.waiting, 0);
}

/// The tasks of several tubes and those of others stand in one line.
pub async fn one_line_for_all<H: Harness>(queue: H) {
    let tube = gated(&queue, 2).await;
    let other = queue.tube_named("other", behind(YANG)).await;
    queue.enqueue(7, -3.0).await;
    queue.put(&tube, with_pri(4)).await;
    queue.put(&other, with_pri(1)).await;
    assert_eq!(queue.look(&tube, TaskId(0)).await.state, Delayed);
    assert_eq!(queue.look(&other, TaskId(0)).await.state, Ready);
    assert_eq!(queue.status(7).await, Some(Status::Acquired));
    queue.finish_grant(7, None, GrantFinish::Release).await;
    assert_eq!(queue.look(&tube, TaskId(0)).await.state, Ready);
    queue.change(SemaphoreChange { active: Some(0), ..SemaphoreChange::default() }).await;
    queue.put(&tube, with_pri(0)).await;
    assert_eq!(queue.look(&tube, TaskId(1)).await.state, Delayed, "nobody is let in");
    queue.change(SemaphoreChange { active: Some(3), ..SemaphoreChange::default() }).await;
    assert_eq!(queue.look(&tube, TaskId(1)).await.state, Ready);
}

// The grant of a task ended by the semaphore's own lease, or by force, while somebody worked on it: its place went to
// a better one, and two were at work where one may be. Nobody could prevent it, as only the semaphore's own tasks can be
// extended.
/// However long the work lasts, and whoever waits, no more are at work than the semaphore lets in.
pub async fn the_work_keeps_its_place<H: Harness>(queue: H) {
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
        let told = queue.hear().await;
        assert_eq!(told, [(held.id.0, EventKind::TryRelease)], "it is asked again");
    }
    let info = SemaphoreAsk::info(&queue).await;
    assert_eq!((info.acquired, info.revoking, info.waiting), (0, 1, 1));
    done(queue.finish_lease(&tube, &held, RELEASE).await);
    assert_eq!(states(&queue, &tube, 2).await, [Delayed, Ready], "its release is a yield");
    queue.advance(secs(100));
    assert_eq!(states(&queue, &tube, 2).await, [Delayed, Ready], "who is ready waits for a worker");
}

/// A tube that names a semaphore which is not there is refused.
pub async fn an_absent_semaphore_is_refused<H: Harness>(queue: H) {
    let options = behind("nowhere");
    let create = Command::CreateTube { tube: name("jobs"), options, if_not_exists: false };
    let refusal = queue.refused(create).await;
    assert_eq!(refusal, Error::SemaphoreNotFound(key("nowhere")));
    assert_eq!(queue.tubes().await, []);
}

/// A semaphore before a tube is not dropped, even by force: the tube would never let a task go on.
pub async fn a_semaphore_before_a_tube_is_not_dropped<H: Harness>(queue: H) {
    let tube = gated(&queue, 1).await;
    queue.put_many(&tube, vec![with_pri(1), with_pri(2)]).await;
    let yang = || key(super::ask::YANG);
    for force in [false, true] {
        let refusal = queue.semaphore(SemaphoreCommand::Drop { key: yang(), force }).await;
        let expected = Error::SemaphoreHasTube { key: yang(), tube: tube.clone() };
        assert_eq!(refusal, Err(expected));
    }
    for (part, id) in [(MemberGroup::Holders, 0), (MemberGroup::Waiting, 1)] {
        let [member] = queue.members(part, None, 10).await.members.try_into().expect("one");
        assert_eq!((member.tube, member.standing.task), (Some(tube.clone()), TaskId(id)));
    }
    queue.must(Command::DropTube { tube }).await;
    let drop = SemaphoreCommand::Drop { key: yang(), force: false };
    assert_eq!(queue.semaphore(drop).await, Ok(SemaphoreReply::Dropped));
}

fn important(priority: f64, pri: u64) -> NewTask {
    let priority = Priority::new(priority).expect("a number");
    NewTask { semaphore_priority: Some(priority), ..with_pri(pri) }
}

/// What a put says for the semaphore counts there instead of `pri`, as often as the task stands in line.
pub async fn a_task_may_have_a_priority_of_its_own<H: Harness>(queue: H) {
    let tube = gated(&queue, 1).await;
    queue.put_many(&tube, vec![with_pri(2), important(-3.5, 0), important(-1.5, 9)]).await;
    assert_eq!(states(&queue, &tube, 3).await, [Delayed, Delayed, Ready]);
    let shown = queue.look(&tube, TaskId(2)).await;
    assert_eq!((shown.semaphore_priority, shown.pri), (important(-1.5, 0).semaphore_priority, 9));
    assert_eq!(queue.look(&tube, TaskId(0)).await.semaphore_priority, None);
    let held = queue.take(&tube).await;
    let later = Finish::Release { delay: secs(20), counted: true };
    done(queue.finish_lease(&tube, &held, later).await);
    assert_eq!(states(&queue, &tube, 3).await, [Ready, Delayed, Delayed]);
    queue.advance(secs(20));
    assert_eq!(states(&queue, &tube, 3).await, [Delayed, Delayed, Ready], "again by its own");
    let queue = queue.restart().await;
    if queue.capabilities().durable {
        queue.bury(&tube, TaskId(2)).await;
        queue.must(Command::Kick { tube: tube.clone(), count: 1 }).await;
        assert_eq!(states(&queue, &tube, 3).await, [Delayed, Delayed, Ready], "it was kept");
    }
}

/// Where no semaphore stands, a priority for one is an error, and nothing of the batch is put.
pub async fn a_priority_of_its_own_needs_a_semaphore<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    let put = |tasks| Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO };
    let batch = vec![put(vec![task("good")]), put(vec![task("also"), important(1.0, 0)])];
    let answers = queue.execute(batch).await;
    assert!(matches!(answers[0], Ok(Reply::Put(_))), "{answers:?}");
    assert!(matches!(&answers[1], Err(Error::NoSemaphore(_))));
    assert_eq!(queue.tubes().await[0].stats.tasks.ready, 1);
}

/// A tube with sub-queues behind a semaphore: each task stands in line by itself, and of one sub-queue one runs.
pub async fn sub_queues_work_behind_one<H: Harness>(queue: H) {
    queue.limits(2, 2).await;
    for kind in [Kind::Utube, Kind::UtubeTtl] {
        let tube = queue.tube_named(kind.name(), TubeOptions { kind, ..behind(YANG) }).await;
        for subqueue in ["a", "a", "b", "b"] {
            queue.put(&tube, task_of(subqueue)).await;
        }
        assert_eq!(states(&queue, &tube, 4).await, [Ready, Ready, Delayed, Delayed]);
        let first = queue.take_many(&tube, 9).await;
        assert_eq!(ids(&first), [0]);
        assert_eq!(queue.look(&tube, TaskId(1)).await.reason, Reason::SubqueueBusy);
        queue.ack(&tube, &first[0]).await;
        let next = queue.take_many(&tube, 9).await;
        assert_eq!(ids(&next), [1, 2], "one of each, as many as have a place");
        queue.ack(&tube, &next[0]).await;
        assert_eq!(queue.look(&tube, TaskId(3)).await.reason, Reason::SubqueueBusy);
        queue.must(Command::Truncate { tube: tube.clone() }).await;
        assert_eq!(SemaphoreAsk::info(&queue).await.acquired, 0);
    }
}

/// Who loses its place stands first in its sub-queue no more.
pub async fn a_sub_queue_goes_on_without_who_lost_its_place<H: Harness>(queue: H) {
    queue.limits(1, 1).await;
    let tube = queue.tube_with(TubeOptions { kind: Kind::UtubeTtl, ..behind(YANG) }).await;
    queue.put(&tube, NewTask { pri: Some(5), ..task_of("a") }).await;
    queue.put(&tube, NewTask { pri: Some(1), ..task_of("b") }).await;
    assert_eq!(states(&queue, &tube, 2).await, [Delayed, Ready]);
    let held = queue.take_many(&tube, 9).await;
    assert_eq!(ids(&held), [1]);
    queue.ack(&tube, &held[0]).await;
    assert_eq!(ids(&queue.take_many(&tube, 9).await), [0]);
}

/// The tasks of a temporary tube are forgotten by a restart, and their places are free then.
pub async fn a_temporary_tube_leaves_no_places_behind<H: Harness>(queue: H) {
    let durable = queue.capabilities().durable;
    queue.limits(2, 2).await;
    let tube = queue.tube_with(TubeOptions { temporary: true, ..behind(YANG) }).await;
    queue.put_texts(&tube, &["a", "b", "c"]).await;
    let held = queue.take(&tube).await;
    queue.enqueue(7, -1.0).await;
    assert_eq!(states(&queue, &tube, 3).await, [Taken, Ready, Delayed]);
    queue.ack(&tube, &held).await;
    assert_eq!(SemaphoreAsk::info(&queue).await.acquired, 2);
    let queue = queue.restart().await;
    if durable {
        queue.advance(secs(1));
        let info = SemaphoreAsk::info(&queue).await;
        assert_eq!((info.acquired, info.waiting), (1, 0), "only who is not of the tube");
        let id = queue.put(&tube, task("new")).await;
        assert_eq!(queue.look(&tube, id).await.state, Ready);
    }
}

/// After a restart the same tasks are let in; what was taken is ready, or gives way if it was asked to.
pub async fn a_restart_keeps_the_line<H: Harness>(queue: H) {
    let durable = queue.capabilities().durable;
    let tube = gated(&queue, 2).await;
    for pri in [5, 6, 7] {
        queue.put(&tube, with_pri(pri)).await;
    }
    let held: Vec<Task> = queue.take_many(&tube, 2).await;
    assert_eq!(ids(&held), [0, 1]);
    queue.put(&tube, with_pri(1)).await;
    assert_eq!(SemaphoreAsk::info(&queue).await.revoking, 1);
    let queue = queue.restart().await;
    if !durable {
        return;
    }
    assert_eq!(states(&queue, &tube, 4).await, [Ready, Delayed, Delayed, Ready]);
    let info = SemaphoreAsk::info(&queue).await;
    assert_eq!((info.acquired, info.revoking, info.waiting), (2, 0, 2));
    assert_eq!(queue.ack(&tube, &held[0]).await, Outcome::Stale);
    assert_ne!(lease(&queue.take(&tube).await), lease(&held[0]));
}

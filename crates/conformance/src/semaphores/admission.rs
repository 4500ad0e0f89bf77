//! Admission: which tasks get a grant.

use taskyard_core::EventKind::Acquired;
use taskyard_core::{
    Command, EnqueueItem, Error, Grant, GrantFinish, GrantOutcome, MemberGroup, Reply,
    SemaphoreChange, SemaphoreCommand, SemaphoreOptions, SemaphoreReply, Span, Status, TaskId,
};

use super::super::Harness;
use super::SemaphoreCommands;
use super::commands::{YANG, infos, key};

/// A new semaphore has the default options.
pub async fn a_new_semaphore_has_the_defaults<H: Harness>(queue: H) {
    let info = queue.configure(YANG, SemaphoreChange::default()).await;
    assert_eq!(info.options, SemaphoreOptions::default());
    assert_eq!((info.options.active, info.options.tail()), (1000, 900));
    let counts = [info.waiting, info.delayed, info.acquired, info.revoking, info.events];
    assert_eq!(counts, [0; 5]);
    let small = SemaphoreChange { active: Some(3), ..Default::default() };
    assert_eq!(queue.configure("small", small).await.options.tail(), 3);
}

/// Creating an existing semaphore without options leaves it unchanged.
pub async fn an_existing_semaphore_is_unchanged<H: Harness>(queue: H) {
    queue.limits(3, 2).await;
    let (key, change) = (key(YANG), Box::default());
    let get = SemaphoreCommand::Configure { key, change, only_new: true };
    let [info] = infos(queue.semaphore(get).await).try_into().expect("one");
    assert_eq!((info.options.active, info.options.try_release), (3, 2));
}

// Creating an existing semaphore with other options succeeded, and no error said that they were ignored.
/// Creating an existing semaphore with other options is refused, and the error lists the differences.
pub async fn different_options_for_an_existing_one_are_refused<H: Harness>(queue: H) {
    queue.configure(YANG, SemaphoreChange { active: Some(3), ..Default::default() }).await;
    let make = |change| {
        let (key, change) = (key(YANG), Box::new(change));
        queue.semaphore(SemaphoreCommand::Configure { key, change, only_new: true })
    };
    let same = SemaphoreChange { lease: Some(None), ..SemaphoreChange::limits(3, 3) };
    assert!(make(same).await.is_ok(), "the given options are equal");
    let lease = Some(Some(Span::from_secs(30)));
    let other = SemaphoreChange { lease, shed: Some(false), ..SemaphoreChange::limits(5, 3) };
    let differs = "active is 3, not 5, lease is none, not 30 s".to_owned();
    assert_eq!(make(other).await, Err(Error::SemaphoreExists { key: key(YANG), differs }));
    assert_eq!(queue.info().await.options.active, 3);
}

// One protocol showed a tail of 900 with 3 active, and another showed 3.
/// The tail is shown as its effective value.
pub async fn the_effective_tail_is_shown<H: Harness>(queue: H) {
    let small = SemaphoreChange { active: Some(3), ..Default::default() };
    assert_eq!(queue.configure(YANG, small).await.options.try_release, 3);
    assert_eq!(queue.info().await.options.try_release, 3);
    let large = SemaphoreChange { active: Some(2000), ..Default::default() };
    assert_eq!(queue.configure(YANG, large).await.options.try_release, 900, "it was never set");
}

/// Holders and waiting tasks are shown the best first, one page at a time.
pub async fn members_are_shown_in_pages<H: Harness>(queue: H) {
    queue.limits(4, 3).await;
    queue.enqueue_many(&[(1, 9.0), (2, 3.0), (3, 2.0), (4, 3.0)]).await;
    queue.drain_events().await;
    // One holder declined, one was asked to release.
    queue.enqueue(5, 8.0).await;
    queue.drain_events().await;
    queue.finish_grant(3, None, GrantFinish::Decline).await;
    queue.enqueue_many(&[(6, 1.0), (7, 1.0), (8, -1.5), (9, 1.0)]).await;
    assert_eq!(queue.status(4).await, Some(Status::TryRelease));
    let mut shown = Vec::new();
    for part in [MemberGroup::Holders, MemberGroup::Waiting] {
        let mut after = None;
        loop {
            let page = queue.members(part, after, 2).await;
            assert!(page.members.len() <= 2 && page.members.iter().all(|m| m.tube.is_none()));
            shown.extend(page.members.iter().map(|member| member.info.task.0));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
    }
    assert_eq!(shown, [1, 2, 4, 3, 5, 6, 7, 9, 8]);
    let page = queue.members(MemberGroup::Holders, None, 100).await;
    let third = page.members[3].info;
    assert_eq!(Some(third), queue.member(3).await);
    assert!(third.pinned && page.next.is_none());
}

// There was no way to remove a semaphore.
/// A drop removes a semaphore, and an old grant is stale in the next semaphore of that key.
pub async fn a_drop_removes_the_semaphore<H: Harness>(queue: H) {
    queue.limits(1, 1).await;
    queue.configure("other", SemaphoreChange::limits(1, 1)).await;
    let first = queue.enqueue(1, 1.0).await.grant;
    queue.enqueue(2, 1.0).await;
    let drop = |force| queue.semaphore(SemaphoreCommand::Drop { key: key(YANG), force });
    assert_eq!(drop(false).await, Err(Error::SemaphoreInUse(key(YANG))));
    assert_eq!(queue.status(1).await, Some(Status::Acquired));
    assert_eq!(drop(true).await, Ok(SemaphoreReply::Dropped));
    for force in [false, true] {
        assert_eq!(drop(force).await, Err(Error::SemaphoreNotFound(key(YANG))));
    }
    assert_eq!(queue.fetch(None).await, [], "its events are removed");
    let all = infos(queue.semaphore(SemaphoreCommand::List { key: None }).await);
    assert_eq!(all.iter().map(|info| info.key.as_str()).collect::<Vec<_>>(), ["other"]);
    // Another semaphore can get its number meanwhile.
    queue.configure("third", SemaphoreChange::limits(1, 1)).await;
    queue.limits(1, 1).await;
    let second = queue.enqueue(1, 1.0).await.grant;
    assert!(first < second, "{first:?} {second:?}");
    assert_eq!(queue.finish_grant(1, first, GrantFinish::Release).await, GrantOutcome::Stale);
    assert_eq!(queue.drain_events().await, [(1, Acquired)]);
    queue.release_task(1).await;
    assert_eq!(drop(false).await, Ok(SemaphoreReply::Dropped), "an empty one needs no force");
    queue.limits(2, 0).await;
    assert!(second < queue.enqueue(7, 1.0).await.grant);
}

/// A dropped semaphore stays dropped after a restart.
pub async fn a_drop_survives_a_restart<H: Harness>(queue: H) {
    if !queue.capabilities().durable {
        return;
    }
    for text in ["a", YANG, "b"] {
        queue.configure(text, SemaphoreChange::limits(1, 1)).await;
    }
    let first = queue.enqueue(1, 1.0).await.grant;
    let drop = SemaphoreCommand::Drop { key: key(YANG), force: true };
    assert_eq!(queue.semaphore(drop).await, Ok(SemaphoreReply::Dropped));
    let queue = queue.restart().await;
    let all = infos(queue.semaphore(SemaphoreCommand::List { key: None }).await);
    assert_eq!(all.iter().map(|info| info.key.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    queue.limits(1, 1).await;
    assert!(first < queue.enqueue(1, 1.0).await.grant, "also not after a restart");
}

/// A change creates a semaphore that does not exist.
pub async fn a_change_creates_a_semaphore<H: Harness>(queue: H) {
    let change = SemaphoreChange {
        active: Some(7),
        try_release: Some(5),
        margin: Some(1.5),
        min_hold: Some(Span::from_secs(1)),
        cool_down: Some(Span::from_secs(2)),
        max_revoking: Some(Some(4)),
        revoke_grace: Some(Span::from_secs(3)),
        force: Some(true),
        lease: Some(Some(Span::from_secs(4))),
        ack_timeout: Some(Some(Span::from_secs(5))),
        shed: Some(true),
        drop_expired: Some(true),
    };
    let expected = SemaphoreOptions::default().changed(&change).expect("a good change");
    assert_eq!(queue.configure(YANG, change).await.options, expected);
    assert_eq!(queue.info().await.options, expected);
    let nothing = SemaphoreChange::default();
    assert_eq!(queue.configure(YANG, nothing).await.options, expected);
    let less = SemaphoreChange {
        max_revoking: Some(None),
        lease: Some(None),
        ack_timeout: Some(None),
        ..Default::default()
    };
    let info = queue.configure(YANG, less).await;
    let taken_away = (info.options.max_revoking, info.options.lease, info.options.ack_timeout);
    assert_eq!(taken_away, (None, None, None));
}

/// All semaphores are listed by key.
pub async fn all_are_shown_by_key<H: Harness>(queue: H) {
    for text in ["b", "a", "ü"] {
        queue.configure(text, SemaphoreChange::default()).await;
    }
    let all = infos(queue.semaphore(SemaphoreCommand::List { key: None }).await);
    let keys: Vec<&str> = all.iter().map(|info| info.key.as_str()).collect();
    assert_eq!(keys, ["a", "b", "ü"]);
}

/// The tasks with the highest priority are admitted.
pub async fn the_highest_priorities_are_admitted<H: Harness>(queue: H) {
    queue.limits(2, 0).await;
    let entries = [(1, 1.0), (2, -5.5), (3, 3.0), (4, 2.0)];
    let members = queue.enqueue_many(&entries).await;
    let statuses: Vec<_> = members.iter().map(|member| member.status).collect();
    assert_eq!(statuses, [Status::Wait, Status::Wait, Status::Acquired, Status::Acquired]);
    assert_eq!(queue.drain_events().await, [(3, Acquired), (4, Acquired)]);
    let info = queue.info().await;
    assert_eq!((info.waiting, info.acquired, info.revoking, info.events), (2, 2, 0, 0));
}

/// Of equal priorities the first enqueued task is admitted.
pub async fn equal_priorities_are_admitted_in_order<H: Harness>(queue: H) {
    queue.limits(0, 0).await;
    queue.enqueue_many(&[(7, 1.0), (3, 1.0), (5, 1.0)]).await;
    queue.change(SemaphoreChange { active: Some(3), ..Default::default() }).await;
    assert_eq!(queue.drain_events().await, [(7, Acquired), (3, Acquired), (5, Acquired)]);
}

/// A release admits the next waiting task.
pub async fn a_release_admits_the_next<H: Harness>(queue: H) {
    queue.limits(1, 0).await;
    queue.enqueue_many(&[(1, 1.0), (2, 0.0), (3, 0.5)]).await;
    queue.drain_events().await;
    assert_eq!(queue.release_task(1).await, GrantOutcome::Done);
    assert_eq!(queue.drain_events().await, [(3, Acquired)]);
    assert_eq!(queue.release_task(1).await, GrantOutcome::Missing);
    assert_eq!(queue.member(1).await, None);
}

/// A higher capacity admits more tasks.
pub async fn a_higher_capacity_admits_more<H: Harness>(queue: H) {
    queue.limits(0, 0).await;
    queue.enqueue_many(&[(1, 1.0), (2, 2.0), (3, 3.0)]).await;
    assert_eq!(queue.drain_events().await, [], "a capacity of 0 is a pause");
    queue.limits(2, 0).await;
    assert_eq!(queue.drain_events().await, [(3, Acquired), (2, Acquired)]);
}

// One call admits a limited number of tasks. On PostgreSQL the others then waited beside free capacity until the next command
// for the same semaphore. And a client that showed a semaphore with so many unfetched events waited for a minute, because each
// event was compared with each.
/// All capacity that becomes free at once is granted.
pub async fn many_are_admitted_in_several_steps<H: Harness>(queue: H) {
    queue.limits(0, 0).await;
    for tasks in [0..10_000, 10_000..20_000, 20_000..21_000] {
        let entries: Vec<_> = tasks.map(|task| (task, 1.0)).collect();
        queue.enqueue_many(&entries).await;
    }
    queue.limits(21_000, 0).await;
    // No time must pass, but due ticks run.
    queue.advance(Span::ZERO);
    let info = queue.info().await;
    assert_eq!((info.acquired, info.waiting), (21_000, 0));
}

/// A waiting task can leave the queue.
pub async fn a_waiting_task_can_leave<H: Harness>(queue: H) {
    queue.limits(1, 0).await;
    queue.enqueue_many(&[(1, 1.0), (2, 2.0)]).await;
    queue.enqueue(3, 5.0).await;
    let outcome = queue.finish_grant(3, Some(Grant(1)), GrantFinish::Release).await;
    assert_eq!(outcome, GrantOutcome::Stale, "it holds no grant");
    assert_eq!(queue.release_task(3).await, GrantOutcome::Done);
    queue.release_task(2).await;
    assert_eq!(queue.status(1).await, Some(Status::Acquired));
}

/// A batch is one call.
pub async fn a_batch_is_one_call<H: Harness>(queue: H) {
    queue.limits(1, 1).await;
    let members = queue.enqueue_many(&[(1, 1.0), (2, 2.0), (1, 3.0), (1, 0.5)]).await;
    let seen: Vec<_> =
        members.iter().map(|member| (member.task.0, member.priority.value())).collect();
    assert_eq!(seen, [(1, 0.5), (2, 2.0), (1, 0.5), (1, 0.5)], "the last priority counts");
    assert_eq!(queue.drain_events().await, [(2, Acquired)], "admission runs after the whole batch");
    assert_eq!(queue.enqueue_many(&[]).await, []);
    let (key, wish) = (key(YANG), |task| vec![EnqueueItem { task: TaskId(task), priority: 9.0 }]);
    let batch = [8, 9].map(|task| {
        Command::Semaphore(SemaphoreCommand::Enqueue { key: key.clone(), entries: wish(task) })
    });
    let replies = queue.execute(batch.to_vec()).await;
    for (reply, task) in replies.iter().zip([8, 9]) {
        let Ok(Reply::Semaphore(SemaphoreReply::MemberInfos(members))) = reply else {
            panic!("{reply:?}");
        };
        assert_eq!(members[0].task, TaskId(task));
    }
}

/// A new priority keeps the order of arrival.
pub async fn a_new_priority_keeps_the_seniority<H: Harness>(queue: H) {
    queue.limits(1, 0).await;
    queue.enqueue_many(&[(1, 9.0)]).await;
    queue.enqueue_many(&[(2, 1.0), (3, 1.0)]).await;
    let enqueued = queue.member(2).await.expect("it waits").enqueued;
    queue.advance(Span::from_secs(1));
    queue.enqueue(2, 0.0).await;
    queue.enqueue(2, 1.0).await;
    assert_eq!(queue.member(2).await.expect("it waits").enqueued, enqueued);
    queue.release_task(1).await;
    assert_eq!(queue.status(2).await, Some(Status::Acquired));
}

/// The numbers of grants only grow.
pub async fn grants_only_grow<H: Harness>(queue: H) {
    queue.limits(1, 0).await;
    let mut last = None;
    for _ in 0..5 {
        let grant = queue.enqueue(1, 1.0).await.grant;
        assert!(grant > last, "{grant:?} after {last:?}");
        last = grant;
        queue.release_task(1).await;
    }
}

// A worker that was declared dead and finished later released its grant a second time, and the limit was exceeded
// permanently: a release must name one grant.
/// A stale release frees nothing.
pub async fn a_stale_release_frees_nothing<H: Harness>(queue: H) {
    queue.limits(1, 1).await;
    let first = queue.enqueue(1, 1.0).await.grant;
    queue.release_task(1).await;
    let second = queue.enqueue(1, 1.0).await.grant;
    queue.enqueue(2, 0.0).await;
    for how in [GrantFinish::Release, GrantFinish::Yield, GrantFinish::Decline] {
        assert_eq!(queue.finish_grant(1, first, how).await, GrantOutcome::Stale);
    }
    assert_eq!(queue.member(1).await.expect("it holds").grant, second);
    assert_eq!(queue.status(2).await, Some(Status::Wait));
    assert_eq!(queue.finish_grant(1, second, GrantFinish::Release).await, GrantOutcome::Done);
    assert_eq!(queue.finish_grant(1, second, GrantFinish::Release).await, GrantOutcome::Missing);
}

/// Everything survives a restart.
pub async fn everything_survives_a_restart<H: Harness>(queue: H) {
    let durable = queue.capabilities().durable;
    queue.limits(2, 2).await;
    queue.admit(2).await;
    queue.enqueue_many(&[(5, 5.0), (6, 0.5)]).await;
    let events = queue.fetch(None).await;
    assert_eq!(events.len(), 1, "one is asked to release");
    let before = (queue.info().await, queue.member(0).await, queue.member(1).await);
    let queue = queue.restart().await;
    if !durable {
        let all = infos(queue.semaphore(SemaphoreCommand::List { key: None }).await);
        assert_eq!(all, []);
        return;
    }
    let after = (queue.info().await, queue.member(0).await, queue.member(1).await);
    assert_eq!(before, after);
    assert_eq!(queue.fetch(None).await, [], "delivered events are not repeated immediately");
    assert_eq!(queue.acknowledge(&events).await, 1);
    queue.release_task(1).await;
    assert_eq!(queue.drain_events().await, [(5, Acquired)]);
}

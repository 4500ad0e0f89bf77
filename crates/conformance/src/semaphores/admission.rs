//! Who gets in.

use taskyard_core::EventKind::Acquired;
use taskyard_core::{
    Command, EnqueueItem, Error, Grant, GrantFinish, GrantOutcome, MemberGroup, Reply,
    SemaphoreChange, SemaphoreCommand, SemaphoreOptions, SemaphoreReply, Span, Status, TaskId,
};

use super::super::Harness;
use super::SemaphoreAsk;
use super::ask::{YANG, infos, key};

/// A new one has the defaults.
pub async fn a_new_one_has_the_defaults<H: Harness>(queue: H) {
    let info = queue.configure(YANG, SemaphoreChange::default()).await;
    assert_eq!(info.options, SemaphoreOptions::default());
    assert_eq!((info.options.active, info.options.tail()), (1000, 900));
    let counts = [info.waiting, info.delayed, info.acquired, info.revoking, info.events];
    assert_eq!(counts, [0; 5]);
    let small = SemaphoreChange { active: Some(3), ..Default::default() };
    assert_eq!(queue.configure("small", small).await.options.tail(), 3);
}

/// One that is there is left alone.
pub async fn one_that_is_there_is_left_alone<H: Harness>(queue: H) {
    queue.limits(3, 2).await;
    let (key, change) = (key(YANG), Box::default());
    let get = SemaphoreCommand::Configure { key, change, only_new: true };
    let [info] = infos(queue.semaphore(get).await).try_into().expect("one");
    assert_eq!((info.options.active, info.options.try_release), (3, 2));
}

// To make one that was there with other options succeeded, and nothing said that they were not taken.
/// To make one that is there with other options is refused, and says what differs.
pub async fn one_that_is_there_and_differs_is_refused<H: Harness>(queue: H) {
    queue.configure(YANG, SemaphoreChange { active: Some(3), ..Default::default() }).await;
    let make = |change| {
        let (key, change) = (key(YANG), Box::new(change));
        queue.semaphore(SemaphoreCommand::Configure { key, change, only_new: true })
    };
    let same = SemaphoreChange { lease: Some(None), ..SemaphoreChange::limits(3, 3) };
    assert!(make(same).await.is_ok(), "what is named is so");
    let lease = Some(Some(Span::from_secs(30)));
    let other = SemaphoreChange { lease, shed: Some(false), ..SemaphoreChange::limits(5, 3) };
    let differs = "active is 3, not 5, lease is none, not 30 s".to_owned();
    assert_eq!(make(other).await, Err(Error::SemaphoreExists { key: key(YANG), differs }));
    assert_eq!(queue.info().await.options.active, 3);
}

// One face showed 900 of 3, and another 3.
/// The tail is shown as what it comes to.
pub async fn the_tail_is_shown_as_it_is<H: Harness>(queue: H) {
    let small = SemaphoreChange { active: Some(3), ..Default::default() };
    assert_eq!(queue.configure(YANG, small).await.options.try_release, 3);
    assert_eq!(queue.info().await.options.try_release, 3);
    let large = SemaphoreChange { active: Some(2000), ..Default::default() };
    assert_eq!(queue.configure(YANG, large).await.options.try_release, 900, "it was never named");
}

/// Holders and waiters are shown the best first, a page at a time.
pub async fn a_line_is_shown_in_pages<H: Harness>(queue: H) {
    queue.limits(4, 3).await;
    queue.enqueue_many(&[(1, 9.0), (2, 3.0), (3, 2.0), (4, 3.0)]).await;
    queue.hear().await;
    // One declined, one was asked.
    queue.enqueue(5, 8.0).await;
    queue.hear().await;
    queue.finish_grant(3, None, GrantFinish::Decline).await;
    queue.enqueue_many(&[(6, 1.0), (7, 1.0), (8, -1.5), (9, 1.0)]).await;
    assert_eq!(queue.status(4).await, Some(Status::TryRelease));
    let mut shown = Vec::new();
    for part in [MemberGroup::Holders, MemberGroup::Waiting] {
        let mut after = None;
        loop {
            let page = queue.members(part, after, 2).await;
            assert!(page.members.len() <= 2 && page.members.iter().all(|m| m.tube.is_none()));
            shown.extend(page.members.iter().map(|member| member.standing.task.0));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
    }
    assert_eq!(shown, [1, 2, 4, 3, 5, 6, 7, 9, 8]);
    let page = queue.members(MemberGroup::Holders, None, 100).await;
    let third = page.members[3].standing;
    assert_eq!(Some(third), queue.standing(3).await);
    assert!(third.pinned && page.next.is_none());
}

// There was no way to remove a semaphore.
/// A drop removes a semaphore, and an old grant counts for nothing in the next one of its key.
pub async fn a_drop_removes_it<H: Harness>(queue: H) {
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
    assert_eq!(queue.fetch(None).await, [], "its events went with it");
    let all = infos(queue.semaphore(SemaphoreCommand::List { key: None }).await);
    assert_eq!(all.iter().map(|info| info.key.as_str()).collect::<Vec<_>>(), ["other"]);
    // Another may get its number meanwhile.
    queue.configure("third", SemaphoreChange::limits(1, 1)).await;
    queue.limits(1, 1).await;
    let second = queue.enqueue(1, 1.0).await.grant;
    assert!(first < second, "{first:?} {second:?}");
    assert_eq!(queue.finish_grant(1, first, GrantFinish::Release).await, GrantOutcome::Stale);
    assert_eq!(queue.hear().await, [(1, Acquired)]);
    queue.release_task(1).await;
    assert_eq!(drop(false).await, Ok(SemaphoreReply::Dropped), "an empty one needs no force");
    queue.limits(2, 0).await;
    assert!(second < queue.enqueue(7, 1.0).await.grant);
}

/// What was dropped stays so.
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

/// A change makes one too.
pub async fn a_change_makes_one_too<H: Harness>(queue: H) {
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

/// All are shown by key.
pub async fn all_are_shown_by_key<H: Harness>(queue: H) {
    for text in ["b", "a", "ü"] {
        queue.configure(text, SemaphoreChange::default()).await;
    }
    let all = infos(queue.semaphore(SemaphoreCommand::List { key: None }).await);
    let keys: Vec<&str> = all.iter().map(|info| info.key.as_str()).collect();
    assert_eq!(keys, ["a", "b", "ü"]);
}

/// The best get in.
pub async fn the_best_get_in<H: Harness>(queue: H) {
    queue.limits(2, 0).await;
    let entries = [(1, 1.0), (2, -5.5), (3, 3.0), (4, 2.0)];
    let standings = queue.enqueue_many(&entries).await;
    let statuses: Vec<_> = standings.iter().map(|standing| standing.status).collect();
    assert_eq!(statuses, [Status::Wait, Status::Wait, Status::Acquired, Status::Acquired]);
    assert_eq!(queue.hear().await, [(3, Acquired), (4, Acquired)]);
    let info = queue.info().await;
    assert_eq!((info.waiting, info.acquired, info.revoking, info.events), (2, 2, 0, 0));
}

/// Of equals the first gets in.
pub async fn of_equals_the_first_gets_in<H: Harness>(queue: H) {
    queue.limits(0, 0).await;
    queue.enqueue_many(&[(7, 1.0), (3, 1.0), (5, 1.0)]).await;
    queue.change(SemaphoreChange { active: Some(3), ..Default::default() }).await;
    assert_eq!(queue.hear().await, [(7, Acquired), (3, Acquired), (5, Acquired)]);
}

/// A release lets the next in.
pub async fn a_release_lets_the_next_in<H: Harness>(queue: H) {
    queue.limits(1, 0).await;
    queue.enqueue_many(&[(1, 1.0), (2, 0.0), (3, 0.5)]).await;
    queue.hear().await;
    assert_eq!(queue.release_task(1).await, GrantOutcome::Done);
    assert_eq!(queue.hear().await, [(3, Acquired)]);
    assert_eq!(queue.release_task(1).await, GrantOutcome::Missing);
    assert_eq!(queue.standing(1).await, None);
}

/// A higher capacity lets more in.
pub async fn a_higher_capacity_lets_more_in<H: Harness>(queue: H) {
    queue.limits(0, 0).await;
    queue.enqueue_many(&[(1, 1.0), (2, 2.0), (3, 3.0)]).await;
    assert_eq!(queue.hear().await, [], "no place at all is a pause");
    queue.limits(2, 0).await;
    assert_eq!(queue.hear().await, [(3, Acquired), (2, Acquired)]);
}

// One call lets only so many in. On PostgreSQL the others then waited beside free places until somebody happened to ask
// something of the same semaphore. And whoever showed a semaphore with so many events that nobody had fetched yet waited for a
// minute, because each was compared with each.
/// However many places become free at once, all are taken.
pub async fn many_get_in_by_turns<H: Harness>(queue: H) {
    queue.limits(0, 0).await;
    for tasks in [0..10_000, 10_000..20_000, 20_000..21_000] {
        let entries: Vec<_> = tasks.map(|task| (task, 1.0)).collect();
        queue.enqueue_many(&entries).await;
    }
    queue.limits(21_000, 0).await;
    // Time need not pass, but what is due is due.
    queue.advance(Span::ZERO);
    let info = queue.info().await;
    assert_eq!((info.acquired, info.waiting), (21_000, 0));
}

/// Who waits can leave.
pub async fn who_waits_can_leave<H: Harness>(queue: H) {
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
    let standings = queue.enqueue_many(&[(1, 1.0), (2, 2.0), (1, 3.0), (1, 0.5)]).await;
    let seen: Vec<_> =
        standings.iter().map(|standing| (standing.task.0, standing.priority.value())).collect();
    assert_eq!(seen, [(1, 0.5), (2, 2.0), (1, 0.5), (1, 0.5)], "the last word counts");
    assert_eq!(queue.hear().await, [(2, Acquired)], "nobody gets in before all have spoken");
    assert_eq!(queue.enqueue_many(&[]).await, []);
    let (key, wish) = (key(YANG), |task| vec![EnqueueItem { task: TaskId(task), priority: 9.0 }]);
    let batch = [8, 9].map(|task| {
        Command::Semaphore(SemaphoreCommand::Enqueue { key: key.clone(), entries: wish(task) })
    });
    let replies = queue.execute(batch.to_vec()).await;
    for (reply, task) in replies.iter().zip([8, 9]) {
        let Ok(Reply::Semaphore(SemaphoreReply::Standings(standings))) = reply else {
            panic!("{reply:?}");
        };
        assert_eq!(standings[0].task, TaskId(task));
    }
}

/// A new priority keeps the seniority.
pub async fn a_new_priority_keeps_the_seniority<H: Harness>(queue: H) {
    queue.limits(1, 0).await;
    queue.enqueue_many(&[(1, 9.0)]).await;
    queue.enqueue_many(&[(2, 1.0), (3, 1.0)]).await;
    let enqueued = queue.standing(2).await.expect("it waits").enqueued;
    queue.advance(Span::from_secs(1));
    queue.enqueue(2, 0.0).await;
    queue.enqueue(2, 1.0).await;
    assert_eq!(queue.standing(2).await.expect("it waits").enqueued, enqueued);
    queue.release_task(1).await;
    assert_eq!(queue.status(2).await, Some(Status::Acquired));
}

/// Grants only grow.
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

// A worker judged dead that finished later released its place a second time, and the limit was exceeded for
// good: a release must be tied to one grant.
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
    assert_eq!(queue.standing(1).await.expect("it holds").grant, second);
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
    let told = queue.fetch(None).await;
    assert_eq!(told.len(), 1, "one is asked to release");
    let before = (queue.info().await, queue.standing(0).await, queue.standing(1).await);
    let queue = queue.restart().await;
    if !durable {
        let all = infos(queue.semaphore(SemaphoreCommand::List { key: None }).await);
        assert_eq!(all, []);
        return;
    }
    let after = (queue.info().await, queue.standing(0).await, queue.standing(1).await);
    assert_eq!(before, after);
    assert_eq!(queue.fetch(None).await, [], "who was told is not told again at once");
    assert_eq!(queue.acknowledge(&told).await, 1);
    queue.release_task(1).await;
    assert_eq!(queue.hear().await, [(5, Acquired)]);
}

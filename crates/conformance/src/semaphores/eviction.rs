//! Eviction: which holders are asked to release.

use taskyard_core::EventKind::{Acquired, Keep, TryRelease};
use taskyard_core::{GrantFinish, GrantOutcome, SemaphoreChange, Span, Status};

use super::super::Harness;
use super::SemaphoreCommands;

/// One waiting task of higher priority causes a request to one of nine hundred holders.
pub async fn one_waiting_task_revokes_one_of_nine_hundred<H: Harness>(queue: H) {
    queue.limits(1000, 900).await;
    queue.admit(1000).await;
    queue.enqueue(5000, 2.0).await;
    assert_eq!(queue.drain_events().await, [(999, TryRelease)]);
    queue.enqueue(5000, 3.0).await;
    assert_eq!(queue.drain_events().await, [], "the same waiting task causes one request");
    let outcome = queue.finish_grant(999, None, GrantFinish::Yield).await;
    assert_eq!(outcome, GrantOutcome::Done);
    assert_eq!(queue.drain_events().await, [(5000, Acquired)]);
    assert_eq!(queue.status(999).await, Some(Status::Wait));
}

/// The best holders outside of the tail are never asked.
pub async fn the_first_hundred_are_never_asked<H: Harness>(queue: H) {
    let change =
        SemaphoreChange { max_revoking: Some(Some(900)), ..SemaphoreChange::limits(1000, 900) };
    queue.change(change).await;
    queue.admit(1000).await;
    let better: Vec<_> = (5000..6000).map(|task| (task, 2.0)).collect();
    queue.enqueue_many(&better).await;
    let info = queue.info().await;
    assert_eq!((info.acquired, info.revoking), (100, 900));
    for task in [0, 50, 99] {
        assert_eq!(queue.status(task).await, Some(Status::Acquired));
    }
    assert_eq!(queue.status(100).await, Some(Status::TryRelease));
}

/// Priorities that change within the margin cause no request.
pub async fn flapping_within_the_margin_revokes_nothing<H: Harness>(queue: H) {
    queue.change(SemaphoreChange { margin: Some(2.0), ..SemaphoreChange::limits(1, 1) }).await;
    queue.enqueue(1, 5.0).await;
    queue.drain_events().await;
    for priority in [6.0, 4.0, 7.0, 5.0, 7.0] {
        queue.enqueue(2, priority).await;
    }
    assert_eq!(queue.drain_events().await, []);
    queue.enqueue(2, 7.5).await;
    assert_eq!(queue.drain_events().await, [(1, TryRelease)]);
    queue.enqueue(2, 5.5).await;
    assert_eq!(queue.drain_events().await, [], "the gap is still larger than 0");
    queue.enqueue(2, 5.0).await;
    assert_eq!(queue.drain_events().await, [(1, Keep)]);
}

/// Every crossing of the margin asks one holder, and every yield admits one task: no other task moves.
pub async fn flapping_beyond_the_margin_revokes_one_at_a_time<H: Harness>(queue: H) {
    queue.change(SemaphoreChange { margin: Some(2.0), ..SemaphoreChange::limits(1, 1) }).await;
    queue.enqueue(1, 5.0).await;
    queue.enqueue_many(&[(2, 4.0), (3, 1.0)]).await;
    queue.drain_events().await;
    for _ in 0..5 {
        queue.enqueue(2, 8.0).await;
        assert_eq!(queue.drain_events().await, [(1, TryRelease)]);
        queue.enqueue(2, 4.0).await;
        assert_eq!(queue.drain_events().await, [(1, Keep)]);
    }
    let (mut holder, mut waiter, mut priority) = (1, 2, 8.0);
    for _ in 0..5 {
        queue.enqueue(waiter, priority).await;
        assert_eq!(queue.drain_events().await, [(holder, TryRelease)]);
        queue.finish_grant(holder, None, GrantFinish::Yield).await;
        assert_eq!(queue.drain_events().await, [(waiter, Acquired)], "one for one");
        priority += 3.0;
        (holder, waiter) = (waiter, holder);
    }
    assert_eq!(queue.status(3).await, Some(Status::Wait));
}

// PostgreSQL refused to add two such numbers: every statement with them failed, including the tick of all semaphores and tubes.
/// The largest finite numbers are valid priorities.
pub async fn the_largest_priorities_are_accepted<H: Harness>(queue: H) {
    let change = SemaphoreChange {
        margin: Some(1e308),
        cool_down: Some(Span::from_secs(10)),
        ..SemaphoreChange::limits(2, 2)
    };
    queue.change(change).await;
    queue.enqueue_many(&[(1, 1e308), (2, 1e308)]).await;
    queue.drain_events().await;
    queue.finish_grant(2, None, GrantFinish::Yield).await;
    queue.enqueue(3, 1e308).await;
    queue.advance(Span::from_secs(10));
    assert_eq!(queue.status(2).await, Some(Status::Wait));
    assert_eq!(queue.drain_events().await, [(3, Acquired)]);
    queue.enqueue(4, f64::MAX).await;
    assert_eq!(queue.drain_events().await, [], "the gap is smaller than the margin");
    queue.enqueue(1, f64::MIN).await;
    assert_eq!(queue.drain_events().await, [(1, TryRelease)]);
}

/// Without `shed` a lower capacity waits for releases.
pub async fn a_lower_capacity_waits<H: Harness>(queue: H) {
    queue.limits(1000, 900).await;
    queue.admit(1000).await;
    queue.enqueue(5000, 0.5).await;
    queue.limits(10, 10).await;
    assert_eq!(queue.drain_events().await, []);
    queue.release_tasks(0..980).await;
    // Only after enough releases that it is one of the best.
    for task in 980..990 {
        queue.release_task(task).await;
        assert_eq!(queue.status(5000).await, Some(Status::Wait));
    }
    let info = queue.info().await;
    assert_eq!((info.acquired, info.revoking, info.waiting), (10, 0, 1));
    queue.release_task(990).await;
    assert_eq!(queue.drain_events().await, [(5000, Acquired)]);
}

/// With `shed` a lower capacity asks the surplus holders.
pub async fn a_lower_capacity_sheds<H: Harness>(queue: H) {
    queue.limits(1000, 900).await;
    queue.admit(1000).await;
    queue.change(SemaphoreChange { shed: Some(true), ..SemaphoreChange::limits(10, 10) }).await;
    assert_eq!(queue.drain_events().await.len(), 16, "the limit of concurrent requests");
    for task in (980..1000).rev() {
        assert_eq!(queue.status(task).await, Some(Status::TryRelease), "task {task}");
        queue.release_task(task).await;
    }
    queue.change(SemaphoreChange { max_revoking: Some(Some(2000)), ..Default::default() }).await;
    let info = queue.info().await;
    assert_eq!((info.acquired, info.revoking), (10, 970));
    queue.release_tasks((10..980).rev()).await;
    let info = queue.info().await;
    assert_eq!((info.acquired, info.revoking), (10, 0));
    assert_eq!(queue.status(9).await, Some(Status::Acquired), "the best keep their grants");
}

// At most `active` were asked at the same time, which is no holder at a capacity of 0.
/// A capacity of 0 sheds every holder, several at a time.
pub async fn no_capacity_sheds_all<H: Harness>(queue: H) {
    queue.limits(30, 30).await;
    queue.admit(30).await;
    let change = SemaphoreChange { active: Some(0), shed: Some(true), ..Default::default() };
    queue.change(change).await;
    assert_eq!(queue.drain_events().await.len(), 16);
    for task in (0..30).rev() {
        assert_eq!(queue.status(task).await, Some(Status::TryRelease), "task {task}");
        queue.release_task(task).await;
    }
    assert_eq!(queue.info().await.revoking, 0);
}

// With a `try_release` of 0 no holder was asked, although `shed` promises it for a capacity of 0.
/// A capacity of 0 sheds every holder, for every tail.
pub async fn no_capacity_sheds_all_without_a_tail<H: Harness>(queue: H) {
    queue.change(SemaphoreChange { shed: Some(true), ..SemaphoreChange::limits(5, 0) }).await;
    queue.admit(5).await;
    queue.limits(2, 0).await;
    assert_eq!(
        queue.drain_events().await,
        [],
        "a tail of 0 beside a capacity: no holder is ever asked"
    );
    queue.limits(0, 0).await;
    let mut asked = queue.drain_events().await;
    asked.sort_unstable();
    let all = [0, 1, 2, 3, 4].map(|task| (task, TryRelease));
    assert_eq!(asked, all);
}

/// A holder that declines is not asked again.
pub async fn a_holder_that_declines_is_not_asked_again<H: Harness>(queue: H) {
    queue.limits(2, 2).await;
    queue.admit(2).await;
    queue.enqueue(7, 5.0).await;
    assert_eq!(queue.drain_events().await, [(1, TryRelease)]);
    for _ in 0..2 {
        let outcome = queue.finish_grant(1, None, GrantFinish::Decline).await;
        assert_eq!(outcome, GrantOutcome::Done, "a second decline has the same outcome");
    }
    assert_eq!(queue.drain_events().await, [(0, TryRelease)]);
    assert!(queue.member(1).await.expect("it holds").pinned);
    queue.finish_grant(0, None, GrantFinish::Decline).await;
    assert_eq!(queue.drain_events().await, []);
    let outcome = queue.finish_grant(7, None, GrantFinish::Decline).await;
    assert_eq!(outcome, GrantOutcome::Stale, "it holds no grant");
}

// A holder that declined was counted as protected, but is not one of the best: so one of the best was asked.
/// The best holders are never asked, also when others decline.
pub async fn a_decline_keeps_the_best_protected<H: Harness>(queue: H) {
    queue.limits(2, 1).await;
    queue.enqueue_many(&[(0, 2.0), (1, 1.0)]).await;
    queue.drain_events().await;
    queue.enqueue(7, 5.0).await;
    assert_eq!(queue.drain_events().await, [(1, TryRelease)]);
    queue.finish_grant(1, None, GrantFinish::Decline).await;
    assert_eq!(queue.drain_events().await, []);
    assert_eq!(queue.status(0).await, Some(Status::Acquired));
    queue.release_task(1).await;
    assert_eq!(queue.drain_events().await, [(7, Acquired)]);
    queue.enqueue(8, 9.0).await;
    assert_eq!(queue.drain_events().await, [(0, TryRelease)], "now it is the worst of two");
}

// A decline without a request was accepted as one, and the task that declined was not counted among the best: so the tail
// became shorter, and the worst holder was never asked.
/// A decline does not shrink the tail.
pub async fn a_decline_does_not_shrink_the_tail<H: Harness>(queue: H) {
    queue.limits(2, 1).await;
    queue.enqueue_many(&[(1, 10.0), (2, 1.0)]).await;
    queue.drain_events().await;
    let outcome = queue.finish_grant(1, None, GrantFinish::Decline).await;
    assert_eq!(outcome, GrantOutcome::NotAsked);
    assert!(!queue.member(1).await.expect("it holds").pinned);
    queue.enqueue(3, 5.0).await;
    assert_eq!(queue.drain_events().await, [(2, TryRelease)]);
    let outcome = queue.finish_grant(2, None, GrantFinish::Decline).await;
    assert_eq!(outcome, GrantOutcome::Done);
    // One that declined and became one of the best counts as one of the best.
    queue.enqueue(3, 20.0).await;
    assert_eq!(queue.drain_events().await, []);
    queue.enqueue(2, 15.0).await;
    assert_eq!(queue.drain_events().await, [(1, TryRelease)]);
}

/// A decline ends with the request that it answered: another request may come.
pub async fn a_decline_ends_with_its_request<H: Harness>(queue: H) {
    queue.limits(1, 1).await;
    queue.admit(1).await;
    queue.enqueue(2, 5.0).await;
    assert_eq!(queue.drain_events().await, [(0, TryRelease)]);
    queue.finish_grant(0, None, GrantFinish::Decline).await;
    queue.enqueue(3, 6.0).await;
    assert_eq!(queue.drain_events().await, [], "the first still waits");
    queue.release_tasks([2, 3].into_iter()).await;
    assert!(!queue.member(0).await.expect("it holds").pinned);
    queue.enqueue(2, 5.0).await;
    assert_eq!(queue.drain_events().await, [(0, TryRelease)], "this is another request");
}

// The event `keep` was dropped before its delivery, and so was the next request: a holder that had received the first request
// never received `keep`.
/// A holder that received a request receives its end, also after several changes.
pub async fn a_notified_holder_receives_the_end_of_its_request<H: Harness>(queue: H) {
    queue.limits(1, 1).await;
    queue.admit(1).await;
    queue.enqueue(2, 5.0).await;
    assert_eq!(queue.drain_events().await, [(0, TryRelease)]);
    for priority in [0.0, 5.0, 0.0] {
        queue.enqueue(2, priority).await;
    }
    assert_eq!(queue.drain_events().await, [(0, Keep)]);
    // A `keep` that was delivered but not acknowledged counts as undelivered.
    queue.enqueue(2, 5.0).await;
    assert_eq!(queue.drain_events().await, [(0, TryRelease)]);
    queue.enqueue(2, 0.0).await;
    assert_eq!(queue.fetch(None).await.len(), 1);
    for priority in [5.0, 0.0] {
        queue.enqueue(2, priority).await;
    }
    assert_eq!(queue.drain_events().await, [(0, Keep)]);
}

/// A holder that never received its grant loses it without an event.
pub async fn an_unnotified_holder_is_revoked_without_events<H: Harness>(queue: H) {
    queue.limits(1, 1).await;
    queue.enqueue(1, 1.0).await;
    queue.enqueue(2, 2.0).await;
    assert_eq!(queue.drain_events().await, [(2, Acquired)]);
    assert_eq!(queue.status(1).await, Some(Status::Wait));
}

/// A request that is no longer needed is withdrawn.
pub async fn a_request_is_withdrawn<H: Harness>(queue: H) {
    queue.limits(1, 1).await;
    queue.admit(1).await;
    queue.enqueue(2, 2.0).await;
    queue.release_task(2).await;
    assert_eq!(queue.drain_events().await, [], "the request was never delivered");
    queue.enqueue(2, 2.0).await;
    assert_eq!(queue.drain_events().await, [(0, TryRelease)]);
    queue.release_task(2).await;
    assert_eq!(queue.status(0).await, Some(Status::Acquired));
    queue.enqueue(2, 2.0).await;
    assert_eq!(queue.status(0).await, Some(Status::TryRelease));
    assert_eq!(queue.drain_events().await, [(0, TryRelease)], "it may not have received the first");
    // A holder whose priority rises is not asked either.
    queue.enqueue(0, 2.0).await;
    assert_eq!(queue.drain_events().await, [(0, Keep)]);
}

// A request that was sent and lost was withdrawn, and the next request only removed the pending `keep`: the holder received
// neither, and with `force` it lost a grant without a request.
/// A lost request is sent again.
pub async fn a_lost_request_is_repeated<H: Harness>(queue: H) {
    queue.limits(1, 1).await;
    queue.admit(1).await;
    queue.enqueue(2, 2.0).await;
    assert_eq!(queue.fetch(None).await.len(), 1, "the request is lost");
    queue.release_task(2).await;
    queue.enqueue(3, 2.0).await;
    assert_eq!(queue.status(0).await, Some(Status::TryRelease));
    assert_eq!(queue.drain_events().await, [(0, TryRelease)]);
}

/// The number of concurrent requests is limited.
pub async fn concurrent_requests_are_limited<H: Harness>(queue: H) {
    queue
        .change(SemaphoreChange { max_revoking: Some(Some(2)), ..SemaphoreChange::limits(5, 5) })
        .await;
    queue.admit(5).await;
    let better: Vec<_> = (10..15).map(|task| (task, 2.0)).collect();
    queue.enqueue_many(&better).await;
    assert_eq!(queue.drain_events().await, [(4, TryRelease), (3, TryRelease)]);
    queue.release_task(4).await;
    assert_eq!(queue.drain_events().await, [(10, Acquired), (2, TryRelease)]);
}

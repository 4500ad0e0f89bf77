//! Times: leases, timeouts and cool-downs.

use taskyard_core::EventKind::{Acquired, Expired, Revoked, TryRelease};
use taskyard_core::{GrantFinish, GrantOutcome, SemaphoreChange, Span, Status};

use super::super::Harness;
use super::SemaphoreCommands;

fn secs(seconds: u64) -> Span {
    Span::from_secs(seconds)
}

/// A grant is not revoked within its minimum hold time.
pub async fn a_new_grant_is_not_revoked<H: Harness>(queue: H) {
    let change = SemaphoreChange { min_hold: Some(secs(10)), ..SemaphoreChange::limits(1, 1) };
    queue.change(change).await;
    queue.admit(1).await;
    queue.enqueue(2, 2.0).await;
    queue.advance(secs(9));
    assert_eq!(queue.drain_events().await, []);
    queue.advance(secs(1));
    assert_eq!(queue.drain_events().await, [(0, TryRelease)]);
}

/// A task that yields waits for its cool-down.
pub async fn a_yield_starts_the_cool_down<H: Harness>(queue: H) {
    let change = SemaphoreChange { cool_down: Some(secs(10)), ..SemaphoreChange::limits(1, 1) };
    queue.change(change).await;
    queue.admit(1).await;
    for _ in 0..2 {
        let outcome = queue.finish_grant(0, None, GrantFinish::Yield).await;
        assert_eq!(outcome, GrantOutcome::Done, "a second yield has the same outcome");
    }
    let member = queue.member(0).await.expect("it waits for its cool-down");
    assert_eq!(member.status, Status::Delayed);
    assert_eq!(member.not_before, Some(queue.now() + secs(10)));
    assert_eq!(queue.info().await.delayed, 1);
    queue.enqueue(0, 3.0).await;
    queue.advance(secs(9));
    assert_eq!(queue.status(0).await, Some(Status::Delayed), "a new priority changes nothing");
    queue.advance(secs(1));
    assert_eq!(queue.status(0).await, Some(Status::Acquired));
}

/// A grant ends with its lease.
pub async fn a_lease_ends<H: Harness>(queue: H) {
    let change = SemaphoreChange { lease: Some(Some(secs(10))), ..SemaphoreChange::limits(1, 1) };
    queue.change(change).await;
    let member = queue.enqueue(1, 1.0).await;
    assert_eq!(member.lease_until, Some(queue.now() + secs(10)));
    queue.drain_events().await;
    queue.advance(secs(10));
    assert_eq!(queue.drain_events().await, [(1, Expired), (1, Acquired)], "no other task waits");
    let stale = queue.finish_grant(1, member.grant, GrantFinish::Extend(secs(10))).await;
    assert_eq!(stale, GrantOutcome::Stale);
    queue.change(SemaphoreChange { drop_expired: Some(true), ..Default::default() }).await;
    queue.advance(secs(10));
    assert_eq!(queue.drain_events().await, [(1, Expired)]);
    assert_eq!(queue.member(1).await, None);
}

/// An extended lease ends later.
pub async fn an_extended_lease_lasts<H: Harness>(queue: H) {
    let change = SemaphoreChange { lease: Some(Some(secs(10))), ..SemaphoreChange::limits(1, 1) };
    queue.change(change).await;
    let grant = queue.enqueue(1, 1.0).await.grant;
    queue.fetch(None).await;
    queue.advance(secs(9));
    let outcome = queue.finish_grant(1, grant, GrantFinish::Extend(secs(100))).await;
    assert_eq!(outcome, GrantOutcome::Done);
    assert_eq!(queue.info().await.events, 0, "a holder that extends its grant knows of it");
    queue.advance(secs(99));
    assert_eq!(queue.member(1).await.expect("it holds").grant, grant);
    queue.advance(secs(1));
    assert_ne!(queue.member(1).await.expect("it holds again").grant, grant);
}

/// An unacknowledged grant is given to another task.
pub async fn an_unacknowledged_grant_goes_to_another<H: Harness>(queue: H) {
    let change =
        SemaphoreChange { ack_timeout: Some(Some(secs(10))), ..SemaphoreChange::limits(1, 0) };
    queue.change(change).await;
    queue.enqueue_many(&[(1, 2.0), (2, 1.0)]).await;
    assert_eq!(queue.fetch(None).await.len(), 1);
    queue.advance(secs(10));
    assert_eq!(queue.status(1).await, Some(Status::Delayed));
    assert_eq!(queue.drain_events().await, [(1, Expired), (2, Acquired)]);
    queue.advance(secs(100));
    assert_eq!(queue.status(2).await, Some(Status::Acquired), "it was acknowledged in time");
    assert_eq!(queue.status(1).await, Some(Status::Wait));
}

// While the consumer was down, grants ended before their events were delivered, and their tasks were dropped: the best of the
// queue were lost.
/// A task is not dropped if it never received its grant or only did not acknowledge it.
pub async fn only_leases_that_ran_out_drop_tasks<H: Harness>(queue: H) {
    let change = SemaphoreChange {
        lease: Some(Some(secs(40))),
        ack_timeout: Some(Some(secs(10))),
        drop_expired: Some(true),
        ..SemaphoreChange::limits(1, 0)
    };
    queue.change(change).await;
    queue.enqueue(1, 1.0).await;
    queue.advance(secs(10));
    assert_eq!(queue.status(1).await, Some(Status::Delayed), "no client fetched events");
    assert_eq!(queue.drain_events().await, [], "an undelivered grant ends without an event");
    queue.advance(secs(10));
    assert_eq!(queue.fetch(None).await.len(), 1);
    queue.advance(secs(10));
    assert_eq!(queue.status(1).await, Some(Status::Delayed), "the acknowledgement was lost");
    assert_eq!(queue.drain_events().await, [(1, Expired)]);
    queue.change(SemaphoreChange { ack_timeout: Some(None), ..Default::default() }).await;
    queue.advance(secs(10));
    let undelivered = queue.member(1).await.expect("it is admitted again").grant;
    queue.advance(secs(40));
    let next = queue.member(1).await.expect("it stays").grant;
    assert!(next > undelivered, "its lease ended before a client fetched events");
    assert_eq!(queue.drain_events().await, [(1, Acquired)]);
    queue.advance(secs(40));
    assert_eq!(queue.drain_events().await, [(1, Expired)]);
    assert_eq!(queue.member(1).await, None);
}

/// A request is repeated until the holder releases.
pub async fn a_request_is_repeated_until_the_release<H: Harness>(queue: H) {
    queue.limits(1, 1).await;
    queue.admit(1).await;
    queue.enqueue(2, 2.0).await;
    assert_eq!(queue.drain_events().await, [(0, TryRelease)]);
    for _ in 0..3 {
        queue.advance(secs(59));
        assert_eq!(queue.drain_events().await, []);
        queue.advance(secs(1));
        assert_eq!(queue.drain_events().await, [(0, TryRelease)]);
    }
}

/// With `force` a holder loses its grant.
pub async fn force_takes_the_grant_away<H: Harness>(queue: H) {
    let change = SemaphoreChange {
        revoke_grace: Some(secs(5)),
        force: Some(true),
        ..SemaphoreChange::limits(1, 1)
    };
    queue.change(change).await;
    queue.admit(1).await;
    queue.enqueue(2, 2.0).await;
    queue.advance(secs(5));
    assert_eq!(queue.drain_events().await, [(0, Revoked), (2, Acquired)]);
    assert_eq!(queue.status(0).await, Some(Status::Wait));
}

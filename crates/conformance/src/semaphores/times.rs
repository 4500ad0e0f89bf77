//! What time does.

use taskyard_core::EventKind::{Acquired, Expired, Revoked, TryRelease};
use taskyard_core::{GrantFinish, GrantOutcome, SemaphoreChange, Span, Status};

use super::super::Harness;
use super::SemaphoreAsk;

fn secs(seconds: u64) -> Span {
    Span::from_secs(seconds)
}

/// A young grant is left alone.
pub async fn a_young_grant_is_left_alone<H: Harness>(queue: H) {
    let change = SemaphoreChange { min_hold: Some(secs(10)), ..SemaphoreChange::limits(1, 1) };
    queue.change(change).await;
    queue.admit(1).await;
    queue.enqueue(2, 2.0).await;
    queue.advance(secs(9));
    assert_eq!(queue.hear().await, []);
    queue.advance(secs(1));
    assert_eq!(queue.hear().await, [(0, TryRelease)]);
}

/// Who yields stands back.
pub async fn who_yields_stands_back<H: Harness>(queue: H) {
    let change = SemaphoreChange { cool_down: Some(secs(10)), ..SemaphoreChange::limits(1, 1) };
    queue.change(change).await;
    queue.admit(1).await;
    for _ in 0..2 {
        let outcome = queue.finish_grant(0, None, GrantFinish::Yield).await;
        assert_eq!(outcome, GrantOutcome::Done, "twice is the same");
    }
    let standing = queue.standing(0).await.expect("it stands back");
    assert_eq!(standing.status, Status::Delayed);
    assert_eq!(standing.not_before, Some(queue.now() + secs(10)));
    assert_eq!(queue.info().await.delayed, 1);
    queue.enqueue(0, 3.0).await;
    queue.advance(secs(9));
    assert_eq!(queue.status(0).await, Some(Status::Delayed), "a new priority changes nothing");
    queue.advance(secs(1));
    assert_eq!(queue.status(0).await, Some(Status::Acquired));
}

/// A lease ends.
pub async fn a_lease_ends<H: Harness>(queue: H) {
    let change = SemaphoreChange { lease: Some(Some(secs(10))), ..SemaphoreChange::limits(1, 1) };
    queue.change(change).await;
    let standing = queue.enqueue(1, 1.0).await;
    assert_eq!(standing.lease_until, Some(queue.now() + secs(10)));
    queue.hear().await;
    queue.advance(secs(10));
    assert_eq!(queue.hear().await, [(1, Expired), (1, Acquired)], "nobody else wants it");
    let stale = queue.finish_grant(1, standing.grant, GrantFinish::Extend(secs(10))).await;
    assert_eq!(stale, GrantOutcome::Stale);
    queue.change(SemaphoreChange { drop_expired: Some(true), ..Default::default() }).await;
    queue.advance(secs(10));
    assert_eq!(queue.hear().await, [(1, Expired)]);
    assert_eq!(queue.standing(1).await, None);
}

/// An extended lease lasts.
pub async fn an_extended_lease_lasts<H: Harness>(queue: H) {
    let change = SemaphoreChange { lease: Some(Some(secs(10))), ..SemaphoreChange::limits(1, 1) };
    queue.change(change).await;
    let grant = queue.enqueue(1, 1.0).await.grant;
    queue.fetch(None).await;
    queue.advance(secs(9));
    let outcome = queue.finish_grant(1, grant, GrantFinish::Extend(secs(100))).await;
    assert_eq!(outcome, GrantOutcome::Done);
    assert_eq!(queue.info().await.events, 0, "who prolongs a grant knows of it");
    queue.advance(secs(99));
    assert_eq!(queue.standing(1).await.expect("it holds").grant, grant);
    queue.advance(secs(1));
    assert_ne!(queue.standing(1).await.expect("it holds again").grant, grant);
}

/// An unacknowledged grant goes to another.
pub async fn an_unacknowledged_grant_goes_to_another<H: Harness>(queue: H) {
    let change =
        SemaphoreChange { ack_timeout: Some(Some(secs(10))), ..SemaphoreChange::limits(1, 0) };
    queue.change(change).await;
    queue.enqueue_many(&[(1, 2.0), (2, 1.0)]).await;
    assert_eq!(queue.fetch(None).await.len(), 1);
    queue.advance(secs(10));
    assert_eq!(queue.status(1).await, Some(Status::Delayed));
    assert_eq!(queue.hear().await, [(1, Expired), (2, Acquired)]);
    queue.advance(secs(100));
    assert_eq!(queue.status(2).await, Some(Status::Acquired), "it was acknowledged in time");
    assert_eq!(queue.status(1).await, Some(Status::Wait));
}

// While the consumer was down, grants ended that nobody had heard of, and with them their tasks left: the best of the
// line were gone without a trace.
/// Nobody leaves who never heard of its grant, or only did not acknowledge it.
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
    assert_eq!(queue.status(1).await, Some(Status::Delayed), "nobody asked for events");
    assert_eq!(queue.hear().await, [], "who heard nothing need not hear that it is over");
    queue.advance(secs(10));
    assert_eq!(queue.fetch(None).await.len(), 1);
    queue.advance(secs(10));
    assert_eq!(queue.status(1).await, Some(Status::Delayed), "the acknowledgement was lost");
    assert_eq!(queue.hear().await, [(1, Expired)]);
    queue.change(SemaphoreChange { ack_timeout: Some(None), ..Default::default() }).await;
    queue.advance(secs(10));
    let untold = queue.standing(1).await.expect("it is let in again").grant;
    queue.advance(secs(40));
    let next = queue.standing(1).await.expect("it stays").grant;
    assert!(next > untold, "its lease ran out before anybody asked for events");
    assert_eq!(queue.hear().await, [(1, Acquired)]);
    queue.advance(secs(40));
    assert_eq!(queue.hear().await, [(1, Expired)]);
    assert_eq!(queue.standing(1).await, None);
}

/// Who does not release is asked again.
pub async fn who_does_not_release_is_asked_again<H: Harness>(queue: H) {
    queue.limits(1, 1).await;
    queue.admit(1).await;
    queue.enqueue(2, 2.0).await;
    assert_eq!(queue.hear().await, [(0, TryRelease)]);
    for _ in 0..3 {
        queue.advance(secs(59));
        assert_eq!(queue.hear().await, []);
        queue.advance(secs(1));
        assert_eq!(queue.hear().await, [(0, TryRelease)]);
    }
}

/// Force takes the grant away.
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
    assert_eq!(queue.hear().await, [(0, Revoked), (2, Acquired)]);
    assert_eq!(queue.status(0).await, Some(Status::Wait));
}

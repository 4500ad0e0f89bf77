//! Semaphores over time.

use super::fixture::Fixture;
use crate::semaphore::EventKind::{Acquired, Expired, Revoked, TryRelease};
use crate::semaphore::{GrantFinish, GrantOutcome, SemaphoreChange, Status};
use crate::time::Span;

fn secs(seconds: u64) -> Span {
    Span::from_secs(seconds)
}

#[test]
fn a_new_grant_is_not_asked_for_before_min_hold() {
    let mut fixture =
        Fixture::new(SemaphoreChange { min_hold: Some(secs(10)), ..SemaphoreChange::limits(1, 1) });
    fixture.enqueue(1, 1.0);
    fixture.drain_events();
    fixture.enqueue(2, 2.0);
    fixture.advance(9);
    assert_eq!(fixture.drain_events(), []);
    assert_eq!(fixture.all.next_wakeup(), Some(fixture.now + secs(1)));
    fixture.advance(1);
    assert_eq!(fixture.drain_events(), [(1, TryRelease)]);
}

#[test]
fn a_task_that_yields_is_queued_after_the_cool_down() {
    let mut fixture = Fixture::new(SemaphoreChange {
        cool_down: Some(secs(10)),
        ..SemaphoreChange::limits(1, 1)
    });
    fixture.enqueue(1, 1.0);
    assert_eq!(fixture.finish(1, None, GrantFinish::Yield), GrantOutcome::Done);
    assert_eq!(fixture.status(1), Some(Status::Delayed));
    assert_eq!(
        fixture.finish(1, None, GrantFinish::Yield),
        GrantOutcome::Done,
        "twice is the same"
    );
    fixture.advance(9);
    assert_eq!(fixture.status(1), Some(Status::Delayed));
    fixture.advance(1);
    assert_eq!(fixture.status(1), Some(Status::Acquired));
}

#[test]
fn a_lease_ends_unless_it_is_extended() {
    let mut fixture = Fixture::new(SemaphoreChange {
        lease: Some(Some(secs(10))),
        ..SemaphoreChange::limits(1, 1)
    });
    let first = fixture.enqueue(1, 1.0).grant;
    assert_eq!(fixture.drain_events(), [(1, Acquired)]);
    fixture.advance(9);
    assert_eq!(fixture.finish(1, first, GrantFinish::Extend(secs(10))), GrantOutcome::Done);
    fixture.advance(9);
    assert_eq!(fixture.drain_events(), []);
    fixture.advance(1);
    assert_eq!(fixture.drain_events(), [(1, Expired), (1, Acquired)], "no other task waits");
    assert_eq!(fixture.finish(1, first, GrantFinish::Extend(secs(10))), GrantOutcome::Stale);
    fixture.configure(SemaphoreChange { drop_expired: Some(true), ..Default::default() });
    fixture.advance(10);
    assert_eq!(fixture.member(1), None);
    assert_eq!(fixture.drain_events(), [(1, Expired)]);
}

#[test]
fn an_unacknowledged_grant_goes_to_another_task() {
    let mut fixture = Fixture::new(SemaphoreChange {
        ack_timeout: Some(Some(secs(10))),
        ..SemaphoreChange::limits(1, 1)
    });
    fixture.enqueue(1, 2.0);
    fixture.enqueue(2, 1.0);
    assert_eq!(fixture.fetch().len(), 1);
    fixture.advance(10);
    assert_eq!(fixture.status(1), Some(Status::Delayed));
    assert_eq!(fixture.status(2), Some(Status::Acquired));
    assert_eq!(fixture.drain_events(), [(1, Expired), (2, Acquired)]);
    fixture.advance(10);
    assert_eq!(fixture.status(2), Some(Status::TryRelease), "it was acknowledged in time");
}

#[test]
fn a_holder_that_does_not_release_is_asked_again_or_loses_the_grant() {
    let mut fixture = Fixture::with_limits(1, 1);
    fixture.enqueue(1, 1.0);
    fixture.drain_events();
    fixture.enqueue(2, 2.0);
    assert_eq!(fixture.drain_events(), [(1, TryRelease)]);
    fixture.advance(59);
    assert_eq!(fixture.drain_events(), []);
    fixture.advance(1);
    assert_eq!(fixture.drain_events(), [(1, TryRelease)]);
    fixture.configure(SemaphoreChange { force: Some(true), ..Default::default() });
    fixture.advance(60);
    assert_eq!(fixture.drain_events(), [(1, Revoked), (2, Acquired)]);
    assert_eq!(fixture.status(1), Some(Status::Wait));
}

#[test]
fn an_event_is_sent_again_until_it_is_acknowledged() {
    let mut fixture = Fixture::with_limits(1, 1);
    fixture.enqueue(1, 1.0);
    let attempts = |fixture: &mut Fixture| {
        fixture.fetch().iter().map(|event| event.attempt).collect::<Vec<_>>()
    };
    assert_eq!(attempts(&mut fixture), [1]);
    assert_eq!(attempts(&mut fixture), [0; 0]);
    assert_eq!(fixture.all.next_wakeup(), Some(fixture.now + secs(30)));
    fixture.all.take_new_events();
    fixture.advance(29);
    assert!(!fixture.all.take_new_events().any());
    fixture.advance(1);
    assert!(fixture.all.take_new_events().any(), "listeners must be notified");
    assert_eq!(attempts(&mut fixture), [2]);
    fixture.advance(60);
    let event = fixture.fetch().pop().expect("again");
    assert_eq!(event.attempt, 3);
    fixture.acknowledge(vec![event.id, event.id]);
    fixture.advance(10_000);
    assert_eq!(fixture.fetch(), []);
}

#[test]
fn a_later_event_of_a_grant_waits_for_the_earlier() {
    let mut fixture = Fixture::with_limits(1, 1);
    fixture.enqueue(1, 1.0);
    let acquired = fixture.fetch();
    fixture.enqueue(2, 2.0);
    assert_eq!(fixture.status(1), Some(Status::TryRelease));
    assert_eq!(fixture.fetch(), []);
    fixture.all.take_new_events();
    fixture.acknowledge(acquired.iter().map(|event| event.id).collect());
    assert!(fixture.all.take_new_events().any());
    assert_eq!(fixture.drain_events(), [(1, TryRelease)]);
}

// An extend shows that the grant is known, so its event is removed; the request behind it could be
// sent at once, but no listener was woken.
#[test]
fn an_extend_wakes_listeners_for_the_next_event() {
    let mut fixture = Fixture::with_limits(1, 1);
    let grant = fixture.enqueue(1, 1.0).grant;
    fixture.fetch();
    fixture.enqueue(2, 2.0);
    assert_eq!(fixture.fetch(), [], "the request waits for the acknowledgement");
    fixture.all.take_new_events();
    assert_eq!(fixture.finish(1, grant, GrantFinish::Extend(secs(10))), GrantOutcome::Done);
    assert!(fixture.all.take_new_events().any());
    assert_eq!(fixture.drain_events(), [(1, TryRelease)]);
}

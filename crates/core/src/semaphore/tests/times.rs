//! What time does.

use super::rig::Rig;
use crate::semaphore::EventKind::{Acquired, Expired, Revoked, TryRelease};
use crate::semaphore::{GrantFinish, GrantOutcome, SemaphoreChange, Status};
use crate::time::Span;

fn secs(seconds: u64) -> Span {
    Span::from_secs(seconds)
}

#[test]
fn a_young_grant_is_left_alone_for_a_while() {
    let mut rig =
        Rig::new(SemaphoreChange { min_hold: Some(secs(10)), ..SemaphoreChange::limits(1, 1) });
    rig.enqueue(1, 1.0);
    rig.hear();
    rig.enqueue(2, 2.0);
    rig.advance(9);
    assert_eq!(rig.hear(), []);
    assert_eq!(rig.all.next_wakeup(), Some(rig.now + secs(1)));
    rig.advance(1);
    assert_eq!(rig.hear(), [(1, TryRelease)]);
}

#[test]
fn who_yields_stands_back_for_a_while() {
    let mut rig =
        Rig::new(SemaphoreChange { cool_down: Some(secs(10)), ..SemaphoreChange::limits(1, 1) });
    rig.enqueue(1, 1.0);
    assert_eq!(rig.finish(1, None, GrantFinish::Yield), GrantOutcome::Done);
    assert_eq!(rig.status(1), Some(Status::Delayed));
    assert_eq!(rig.finish(1, None, GrantFinish::Yield), GrantOutcome::Done, "twice is the same");
    rig.advance(9);
    assert_eq!(rig.status(1), Some(Status::Delayed));
    rig.advance(1);
    assert_eq!(rig.status(1), Some(Status::Acquired));
}

#[test]
fn a_lease_ends_unless_it_is_extended() {
    let mut rig =
        Rig::new(SemaphoreChange { lease: Some(Some(secs(10))), ..SemaphoreChange::limits(1, 1) });
    let first = rig.enqueue(1, 1.0).grant;
    assert_eq!(rig.hear(), [(1, Acquired)]);
    rig.advance(9);
    assert_eq!(rig.finish(1, first, GrantFinish::Extend(secs(10))), GrantOutcome::Done);
    rig.advance(9);
    assert_eq!(rig.hear(), []);
    rig.advance(1);
    assert_eq!(rig.hear(), [(1, Expired), (1, Acquired)], "nobody else wants it");
    assert_eq!(rig.finish(1, first, GrantFinish::Extend(secs(10))), GrantOutcome::Stale);
    rig.configure(SemaphoreChange { drop_expired: Some(true), ..Default::default() });
    rig.advance(10);
    assert_eq!(rig.standing(1), None);
    assert_eq!(rig.hear(), [(1, Expired)]);
}

#[test]
fn a_grant_that_nobody_acknowledges_goes_to_another() {
    let mut rig = Rig::new(SemaphoreChange {
        ack_timeout: Some(Some(secs(10))),
        ..SemaphoreChange::limits(1, 1)
    });
    rig.enqueue(1, 2.0);
    rig.enqueue(2, 1.0);
    assert_eq!(rig.fetch().len(), 1);
    rig.advance(10);
    assert_eq!(rig.status(1), Some(Status::Delayed));
    assert_eq!(rig.status(2), Some(Status::Acquired));
    assert_eq!(rig.hear(), [(1, Expired), (2, Acquired)]);
    rig.advance(10);
    assert_eq!(rig.status(2), Some(Status::TryRelease), "it was acknowledged in time");
}

#[test]
fn who_does_not_release_is_asked_again_or_loses_the_grant() {
    let mut rig = Rig::with_limits(1, 1);
    rig.enqueue(1, 1.0);
    rig.hear();
    rig.enqueue(2, 2.0);
    assert_eq!(rig.hear(), [(1, TryRelease)]);
    rig.advance(59);
    assert_eq!(rig.hear(), []);
    rig.advance(1);
    assert_eq!(rig.hear(), [(1, TryRelease)]);
    rig.configure(SemaphoreChange { force: Some(true), ..Default::default() });
    rig.advance(60);
    assert_eq!(rig.hear(), [(1, Revoked), (2, Acquired)]);
    assert_eq!(rig.status(1), Some(Status::Wait));
}

#[test]
fn an_event_comes_again_until_it_is_acknowledged() {
    let mut rig = Rig::with_limits(1, 1);
    rig.enqueue(1, 1.0);
    let attempts =
        |rig: &mut Rig| rig.fetch().iter().map(|event| event.attempt).collect::<Vec<_>>();
    assert_eq!(attempts(&mut rig), [1]);
    assert_eq!(attempts(&mut rig), [0; 0]);
    assert_eq!(rig.all.next_wakeup(), Some(rig.now + secs(30)));
    rig.all.take_news();
    rig.advance(29);
    assert!(!rig.all.take_news().are_there());
    rig.advance(1);
    assert!(rig.all.take_news().are_there(), "whoever waits for events must be told");
    assert_eq!(attempts(&mut rig), [2]);
    rig.advance(60);
    let event = rig.fetch().pop().expect("again");
    assert_eq!(event.attempt, 3);
    rig.acknowledge(vec![event.id, event.id]);
    rig.advance(10_000);
    assert_eq!(rig.fetch(), []);
}

#[test]
fn a_later_event_of_a_grant_waits_for_the_earlier() {
    let mut rig = Rig::with_limits(1, 1);
    rig.enqueue(1, 1.0);
    let acquired = rig.fetch();
    rig.enqueue(2, 2.0);
    assert_eq!(rig.status(1), Some(Status::TryRelease));
    assert_eq!(rig.fetch(), []);
    rig.all.take_news();
    rig.acknowledge(acquired.iter().map(|event| event.id).collect());
    assert!(rig.all.take_news().are_there());
    assert_eq!(rig.hear(), [(1, TryRelease)]);
}

// An extend says that the grant is known, so its event goes; the request behind it could be had at once, but nobody who
// waited for events was woken.
#[test]
fn an_extend_wakes_those_who_wait_for_the_next_event() {
    let mut rig = Rig::with_limits(1, 1);
    let grant = rig.enqueue(1, 1.0).grant;
    rig.fetch();
    rig.enqueue(2, 2.0);
    assert_eq!(rig.fetch(), [], "the request waits for the acknowledgement");
    rig.all.take_news();
    assert_eq!(rig.finish(1, grant, GrantFinish::Extend(secs(10))), GrantOutcome::Done);
    assert!(rig.all.take_news().are_there());
    assert_eq!(rig.hear(), [(1, TryRelease)]);
}

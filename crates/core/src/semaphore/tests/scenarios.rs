//! The scenarios of the specification.

use super::fixture::Fixture;
use crate::error::Error;
use crate::semaphore::EventKind::{Acquired, Keep, TryRelease};
use crate::semaphore::{
    EnqueueItem, EventKind, Grant, GrantFinish, GrantItem, GrantOutcome, SemaphoreChange,
    SemaphoreCommand, SemaphoreKey, SemaphoreReply, Semaphores, Status,
};
use crate::task::TaskId;
use crate::time::{Span, Timestamp};

fn admitted(active: i64, tail: i64, tasks: u64) -> Fixture {
    let mut fixture = Fixture::with_limits(active, tail);
    for task in 0..tasks {
        fixture.enqueue(task, 1.0);
    }
    fixture.drain_events();
    fixture
}

#[test]
fn the_best_get_grants_and_the_next_follow_at_once() {
    let mut fixture = Fixture::with_limits(2, 0);
    for (task, priority) in [(1, 5.0), (2, 1.0), (3, 3.0), (4, 3.0)] {
        fixture.enqueue(task, priority);
    }
    assert_eq!(fixture.drain_events(), [(1, Acquired), (2, Acquired)]);
    assert_eq!(fixture.release(1), GrantOutcome::Done);
    assert_eq!(fixture.drain_events(), [(3, Acquired)], "of equals the first one");
    assert_eq!(fixture.release(9), GrantOutcome::Missing);
}

#[test]
fn one_better_waiter_asks_one_of_nine_hundred() {
    let mut fixture = admitted(1000, 900, 1000);
    fixture.enqueue(5000, 2.0);
    assert_eq!(fixture.drain_events(), [(999, TryRelease)]);
    fixture.enqueue(5000, 3.0);
    assert_eq!(fixture.drain_events(), []);
    assert_eq!(fixture.finish(999, None, GrantFinish::Yield), GrantOutcome::Done);
    assert_eq!(fixture.drain_events(), [(5000, Acquired)]);
    assert_eq!(fixture.status(999), Some(Status::Wait));
}

#[test]
fn the_first_hundred_are_never_asked() {
    let mut fixture = admitted(1000, 900, 1000);
    fixture.configure(SemaphoreChange { max_revoking: Some(Some(900)), ..Default::default() });
    for task in 5000..6000 {
        fixture.enqueue(task, 2.0);
    }
    let info = fixture.info();
    assert_eq!((info.acquired, info.revoking), (100, 900));
    assert!((0..100).all(|task| fixture.status(task) == Some(Status::Acquired)));
}

#[test]
fn a_stale_release_frees_nothing() {
    let mut fixture = Fixture::with_limits(1, 1);
    let first = fixture.enqueue(1, 1.0).grant;
    fixture.release(1);
    let second = fixture.enqueue(1, 1.0).grant;
    assert!(first < second);
    assert_eq!(fixture.finish(1, first, GrantFinish::Release), GrantOutcome::Stale);
    assert_eq!(fixture.member(1).and_then(|member| member.grant), second);
    assert_eq!(fixture.finish(1, Some(Grant(99)), GrantFinish::Yield), GrantOutcome::Stale);
    assert_eq!(fixture.finish(1, second, GrantFinish::Release), GrantOutcome::Done);
    assert_eq!(fixture.finish(1, second, GrantFinish::Release), GrantOutcome::Missing);
}

#[test]
fn priorities_that_vary_within_the_margin_change_nothing() {
    let mut fixture =
        Fixture::new(SemaphoreChange { margin: Some(2.0), ..SemaphoreChange::limits(1, 1) });
    fixture.enqueue(1, 5.0);
    fixture.drain_events();
    for priority in [6.0, 4.0, 7.0, 5.0, 7.0] {
        fixture.enqueue(2, priority);
    }
    assert_eq!(fixture.drain_events(), []);
    fixture.enqueue(2, 7.1);
    assert_eq!(fixture.drain_events(), [(1, TryRelease)]);
    // Only when nothing is left of the gap may the holder stay.
    fixture.enqueue(2, 5.1);
    assert_eq!(fixture.drain_events(), []);
    fixture.enqueue(2, 5.0);
    assert_eq!(fixture.drain_events(), [(1, Keep)]);
}

#[test]
fn a_lower_capacity_waits_or_sheds() {
    let mut fixture = admitted(1000, 900, 1000);
    fixture.enqueue(5000, 9.0);
    fixture.drain_events();
    fixture.configure(SemaphoreChange::limits(10, 10));
    for task in 0..900 {
        fixture.release(task);
    }
    let info = fixture.info();
    assert_eq!((info.acquired + info.revoking, info.waiting), (100, 1), "no task gets a grant");
    fixture.configure(SemaphoreChange { shed: Some(true), ..Default::default() });
    // One had been asked for the waiting task: now it is one of the surplus holders.
    assert_eq!(fixture.drain_events().len(), 15, "no more at a time than may be asked");
    while fixture.info().revoking > 0 {
        let asked = (900..1000).find(|task| fixture.status(*task) == Some(Status::TryRelease));
        fixture.release(asked.expect("a holder was asked"));
        fixture.drain_events();
    }
    let info = fixture.info();
    assert_eq!((info.acquired, info.waiting), (10, 0), "{info:?}");
}

// With a `try_release` of 0 no holder was asked, although `shed` requires it for a capacity of 0.
#[test]
fn a_capacity_of_zero_sheds_all_whatever_try_release_is() {
    let mut fixture = admitted(5, 5, 5);
    fixture.configure(SemaphoreChange { shed: Some(true), ..SemaphoreChange::limits(0, 0) });
    assert_eq!(fixture.drain_events().len(), 5);
    let mut fixture = admitted(5, 5, 5);
    fixture.configure(SemaphoreChange { shed: Some(true), ..SemaphoreChange::limits(2, 0) });
    assert_eq!(
        fixture.drain_events(),
        [],
        "with try_release 0 and a capacity no holder is ever asked"
    );
}

// The event that the request was withdrawn was dropped unsent, and so was the next request: a
// holder that had received the first request never learned that it may keep its grant.
#[test]
fn a_holder_that_received_a_request_learns_that_it_is_withdrawn() {
    let mut fixture = admitted(1, 1, 1);
    fixture.enqueue(2, 5.0);
    assert_eq!(fixture.drain_events(), [(0, TryRelease)]);
    for priority in [0.0, 5.0, 0.0] {
        fixture.enqueue(2, priority);
    }
    assert_eq!(fixture.drain_events(), [(0, Keep)]);
    // A `keep` that was sent but lost counts as little as one that was not sent.
    fixture.enqueue(2, 5.0);
    assert_eq!(fixture.drain_events(), [(0, TryRelease)]);
    fixture.enqueue(2, 0.0);
    assert_eq!(fixture.fetch().len(), 1);
    for priority in [5.0, 0.0] {
        fixture.enqueue(2, priority);
    }
    assert_eq!(fixture.drain_events(), [(0, Keep)]);
}

// A decline without a request was accepted, and the task that declined was not counted among the
// best: so fewer holders could be asked, and the worst holder was never asked.
#[test]
fn a_decline_does_not_protect_other_holders() {
    let mut fixture = Fixture::with_limits(2, 1);
    fixture.enqueue(1, 10.0);
    fixture.enqueue(2, 1.0);
    fixture.drain_events();
    assert_eq!(fixture.finish(1, None, GrantFinish::Decline), GrantOutcome::NotAsked);
    assert!(!fixture.member(1).is_some_and(|member| member.pinned));
    fixture.enqueue(3, 5.0);
    assert_eq!(fixture.drain_events(), [(2, TryRelease)]);
    // One that declined and became one of the best counts as one of the best.
    assert_eq!(fixture.finish(2, None, GrantFinish::Decline), GrantOutcome::Done);
    fixture.enqueue(3, 20.0);
    fixture.enqueue(2, 15.0);
    assert_eq!(fixture.drain_events(), [(1, TryRelease)]);
}

#[test]
fn a_decline_ends_with_its_request() {
    let mut fixture = admitted(1, 1, 1);
    fixture.enqueue(2, 5.0);
    assert_eq!(fixture.drain_events(), [(0, TryRelease)]);
    fixture.finish(0, None, GrantFinish::Decline);
    fixture.enqueue(3, 6.0);
    assert_eq!(fixture.drain_events(), [], "the first still waits");
    fixture.release(2);
    fixture.release(3);
    assert!(!fixture.member(0).is_some_and(|member| member.pinned));
    fixture.enqueue(2, 5.0);
    assert_eq!(fixture.drain_events(), [(0, TryRelease)], "this is another request");
}

#[test]
fn a_capacity_of_zero_is_a_pause() {
    let mut fixture = Fixture::with_limits(0, 0);
    fixture.enqueue(1, 1.0);
    assert_eq!(fixture.status(1), Some(Status::Wait));
    fixture.configure(SemaphoreChange::limits(1, 0));
    assert_eq!(fixture.status(1), Some(Status::Acquired));
}

#[test]
fn a_holder_that_declines_is_not_asked_again_but_another_is() {
    let mut fixture = admitted(2, 2, 2);
    fixture.enqueue(7, 5.0);
    assert_eq!(fixture.drain_events(), [(1, TryRelease)]);
    assert_eq!(fixture.finish(1, None, GrantFinish::Decline), GrantOutcome::Done);
    assert_eq!(fixture.drain_events(), [(0, TryRelease)]);
    assert!(fixture.member(1).is_some_and(|member| member.pinned));
    assert_eq!(fixture.finish(0, None, GrantFinish::Decline), GrantOutcome::Done);
    assert_eq!(fixture.drain_events(), []);
    assert_eq!(fixture.finish(7, None, GrantFinish::Decline), GrantOutcome::Stale, "it only waits");
}

#[test]
fn a_grant_that_was_not_sent_is_withdrawn_without_an_event() {
    let mut fixture = Fixture::with_limits(1, 1);
    fixture.enqueue(1, 1.0);
    fixture.enqueue(2, 2.0);
    assert_eq!(fixture.drain_events(), [(2, Acquired)]);
    assert_eq!(fixture.status(1), Some(Status::Wait));
}

#[test]
fn a_request_that_was_not_sent_is_withdrawn_without_an_event() {
    let mut fixture = admitted(1, 1, 1);
    fixture.enqueue(2, 2.0);
    fixture.release(2);
    assert_eq!(fixture.drain_events(), []);
    fixture.enqueue(2, 2.0);
    assert_eq!(fixture.drain_events(), [(0, TryRelease)]);
    fixture.release(2);
    fixture.enqueue(2, 2.0);
    assert_eq!(fixture.drain_events(), [(0, TryRelease)], "it may not have received the first");
    fixture.release(2);
    assert_eq!(fixture.drain_events(), [(0, Keep)]);
}

#[test]
fn wrong_input_changes_nothing() {
    let mut fixture = Fixture::with_limits(1, 1);
    let wish = |task, priority| EnqueueItem { task: TaskId(task), priority };
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let entries = vec![wish(1, 1.0), wish(2, bad)];
        let refused = fixture.ask(SemaphoreCommand::Enqueue { key: fixture.key.clone(), entries });
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
        assert_eq!(fixture.member(1), None);
    }
    let change = Box::new(SemaphoreChange::limits(5, 6));
    let key = fixture.key.clone();
    let refused = fixture.ask(SemaphoreCommand::Configure { key, change, only_new: false });
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    assert_eq!(fixture.info().options.active, 1);
    let nowhere = SemaphoreKey::new("nowhere").expect("a good key");
    let missing = [
        SemaphoreCommand::Enqueue { key: nowhere.clone(), entries: Vec::new() },
        SemaphoreCommand::Finish { key: nowhere.clone(), items: Vec::new() },
        SemaphoreCommand::Peek { key: nowhere.clone(), tasks: Vec::new() },
        SemaphoreCommand::List { key: Some(nowhere.clone()) },
    ];
    for command in missing {
        assert_eq!(fixture.ask(command), Err(Error::SemaphoreNotFound(nowhere.clone())));
    }
}

#[test]
fn many_steps_are_split_between_ticks() {
    let mut fixture = Fixture::with_limits(0, 0);
    let entries =
        |from| (from..from + 10_000).map(|task| EnqueueItem { task: TaskId(task), priority: 1.0 });
    for from in [0, 10_000, 20_000] {
        let (key, entries) = (fixture.key.clone(), entries(from).collect());
        fixture.ask(SemaphoreCommand::Enqueue { key, entries }).expect("can be enqueued");
    }
    fixture.configure(SemaphoreChange::limits(30_000, 0));
    assert_eq!(fixture.info().acquired, 20_000);
    assert_eq!(fixture.all.next_wakeup(), Some(fixture.now));
    fixture.advance(0);
    assert_eq!(fixture.info().acquired, 30_000);
}

/// I8: with fixed tasks and priorities evictions end. Each one admits a task that is better by more
/// than the margin, so there are at most (range / margin) * active of them.
#[test]
fn evictions_end() {
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (active, margin) = (rng.i64(1..6), f64::from(rng.u8(1..4)) / 2.0);
        let mut all = Semaphores::default();
        let key = SemaphoreKey::new("one").unwrap();
        let mut change = SemaphoreChange::limits(active, active);
        change.margin = Some(margin);
        let now = Timestamp::EPOCH;
        let configure = SemaphoreCommand::Configure {
            key: key.clone(),
            change: Box::new(change),
            only_new: false,
        };
        all.apply(now, configure).unwrap();
        let mut evictions = 0;
        // In any order of arrival; a holder that is asked yields at once, and is queued again.
        for task in 0..30 {
            let priority = f64::from(rng.u8(0..=20));
            let entries = vec![EnqueueItem { task: TaskId(task), priority }];
            all.apply(now, SemaphoreCommand::Enqueue { key: key.clone(), entries }).unwrap();
            loop {
                let fetch = SemaphoreCommand::Events { key: None, count: 100, wait: Span::ZERO };
                let Ok(SemaphoreReply::Events(events)) = all.apply(now, fetch) else {
                    panic!("events can be fetched");
                };
                if events.is_empty() {
                    break;
                }
                let heard = events.iter().map(|event| event.id).collect();
                all.apply(now, SemaphoreCommand::Acknowledge { events: heard }).unwrap();
                for event in events.iter().filter(|event| event.kind == EventKind::TryRelease) {
                    evictions += 1;
                    let (grant, finish) = (Some(event.grant), GrantFinish::Yield);
                    let items = vec![GrantItem { task: event.task, grant, finish }];
                    all.apply(now, SemaphoreCommand::Finish { key: key.clone(), items }).unwrap();
                }
            }
        }
        let bound = (20.0 / margin) * active as f64 + 30.0;
        assert!(f64::from(evictions) <= bound, "seed {seed}: {evictions} evictions");
    }
}

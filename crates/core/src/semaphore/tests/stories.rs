//! What the specification tells as stories.

use super::rig::Rig;
use crate::error::Error;
use crate::semaphore::EventKind::{Acquired, Keep, TryRelease};
use crate::semaphore::{
    EventKind, Grant, GrantFinish, GrantItem, GrantOutcome, SemaphoreChange, SemaphoreCommand,
    SemaphoreKey, SemaphoreReply, Semaphores, Status, Wish,
};
use crate::task::TaskId;
use crate::time::{Span, Timestamp};

fn admitted(active: i64, tail: i64, tasks: u64) -> Rig {
    let mut rig = Rig::with_limits(active, tail);
    for task in 0..tasks {
        rig.enqueue(task, 1.0);
    }
    rig.hear();
    rig
}

#[test]
fn the_best_get_in_and_the_next_follow_at_once() {
    let mut rig = Rig::with_limits(2, 0);
    for (task, priority) in [(1, 5.0), (2, 1.0), (3, 3.0), (4, 3.0)] {
        rig.enqueue(task, priority);
    }
    assert_eq!(rig.hear(), [(1, Acquired), (2, Acquired)]);
    assert_eq!(rig.release(1), GrantOutcome::Done);
    assert_eq!(rig.hear(), [(3, Acquired)], "of equals the first who came");
    assert_eq!(rig.release(9), GrantOutcome::Missing);
}

#[test]
fn one_better_waiter_asks_one_of_nine_hundred() {
    let mut rig = admitted(1000, 900, 1000);
    rig.enqueue(5000, 2.0);
    assert_eq!(rig.hear(), [(999, TryRelease)]);
    rig.enqueue(5000, 3.0);
    assert_eq!(rig.hear(), []);
    assert_eq!(rig.finish(999, None, GrantFinish::Yield), GrantOutcome::Done);
    assert_eq!(rig.hear(), [(5000, Acquired)]);
    assert_eq!(rig.status(999), Some(Status::Wait));
}

#[test]
fn the_first_hundred_are_never_asked() {
    let mut rig = admitted(1000, 900, 1000);
    rig.configure(SemaphoreChange { max_revoking: Some(Some(900)), ..Default::default() });
    for task in 5000..6000 {
        rig.enqueue(task, 2.0);
    }
    let info = rig.info();
    assert_eq!((info.acquired, info.revoking), (100, 900));
    assert!((0..100).all(|task| rig.status(task) == Some(Status::Acquired)));
}

#[test]
fn a_stale_release_frees_nothing() {
    let mut rig = Rig::with_limits(1, 1);
    let first = rig.enqueue(1, 1.0).grant;
    rig.release(1);
    let second = rig.enqueue(1, 1.0).grant;
    assert!(first < second);
    assert_eq!(rig.finish(1, first, GrantFinish::Release), GrantOutcome::Stale);
    assert_eq!(rig.standing(1).and_then(|standing| standing.grant), second);
    assert_eq!(rig.finish(1, Some(Grant(99)), GrantFinish::Yield), GrantOutcome::Stale);
    assert_eq!(rig.finish(1, second, GrantFinish::Release), GrantOutcome::Done);
    assert_eq!(rig.finish(1, second, GrantFinish::Release), GrantOutcome::Missing);
}

#[test]
fn priorities_that_flap_within_the_margin_move_nobody() {
    let mut rig = Rig::new(SemaphoreChange { margin: Some(2.0), ..SemaphoreChange::limits(1, 1) });
    rig.enqueue(1, 5.0);
    rig.hear();
    for priority in [6.0, 4.0, 7.0, 5.0, 7.0] {
        rig.enqueue(2, priority);
    }
    assert_eq!(rig.hear(), []);
    rig.enqueue(2, 7.1);
    assert_eq!(rig.hear(), [(1, TryRelease)]);
    // Only when nothing is left of the gap may the holder stay.
    rig.enqueue(2, 5.1);
    assert_eq!(rig.hear(), []);
    rig.enqueue(2, 5.0);
    assert_eq!(rig.hear(), [(1, Keep)]);
}

#[test]
fn a_lower_capacity_waits_or_sheds() {
    let mut rig = admitted(1000, 900, 1000);
    rig.enqueue(5000, 9.0);
    rig.hear();
    rig.configure(SemaphoreChange::limits(10, 10));
    for task in 0..900 {
        rig.release(task);
    }
    let info = rig.info();
    assert_eq!((info.acquired + info.revoking, info.waiting), (100, 1), "nobody is let in");
    rig.configure(SemaphoreChange { shed: Some(true), ..Default::default() });
    // One had been asked for the waiter: now it is one of those to be shed.
    assert_eq!(rig.hear().len(), 15, "no more at a time than may be asked");
    while rig.info().revoking > 0 {
        let asked = (900..1000).find(|task| rig.status(*task) == Some(Status::TryRelease));
        rig.release(asked.expect("somebody was asked"));
        rig.hear();
    }
    let info = rig.info();
    assert_eq!((info.acquired, info.waiting), (10, 0), "{info:?}");
}

// With a `try_release` of 0 no holder was asked, although `shed` promises it for a capacity of 0.
#[test]
fn a_capacity_of_zero_sheds_all_whatever_the_tail_is() {
    let mut rig = admitted(5, 5, 5);
    rig.configure(SemaphoreChange { shed: Some(true), ..SemaphoreChange::limits(0, 0) });
    assert_eq!(rig.hear().len(), 5);
    let mut rig = admitted(5, 5, 5);
    rig.configure(SemaphoreChange { shed: Some(true), ..SemaphoreChange::limits(2, 0) });
    assert_eq!(rig.hear(), [], "a tail of 0 beside a capacity: no holder is ever asked");
}

// The news that the request was taken back was dropped undelivered, and so was the next request: a holder that had heard
// the first request never heard that it may stay.
#[test]
fn a_holder_that_heard_a_request_hears_that_it_is_over() {
    let mut rig = admitted(1, 1, 1);
    rig.enqueue(2, 5.0);
    assert_eq!(rig.hear(), [(0, TryRelease)]);
    for priority in [0.0, 5.0, 0.0] {
        rig.enqueue(2, priority);
    }
    assert_eq!(rig.hear(), [(0, Keep)]);
    // A `keep` that was delivered but lost counts as little as one that was not.
    rig.enqueue(2, 5.0);
    assert_eq!(rig.hear(), [(0, TryRelease)]);
    rig.enqueue(2, 0.0);
    assert_eq!(rig.fetch().len(), 1);
    for priority in [5.0, 0.0] {
        rig.enqueue(2, priority);
    }
    assert_eq!(rig.hear(), [(0, Keep)]);
}

// A decline without a request was taken for one, and the task that declined was not counted among the best: so the tail became
// shorter, and the worst holder was never asked.
#[test]
fn a_decline_does_not_shrink_the_tail() {
    let mut rig = Rig::with_limits(2, 1);
    rig.enqueue(1, 10.0);
    rig.enqueue(2, 1.0);
    rig.hear();
    assert_eq!(rig.finish(1, None, GrantFinish::Decline), GrantOutcome::NotAsked);
    assert!(!rig.standing(1).is_some_and(|standing| standing.pinned));
    rig.enqueue(3, 5.0);
    assert_eq!(rig.hear(), [(2, TryRelease)]);
    // One that declined and became one of the best counts as one of the best.
    assert_eq!(rig.finish(2, None, GrantFinish::Decline), GrantOutcome::Done);
    rig.enqueue(3, 20.0);
    rig.enqueue(2, 15.0);
    assert_eq!(rig.hear(), [(1, TryRelease)]);
}

#[test]
fn a_decline_ends_with_its_request() {
    let mut rig = admitted(1, 1, 1);
    rig.enqueue(2, 5.0);
    assert_eq!(rig.hear(), [(0, TryRelease)]);
    rig.finish(0, None, GrantFinish::Decline);
    rig.enqueue(3, 6.0);
    assert_eq!(rig.hear(), [], "the first still waits");
    rig.release(2);
    rig.release(3);
    assert!(!rig.standing(0).is_some_and(|standing| standing.pinned));
    rig.enqueue(2, 5.0);
    assert_eq!(rig.hear(), [(0, TryRelease)], "this is another request");
}

#[test]
fn no_place_at_all_is_a_pause() {
    let mut rig = Rig::with_limits(0, 0);
    rig.enqueue(1, 1.0);
    assert_eq!(rig.status(1), Some(Status::Wait));
    rig.configure(SemaphoreChange::limits(1, 0));
    assert_eq!(rig.status(1), Some(Status::Acquired));
}

#[test]
fn who_declines_is_not_asked_again_but_another_is() {
    let mut rig = admitted(2, 2, 2);
    rig.enqueue(7, 5.0);
    assert_eq!(rig.hear(), [(1, TryRelease)]);
    assert_eq!(rig.finish(1, None, GrantFinish::Decline), GrantOutcome::Done);
    assert_eq!(rig.hear(), [(0, TryRelease)]);
    assert!(rig.standing(1).is_some_and(|standing| standing.pinned));
    assert_eq!(rig.finish(0, None, GrantFinish::Decline), GrantOutcome::Done);
    assert_eq!(rig.hear(), []);
    assert_eq!(rig.finish(7, None, GrantFinish::Decline), GrantOutcome::Stale, "it only waits");
}

#[test]
fn who_was_never_told_goes_back_without_a_word() {
    let mut rig = Rig::with_limits(1, 1);
    rig.enqueue(1, 1.0);
    rig.enqueue(2, 2.0);
    assert_eq!(rig.hear(), [(2, Acquired)]);
    assert_eq!(rig.status(1), Some(Status::Wait));
}

#[test]
fn a_request_nobody_heard_of_is_taken_back_without_a_word() {
    let mut rig = admitted(1, 1, 1);
    rig.enqueue(2, 2.0);
    rig.release(2);
    assert_eq!(rig.hear(), []);
    rig.enqueue(2, 2.0);
    assert_eq!(rig.hear(), [(0, TryRelease)]);
    rig.release(2);
    rig.enqueue(2, 2.0);
    assert_eq!(rig.hear(), [(0, TryRelease)], "it may not have heard the first");
    rig.release(2);
    assert_eq!(rig.hear(), [(0, Keep)]);
}

#[test]
fn wrong_input_changes_nothing() {
    let mut rig = Rig::with_limits(1, 1);
    let wish = |task, priority| Wish { task: TaskId(task), priority };
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let wishes = vec![wish(1, 1.0), wish(2, bad)];
        let refused = rig.ask(SemaphoreCommand::Enqueue { key: rig.key.clone(), wishes });
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
        assert_eq!(rig.standing(1), None);
    }
    let change = Box::new(SemaphoreChange::limits(5, 6));
    let key = rig.key.clone();
    let refused = rig.ask(SemaphoreCommand::Configure { key, change, only_new: false });
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    assert_eq!(rig.info().options.active, 1);
    let nowhere = SemaphoreKey::new("nowhere").expect("a good key");
    let missing = [
        SemaphoreCommand::Enqueue { key: nowhere.clone(), wishes: Vec::new() },
        SemaphoreCommand::Finish { key: nowhere.clone(), items: Vec::new() },
        SemaphoreCommand::Look { key: nowhere.clone(), tasks: Vec::new() },
        SemaphoreCommand::List { key: Some(nowhere.clone()) },
    ];
    for command in missing {
        assert_eq!(rig.ask(command), Err(Error::SemaphoreNotFound(nowhere.clone())));
    }
}

#[test]
fn many_steps_are_taken_in_turns() {
    let mut rig = Rig::with_limits(0, 0);
    let wishes =
        |from| (from..from + 10_000).map(|task| Wish { task: TaskId(task), priority: 1.0 });
    for from in [0, 10_000, 20_000] {
        let (key, wishes) = (rig.key.clone(), wishes(from).collect());
        rig.ask(SemaphoreCommand::Enqueue { key, wishes }).expect("can be enqueued");
    }
    rig.configure(SemaphoreChange::limits(30_000, 0));
    assert_eq!(rig.info().acquired, 20_000);
    assert_eq!(rig.all.next_wakeup(), Some(rig.now));
    rig.advance(0);
    assert_eq!(rig.info().acquired, 30_000);
}

/// I8: with fixed tasks and priorities evictions come to an end. Each one puts a task in that is better by more than the
/// margin, so there are at most (range / margin) * active of them.
#[test]
fn evictions_come_to_an_end() {
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
        // In any order of arrival; whoever is asked yields at once, and stands in line again.
        for task in 0..30 {
            let priority = f64::from(rng.u8(0..=20));
            let wishes = vec![Wish { task: TaskId(task), priority }];
            all.apply(now, SemaphoreCommand::Enqueue { key: key.clone(), wishes }).unwrap();
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

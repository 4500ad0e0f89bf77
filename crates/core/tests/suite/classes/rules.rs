//! Single rules.

use taskyard_core::classes::estimate::StartModel;
use taskyard_core::classes::*;
use taskyard_core::{Reason, Span, Timestamp};

const NOW: Timestamp = Timestamp::from_micros(1_000_000_000);

fn secs(seconds: u64) -> Span {
    Span::from_secs(seconds)
}

fn pool(limits: [u32; 3]) -> Classes {
    let classes = vec![
        Class::new("fast", secs(3), Limit::Percent(100)),
        Class::new("medium", secs(10), Limit::Count(limits[1])),
        Class::new("slow", secs(30), Limit::Count(limits[2])),
    ];
    let mut rules = Rules::new(classes).unwrap();
    rules.policy = Policy::Oldest;
    let mut classes = Classes::new(rules, 1);
    classes.set_backends(NOW, limits[0]);
    classes
}

fn started(ticket: u64, class: u8, seconds: u64) -> Decision {
    Decision::Start { ticket: Ticket(ticket), class: Some(class), limit: secs(seconds) }
}

fn lowered(ticket: u64, class: u8, seconds: u64, stop: bool) -> Decision {
    Decision::Lower { ticket: Ticket(ticket), class, limit: secs(seconds), stop }
}

/// Limits 3/2/1; S1 runs as slow and X as medium; then M1, S2 and F1 arrive.
#[test]
fn the_worked_example() {
    let mut classes = pool([3, 2, 1]);
    let mut arrive = |ticket, ask| classes.arrive(NOW, Ticket(ticket), ask);
    assert_eq!(arrive(1, RunRequest::Timed(secs(30))), [started(1, 2, 30)]);
    assert_eq!(arrive(2, RunRequest::Default), [started(2, 1, 10)]);
    assert_eq!(
        arrive(3, RunRequest::Timed(secs(10))),
        [lowered(2, 0, 3, false), started(3, 1, 10)]
    );
    assert_eq!(arrive(4, RunRequest::Timed(secs(30))), []);
    assert_eq!(arrive(5, RunRequest::Timed(secs(3))), []);
    let reasons: Vec<_> = classes
        .waiting(NOW, Span::ZERO, &StartModel::default())
        .iter()
        .map(|one| (one.ticket.0, one.ahead, one.reason, one.estimate.unwrap().at_most))
        .collect();
    let slow = (4, 0, Reason::LimitReached { class: 2 }, secs(30));
    let fast = (5, 1, Reason::LimitReached { class: 0 }, secs(3));
    assert_eq!(reasons, [slow, fast]);
    assert_eq!(classes.remove(NOW + secs(3), Ticket(2)), [started(5, 0, 3)]);
    assert_eq!(classes.remove(NOW + secs(30), Ticket(1)), [started(4, 2, 30)]);
}

#[test]
fn a_default_task_gets_as_much_as_is_free() {
    let mut classes = pool([3, 2, 1]);
    assert_eq!(classes.arrive(NOW, Ticket(0), RunRequest::Default), [started(0, 2, 30)]);
    assert_eq!(classes.arrive(NOW, Ticket(1), RunRequest::Default), [started(1, 1, 10)]);
    assert_eq!(classes.arrive(NOW, Ticket(2), RunRequest::Default), [started(2, 0, 3)]);
}

#[test]
fn a_lowered_task_whose_time_is_over_ends_and_holds_only_its_backend() {
    let mut classes = pool([1, 1, 1]);
    classes.arrive(NOW, Ticket(0), RunRequest::Default);
    let late = NOW + secs(5);
    let decisions = classes.arrive(late, Ticket(1), RunRequest::Timed(secs(3)));
    assert_eq!(decisions, [lowered(0, 0, 3, true)]);
    assert_eq!([0, 1, 2].map(|class| classes.load().running(class)), [1, 0, 0]);
    let estimates = classes.waiting(late, Span::from_micros(70), &StartModel::default());
    assert_eq!(estimates[0].estimate.unwrap().at_most, Span::from_micros(70));
    assert_eq!(classes.remove(late, Ticket(0)), [started(1, 0, 3)]);
}

/// A new leader let a task of another scheduler whose time seemed to be over count for its backend only, and started another one of its
/// class beside its program: the time of a program does not include its preparation.
#[test]
fn a_task_of_another_scheduler_counts_in_its_class_until_it_ends() {
    let mut classes = pool([3, 2, 1]);
    let (kind, limit) = (TaskKind::Explicit, secs(30));
    let task = Resumed { kind, class: 2, started: NOW, limit, wish: limit };
    let late = NOW + secs(31);
    classes.resume(late, Ticket(0), task);
    assert_eq!([0, 1, 2].map(|class| classes.load().running(class)), [1, 1, 1]);
    assert_eq!(classes.arrive(late, Ticket(1), RunRequest::Timed(secs(30))), []);
    assert_eq!(classes.audit(), Ok(()));
    assert_eq!(classes.remove(late, Ticket(0)), [started(1, 2, 30)]);
}

#[test]
fn a_denied_shell_lowers_one_default_task_by_one_class() {
    let mut classes = pool([1, 1, 1]);
    classes.arrive(NOW, Ticket(0), RunRequest::Default);
    let denied = |ticket| Decision::Deny { ticket: Ticket(ticket), why: Denial::Busy };
    let arrive =
        |classes: &mut Classes, at| classes.arrive(NOW, Ticket(at), RunRequest::Interactive);
    assert_eq!(arrive(&mut classes, 1), [denied(1), lowered(0, 1, 10, false)]);
    assert_eq!(arrive(&mut classes, 2), [denied(2), lowered(0, 0, 3, false)]);
    assert_eq!(arrive(&mut classes, 3), [denied(3)]);
}

#[test]
fn a_shell_is_halted_for_a_task_that_then_starts() {
    let mut classes = pool([2, 1, 1]);
    for ticket in [0, 1] {
        let limit = Span::FOREVER;
        let start = Decision::Start { ticket: Ticket(ticket), class: None, limit };
        assert_eq!(classes.arrive(NOW, Ticket(ticket), RunRequest::Interactive), [start]);
    }
    let halted = |ticket| Decision::Halt { ticket: Ticket(ticket) };
    let decisions = classes.arrive(NOW, Ticket(2), RunRequest::Timed(secs(30)));
    assert_eq!(decisions, [halted(0), started(2, 2, 30)]);
    // A second slow one could not start even on the other shell's backend.
    assert_eq!(classes.arrive(NOW, Ticket(3), RunRequest::Timed(secs(30))), []);
    assert_eq!(
        classes.arrive(NOW, Ticket(4), RunRequest::Timed(secs(3))),
        [halted(1), started(4, 0, 3)]
    );
}

#[test]
fn a_patient_pool_waits_for_a_lowered_task_instead_of_halting_a_shell() {
    for patient in [false, true] {
        let mut classes = pool([2, 1, 1]);
        let mut rules = classes.rules().clone();
        rules.patient = patient;
        classes = Classes::new(rules, 1);
        classes.set_backends(NOW, 2);
        classes.arrive(NOW, Ticket(0), RunRequest::Default);
        classes.arrive(NOW, Ticket(1), RunRequest::Interactive);
        let decisions = classes.arrive(NOW + secs(5), Ticket(2), RunRequest::Timed(secs(3)));
        assert_eq!(decisions.contains(&Decision::Halt { ticket: Ticket(1) }), !patient);
        assert_eq!(decisions.contains(&started(2, 0, 3)), !patient);
    }
}

// The first in the queue of a patient pool got the estimate that it starts at once, on the backend
// of a spared session.
#[test]
fn a_spared_shell_counts_until_the_lowered_task_has_ended() {
    let mut rules = pool([2, 1, 1]).rules().clone();
    rules.patient = true;
    let mut classes = Classes::new(rules, 1);
    classes.set_backends(NOW, 2);
    classes.arrive(NOW, Ticket(0), RunRequest::Default);
    classes.arrive(NOW, Ticket(1), RunRequest::Interactive);
    let late = NOW + secs(5);
    classes.arrive(late, Ticket(2), RunRequest::Timed(secs(3)));
    classes.arrive(late, Ticket(3), RunRequest::Timed(secs(3)));
    let estimates = |now, classes: &Classes| {
        let waiting = classes.waiting(now, secs(2), &StartModel::default());
        waiting.iter().map(|one| one.estimate.unwrap().at_most).collect::<Vec<_>>()
    };
    // Then one has the backend of the lowered task, and the other that of the session.
    assert_eq!(estimates(late, &classes), [secs(2), secs(2)]);
    assert_eq!(estimates(late + secs(1), &classes), [secs(1), secs(1)]);
    let decisions = classes.remove(late + secs(1), Ticket(0));
    let halted = Decision::Halt { ticket: Ticket(1) };
    assert_eq!(decisions, [started(2, 0, 3), halted, started(3, 0, 3)]);
}

#[test]
fn a_client_may_lower_and_never_raise() {
    let mut classes = pool([1, 1, 1]);
    classes.arrive(NOW, Ticket(0), RunRequest::Timed(secs(30)));
    classes.arrive(NOW, Ticket(1), RunRequest::Timed(secs(30)));
    assert_eq!(classes.lower(NOW, Ticket(1), secs(31)), Err(LowerError::Raised));
    assert_eq!(classes.lower(NOW, Ticket(1), secs(2)), Ok(vec![]));
    assert_eq!(classes.lower(NOW, Ticket(9), secs(2)), Err(LowerError::Missing));
    assert_eq!(classes.lower(NOW, Ticket(0), secs(31)), Err(LowerError::Raised));
    assert_eq!(classes.lower(NOW, Ticket(0), secs(8)), Ok(vec![lowered(0, 1, 8, false)]));
    let stopped = classes.lower(NOW + secs(4), Ticket(0), Span::ZERO);
    assert_eq!(stopped, Ok(vec![lowered(0, 0, 0, true)]));
    assert_eq!(classes.remove(NOW + secs(4), Ticket(0)), [started(1, 0, 2)]);
}

#[test]
fn without_backends_all_wait_and_shells_are_denied() {
    let mut classes = pool([0, 1, 1]);
    assert_eq!(classes.arrive(NOW, Ticket(0), RunRequest::Default), []);
    let denied = Decision::Deny { ticket: Ticket(1), why: Denial::Busy };
    assert_eq!(classes.arrive(NOW, Ticket(1), RunRequest::Interactive), [denied]);
    let estimates = classes.waiting(NOW, Span::ZERO, &StartModel::default());
    assert_eq!((estimates[0].reason, estimates[0].estimate), (Reason::NoBackend, None));
    assert_eq!(classes.set_backends(NOW, 1), [started(0, 2, 30)]);
}

#[test]
fn a_pause_stops_all_starts() {
    let mut classes = pool([1, 1, 1]);
    assert_eq!(classes.set_paused(NOW, true), []);
    assert_eq!(classes.arrive(NOW, Ticket(0), RunRequest::Default), []);
    let estimates = classes.waiting(NOW, Span::ZERO, &StartModel::default());
    assert_eq!((estimates[0].reason, estimates[0].estimate), (Reason::PoolPaused, None));
    assert_eq!(classes.set_paused(NOW, false), [started(0, 2, 30)]);
}

#[test]
fn a_task_that_lost_its_backend_keeps_its_place() {
    let mut classes = pool([1, 1, 1]);
    for ticket in 0..3 {
        classes.arrive(NOW, Ticket(ticket), RunRequest::Timed(secs(3)));
    }
    classes.set_backends(NOW, 0);
    assert_eq!(classes.put_back(NOW, Ticket(0)), []);
    let order: Vec<_> = classes.waiting(NOW, Span::ZERO, &StartModel::default());
    assert_eq!(order.iter().map(|one| one.ticket.0).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(classes.set_backends(NOW, 1), [started(0, 0, 3)]);
}

#[test]
fn more_than_the_queue_holds_is_denied() {
    let mut rules = Rules::default();
    rules.queue_max = 1;
    let mut classes = Classes::new(rules, 1);
    assert_eq!(classes.arrive(NOW, Ticket(0), RunRequest::Default), []);
    let denied = Decision::Deny { ticket: Ticket(1), why: Denial::QueueFull };
    assert_eq!(classes.arrive(NOW, Ticket(1), RunRequest::Default), [denied]);
}

#[test]
fn a_task_whose_maximum_wait_is_over_is_denied() {
    let mut rules = Rules::default();
    rules.wait_max = Some(secs(5));
    let mut classes = Classes::new(rules, 1);
    assert_eq!(classes.next_expiry(), None);
    classes.arrive(NOW, Ticket(0), RunRequest::Timed(secs(30)));
    classes.arrive(NOW + secs(1), Ticket(1), RunRequest::Default);
    assert_eq!(classes.next_expiry(), Some(NOW + secs(5)));
    let early = Timestamp::from_micros((NOW + secs(5)).as_micros() - 1);
    assert_eq!(classes.expire(early), []);
    // Lowering keeps the place, and the time waited.
    assert_eq!(classes.lower(NOW + secs(4), Ticket(0), secs(3)), Ok(vec![]));
    let denied = |ticket| Decision::Deny { ticket: Ticket(ticket), why: Denial::Overloaded };
    assert_eq!(classes.expire(NOW + secs(5)), [denied(0)]);
    // A started task has no maximum wait; one that lost its backend begins to wait again.
    assert_eq!(classes.set_backends(NOW + secs(5), 1), [started(1, 2, 30)]);
    assert_eq!(classes.next_expiry(), None);
    classes.set_backends(NOW + secs(20), 0);
    classes.put_back(NOW + secs(20), Ticket(1));
    assert_eq!(classes.expire(NOW + secs(24)), []);
    assert_eq!(classes.expire(NOW + secs(25)), [denied(1)]);
    assert_eq!((classes.queued(), classes.audit()), (0, Ok(())));
}

#[test]
fn the_usual_limits_are_shares_of_the_backends_and_at_least_one() {
    let limits = |backends| Rules::default().limits(backends).as_slice().to_vec();
    assert_eq!(limits(8), [8, 4, 2]);
    assert_eq!(limits(3), [3, 1, 1]);
    assert_eq!(limits(1), [1, 1, 1]);
    assert_eq!(limits(0), [0, 0, 0]);
}

#[test]
fn durations_map_upward() {
    let rules = Rules::default();
    let class = |seconds| rules.class_for(secs(seconds));
    assert_eq!([0, 3, 4, 10, 11, 30, 99].map(class), [0, 0, 1, 1, 2, 2, 2]);
}

#[test]
fn rules_that_are_not_nested_are_refused() {
    let class = |name: &str, seconds, limit| Class::new(name, secs(seconds), limit);
    let first = class("a", 3, Limit::Percent(100));
    let refused = |second| Rules::new(vec![first.clone(), second]).unwrap_err();
    assert_eq!(Rules::new(vec![]).unwrap_err(), RulesError::ClassCount);
    assert_eq!(refused(class("b", 3, Limit::Percent(50))), RulesError::Duration("b".into()));
    assert_eq!(refused(class("b", 9, Limit::Count(0))), RulesError::Limit("b".into()));
    assert_eq!(refused(class("b", 9, Limit::Percent(101))), RulesError::Limit("b".into()));
    assert_eq!(refused(class("a", 9, Limit::Percent(50))), RulesError::Name("a".into()));
    let few = class("a", 3, Limit::Count(4));
    assert_eq!(Rules::new(vec![few]).unwrap_err(), RulesError::First("a".into()));
    let three = [class("b", 4, Limit::Count(2)), class("c", 5, Limit::Count(3))];
    let three = [vec![first.clone()], three.to_vec()].concat();
    assert_eq!(Rules::new(three).unwrap_err(), RulesError::Unsorted("c".into()));
    assert!(Rules::new(vec![first]).is_ok());
}

/// A client that repeated its current limit had its task lowered, and counted so.
#[test]
fn a_request_that_changes_nothing_lowers_nothing() {
    let mut classes = pool([3, 2, 1]);
    classes.arrive(NOW, Ticket(0), RunRequest::Timed(secs(20)));
    let mut lower = |ticket, seconds| classes.lower(NOW, Ticket(ticket), secs(seconds)).unwrap();
    assert_eq!(lower(0, 20), []);
    assert_eq!(lower(0, 15), [lowered(0, 2, 15, false)]);
    assert_eq!(lower(0, 15), []);
    assert_eq!(lower(0, 0), [lowered(0, 0, 0, true)]);
    assert_eq!(lower(0, 0), []);
    // A default task that has less than its client would let it.
    classes.arrive(NOW, Ticket(1), RunRequest::Timed(secs(30)));
    classes.arrive(NOW, Ticket(2), RunRequest::Default);
    assert_eq!(classes.lower(NOW, Ticket(2), secs(20)), Ok(vec![]));
}

//! The state of the scheduler with a manual clock: no program, no socket.

use std::time::Duration;

use taskyard_core::classes::{RunRequest, Ticket};
use taskyard_core::{Span, Timestamp};
use taskyard_pool::Config;
use taskyard_pool::protocol::QueuePosition;
use taskyard_pool::scheduler::{Action, FinishedRun, RunOutcome, SchedulerState, WithinCounts};

const PROGRAMS: &str = "seed: 1\nprograms: {x: {command: [/bin/true]}}\n";

fn at(millis: i64) -> Timestamp {
    Timestamp::from_micros(millis * 1_000)
}

/// A state with so many backends; `more` is further configuration.
fn state(backends: u32, more: &str) -> SchedulerState {
    let config = Config::parse(&format!("{PROGRAMS}{more}")).unwrap();
    let mut state = SchedulerState::new(&config).unwrap();
    assert_eq!(state.set_backends(at(0), backends), []);
    state
}

fn submit(state: &mut SchedulerState, millis: i64, ask: RunRequest) -> (Ticket, Vec<Action>) {
    let ticket = state.ticket();
    let actions = state.submit(at(millis), ticket, ask);
    state.schedule_estimates(at(millis));
    (ticket, actions)
}

fn timed(seconds: u64) -> RunRequest {
    RunRequest::Timed(Span::from_secs(seconds))
}

/// The number of the run that the only action starts.
fn attempt(actions: &[Action]) -> u64 {
    match actions {
        [Action::Start { attempt, .. }] => *attempt,
        other => panic!("{other:?}"),
    }
}

fn finished(ticket: Ticket, attempt: u64, outcome: RunOutcome) -> FinishedRun {
    let (took, stopping) = (Duration::from_secs(1), None);
    FinishedRun { ticket, attempt, outcome, seen: false, took, stopping }
}

/// The estimates that are published at this moment.
fn estimates_at(state: &mut SchedulerState, millis: i64) -> Vec<(Ticket, QueuePosition)> {
    let bounds = state.run_timers(at(millis)).into_iter().map(|action| match action {
        Action::Estimate(ticket, position) => (ticket, position),
        other => panic!("{other:?}"),
    });
    bounds.collect()
}

/// Task, bound and number of tasks ahead of each estimate.
fn bounds(actions: &[Action]) -> Vec<(Ticket, Option<f64>, usize)> {
    let bounds = actions.iter().map(|action| match action {
        Action::Estimate(ticket, position) => (*ticket, position.estimate, position.ahead),
        other => panic!("{other:?}"),
    });
    bounds.collect()
}

#[test]
fn a_session_that_is_retried_lowers_one_task_per_pause() {
    let lowered =
        |state: &SchedulerState| (state.status().counts.lowered, state.status().counts.denied);
    for (pause, wanted) in [("", (2, 4)), ("denial_pause_seconds: 1", (1, 4))] {
        let mut state = state(1, pause);
        submit(&mut state, 0, RunRequest::Default);
        for millis in [100, 200, 300, 1_000] {
            let (ticket, actions) = submit(&mut state, millis, RunRequest::Interactive);
            assert!(matches!(&actions[0], Action::Deny(denied, _) if *denied == ticket));
        }
        assert_eq!(lowered(&state), wanted);
        if wanted.0 == 1 {
            submit(&mut state, 1_100, RunRequest::Interactive);
            assert_eq!(lowered(&state), (2, 5), "the pause is over");
        }
    }
}

#[test]
fn estimates_are_published_at_once_after_changes_and_repeated_at_intervals() {
    let mut state = state(1, "");
    submit(&mut state, 0, timed(30));
    assert_eq!(state.next_timer(), None, "no task waits");
    let (second, actions) = submit(&mut state, 1_000, timed(3));
    // The time to stop a program is added.
    assert_eq!(bounds(&actions), [(second, Some(29.5), 0)]);
    assert_eq!((state.next_timer(), estimates_at(&mut state, 1_000)), (Some(at(1_000)), vec![]));
    // Later tasks get their estimate at once, each behind the earlier ones.
    let (third, actions) = submit(&mut state, 1_100, timed(30));
    assert_eq!(bounds(&actions), [(third, Some(29.4 + 3.5), 1)]);
    state.client_left(at(1_200), second);
    let (fourth, actions) = submit(&mut state, 1_200, timed(3));
    assert_eq!(bounds(&actions), [(fourth, Some(29.3 + 30.5), 1)]);
    state.client_left(at(1_200), third);
    assert_eq!(estimates_at(&mut state, 1_500).len(), 1, "it is earlier by far now");
    // Counting down is not a change, before five seconds have passed.
    for millis in [2_000, 2_500, 6_499] {
        assert_eq!(estimates_at(&mut state, millis), []);
    }
    assert_eq!(estimates_at(&mut state, 6_999).len(), 1);
    // Estimates are not updated twice within half a second.
    submit(&mut state, 7_100, timed(3));
    assert_eq!(state.next_timer(), Some(at(7_499)));
    // A slow update is followed by a long interval.
    state.note_estimate_time(Span::from_micros(100_000));
    assert_eq!(state.next_timer(), Some(at(7_999)));
}

#[test]
fn estimates_are_compared_with_the_start() {
    let mut state = state(1, "");
    let (first, actions) = submit(&mut state, 0, timed(10));
    let run = attempt(&actions);
    submit(&mut state, 0, timed(3));
    submit(&mut state, 0, timed(30));
    // The first ends before its time, the second is started early.
    let actions = state.finish_run(at(4_000), finished(first, run, RunOutcome::Done));
    let second = attempt(&actions);
    let counts = state.status().counts;
    assert_eq!((counts.estimates.estimates_given, counts.estimates.estimates_met), (1, 1));
    assert_eq!(counts.classes[0].estimates.early_seconds, 6.5);
    assert_eq!(counts.classes[0].waited_seconds, 4.0);
    // The second takes far longer than allowed, which no estimate includes: the third is late.
    state.finish_run(at(60_000), finished(Ticket(2), second, RunOutcome::Done));
    let counts = state.status().counts;
    assert_eq!((counts.estimates.estimates_given, counts.estimates.estimates_met), (2, 1));
    assert_eq!(counts.classes[2].estimates.late_seconds, 46.0);
    assert_eq!(state.status().estimates_met_share, Some(0.5));
}

/// The likely start in the only estimate.
fn likely(actions: &[Action]) -> (Option<f64>, Option<f64>, Option<f64>) {
    match actions {
        [Action::Estimate(_, position)] => (position.p50, position.p90, position.estimate),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_likely_start_is_learned_and_compared_with_the_start() {
    let mut state = state(1, "");
    let (first, actions) = submit(&mut state, 0, timed(10));
    let run = attempt(&actions);
    let (second, actions) = submit(&mut state, 0, timed(10));
    assert_eq!(likely(&actions), (None, None, Some(10.5)), "no task has ended");
    let actions = state.finish_run(at(1_000), finished(first, run, RunOutcome::Done));
    let run = attempt(&actions);
    assert_eq!(state.status().counts.estimates.within, WithinCounts::default());
    // Tasks of this class run for a second.
    let (third, actions) = submit(&mut state, 1_000, timed(10));
    let (Some(p50), Some(p90), Some(bound)) = likely(&actions) else { panic!("{actions:?}") };
    assert!((0.8..1.3).contains(&p50) && p50 <= p90 && p90 <= bound, "{p50}, {p90}, {bound}");
    submit(&mut state, 1_000, timed(10));
    // The next task starts by p50, the one after it later than both.
    let actions = state.finish_run(at(1_500), finished(second, run, RunOutcome::Done));
    let run = attempt(&actions);
    state.finish_run(at(11_000), finished(third, run, RunOutcome::Done));
    let counts = state.status().counts;
    assert_eq!(counts.estimates.within, WithinCounts { p50: 1, p90: 0, late: 1 });
    assert_eq!(counts.classes[1].estimates.within, counts.estimates.within);
    assert_eq!(counts.estimates.estimates_met, 3);
}

#[test]
fn a_second_end_of_a_run_is_ignored() {
    let mut state = state(1, "");
    let (first, actions) = submit(&mut state, 0, timed(10));
    let run = attempt(&actions);
    // Lost before the client saw output: it runs again, and the old run does not matter.
    let actions = state.finish_run(at(1_000), finished(first, run, RunOutcome::Lost));
    let again = attempt(&actions);
    assert_ne!(run, again);
    for outcome in [RunOutcome::Done, RunOutcome::Lost, RunOutcome::Stuck] {
        assert_eq!(state.finish_run(at(2_000), finished(first, run, outcome)), []);
    }
    assert_eq!(state.status().running, 1);
    let seen = FinishedRun { seen: true, ..finished(first, again, RunOutcome::Lost) };
    assert_eq!(state.finish_run(at(3_000), seen), [Action::Lost(first)]);
    assert_eq!((state.status().running, state.status().tracked), (0, 0));
}

#[test]
fn a_task_runs_three_times_at_most() {
    let mut state = state(1, "");
    let (first, mut actions) = submit(&mut state, 0, timed(10));
    for (run, more) in [true, true, false].into_iter().enumerate() {
        let [Action::Start { attempt, may_rerun, .. }] = actions[..] else { panic!("{actions:?}") };
        assert_eq!(may_rerun, more, "run {run}");
        actions = state.finish_run(at(1_000), finished(first, attempt, RunOutcome::Lost));
    }
    assert_eq!(actions, [Action::Lost(first)]);
}

#[test]
fn a_default_task_counts_where_it_waited_where_it_ran_and_where_it_was_lowered() {
    let mut state = state(1, "");
    let (first, actions) = submit(&mut state, 0, RunRequest::Default);
    let run = attempt(&actions);
    let (_, actions) = submit(&mut state, 1_000, timed(3));
    assert_eq!(actions, [Action::Limit(first, Duration::from_secs(3))]);
    state.finish_run(at(3_000), finished(first, run, RunOutcome::Done));
    let classes = state.status().counts.classes;
    assert_eq!((classes[0].admitted, classes[2].started, classes[2].lowered), (2, 1, 1));
    assert_eq!((classes[0].ended, classes[2].ended), (1, 0), "it ended as a fast one");
}

/// A task that should have ended has not: a new task must not get the estimate that it starts at once.
#[test]
fn a_new_task_gets_no_overdue_estimate() {
    let mut state = state(1, "");
    submit(&mut state, 0, timed(10));
    let (second, actions) = submit(&mut state, 9_000, timed(3));
    assert_eq!(bounds(&actions), [(second, Some(1.5), 0)]);
    // The first was to end at 10.5 s, and the second to run until 14 s.
    let (third, actions) = submit(&mut state, 11_000, timed(3));
    assert_eq!(bounds(&actions), [(third, Some(0.5 + 3.5), 1)]);
}

/// Each `options` frame of a client was counted as a lowering, also one that changed nothing, and every shorter
/// duration as one out of the class.
#[test]
fn only_a_real_reduction_is_counted_as_lowered() {
    let mut state = state(4, "");
    let (ticket, _) = submit(&mut state, 0, timed(20));
    let counted = |state: &SchedulerState| {
        let counts = state.status().counts;
        (counts.lowered, counts.classes.iter().map(|class| class.lowered).collect::<Vec<_>>())
    };
    let mut lower = |seconds| state.lower(at(100), ticket, Span::from_secs(seconds)).unwrap();
    assert_eq!(lower(20), []);
    assert_eq!(lower(15), [Action::Limit(ticket, Duration::from_secs(15))]);
    assert_eq!(lower(15), []);
    assert_eq!(lower(10), [Action::Limit(ticket, Duration::from_secs(10))]);
    assert_eq!(counted(&state), (2, vec![0, 0, 1]));
    // The pool may have given a default task less time than its client asked for.
    let (default, _) = submit(&mut state, 200, RunRequest::Default);
    assert_eq!(state.lower(at(300), default, Span::from_secs(30)), Ok(vec![]));
    assert_eq!(counted(&state), (2, vec![0, 0, 1]));
}

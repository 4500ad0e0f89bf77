//! Likely starts: learned from runs, and never after the guaranteed bound.

use taskyard_core::classes::estimate::{LikelyStart, StartModel};
use taskyard_core::classes::*;
use taskyard_core::estimate::Held;
use taskyard_core::{Span, Timestamp};

use super::world::{Troubles, World};
use crate::random::seeds;

const NOW: Timestamp = Timestamp::from_micros(1_000_000_000);
const FAST: Span = Span::from_secs(3);

/// A pool with so many backends, all of them busy since `NOW`, and 100 waiting tasks.
fn busy(backends: u32) -> Classes {
    let mut classes = Classes::new(Rules::default(), 1);
    classes.set_backends(NOW, backends);
    for ticket in 0..u64::from(backends) + 100 {
        classes.arrive(NOW, Ticket(ticket), RunRequest::Timed(FAST));
    }
    classes
}

/// A model of tasks that all run for this time.
fn learned(runs: u64, took: Span) -> StartModel {
    let mut model = StartModel::default();
    for run in 0..runs {
        model.add_run(NOW + Span::from_micros(run as i64), TaskKind::Explicit, 0, took);
    }
    model
}

fn likely(classes: &Classes, now: Timestamp, model: &StartModel) -> Vec<LikelyStart> {
    let waiting = classes.waiting(now, Span::ZERO, model);
    waiting.iter().map(|one| one.estimate.unwrap().likely.unwrap()).collect()
}

#[test]
fn without_history_there_is_a_bound_alone() {
    let waiting = busy(4).waiting(NOW, Span::ZERO, &StartModel::default());
    assert_eq!(waiting.len(), 100);
    assert!(waiting.iter().all(|one| one.estimate.unwrap().likely.is_none()));
    assert_eq!(waiting[0].estimate.unwrap().at_most, FAST);
}

#[test]
fn likely_starts_follow_from_run_times() {
    let model = learned(50, Span::from_secs(1));
    let starts = likely(&busy(4), NOW, &model);
    for (at, seconds) in [(0, 1.0), (39, 10.0), (99, 25.0)] {
        let p50 = starts[at].p50().as_secs_f64();
        assert!((p50 / seconds - 1.0).abs() < 0.2, "{p50} instead of {seconds}");
    }
    // A class in which no task has ended counts with its whole time.
    let mut other = StartModel::default();
    other.add_run(NOW, TaskKind::Explicit, 2, Span::from_secs(1));
    assert_eq!(likely(&busy(4), NOW, &other)[0].p50(), FAST);
}

#[test]
fn a_task_that_runs_for_long_delays_others_less() {
    let model = learned(50, Span::from_secs(2));
    let first = |millis: i64| {
        let now = NOW + Span::from_micros(millis * 1_000);
        likely(&busy(1), now, &model)[0].p50().as_secs_f64()
    };
    assert!((1.6..2.4).contains(&first(0)), "{}", first(0));
    assert!((0.6..1.4).contains(&first(1_000)), "{}", first(1_000));
}

#[test]
fn default_tasks_are_expected_to_be_lowered() {
    let mut model = learned(50, Span::from_secs(1));
    for _ in 0..50 {
        model.add_run(NOW, TaskKind::Default, 2, Span::from_secs(20));
    }
    let mut classes = Classes::new(Rules::default(), 1);
    classes.set_backends(NOW, 1);
    classes.arrive(NOW, Ticket(0), RunRequest::Default);
    classes.arrive(NOW, Ticket(1), RunRequest::Timed(FAST));
    assert_eq!(likely(&classes, NOW, &model)[0].p50(), FAST);
}

#[test]
fn a_change_of_speed_is_followed() {
    let mut model = learned(200, Span::from_secs(2));
    let slow = likely(&busy(4), NOW, &model)[50].p50();
    for run in 0..200 {
        let later = NOW + Span::from_secs(run);
        model.add_run(later, TaskKind::Explicit, 0, Span::from_micros(500_000));
    }
    let fast = likely(&busy(4), NOW, &model)[50].p50();
    assert!(fast.as_secs_f64() < 0.5 * slow.as_secs_f64(), "{fast:?} after {slow:?}");
}

/// Tasks that always start twice as late as the simulation says.
#[test]
fn comparisons_correct_later_estimates() {
    let mut model = learned(50, Span::from_secs(1));
    let classes = busy(4);
    let before = likely(&classes, NOW, &model)[60];
    let mut held = Vec::new();
    for round in 0..400 {
        let given = NOW + Span::from_secs(30 * round);
        let shown = likely(&classes, NOW, &model)[60].given(given);
        let wait = Span::from_micros(before.p50().as_micros() * 2);
        held.push(model.start(given + wait, 0, shown));
    }
    assert_eq!(held[0], Held::Late);
    let late = held[300..].iter().filter(|held| **held == Held::Late).count();
    assert!(late < 30, "{late} of 100");
    let after = likely(&classes, NOW, &model)[60];
    let factor = after.p50().as_secs_f64() / before.p50().as_secs_f64();
    assert!((1.8..2.2).contains(&factor), "{factor}");
    assert_eq!(model.calibrated(0).total(), 400);
}

/// The simulated worlds check that p50 ≤ p90 ≤ bound, and that tasks added one by one get the same estimates.
#[test]
fn likely_starts_keep_their_order_in_random_pools() {
    for seed in seeds(40) {
        println!("seed {seed}");
        let ending = Span::from_micros(200_000);
        let troubles = Troubles { losses: true, leaving: true, ending, patient: seed % 2 == 0 };
        let mut world = World::new(seed, troubles);
        world.run(100);
        assert!(world.likely > 0, "some tasks had a likely start");
    }
}

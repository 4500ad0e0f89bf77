//! Later tasks change nothing for earlier ones: neither their estimates, nor their starts.

use std::collections::BTreeSet;

use fastrand::Rng;
use taskyard_core::classes::estimate::{Occupant, Profile, Simulation, StartModel, Waiter};
use taskyard_core::classes::*;
use taskyard_core::{Span, Timestamp};

use super::world::rules;

const NOW: Timestamp = Timestamp::from_micros(50);

fn waiter(rng: &mut Rng, classes: usize) -> Waiter {
    let class = rng.usize(..classes) as u8;
    Waiter { class, time: Span::from_micros(rng.i64(1..=20)) }
}

#[test]
fn the_starts_of_the_first_do_not_depend_on_the_rest() {
    let mut compared = 0;
    for seed in 0..2_000 {
        let mut rng = Rng::with_seed(seed);
        let (rules, backends) = rules(&mut rng);
        let limits = rules.limits(backends);
        let limits = limits.as_slice();
        let waiters: Vec<_> = (0..40).map(|_| waiter(&mut rng, limits.len())).collect();
        let running = rng.u32(0..=limits[limits.len() - 1]);
        let occupants: Vec<_> = (0..running)
            .map(|_| Occupant { class: 0, end: NOW + Span::from_micros(rng.i64(..30)) })
            .collect();
        let simulation = Simulation::new(NOW, limits, occupants);
        let all = simulation.clone().starts(waiters.clone());
        for length in 0..waiters.len() {
            let some = simulation.clone().starts(waiters[..length].iter().copied());
            assert_eq!(some, all[..length], "seed {seed}, {length} tasks");
            compared += 1;
        }
    }
    assert_eq!(compared, 80_000);
}

#[test]
fn shorter_tasks_delay_no_other_task() {
    for seed in 0..3_000 {
        let mut rng = Rng::with_seed(seed);
        let (rules, backends) = rules(&mut rng);
        let limits = rules.limits(backends);
        let limits = limits.as_slice();
        let waiters: Vec<_> = (0..40).map(|_| waiter(&mut rng, limits.len())).collect();
        let shorter = waiters.iter().map(|waiter| Waiter {
            time: Span::from_micros(rng.i64(0..=waiter.time.as_micros())),
            ..*waiter
        });
        let shorter: Vec<_> = shorter.collect();
        let before = Simulation::new(NOW, limits, []).starts(waiters);
        let after = Simulation::new(NOW, limits, []).starts(shorter);
        assert!(before.iter().zip(&after).all(|(before, after)| after <= before), "seed {seed}");
    }
}

/// Adding tasks one by one gives the same as simulating the whole queue.
#[test]
fn adding_one_task_gives_the_same_start_as_a_new_simulation() {
    let mut compared = 0;
    for seed in 0..500 {
        let mut rng = Rng::with_seed(seed);
        let (rules, backends) = rules(&mut rng);
        let limits = rules.limits(backends);
        let limits = limits.as_slice();
        let waiters: Vec<_> = (0..40).map(|_| waiter(&mut rng, limits.len())).collect();
        // Nested like the limits, or more tasks would run than allowed.
        let running = rng.u32(0..=limits[limits.len() - 1]);
        let occupants: Vec<_> = (0..running)
            .map(|_| {
                let class = rng.usize(..limits.len()) as u8;
                Occupant { class, end: NOW + Span::from_micros(rng.i64(..30)) }
            })
            .collect();
        let all = Simulation::new(NOW, limits, occupants.clone()).starts(waiters.clone());
        let mut profile = Profile::new(NOW, limits, occupants);
        for (at, waiter) in waiters.into_iter().enumerate() {
            assert_eq!(profile.add(NOW, waiter), Some(all[at]), "seed {seed}, task {at}");
            compared += 1;
        }
    }
    assert_eq!(compared, 20_000);
    let mut none = Profile::new(NOW, &[0], []);
    assert_eq!(none.add(NOW, Waiter { class: 0, time: Span::from_secs(1) }), None);
}

/// When each task starts in a pool where all arrive at once and use all their time.
fn starts(mut classes: Classes, wishes: &[Span]) -> Vec<Timestamp> {
    let mut starts = vec![Timestamp::NEVER; wishes.len()];
    let mut ends = BTreeSet::new();
    let mut note = |now, decisions: Vec<Decision>, ends: &mut BTreeSet<_>| {
        for decision in decisions {
            let Decision::Start { ticket, limit, .. } = decision else { panic!("{decision:?}") };
            starts[ticket.0 as usize] = now;
            ends.insert((now + limit, ticket));
        }
    };
    for (ticket, wish) in wishes.iter().enumerate() {
        let decisions = classes.arrive(NOW, Ticket(ticket as u64), RunRequest::Timed(*wish));
        note(NOW, decisions, &mut ends);
    }
    while let Some((now, ticket)) = ends.pop_first() {
        let decisions = classes.remove(now, ticket);
        note(now, decisions, &mut ends);
    }
    starts
}

#[test]
fn a_pool_of_explicit_tasks_starts_them_exactly_as_estimated() {
    for seed in 0..500 {
        let mut rng = Rng::with_seed(seed);
        let (rules, backends) = rules(&mut rng);
        let longest = rules.longest().as_micros();
        let mut classes = Classes::new(rules, seed);
        classes.set_backends(NOW, backends);
        let wishes: Vec<_> = (0..60).map(|_| Span::from_micros(rng.i64(1..longest))).collect();
        let all = starts(classes.clone(), &wishes);
        for length in [1, 7, 30, 59] {
            assert_eq!(starts(classes.clone(), &wishes[..length]), all[..length], "seed {seed}");
        }
        for (ticket, wish) in wishes.iter().enumerate() {
            classes.arrive(NOW, Ticket(ticket as u64), RunRequest::Timed(*wish));
        }
        let model = StartModel::default();
        let mut forecast = classes.forecast(NOW, Span::ZERO, &model);
        for one in classes.waiting(NOW, Span::ZERO, &model) {
            // Added one by one the result is the same.
            assert_eq!(
                classes.add_to_forecast(NOW, one.ticket, &mut forecast, &model),
                Some(one),
                "seed {seed}"
            );
            let estimates = NOW + one.estimate.unwrap().at_most;
            assert_eq!(estimates, all[one.ticket.0 as usize], "seed {seed}, task {}", one.ticket);
        }
    }
}

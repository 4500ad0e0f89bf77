//! Random pools in several variants. The simulated world itself checks the guarantees.

use taskyard_core::Span;

use super::world::{Troubles, World};
use crate::random::seeds;

const RUNS: u64 = 80;

fn run_all(troubles: Troubles, runs: u64) {
    for seed in seeds(runs) {
        println!("seed {seed}");
        World::new(seed, troubles).run(100);
    }
}

#[test]
fn limits_order_and_estimates_hold_in_a_quiet_world() {
    run_all(Troubles::default(), RUNS);
}

#[test]
fn they_hold_when_clients_leave_and_lower() {
    run_all(Troubles { leaving: true, ..Troubles::default() }, RUNS);
}

#[test]
fn they_hold_when_backends_die_and_pools_pause() {
    run_all(Troubles { losses: true, leaving: true, ..Troubles::default() }, RUNS);
}

#[test]
fn they_hold_when_tasks_end_slowly() {
    run_all(Troubles { ending: Span::from_micros(300_000), ..Troubles::default() }, RUNS);
}

// A task that waited behind a spared session got the estimate of a backend that would have been
// free without it.
#[test]
fn they_hold_when_sessions_are_spared() {
    let ending = Span::from_micros(300_000);
    run_all(Troubles { ending, patient: true, ..Troubles::default() }, RUNS);
}

#[test]
fn the_same_seed_gives_the_same_log() {
    for seed in seeds(40) {
        let troubles = Troubles { losses: true, leaving: true, ..Troubles::default() };
        let mut worlds = [World::new(seed, troubles), World::new(seed, troubles)];
        worlds.iter_mut().for_each(|world| world.run(150));
        assert_eq!(worlds[0].log, worlds[1].log, "seed {seed}");
        assert!(worlds[0].log.len() > 50);
    }
}

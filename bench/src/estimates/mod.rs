//! A laboratory for estimates: seeded workloads in a simulated queue or pool, whose estimates are compared with the starts of the
//! tasks.

mod figures;
mod pool_workloads;
mod pool_world;
mod workloads;
mod world;

use super::Size;
use super::report::{Report, Row, Target};
use figures::EstimateFigures;
use pool_world::PoolWorld;
use world::World;

/// Compared estimates of each workload, in a full and in a quick run.
const ESTIMATES: [usize; 2] = [120_000, 20_000];
/// The seed of all workloads.
const SEED: u64 = 17;

pub fn measure(report: &mut Report, size: Size) {
    let count = ESTIMATES[usize::from(size.is_quick())];
    for workload in workloads::all() {
        let name = workload.name;
        let mut world = World::new(workload, SEED);
        world.run(count);
        add_rows(report, name, &mut world.figures);
    }
    for workload in pool_workloads::all() {
        let name = workload.name;
        let mut world = PoolWorld::new(workload, SEED);
        world.run(count);
        add_rows(report, name, &mut world.figures);
    }
}

fn add_rows(report: &mut Report, name: &str, figures: &mut EstimateFigures) {
    let (error, waited) = figures.median_error();
    let compared = format!("{} estimates, seed {SEED}", figures.len());
    let rows = [
        ("p50 held", figures.within_p50(), Target::Within(40.0, 60.0), compared.clone()),
        ("p90 held", figures.within_p90(), Target::Within(85.0, 95.0), compared),
        (
            "median error of p50",
            error,
            Target::AtMost(25.0),
            format!("{waited} tasks that waited at least 10 ms"),
        ),
    ];
    for (what, figure, target, note) in rows {
        let what = format!("{what}, {name}");
        report.add(Row { what, figure, unit: "%", target: Some(target), note });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The benchmark has the figures of long runs; this notices estimates that are wrong altogether.
    #[test]
    fn estimates_are_near_the_starts_in_every_workload() {
        for workload in workloads::all() {
            let name = workload.name;
            let mut world = World::new(workload, SEED);
            world.run(600);
            let figures = &mut world.figures;
            assert_eq!(figures.len(), 600, "{name}");
            let (error, waited) = figures.median_error();
            assert!(waited > 300 && error < 60.0, "{name}: {error} % of {waited}");
        }
    }

    /// The same for pools; the rules of the core make the bound.
    #[test]
    fn estimates_are_near_the_starts_in_every_pool() {
        for workload in pool_workloads::all() {
            let name = workload.name;
            let mut world = PoolWorld::new(workload, SEED);
            world.run(600);
            let figures = &mut world.figures;
            assert_eq!(figures.len(), 600, "{name}");
            let (error, waited) = figures.median_error();
            assert!(waited > 300 && error < 60.0, "{name}: {error} % of {waited}");
        }
    }
}

//! The workloads of simulated pools. Their classes are fast, medium and slow: 3, 10 and 30 s, for all, half and a quarter of
//! the backends.

use fastrand::Rng;
use taskyard_core::Span;
use taskyard_core::classes::RunRequest;

use super::workloads::{Arrivals, Times};

/// A workload of a pool.
#[derive(Clone)]
pub struct PoolWorkload {
    pub name: &'static str,
    pub arrivals: Arrivals,
    /// The run times of fast tasks; those of other classes are longer in proportion.
    pub runs: Times,
    /// The part of tasks that are default ones, and of interactive ones.
    pub kinds: (f64, f64),
    /// How many backends there are, and how many more or fewer at times.
    pub backends: (u32, u32),
    /// The period of their change, in seconds.
    pub change: f64,
    /// How many times longer tasks run in every second period of 10 minutes.
    pub slowdown: f64,
    /// The part of waiting clients that leave, and of those that lower the duration of their running task.
    pub clients: (f64, f64),
}

/// The classes: their seconds, the factor of their run times, and how many of ten tasks with a duration have them.
const CLASSES: [(u64, f64, f64); 3] = [(3, 1.0, 7.6), (10, 3.5, 1.9), (30, 9.0, 0.5)];

impl PoolWorkload {
    fn new(name: &'static str, arrivals: Arrivals, runs: Times) -> Self {
        PoolWorkload {
            name,
            arrivals,
            runs,
            kinds: (0.2, 0.0),
            backends: (16, 0),
            change: 1.0,
            slowdown: 1.0,
            clients: (0.0, 0.0),
        }
    }

    /// A task that arrives: how it is to run, and how long it runs if it is not stopped, in seconds.
    pub fn task(&self, seconds: f64, random: &mut Rng) -> (RunRequest, f64) {
        let kind = random.f64();
        let slower = if (seconds / 600.0) as u64 % 2 == 1 { self.slowdown } else { 1.0 };
        let run = self.runs.sample(random) * slower;
        if kind < self.kinds.0 {
            return (RunRequest::Default, 2.0 * run);
        }
        if kind < self.kinds.0 + self.kinds.1 {
            return (RunRequest::Interactive, 20.0 * run);
        }
        let mut place = random.f64() * 10.0;
        let class = CLASSES.iter().find(|class| {
            place -= class.2;
            place < 0.0
        });
        let (duration, factor, _) = class.unwrap_or(&CLASSES[0]);
        (RunRequest::Timed(Span::from_secs(*duration)), factor * run)
    }

    /// The number of backends at a moment.
    pub fn backends(&self, seconds: f64) -> u32 {
        let (usual, change) = self.backends;
        match (seconds / self.change) as u64 % 4 {
            1 => usual + change / 2,
            3 => usual - change,
            _ => usual,
        }
    }
}

/// All workloads of pools.
pub fn all() -> Vec<PoolWorkload> {
    use Arrivals::{Bursts, Steady, Wave};
    use Times::{Even, Exponential, HeavyTailed};
    let bursts = Bursts(Exponential(60.0), 300);
    vec![
        PoolWorkload::new("pool, steady", Steady(Exponential(0.112)), Exponential(1.0)),
        PoolWorkload::new("pool, bursts", bursts, Even(1.5)),
        PoolWorkload::new("pool, heavy tails", bursts, HeavyTailed(0.8)),
        PoolWorkload {
            backends: (16, 8),
            change: 150.0,
            ..PoolWorkload::new("pool, changing limits", Wave(900.0, 0.14, 0.2), Exponential(1.0))
        },
        PoolWorkload {
            kinds: (0.5, 0.1),
            clients: (0.05, 0.1),
            ..PoolWorkload::new("pool, lowering and sessions", bursts, Exponential(1.2))
        },
        PoolWorkload {
            slowdown: 2.0,
            ..PoolWorkload::new("pool, change of speed", Bursts(Exponential(120.0), 300), Even(1.0))
        },
    ]
}

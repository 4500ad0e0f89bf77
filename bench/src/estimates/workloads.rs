//! The workloads of the laboratory.

use fastrand::Rng;
use taskyard_core::{Finish, Kind, RateLimit, Span, TubeOptions};

use super::world::{Arrival, Workload};

/// Times between arrivals and run times.
#[derive(Clone, Copy, Debug)]
pub enum Times {
    /// Nearly the same.
    Even(f64),
    /// Without memory.
    Exponential(f64),
    /// Most are short and some very long.
    HeavyTailed(f64),
}

impl Times {
    pub fn sample(self, random: &mut Rng) -> f64 {
        let uniform = random.f64().max(1e-12);
        match self {
            Times::Even(mean) => mean * (0.8 + 0.4 * uniform),
            Times::Exponential(mean) => -mean * uniform.ln(),
            // A Pareto distribution with a finite variance, cut at 50 times its mean.
            Times::HeavyTailed(mean) => {
                let shape = 2.2;
                let least = mean * (shape - 1.0) / shape;
                (least / uniform.powf(1.0 / shape)).min(50.0 * mean)
            }
        }
    }
}

/// How tasks arrive.
#[derive(Clone, Copy, Debug)]
pub enum Arrivals {
    /// One by one.
    Steady(Times),
    /// Many at once, at these times.
    Bursts(Times, usize),
    /// The rate follows a wave: its period in seconds, the mean time between two, and the part of it that changes.
    Wave(f64, f64, f64),
}

impl Arrivals {
    /// After how many seconds the next tasks arrive, and how many.
    pub fn next(self, seconds: f64, random: &mut Rng) -> (f64, usize) {
        match self {
            Arrivals::Steady(times) => (times.sample(random), 1),
            Arrivals::Bursts(times, count) => (times.sample(random), random.usize(1..2 * count)),
            Arrivals::Wave(period, mean, part) => {
                let wave = 1.0 + part * (seconds / period * std::f64::consts::TAU).sin();
                (Times::Exponential(mean / wave).sample(random), 1)
            }
        }
    }
}

/// A workload made of parts.
#[derive(Clone)]
pub struct Parts {
    pub name: &'static str,
    pub tubes: Vec<TubeOptions>,
    pub arrivals: Arrivals,
    pub runs: Times,
    /// How many consumers there are, and how many more or fewer at times.
    pub consumers: (usize, usize),
    /// The period of their change, in seconds.
    pub change: f64,
    /// The part of tasks with a better priority.
    pub urgent: f64,
    /// The number of sub-queues.
    pub subqueues: usize,
    /// The part of deliveries that fail.
    pub failures: f64,
    /// The part of tasks that are delayed, and for how long at most.
    pub delayed: (f64, f64),
    pub semaphore: Option<u32>,
}

impl Parts {
    fn new(name: &'static str, arrivals: Arrivals, runs: Times, consumers: usize) -> Self {
        Parts {
            name,
            tubes: vec![TubeOptions::new(Kind::FifoTtl)],
            arrivals,
            runs,
            consumers: (consumers, 0),
            change: 1.0,
            urgent: 0.0,
            subqueues: 0,
            failures: 0.0,
            delayed: (0.0, 0.0),
            semaphore: None,
        }
    }
}

/// All workloads.
pub fn all() -> Vec<Parts> {
    use Arrivals::{Bursts, Steady, Wave};
    use Times::{Even, Exponential, HeavyTailed};
    let limited = RateLimit { count: 50, per: Span::from_secs(1), burst: 50 };
    let two = vec![TubeOptions::new(Kind::FifoTtl); 2];
    vec![
        Parts::new("steady", Steady(Exponential(0.0103)), Exponential(0.1), 10),
        Parts::new("bursty", Bursts(Exponential(20.0), 800), Even(0.2), 10),
        Parts::new("heavy-tailed", Bursts(Exponential(12.0), 1_000), HeavyTailed(0.1), 12),
        Parts {
            urgent: 0.3,
            ..Parts::new("overtaking", Wave(600.0, 0.0105, 0.25), Exponential(0.1), 10)
        },
        Parts {
            consumers: (12, 8),
            change: 45.0,
            ..Parts::new("consumers come and go", Wave(300.0, 0.0098, 0.2), Even(0.1), 10)
        },
        Parts {
            tubes: vec![TubeOptions::new(Kind::UtubeTtl)],
            subqueues: 20,
            ..Parts::new("sub-queues", Bursts(Exponential(20.0), 900), Exponential(0.15), 8)
        },
        Parts {
            tubes: vec![TubeOptions {
                rate: Some(Box::new(limited)),
                ..TubeOptions::new(Kind::FifoTtl)
            }],
            ..Parts::new("rate-limited", Bursts(Exponential(25.0), 1_000), Even(0.05), 20)
        },
        Parts {
            semaphore: Some(6),
            ..Parts::new("semaphore", Bursts(Exponential(20.0), 600), Exponential(0.15), 12)
        },
        Parts {
            failures: 0.2,
            ..Parts::new("retries", Bursts(Exponential(20.0), 700), Exponential(0.2), 10)
        },
        Parts {
            delayed: (0.6, 30.0),
            ..Parts::new("delayed storms", Bursts(Exponential(20.0), 800), Exponential(0.2), 10)
        },
        Parts {
            tubes: two,
            ..Parts::new("two tubes", Bursts(Exponential(15.0), 600), Even(0.2), 10)
        },
        Parts::new("idle to busy", Bursts(Exponential(120.0), 2_000), Exponential(0.1), 8),
    ]
}

impl Workload for Parts {
    fn tubes(&self) -> Vec<TubeOptions> {
        self.tubes.clone()
    }

    fn semaphore(&self) -> Option<u32> {
        self.semaphore
    }

    fn consumers(&self, seconds: f64) -> usize {
        let (usual, change) = self.consumers;
        match (seconds / self.change) as u64 % 4 {
            1 => usual + change / 2,
            3 => usual - change,
            _ => usual,
        }
    }

    fn arrive(&mut self, seconds: f64, random: &mut Rng) -> (f64, Vec<Arrival>) {
        let (wait, count) = self.arrivals.next(seconds, random);
        (wait, (0..count).map(|_| self.new_arrival(random)).collect())
    }

    fn run(&mut self, _tube: usize, random: &mut Rng) -> (f64, Finish) {
        let finish = if random.f64() < self.failures {
            Finish::Release { delay: Span::from_secs(2), counted: true }
        } else {
            Finish::Ack
        };
        (self.runs.sample(random), finish)
    }
}

impl Parts {
    fn new_arrival(&self, random: &mut Rng) -> Arrival {
        let mut arrival = Arrival::new(random.usize(..self.tubes.len()));
        arrival.task.pri = Some(if random.f64() < self.urgent { 1 } else { 10 });
        if self.subqueues > 0 {
            arrival.task.subqueue = Some(format!("q{}", random.usize(..self.subqueues)).into());
        }
        if random.f64() < self.delayed.0 {
            arrival.task.delay = Span::from_secs_f64(self.delayed.1 * random.f64());
        }
        arrival
    }
}

//! Draws one run from its seed: tubes, clients, servers, weights of operations, and faults.
//!
//! A run uses a random part of all features, so that rare combinations meet often. Every operation and every fault has a
//! number and random numbers of its own; a mask leaves some of them out without a change of the others.

use std::collections::BTreeSet;
use std::time::Duration;

use fastrand::Rng;
use taskyard_core::Timestamp;
use taskyard_store::OpenOptions;

use crate::effects::FaultName;
use crate::faults::{Fault, draw_faults, draw_freezes, draw_stops_and_slow_disks};
use crate::history::OperationNumber;
use crate::operations::Weights;
use crate::pool::PoolPlan;
use crate::tubes::TubeRole;
use crate::workers::{WorkerSpec, draw_workers};

/// What stores the tasks of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// One server with a store in memory, and no fault.
    Quiet,
    /// One server with a store in memory, which freezes and whose wall clock is set.
    Memory,
    /// One server with the embedded store on a disk that breaks.
    Embedded,
    /// The same, with a crash after every few commands.
    Crashes,
    /// Several servers that share a database.
    Shared,
    /// Clients over iproto on a network that breaks, and servers that share a database.
    Network,
    /// The same with workers of the product, which crash.
    Workers,
    /// One server with a store in memory, steady consumers, and questions when tasks will start.
    Estimates,
    /// A pool over a Redis that breaks.
    Pool,
}

impl Scenario {
    /// All of them.
    pub const ALL: [Scenario; 9] = [
        Scenario::Quiet,
        Scenario::Memory,
        Scenario::Embedded,
        Scenario::Crashes,
        Scenario::Shared,
        Scenario::Network,
        Scenario::Workers,
        Scenario::Estimates,
        Scenario::Pool,
    ];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Scenario::Quiet => "quiet",
            Scenario::Memory => "memory",
            Scenario::Embedded => "embedded",
            Scenario::Crashes => "crashes",
            Scenario::Shared => "shared",
            Scenario::Network => "network",
            Scenario::Workers => "workers",
            Scenario::Estimates => "estimates",
            Scenario::Pool => "pool",
        }
    }

    /// Whether clients reach servers over a simulated network.
    pub const fn has_network(self) -> bool {
        matches!(self, Scenario::Network | Scenario::Workers)
    }

    /// Whether its server has the embedded store.
    pub const fn is_embedded(self) -> bool {
        matches!(self, Scenario::Embedded | Scenario::Crashes)
    }

    /// Whether its clients can do what extended runs do.
    const fn can_be_extended(self) -> bool {
        !matches!(self, Scenario::Quiet | Scenario::Workers | Scenario::Estimates)
    }

    /// The scenario of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Scenario::ALL.into_iter().find(|scenario| scenario.name() == name)
    }
}

/// What a run does.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its seed.
    pub seed: u64,
    /// What stores the tasks.
    pub scenario: Scenario,
    /// The number of servers.
    pub servers: usize,
    /// The number of clients.
    pub clients: u32,
    /// The number of operations of each client.
    pub operations: u32,
    /// The longest pause between two operations of a client.
    pub pause_max: Duration,
    /// The longest way of a request or a reply between a server and the database.
    pub latency_max: Duration,
    /// How often each operation happens.
    pub weights: Weights,
    /// The tubes in use.
    pub tubes: Vec<TubeRole>,
    /// Whether there are schedules.
    pub schedules: bool,
    /// The most deliveries of the tube with a semaphore.
    pub semaphore_limit: i64,
    /// The virtual time at which it starts.
    pub start: Timestamp,
    /// What breaks.
    pub faults: Vec<Fault>,
    /// Whether it uses what was added after the first seeds were kept: tubes are altered, paused and dropped, tasks are chosen from
    /// lists, done tasks are kept. The seeds without it repeat the histories that they had before.
    pub is_extended: bool,
    /// Whether the clients of a server share one connection to it.
    pub shares_connections: bool,
    /// The clients that use HTTP, which has no sessions.
    pub http_clients: BTreeSet<u32>,
    /// Whether it lasts for days or weeks, across a change of daylight saving time.
    pub lasts_days: bool,
    /// How many bytes of payloads an embedded store keeps in memory.
    pub memory_bytes: usize,
    /// Whether a full disk also refuses to write over what it has.
    pub copies_on_write: bool,
    /// The processes of workers.
    pub workers: Vec<WorkerSpec>,
    /// How many consumers of a semaphore may run, if there are such.
    pub consumers: Option<usize>,
    /// The pool, if the run has one instead of tubes.
    pub pool: Option<PoolPlan>,
}

/// In [`Scenario::Crashes`] a crash comes after so many times the longest pause of a client.
pub const CRASH_PAUSES: u32 = 2;

/// When the clocks of Berlin were set, in seconds since 1970, and how far they are ahead of UTC from then on.
pub const BERLIN_CHANGES: [(i64, i64); 4] = [
    (1_698_541_200, 3_600),
    (1_711_846_800, 7_200),
    (1_729_990_800, 3_600),
    (1_743_296_400, 7_200),
];

/// The operations and faults that a run leaves out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mask {
    /// Operations.
    pub operations: BTreeSet<OperationNumber>,
    /// Indexes of faults.
    pub faults: BTreeSet<usize>,
}

impl Plan {
    /// Draws the run of a seed.
    pub fn draw(seed: u64, scenario: Scenario) -> Self {
        let mut rng = stream(seed, u64::MAX, 0);
        let servers = match scenario {
            Scenario::Shared => rng.usize(2..=4),
            Scenario::Network | Scenario::Workers => rng.usize(1..=2),
            _ => 1,
        };
        let (clients, operations) = match scenario {
            Scenario::Quiet => (16, 500),
            Scenario::Workers => (rng.u32(1..=4), rng.u32(5..=40)),
            Scenario::Estimates => (0, 0),
            _ => (rng.u32(2..=8), rng.u32(20..=120)),
        };
        let pauses = [0, 5, 200, 5_000, 60_000];
        let pause_max = match scenario {
            Scenario::Quiet => Duration::ZERO,
            _ => Duration::from_millis(pauses[rng.usize(0..pauses.len())]),
        };
        let latencies = [0, 2, 20, 200];
        let latency_max = Duration::from_millis(latencies[rng.usize(0..latencies.len())]);
        let mut plan = Plan {
            seed,
            scenario,
            servers,
            clients,
            operations,
            pause_max,
            latency_max,
            weights: Weights::draw(&mut rng),
            tubes: TubeRole::draw(&mut rng),
            schedules: rng.u8(0..3) == 0,
            semaphore_limit: rng.i64(1..=3),
            start: Timestamp::from_micros(
                1_700_000_000_000_000 + rng.i64(0..40_000_000) * 1_000_000,
            ),
            faults: Vec::new(),
            is_extended: seed % 4 >= 2 && scenario.can_be_extended(),
            shares_connections: stream(seed, u64::MAX, 4).bool(),
            http_clients: BTreeSet::new(),
            lasts_days: false,
            memory_bytes: OpenOptions::default().memory_bytes,
            copies_on_write: false,
            workers: Vec::new(),
            consumers: None,
            pool: None,
        };
        if scenario == Scenario::Pool {
            plan.draw_pool(&mut stream(seed, u64::MAX, 5));
            return plan;
        }
        if scenario == Scenario::Estimates {
            (plan.tubes, plan.schedules) = (vec![TubeRole::Plain], false);
        }
        plan.draw_rest(&mut rng);
        plan
    }

    /// Draws what follows from the scenario, and the faults.
    fn draw_rest(&mut self, rng: &mut Rng) {
        let (seed, scenario) = (self.seed, self.scenario);
        match scenario {
            Scenario::Network => {
                self.http_clients = draw_http_clients(self.clients, &mut stream(seed, u64::MAX, 6));
            }
            Scenario::Workers => self.draw_workers(),
            _ => {}
        }
        if scenario == Scenario::Crashes {
            self.draw_crashes(rng);
        }
        if scenario.is_embedded() && self.has_later_features() {
            self.draw_disk(&mut stream(seed, u64::MAX, 15));
        }
        if self.is_extended {
            self.extend(&mut stream(seed, u64::MAX, 2));
        }
        if scenario != Scenario::Quiet {
            self.faults = draw_faults(self, rng);
        }
        self.draw_freezes();
        self.draw_stops_and_slow_disks();
    }

    /// Adds what only extended runs have, with random numbers of their own.
    fn extend(&mut self, rng: &mut Rng) {
        self.weights.extend(rng);
        if rng.bool() {
            self.tubes.push(TubeRole::Kept);
        }
        // Servers with a shared database look for changes every second, which takes long for days.
        if self.scenario == Scenario::Memory && rng.u8(0..4) == 0 {
            self.lasts_days = true;
            self.schedules = true;
            // Days, or weeks; the others keep the histories that they had before.
            let hours = if self.seed % 8 == 7 { 12 } else { 4 };
            self.pause_max = Duration::from_secs(hours * 3_600);
            let change = BERLIN_CHANGES[rng.usize(0..BERLIN_CHANGES.len())].0;
            self.start = Timestamp::from_micros((change - rng.i64(0..100_000)) * 1_000_000);
        }
    }

    /// Draws workers and consumers, with random numbers of their own.
    fn draw_workers(&mut self) {
        self.weights.only_produce();
        self.workers = draw_workers(self, &mut stream(self.seed, u64::MAX, 5));
        let mut rng = stream(self.seed, u64::MAX, 10);
        self.consumers = rng.bool().then(|| rng.usize(1..=4));
    }

    /// Draws when workers freeze. Half of the seeds keep the histories that they had before.
    fn draw_freezes(&mut self) {
        if self.scenario == Scenario::Workers && self.seed % 4 >= 2 {
            let freezes = draw_freezes(self, &mut stream(self.seed, u64::MAX, 12));
            self.faults.extend(freezes);
        }
    }

    /// Whether it has what was added after extended runs. The other seeds keep the histories that they had before.
    pub fn has_later_features(&self) -> bool {
        matches!(self.seed % 8, 0 | 2 | 7)
    }

    /// Draws long payloads, of which some stay on disk, and what a full disk is.
    fn draw_disk(&mut self, rng: &mut Rng) {
        self.weights.payload_bytes_max = [0, 400, 20_000][rng.usize(0..3)];
        self.memory_bytes = [1, 5_000, 50_000, self.memory_bytes][rng.usize(0..4)];
        self.copies_on_write = rng.bool();
    }

    /// Draws when servers are stopped, and when the disk is slow.
    fn draw_stops_and_slow_disks(&mut self) {
        if self.has_later_features() {
            let more = draw_stops_and_slow_disks(self, &mut stream(self.seed, u64::MAX, 14));
            self.faults.extend(more);
        }
    }

    /// Draws how often the server crashes, and few operations between two crashes.
    fn draw_crashes(&mut self, rng: &mut Rng) {
        self.clients = rng.u32(1..=3);
        self.pause_max = Duration::from_millis([4, 40, 400][rng.usize(0..3)]);
        // The pauses of a client are half as long on average.
        self.operations = 2 * CRASH_PAUSES * rng.u32(20..=120);
    }

    /// Draws a pool and its clients instead of servers.
    fn draw_pool(&mut self, rng: &mut Rng) {
        self.operations = rng.u32(2..=12);
        self.pause_max = Duration::from_millis([50, 2_000, 10_000][rng.usize(0..3)]);
        self.is_extended = false;
        // A task takes some seconds.
        let length = (self.pause_max / 2 + Duration::from_secs(4)) * self.operations;
        self.pool = Some(PoolPlan::draw(rng, length));
    }

    /// How many faults it has.
    pub fn fault_count(&self) -> usize {
        self.pool.as_ref().map_or(self.faults.len(), |pool| pool.faults.len())
    }

    /// Whether one of its faults has this name.
    pub fn has_fault(&self, name: FaultName) -> bool {
        let of_servers = self.faults.iter().map(|fault| fault.kind.name());
        let of_pool = self.pool.iter().flat_map(|pool| &pool.faults).map(|fault| fault.kind.name());
        of_servers.chain(of_pool).any(|fault| fault == name)
    }

    /// How long the clients work, about.
    pub fn expected_length(&self) -> Duration {
        (self.pause_max / 2 * self.operations).max(Duration::from_secs(10))
    }

    /// Whether it takes little time also in a build without optimisations: little happens while servers poll.
    pub fn is_short(&self) -> bool {
        if self.pool.is_some() {
            return self.clients * self.operations < 40;
        }
        let calls = self.clients * self.operations;
        let is_quick = self.lasts_days || self.expected_length() < Duration::from_secs(40);
        is_quick && calls < 400
    }

    /// The random numbers of one operation.
    pub fn operation_rng(&self, number: OperationNumber) -> Rng {
        stream(self.seed, u64::from(number.0), u64::from(number.1) + 1)
    }
}

/// Draws which clients use HTTP: none, some or all.
fn draw_http_clients(clients: u32, rng: &mut Rng) -> BTreeSet<u32> {
    let chance = [0, 0, 33, 66, 100][rng.usize(0..5)];
    (0..clients).filter(|_| rng.u32(0..100) < chance).collect()
}

/// A stream of random numbers that depends on nothing but these numbers.
pub fn stream(seed: u64, first: u64, second: u64) -> Rng {
    let mut mixed = seed;
    for part in [first, second] {
        mixed =
            (mixed ^ part.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^= mixed >> 29;
    }
    Rng::with_seed(mixed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_the_same_plan_and_another_seed_another_one() {
        let text = |seed| format!("{:?}", Plan::draw(seed, Scenario::Shared));
        assert_eq!(text(7), text(7));
        assert_ne!(text(7), text(8));
    }

    #[test]
    fn operations_have_random_numbers_of_their_own() {
        let plan = Plan::draw(1, Scenario::Memory);
        let first = |number| plan.operation_rng(number).u64(..);
        assert_eq!(first((1, 2)), first((1, 2)));
        assert_ne!(first((1, 2)), first((2, 1)));
    }
}

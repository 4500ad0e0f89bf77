//! Draws the pool of a run: its processes, its limits, and what breaks.

use std::time::Duration;

use fastrand::Rng;
use taskyard_pool::Config;

use super::redis::Loss;
use crate::effects::FaultName;

/// A pool and its faults.
#[derive(Clone, Debug)]
pub struct PoolPlan {
    /// The number of schedulers.
    pub schedulers: usize,
    /// The number of processes with backends.
    pub hosts: usize,
    /// The number of gateways.
    pub gateways: usize,
    /// The backends of each process.
    pub backends: u32,
    /// The most running tasks of the second and the third class, and of those above.
    pub limits: [u32; 2],
    /// The leases of tasks, backends and the lead, in seconds.
    pub leases: [u32; 3],
    /// The longest way of a message.
    pub latency_max: Duration,
    /// How long clients work, about.
    pub length: Duration,
    /// What breaks.
    pub faults: Vec<PoolFault>,
}

/// A fault and its time.
#[derive(Clone, Copy, Debug)]
pub struct PoolFault {
    /// When it begins, after the start of the run.
    pub at: Duration,
    /// How long it lasts.
    pub lasts: Duration,
    /// What breaks.
    pub kind: PoolFaultKind,
}

/// What breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolFaultKind {
    /// Redis crashes; it is started again at the end.
    CrashRedis(Loss),
    /// All keys are removed.
    FlushRedis,
    /// Redis does nothing.
    FreezeRedis,
    /// A replica takes over that misses the latest changes.
    FailOver,
    /// Some connections to Redis break before a command is executed, or before its reply is sent.
    LoseReplies,
    /// Published messages are lost.
    LoseMessages,
    /// Redis executes commands slowly.
    SlowRedis,
    /// All connections to Redis are cut.
    CutRedis,
    /// All connections to backends are cut.
    CutBackends,
    /// Connections to backends lose everything, and neither side learns it before the end.
    SilenceBackends,
    /// New connections to backends are refused.
    RefuseBackends,
    /// A process is killed; it is started again at the end.
    Kill(Part),
    /// Nothing leaves or reaches a process before the end.
    Stall(Part),
    /// A process is asked to stop; it is started again at the end.
    Stop(Part),
}

/// A process by its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// A scheduler.
    Scheduler(usize),
    /// A process with backends.
    Backends(usize),
    /// A gateway.
    Gateway(usize),
}

/// How many kinds of faults there are.
const KINDS: usize = 14;

impl PoolPlan {
    /// Draws a pool. Some have no faults, some of one kind, some of all.
    pub fn draw(rng: &mut Rng, length: Duration) -> Self {
        let latencies = [200, 2_000, 20_000, 200_000];
        let mut plan = PoolPlan {
            schedulers: rng.usize(1..=2),
            hosts: rng.usize(1..=3),
            gateways: rng.usize(1..=2),
            backends: rng.u32(1..=2),
            limits: [rng.u32(2..=3), rng.u32(1..=2)],
            leases: [rng.u32(6..=15), rng.u32(3..=10), rng.u32(1..=3)],
            latency_max: Duration::from_micros(latencies[rng.usize(0..latencies.len())]),
            length,
            faults: Vec::new(),
        };
        plan.faults = plan.draw_faults(rng);
        plan
    }

    fn draw_faults(&self, rng: &mut Rng) -> Vec<PoolFault> {
        let chances = [0, 25, 50, 100];
        let chance = chances[rng.usize(0..chances.len())];
        let mut weights = [0_u32; KINDS];
        for weight in &mut weights {
            *weight = if rng.u32(0..100) < chance { rng.u32(1..5) } else { 0 };
        }
        let sum: u32 = weights.iter().sum();
        if sum == 0 {
            return Vec::new();
        }
        let length = self.length.as_millis() as u64;
        let count = rng.usize(1..=8);
        let draw = |rng: &mut Rng| {
            let (mut left, mut index) = (rng.u32(0..sum), 0);
            while left >= weights[index] {
                left -= weights[index];
                index += 1;
            }
            let kind = self.kind(index, rng);
            let most = if rng.bool() { 3_000 } else { 40_000 };
            let lasts = Duration::from_millis(rng.u64(1..most));
            let lasts = if kind.is_instant() { Duration::ZERO } else { lasts };
            PoolFault { at: Duration::from_millis(rng.u64(0..length)), lasts, kind }
        };
        (0..count).map(|_| draw(rng)).collect()
    }

    fn kind(&self, index: usize, rng: &mut Rng) -> PoolFaultKind {
        let loss = [Loss::Nothing, Loss::Tail, Loss::All][rng.usize(0..3)];
        let part = match rng.u8(0..3) {
            0 => Part::Scheduler(rng.usize(0..self.schedulers)),
            1 => Part::Backends(rng.usize(0..self.hosts)),
            _ => Part::Gateway(rng.usize(0..self.gateways)),
        };
        match index {
            0 => PoolFaultKind::CrashRedis(loss),
            1 => PoolFaultKind::FlushRedis,
            2 => PoolFaultKind::FreezeRedis,
            3 => PoolFaultKind::FailOver,
            4 => PoolFaultKind::LoseReplies,
            5 => PoolFaultKind::LoseMessages,
            6 => PoolFaultKind::SlowRedis,
            7 => PoolFaultKind::CutRedis,
            8 => PoolFaultKind::CutBackends,
            9 => PoolFaultKind::SilenceBackends,
            10 => PoolFaultKind::RefuseBackends,
            11 => PoolFaultKind::Kill(part),
            12 => PoolFaultKind::Stall(part),
            _ => PoolFaultKind::Stop(part),
        }
    }

    /// The configuration of all parts.
    pub fn config(&self) -> Config {
        let [medium, slow] = self.limits;
        let [task, backend, leader] = self.leases;
        let text = format!(
            "backends: {}\nseed: 1\n\
             leases: {{task_seconds: {task}, backend_seconds: {backend}, leader_seconds: {leader}}}\n\
             classes: [{{name: fast, seconds: 3, limit: 100%}}, {{name: medium, seconds: 10, limit: {medium}}}, \
             {{name: slow, seconds: 30, limit: {slow}}}]\n\
             programs: {{sh: {{command: [/bin/sh, '{{main}}'], interactive: [/bin/sh], input: .sh}}}}\n",
            self.backends
        );
        Config::parse(&text).expect("the configuration is good")
    }
}

impl PoolFaultKind {
    /// Whether it is over at once.
    fn is_instant(self) -> bool {
        matches!(
            self,
            PoolFaultKind::FlushRedis
                | PoolFaultKind::FailOver
                | PoolFaultKind::CutRedis
                | PoolFaultKind::CutBackends
        )
    }

    /// Its name.
    pub fn name(self) -> FaultName {
        match self {
            PoolFaultKind::CrashRedis(_) => FaultName::CrashRedis,
            PoolFaultKind::FlushRedis => FaultName::FlushRedis,
            PoolFaultKind::FreezeRedis => FaultName::FreezeRedis,
            PoolFaultKind::FailOver => FaultName::FailOver,
            PoolFaultKind::LoseReplies => FaultName::LoseRedisReplies,
            PoolFaultKind::LoseMessages => FaultName::LoseMessages,
            PoolFaultKind::SlowRedis => FaultName::SlowRedis,
            PoolFaultKind::CutRedis => FaultName::CutRedis,
            PoolFaultKind::CutBackends => FaultName::CutBackends,
            PoolFaultKind::SilenceBackends => FaultName::SilenceBackends,
            PoolFaultKind::RefuseBackends => FaultName::RefuseBackends,
            PoolFaultKind::Kill(_) => FaultName::KillProcess,
            PoolFaultKind::Stall(_) => FaultName::StallProcess,
            PoolFaultKind::Stop(_) => FaultName::StopProcess,
        }
    }

    /// Whether Redis loses data, or is another process afterwards, which counts as a loss.
    pub fn loses_data(self) -> bool {
        matches!(
            self,
            PoolFaultKind::CrashRedis(_) | PoolFaultKind::FlushRedis | PoolFaultKind::FailOver
        )
    }

    /// Whether every program stays connected to its gateway and its backend counts as alive: then limits hold for the programs
    /// themselves, not only for what Redis knows.
    pub fn keeps_programs(self) -> bool {
        matches!(
            self,
            PoolFaultKind::CrashRedis(_)
                | PoolFaultKind::FlushRedis
                | PoolFaultKind::FailOver
                | PoolFaultKind::LoseMessages
        )
    }
}

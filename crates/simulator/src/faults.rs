//! Draws the faults of a run, and lets them begin and end at their times.

use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use taskyard_core::{Span, Timestamp};
use taskyard_store::remote::{HEARTBEAT, HEARTBEAT_TIMEOUT};

use crate::effects::FaultName;
use crate::history::FaultWindow;
use crate::plan::{CRASH_PAUSES, Plan, Scenario};
use crate::world::World;

/// What breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A server crashes; it is started again at the end.
    CrashServer(usize),
    /// A server is stopped gracefully; it is started again at the end.
    StopServer(usize),
    /// A server does nothing.
    FreezeServer(usize),
    /// Some replies of the database to a server are lost.
    LoseReplies(usize),
    /// The database refuses connections of a server.
    RefuseServer(usize),
    /// Notifications to a server are lost.
    LoseNotifications(usize),
    /// The database crashes and recovers.
    CrashDatabase,
    /// The database answers slowly.
    SlowDatabase,
    /// The wall clock of a server is set, by so many microseconds.
    StepClock(usize, i64),
    /// The machine of a server loses power; it is started again at the end.
    LosePower(usize),
    /// Some writes, syncs and reads of a disk fail; its server is started again at the end.
    DiskErrors,
    /// A disk is full.
    FullDisk,
    /// A disk cannot be changed; its server is started again at the end.
    ReadOnlyDisk,
    /// Operations of a disk take up to so long.
    SlowDisk(Duration),
    /// The connections of a server are cut in the middle of a frame.
    CutConnections(usize),
    /// The connections of a server lose everything, or everything in one direction, and neither side learns it before the end.
    SilenceConnections(usize),
    /// The clients of a server read slowly.
    SlowConnections(usize),
    /// New connections to a server are refused.
    RefuseConnections(usize),
    /// The process of a worker is killed; it is started again at the end.
    CrashWorker(usize),
    /// A worker is stopped gracefully; it is started again at the end.
    StopWorker(usize),
    /// The processes of a worker do nothing.
    FreezeWorker(usize),
}

/// A fault and its time.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// When it begins, after the start of the run.
    pub at: Duration,
    /// How long it lasts.
    pub lasts: Duration,
    /// What breaks.
    pub kind: FaultKind,
}

/// After its end a fault can have consequences for sessions for so long: the next heartbeat may come too late.
const AFTER_EFFECT: Duration =
    Duration::from_secs(2 * (HEARTBEAT.as_secs() + HEARTBEAT_TIMEOUT.as_secs()));

/// Draws the faults of a run. Some runs have none, some of one kind, some of all.
pub fn draw_faults(plan: &Plan, rng: &mut Rng) -> Vec<Fault> {
    if plan.scenario == Scenario::Crashes {
        return draw_crashes(plan, rng);
    }
    let mut weights = [0_u32; 18];
    // The other scenarios draw as many numbers as they did before the network had faults.
    let kinds = match plan.scenario {
        Scenario::Workers => 18,
        Scenario::Network => 16,
        _ => 12,
    };
    for weight in &mut weights[..kinds] {
        *weight = if rng.bool() { rng.u32(1..5) } else { 0 };
    }
    // The time while no server runs is measured by the wall clock, so that of a server that crashes is not set.
    let possible: &[usize] = match plan.scenario {
        Scenario::Quiet | Scenario::Crashes | Scenario::Estimates | Scenario::Pool => &[],
        Scenario::Memory => &[1, 7],
        Scenario::Embedded if plan.is_extended && rng.u8(0..4) == 0 => &[1, 7, 10],
        Scenario::Embedded => &[0, 1, 8, 9, 10, 11],
        Scenario::Shared => &[0, 1, 2, 3, 4, 5, 6, 7],
        Scenario::Network => &[0, 1, 12, 13, 14, 15],
        Scenario::Workers => &[0, 1, 12, 13, 14, 15, 16, 17],
    };
    for (index, weight) in weights.iter_mut().enumerate() {
        *weight *= u32::from(possible.contains(&index));
    }
    let sum = weights.iter().sum();
    if sum == 0 {
        return Vec::new();
    }
    let length = plan.expected_length().as_millis() as u64;
    let count = rng.usize(1..=12);
    let draw = |rng: &mut Rng| {
        let (mut left, mut index) = (rng.u32(0..sum), 0);
        while left >= weights[index] {
            left -= weights[index];
            index += 1;
        }
        let kind = match index {
            16 => FaultKind::CrashWorker(rng.usize(0..plan.workers.len())),
            17 => FaultKind::StopWorker(rng.usize(0..plan.workers.len())),
            _ => kind(index, rng.usize(0..plan.servers), rng),
        };
        let most = if rng.bool() { 2_000 } else { 60_000 };
        let lasts = Duration::from_millis(rng.u64(1..most));
        Fault { at: Duration::from_millis(rng.u64(0..length)), lasts, kind }
    };
    (0..count).map(|_| draw(rng)).collect()
}

/// Draws when processes of workers freeze.
pub fn draw_freezes(plan: &Plan, rng: &mut Rng) -> Vec<Fault> {
    let length = plan.expected_length().as_millis() as u64;
    let draw = |rng: &mut Rng| {
        let kind = FaultKind::FreezeWorker(rng.usize(0..plan.workers.len()));
        let most = if rng.bool() { 2_000 } else { 30_000 };
        let lasts = Duration::from_millis(rng.u64(1..most));
        Fault { at: Duration::from_millis(rng.u64(0..length)), lasts, kind }
    };
    (0..rng.usize(0..=4)).map(|_| draw(rng)).collect()
}

/// Draws when servers are stopped, and when the disk is slow.
pub fn draw_stops_and_slow_disks(plan: &Plan, rng: &mut Rng) -> Vec<Fault> {
    // The time while no server runs is measured by the wall clock.
    let sets_clock = plan.faults.iter().any(|fault| matches!(fault.kind, FaultKind::StepClock(..)));
    let (can_stop, can_be_slow) = match plan.scenario {
        Scenario::Embedded => (!sets_clock, true),
        Scenario::Shared | Scenario::Network | Scenario::Workers => (true, false),
        _ => return Vec::new(),
    };
    let length = plan.expected_length().as_millis() as u64;
    let draw = |rng: &mut Rng| {
        let kind = match can_stop && (!can_be_slow || rng.bool()) {
            true => FaultKind::StopServer(rng.usize(0..plan.servers)),
            false => FaultKind::SlowDisk(Duration::from_millis([2, 50, 2_000][rng.usize(0..3)])),
        };
        // A stop that is short is cut off, a long one has the time that it may take.
        let millis = if rng.bool() { rng.u64(1..2_000) } else { rng.u64(16_000..30_000) };
        let lasts = Duration::from_millis(millis);
        Fault { at: Duration::from_millis(rng.u64(0..length)), lasts, kind }
    };
    (0..rng.usize(0..=4)).map(|_| draw(rng)).collect()
}

/// Draws a crash for every few operations, and in some runs a disk that fails or is full for a while. Each ends before the next begins.
fn draw_crashes(plan: &Plan, rng: &mut Rng) -> Vec<Fault> {
    let gap = CRASH_PAUSES * plan.pause_max;
    let gap_micros = gap.as_micros() as u64;
    let (kills, is_defective) = (rng.u32(0..=4), rng.u8(0..4) == 0);
    let draw = |index| {
        let kind = match rng.u32(0..4) < kills {
            _ if is_defective && rng.u8(0..16) == 0 => kind(rng.usize(9..=11), 0, rng),
            true => FaultKind::CrashServer(0),
            false => FaultKind::LosePower(0),
        };
        let at = index * gap + Duration::from_micros(rng.u64(0..gap_micros / 4));
        Fault { at, lasts: Duration::from_micros(rng.u64(1..gap_micros / 4)), kind }
    };
    (1..=plan.operations / (2 * CRASH_PAUSES)).map(draw).collect()
}

fn kind(index: usize, server: usize, rng: &mut Rng) -> FaultKind {
    match index {
        0 => FaultKind::CrashServer(server),
        1 => FaultKind::FreezeServer(server),
        2 => FaultKind::LoseReplies(server),
        3 => FaultKind::RefuseServer(server),
        4 => FaultKind::LoseNotifications(server),
        5 => FaultKind::CrashDatabase,
        6 => FaultKind::SlowDatabase,
        8 => FaultKind::LosePower(server),
        9 => FaultKind::DiskErrors,
        10 => FaultKind::FullDisk,
        11 => FaultKind::ReadOnlyDisk,
        12 => FaultKind::CutConnections(server),
        13 => FaultKind::SilenceConnections(server),
        14 => FaultKind::SlowConnections(server),
        15 => FaultKind::RefuseConnections(server),
        _ => {
            let micros = rng.i64(1..7_200) * 1_000_000;
            FaultKind::StepClock(server, if rng.bool() { micros } else { -micros })
        }
    }
}

impl FaultKind {
    /// Its name.
    pub fn name(self) -> FaultName {
        match self {
            FaultKind::CrashServer(_) => FaultName::CrashServer,
            FaultKind::StopServer(_) => FaultName::StopServer,
            FaultKind::FreezeServer(_) => FaultName::FreezeServer,
            FaultKind::LoseReplies(_) => FaultName::LoseReplies,
            FaultKind::RefuseServer(_) => FaultName::RefuseServer,
            FaultKind::LoseNotifications(_) => FaultName::LoseNotifications,
            FaultKind::CrashDatabase => FaultName::CrashDatabase,
            FaultKind::SlowDatabase => FaultName::SlowDatabase,
            FaultKind::StepClock(..) => FaultName::StepClock,
            FaultKind::LosePower(_) => FaultName::LosePower,
            FaultKind::DiskErrors => FaultName::DiskErrors,
            FaultKind::FullDisk => FaultName::FullDisk,
            FaultKind::ReadOnlyDisk => FaultName::ReadOnlyDisk,
            FaultKind::SlowDisk(_) => FaultName::SlowDisk,
            FaultKind::CutConnections(_) => FaultName::CutConnections,
            FaultKind::SilenceConnections(_) => FaultName::SilenceConnections,
            FaultKind::SlowConnections(_) => FaultName::SlowConnections,
            FaultKind::RefuseConnections(_) => FaultName::RefuseConnections,
            FaultKind::CrashWorker(_) => FaultName::CrashWorker,
            FaultKind::StopWorker(_) => FaultName::StopWorker,
            FaultKind::FreezeWorker(_) => FaultName::FreezeWorker,
        }
    }

    /// Whether it can disturb a server that is stopped.
    pub fn disturbs(self, server: usize) -> bool {
        match self {
            FaultKind::CrashServer(of)
            | FaultKind::StopServer(of)
            | FaultKind::LosePower(of)
            | FaultKind::FreezeServer(of)
            | FaultKind::LoseReplies(of)
            | FaultKind::RefuseServer(of)
            | FaultKind::LoseNotifications(of)
            | FaultKind::StepClock(of, _)
            | FaultKind::CutConnections(of)
            | FaultKind::SilenceConnections(of)
            | FaultKind::SlowConnections(of)
            | FaultKind::RefuseConnections(of) => of == server,
            FaultKind::CrashDatabase
            | FaultKind::SlowDatabase
            | FaultKind::DiskErrors
            | FaultKind::FullDisk
            | FaultKind::ReadOnlyDisk
            | FaultKind::SlowDisk(_) => true,
            FaultKind::CrashWorker(_) | FaultKind::StopWorker(_) | FaultKind::FreezeWorker(_) => {
                false
            }
        }
    }

    /// The servers whose sessions may end because of it; `None` if none may.
    fn ends_sessions(self) -> Option<Option<usize>> {
        match self {
            FaultKind::CrashServer(server)
            | FaultKind::LosePower(server)
            | FaultKind::StopServer(server)
            | FaultKind::FreezeServer(server)
            | FaultKind::LoseReplies(server)
            | FaultKind::RefuseServer(server)
            | FaultKind::CutConnections(server)
            | FaultKind::SilenceConnections(server) => Some(Some(server)),
            FaultKind::CrashDatabase
            | FaultKind::SlowDatabase
            | FaultKind::DiskErrors
            | FaultKind::ReadOnlyDisk => Some(None),
            FaultKind::LoseNotifications(_)
            | FaultKind::StepClock(..)
            | FaultKind::FullDisk
            | FaultKind::SlowDisk(_)
            | FaultKind::SlowConnections(_)
            | FaultKind::RefuseConnections(_)
            | FaultKind::CrashWorker(_)
            | FaultKind::StopWorker(_)
            | FaultKind::FreezeWorker(_) => None,
        }
    }
}

/// Lets one fault begin and end.
pub async fn run_fault(world: Rc<World>, fault: Fault) {
    begin_and_end(&world, fault).await;
    world.faults_left.set(world.faults_left.get() - 1);
}

async fn begin_and_end(world: &Rc<World>, fault: Fault) {
    tokio::time::sleep(fault.at).await;
    if !world.can_begin(fault.kind) {
        return;
    }
    let begin = world.history.borrow_mut().moment().at;
    if !world.storage.lead_to_crash(fault.kind).await || !world.begin_fault(fault.kind) {
        return;
    }
    if let Some(server) = fault.kind.ends_sessions() {
        let now = world.history.borrow_mut().moment().at;
        let end = now + Span::from(fault.lasts + AFTER_EFFECT);
        world.history.borrow_mut().windows.push(FaultWindow { server, begin, end });
    }
    world.history.borrow_mut().note(format!("begin of {:?}", fault.kind));
    tokio::time::sleep(fault.lasts).await;
    world.end_fault(fault.kind);
    world.history.borrow_mut().note(format!("end of {:?}", fault.kind));
}

/// Whether a session of this server may end at this time.
pub fn is_within_window(windows: &[FaultWindow], server: usize, at: Timestamp) -> bool {
    let mut of_server = windows.iter().filter(|window| window.server.is_none_or(|of| of == server));
    of_server.any(|window| window.begin <= at && at <= window.end)
}

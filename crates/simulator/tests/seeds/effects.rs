//! The faults of each scenario have effects.

use taskyard_simulator::{FaultCounts, FaultName, Mask, Scenario, run};

use crate::short_plans;

/// Each fault has an effect in one of so many runs that have it.
const RUNS_MAX: usize = 60;

/// Runs seeds with these faults until each has had an effect. The disk had been full 108 times in a row without refusing one write: all
/// files had their length already.
fn check(scenario: Scenario, faults: &[FaultName]) {
    let mut counts = FaultCounts::default();
    for fault in faults {
        let plans = short_plans(scenario).filter(|plan| plan.has_fault(*fault));
        let mut runs = plans.take(RUNS_MAX).map(|plan| run(&plan, &Mask::default(), None).faults);
        while counts.without_effect().contains(fault) {
            match runs.next() {
                Some(run) => counts.add(&run),
                None => panic!("{fault:?} has no effect in {RUNS_MAX} runs:\n{counts}"),
            }
        }
    }
}

#[test]
fn faults_of_one_server_have_effects() {
    use FaultName::{
        CrashServer, DiskErrors, FreezeServer, FullDisk, LosePower, ReadOnlyDisk, SlowDisk,
        StepClock, StopServer,
    };
    check(Scenario::Memory, &[FreezeServer, StepClock]);
    let of_disks =
        [CrashServer, StopServer, LosePower, DiskErrors, FullDisk, ReadOnlyDisk, SlowDisk];
    check(Scenario::Embedded, &of_disks);
}

#[test]
fn faults_of_a_database_have_effects() {
    use FaultName::{
        CrashDatabase, CrashServer, FreezeServer, LoseNotifications, LoseReplies, RefuseServer,
        SlowDatabase, StepClock, StopServer,
    };
    let of_servers = [CrashServer, StopServer, FreezeServer, StepClock];
    let of_databases = [LoseReplies, RefuseServer, LoseNotifications, CrashDatabase, SlowDatabase];
    check(Scenario::Shared, &[&of_servers[..], &of_databases].concat());
}

#[test]
fn faults_of_a_network_have_effects() {
    use FaultName::{
        CrashServer, CutConnections, FreezeServer, RefuseConnections, SilenceConnections,
        SlowConnections, StopServer,
    };
    let of_connections = [CutConnections, SilenceConnections, SlowConnections, RefuseConnections];
    let of_servers = [CrashServer, StopServer, FreezeServer];
    check(Scenario::Network, &[&of_servers[..], &of_connections].concat());
}

#[test]
fn faults_of_workers_have_effects() {
    use FaultName::{CrashWorker, FreezeWorker, StopWorker};
    check(Scenario::Workers, &[CrashWorker, StopWorker, FreezeWorker]);
}

#[test]
fn faults_of_a_pool_have_effects() {
    use FaultName::{
        CrashRedis, CutBackends, CutRedis, FailOver, FlushRedis, FreezeRedis, KillProcess,
        LoseMessages, LoseRedisReplies, RefuseBackends, SilenceBackends, SlowRedis, StallProcess,
        StopProcess,
    };
    let of_redis = [
        CrashRedis,
        FlushRedis,
        FreezeRedis,
        FailOver,
        LoseRedisReplies,
        LoseMessages,
        SlowRedis,
        CutRedis,
    ];
    let of_processes =
        [CutBackends, SilenceBackends, RefuseBackends, KillProcess, StallProcess, StopProcess];
    check(Scenario::Pool, &[&of_redis[..], &of_processes].concat());
}

//! Several servers on one Redis, or on a cluster: real processes under load, with faults. After each
//! run the auditor checks that the observations of the clients and the remaining tasks are consistent.

#[path = "../postgres/load.rs"]
mod load;
#[expect(dead_code, reason = "the other tests of this crate use all of it")]
#[path = "../suite/process.rs"]
mod process;

#[path = "../suite/many.rs"]
mod many;

#[path = "../storm/cut_servers.rs"]
mod cut_servers;
#[path = "../storm/fixture.rs"]
mod fixture;
#[path = "../storm/judge.rs"]
mod judge;
#[path = "../storm/keys.rs"]
mod key_storm;
#[path = "../storm/killed_servers.rs"]
mod killed_servers;
#[path = "../storm/live_servers.rs"]
mod live_servers;
#[path = "../storm/proxy.rs"]
mod proxy;
#[path = "../storm/schedules.rs"]
mod schedule_storm;
#[path = "../storm/storm_check.rs"]
mod storm_check;

/// Whether the tests have a Redis.
fn is_installed() -> bool {
    taskyard_testkit::redis::program().is_some()
}

mod copy;
mod peers;
mod serve;
mod storms;

//! Several servers on one PostgreSQL: real processes under load, with faults. After each
//! run the auditor checks that the observations of the clients and the remaining tasks are consistent.

#[expect(dead_code, reason = "the other tests of this crate use all of it")]
#[path = "../suite/process.rs"]
mod process;

#[path = "../storm/cut_servers.rs"]
mod cut_servers;
mod database;
#[path = "../storm/fixture.rs"]
mod fixture;
mod judge;
#[path = "../storm/keys.rs"]
mod key_storm;
#[path = "../storm/killed_servers.rs"]
mod killed_servers;
#[path = "../storm/live_servers.rs"]
mod live_servers;
mod load;
mod proxy;
#[path = "../storm/schedules.rs"]
mod schedule_storm;
#[path = "../storm/storm_check.rs"]
mod storm_check;

/// Whether the tests have a PostgreSQL.
fn is_installed() -> bool {
    taskyard_testkit::postgres::programs().is_some()
}

mod cut;
mod frozen;
mod killed;
mod outage;
mod pooled;
mod semaphores;

//! Storms: servers and their database fail under load, and a judge then checks that what clients saw is possible.
//!
//! `load` runs the clients and records their calls, `judge` checks them against what is left. The faults of a database are behind
//! [`StormDatabase`]; the storms themselves are cases of [`suite::storms`](crate::suite). `keys` and `schedules` are loads
//! of their own, for servers of any store.

#[cfg(feature = "storm")]
pub mod faulty_servers;
pub mod judge;
#[cfg(feature = "storm")]
pub mod keys;
#[cfg(feature = "storm")]
pub mod live_servers;
pub mod load;
#[cfg(feature = "storm")]
pub mod schedules;
#[cfg(feature = "storm")]
pub mod server;
#[cfg(feature = "storm")]
pub mod steps;

use std::future::Future;
use std::net::SocketAddr;

use tokio::runtime::Builder;

use crate::OwnServer;
use crate::faulty_proxy::Target;

/// A server of a database that storms can let fail in all ways.
pub trait StormDatabase: OwnServer + Sized {
    /// One that the storm neither kills nor freezes, so that storms can share it; none if the database is not installed.
    fn steady() -> Option<Self>;

    /// Stops all its processes without a word.
    fn freeze(&self);

    /// Lets them go on.
    fn thaw(&self);

    /// Closes all connections of servers to it, as an administrator can.
    fn close_connections(&self);

    /// Where it listens.
    fn target(&self) -> Target;

    /// The URL of the same part by way of a proxy at this address.
    fn url_by(&self, proxy: SocketAddr) -> String;

    /// How many servers are alive, as the database knows them.
    fn server_count(&self) -> usize;

    /// Panics unless what is stored there of sessions, servers and sub-queues is consistent.
    fn audit_sessions(&self);

    /// Panics unless what is stored there of semaphores is consistent.
    fn audit_semaphores(&self);
}

/// Runs a storm on two threads.
pub fn run(storm: impl Future) {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime starts").block_on(storm);
}

//! Fixtures of the tests: starts PostgreSQL, PgBouncer, Redis, Tarantool, Chromium and servers, calls stores in short form, lets all of
//! them fail under load, and issues certificates.
//!
//! Servers belong to the test process that started them and end with it, however it ends. A fixture panics when its program is not
//! installed, unless `TASKYARD_EMBEDDED=1` allows to go on without; then tests that need it are skipped.

pub mod calls;
pub mod certificates;
pub mod chromium;
mod cleanup;
pub mod faulty_proxy;
mod ports;
pub mod postgres;
pub mod recorded_output;
pub mod redis;
pub mod same_keys;
#[cfg(feature = "server")]
pub mod server;
pub mod server_process;
pub mod step_proxy;
pub mod storm;
pub mod suite;
pub mod tarantool;

use std::future::Future;

use taskyard_conformance::block_on;
use taskyard_core::TubeName;
use taskyard_store::remote::{Backend, Clock, RemoteStore};

use faulty_proxy::{FaultyProxy, Protocol};

pub use ports::free_port;
pub use taskyard_conformance::{random, skipped};

/// A database that several servers can share, with the fixture that starts it.
pub trait SharedDatabase: 'static {
    /// The store in it.
    type Backend: Backend;
    /// A part of the database that belongs to one test.
    type Part: Send + Sync + 'static;
    /// A whole server of the database that belongs to one test.
    type Server: OwnServer;
    /// Whether the lease numbers of a task increase whichever server delivers it.
    const LEASES_INCREASE: bool;
    /// Whether moments are kept as doubles, so that those beyond 2^53 microseconds never come.
    const TIMES_ARE_DOUBLES: bool;
    /// Which connections are not those of batches, what ends every reply where one may arrive in parts, and what replies show.
    const PROTOCOL: Protocol = Protocol::PLAIN;

    /// Whether the database is installed.
    fn is_installed() -> bool;

    /// A new, empty part.
    fn part() -> Self::Part;

    /// The URL of a part.
    fn url(part: &Self::Part) -> String;

    /// A server that one test may kill; none if the database is not installed.
    fn server() -> Option<Self::Server>;

    /// A new part behind a proxy that can lose replies.
    fn lossy_path() -> LossyPath<Self::Part>;

    /// A word that every request of this kind contains on the way to the database.
    fn word_of(request: Request) -> &'static [u8];

    /// Panics unless what is stored in a part is consistent.
    fn audit(part: &Self::Part);

    /// How many servers are alive in a part, as the database knows them.
    fn server_count(part: &Self::Part) -> usize;

    /// Writes a format number into a part that was opened before.
    fn write_format(part: &Self::Part, format: u32);

    /// Runs a case, unless the database is not installed and the tests may go on without it.
    fn run(case: impl Future) {
        if Self::is_installed() {
            block_on(case);
        }
    }

    /// Opens a store in a part, which goes by the clock of the caller.
    fn open(part: &Self::Part) -> RemoteStore<Self::Backend> {
        RemoteStore::open(&Self::url(part), Clock::Caller).expect("the store opens")
    }
}

/// A server of a database that one test may kill.
pub trait OwnServer: Sync {
    /// The URL of a part of it, always the same.
    fn url(&self) -> String;

    /// Kills it with SIGKILL.
    fn kill(&self);

    /// Starts it again on what it left.
    fn start(&self);

    /// Panics unless what is stored there of a tube is consistent.
    fn audit(&self, tube: &TubeName);
}

/// A part of a database behind a proxy that can lose replies.
pub struct LossyPath<P> {
    /// The part.
    pub part: P,
    /// The URL that leads through the proxy.
    pub url: String,
    /// The proxy.
    pub proxy: FaultyProxy,
}

/// Kinds of requests whose replies can be lost.
#[derive(Clone, Copy, Debug)]
pub enum Request {
    /// A put.
    Put,
    /// A take.
    Take,
    /// A connection joins a session.
    Join,
    /// A connection leaves a session.
    Leave,
    /// One tube is shown.
    ShowTube,
    /// All tubes are listed.
    ListTubes,
    /// The schedules that are due are read.
    DueSchedules,
    /// One schedule is shown.
    ShowSchedule,
}

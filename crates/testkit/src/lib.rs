//! Fixtures of the tests: starts PostgreSQL, PgBouncer, Redis, Tarantool and Chromium, and calls stores in short form.
//!
//! Servers belong to the test process that started them and end with it, however it ends. A fixture panics when its program is not
//! installed, unless `TASKYARD_EMBEDDED=1` allows to go on without; then tests that need it are skipped.

pub mod calls;
pub mod chromium;
pub mod exact;
pub mod postgres;
pub mod redis;
pub mod tarantool;

use std::future::Future;

use taskyard_conformance::block_on;
use taskyard_store::remote::{Backend, Clock, RemoteStore};

/// A database that several servers can share, with the fixture that starts it.
pub trait SharedDatabase: 'static {
    /// The store in it.
    type Backend: Backend;
    /// A part of the database that belongs to one test.
    type Part: Send + Sync + 'static;

    /// Whether the database is installed.
    fn is_installed() -> bool;

    /// A new, empty part.
    fn part() -> Self::Part;

    /// The URL of a part.
    fn url(part: &Self::Part) -> String;

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

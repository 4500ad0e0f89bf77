//! The manager of workers on servers that share a PostgreSQL database.

mod manager;

use std::future::Future;
use taskyard_testkit::server;

use taskyard_testkit::postgres::programs;

/// Runs a test if PostgreSQL is installed or must be.
fn run(test: impl Future) {
    if programs().is_some() {
        server::block_on(test);
    }
}

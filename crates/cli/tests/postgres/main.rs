//! Several servers on one PostgreSQL: real processes under load, with faults. After each
//! run the auditor checks that the observations of the clients and the remaining tasks are consistent.

#[expect(dead_code, reason = "the other tests of this crate use all of it")]
#[path = "../suite/process.rs"]
mod process;

mod pooled;
mod storms;

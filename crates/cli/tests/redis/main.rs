//! Several servers on one Redis, or on a cluster: real processes under load, with faults. After each
//! run the auditor checks that the observations of the clients and the remaining tasks are consistent.

#[path = "../suite/many.rs"]
mod many;
#[expect(dead_code, reason = "the other tests of this crate use all of it")]
#[path = "../suite/process.rs"]
mod process;

mod copy;
mod peers;
mod serve;
mod storms;

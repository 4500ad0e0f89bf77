//! Several servers on one PostgreSQL: real processes under load, and whatever can happen to them. After each
//! storm a judge asks whether what the clients saw, and what is left, can have happened.

#[expect(dead_code, reason = "the other tests of this crate use all of it")]
#[path = "../suite/rig.rs"]
mod rig;

mod judge;
mod load;
mod proxy;
mod yard;

mod cut;
mod frozen;
mod killed;
mod outage;
mod pooled;
mod semaphores;

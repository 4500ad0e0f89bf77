//! Several servers on one PostgreSQL: real processes under load, and whatever can happen to them. After each
//! storm a judge asks whether what the clients saw, and what is left, can have happened.

#[path = "../../../stores/postgres/tests/postgres/cluster.rs"]
mod cluster;
#[expect(dead_code, reason = "the tests of the store use all of it")]
#[path = "../../../stores/postgres/tests/postgres/database.rs"]
mod database;
#[path = "../../../stores/postgres/tests/postgres/pooler.rs"]
mod pooler;
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

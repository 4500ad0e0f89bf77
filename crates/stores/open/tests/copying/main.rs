//! Moving between stores: there and back, used afterwards, broken off and gone on with, and what is refused.

#[path = "../../../postgres/tests/postgres/cluster.rs"]
#[expect(dead_code, reason = "the tests of one store need more of it")]
mod cluster;
#[path = "../../../postgres/tests/postgres/database.rs"]
#[expect(dead_code, reason = "the tests of one store need more of it")]
mod database;
#[path = "../../../redis/tests/redis/instance.rs"]
#[expect(dead_code, reason = "the tests of one store need more of it")]
mod redis;
#[path = "../../../tarantool/tests/tarantool/instance.rs"]
#[expect(dead_code, reason = "the tests of one store need more of it")]
mod tarantool;

mod content;
mod places;
mod weak;

mod adapter;
mod each;
mod nodes;
mod ways;

//! A part of Redis for each case.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use taskyard_conformance::StoreHarness;
use taskyard_store_redis::{Clock, Redis, RedisStore};

use super::instance::{Instance, program};
use crate::SharedDatabase;

/// The server that the tests of this process share.
pub fn instance() -> &'static Instance {
    static INSTANCE: OnceLock<Instance> = OnceLock::new();
    INSTANCE.get_or_init(|| Instance::new(program().expect("whoever asks has looked for it")))
}

/// A part of a test's own of this Redis, as a URL: its keys have a prefix that no other has.
pub fn own(url: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{url}?prefix=case{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

/// A store whose clock is the caller's.
pub fn open(url: &str) -> RedisStore {
    RedisStore::open(url, Clock::Caller).expect("the store opens")
}

/// A queue in a part of its own.
pub fn queue() -> StoreHarness {
    let url = own(&instance().url());
    StoreHarness::new(move || Box::new(open(&url)))
}

/// The Redis that the tests of this process share.
pub struct SharedRedis;

impl SharedDatabase for SharedRedis {
    type Backend = Redis;
    type Part = String;

    fn is_installed() -> bool {
        program().is_some()
    }

    fn part() -> String {
        own(&instance().url())
    }

    fn url(part: &String) -> String {
        part.clone()
    }
}

/// Runs a case, unless Redis is not installed and the tests may go on without it.
pub fn run(case: impl Future) {
    SharedRedis::run(case);
}

/// A store in a part of its own.
pub fn store() -> RedisStore {
    SharedRedis::open(&SharedRedis::part())
}

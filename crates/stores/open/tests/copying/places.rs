//! Where a copy may go: a part of each shared store for each case.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use taskyard_store::Store;
use taskyard_store::remote::Clock;
use taskyard_store_postgres::PostgresStore;
use taskyard_store_redis::RedisStore;
use taskyard_store_tarantool::TarantoolStore;

use taskyard_testkit::postgres::programs;
use taskyard_testkit::postgres::{Database, check_counts, sql};
use taskyard_testkit::{redis, tarantool};

/// Somewhere to copy to and from.
pub trait Place {
    /// Opens it with the caller's clock.
    fn open(&self) -> Arc<dyn Store>;

    /// Opens it without becoming one of its servers.
    fn look(&self) -> Arc<dyn Store>;

    /// Panics unless what is kept there says the same as itself.
    fn audit(&self);
}

/// Runs a case, unless its store is not there and the tests are to go on without.
pub fn on(place: Option<Box<dyn Place>>, case: fn(&dyn Place)) {
    if let Some(place) = place {
        case(&*place);
    }
}

pub fn next() -> u32 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    COUNT.fetch_add(1, Ordering::Relaxed)
}

impl Place for Database {
    fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.open())
    }

    fn look(&self) -> Arc<dyn Store> {
        let (url, clock) = (self.url(), Clock::Caller);
        let look = PostgresStore::open_read_only(&url, clock, Duration::ZERO);
        Arc::new(look.expect("the store opens"))
    }

    fn audit(&self) {
        check_counts(&self.url());
        let audit = sql(&self.url(), "SELECT string_agg(a::text, ' ') FROM taskyard.gate_audit a");
        assert_eq!(audit, None, "tasks and their semaphore agree");
    }
}

/// A part of Redis.
struct Keys {
    prefix: String,
}

fn single() -> &'static redis::RedisInstance {
    static INSTANCE: OnceLock<redis::RedisInstance> = OnceLock::new();
    let program = || redis::program().expect("whoever asks has looked for it");
    INSTANCE.get_or_init(|| redis::RedisInstance::new(program()))
}

impl Keys {
    fn url(&self) -> String {
        format!("{}?prefix={}", single().url(), self.prefix)
    }
}

impl Place for Keys {
    fn open(&self) -> Arc<dyn Store> {
        let store = RedisStore::open(&self.url(), Clock::Caller);
        Arc::new(store.expect("the store opens"))
    }

    fn look(&self) -> Arc<dyn Store> {
        let (url, clock) = (self.url(), Clock::Caller);
        let look = RedisStore::open_read_only(&url, clock, Duration::ZERO);
        Arc::new(look.expect("the store opens"))
    }

    fn audit(&self) {
        let prefix = &self.prefix;
        let all = |of: &str, verb: &str| single().talk(&[verb, &format!("{{{prefix}}}:{of}")]);
        // A tube lives where it was made.
        let homes = all("homes", "HGETALL");
        let homes: Vec<&str> = homes.lines().collect();
        for tube in all("tubes", "HKEYS").lines() {
            let moved = homes.chunks(2).find(|pair| pair[0] == tube);
            single().audit(prefix, moved.map_or(tube, |pair| pair[1]));
        }
        for key in all("semaphores", "HKEYS").lines() {
            single().audit_semaphore(&format!("{{{prefix}:/{key}}}"));
        }
    }
}

/// A part of Tarantool.
struct Spaces {
    prefix: String,
}

fn instance() -> &'static tarantool::TarantoolInstance {
    static INSTANCE: OnceLock<tarantool::TarantoolInstance> = OnceLock::new();
    let program = || tarantool::program().expect("whoever asks has looked for it");
    INSTANCE.get_or_init(|| tarantool::TarantoolInstance::new(program()))
}

impl Spaces {
    fn url(&self) -> String {
        format!("{}?prefix={}", instance().url(), self.prefix)
    }
}

impl Place for Spaces {
    fn open(&self) -> Arc<dyn Store> {
        let store = TarantoolStore::open(&self.url(), Clock::Caller);
        Arc::new(store.expect("the store opens"))
    }

    fn look(&self) -> Arc<dyn Store> {
        let look = TarantoolStore::open_read_only(&self.url(), Clock::Caller, Duration::ZERO);
        Arc::new(look.expect("the store opens"))
    }

    fn audit(&self) {
        instance().audit(&self.prefix);
    }
}

pub fn in_postgres() -> Option<Box<dyn Place>> {
    programs()?;
    Some(Box::new(Database::new()))
}

pub fn in_tarantool() -> Option<Box<dyn Place>> {
    tarantool::program()?;
    Some(Box::new(Spaces { prefix: format!("case{}", next()) }))
}

pub fn in_redis() -> Option<Box<dyn Place>> {
    redis::program()?;
    Some(Box::new(Keys { prefix: format!("case{}", next()) }))
}

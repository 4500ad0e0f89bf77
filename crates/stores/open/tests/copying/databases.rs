//! Gives each test case a part of a shared database.

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

/// A database to copy to and from.
pub trait TestDatabase {
    /// Opens it with the caller's clock.
    fn open(&self) -> Arc<dyn Store>;

    /// Opens it without becoming one of its servers.
    fn open_read_only(&self) -> Arc<dyn Store>;

    /// Panics unless the stored data is consistent.
    fn audit(&self);
}

/// Runs a case, unless its database is not installed and the tests may continue without it.
pub fn on(database: Option<Box<dyn TestDatabase>>, case: fn(&dyn TestDatabase)) {
    if let Some(database) = database {
        case(&*database);
    }
}

pub fn next() -> u32 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    COUNT.fetch_add(1, Ordering::Relaxed)
}

impl TestDatabase for Database {
    fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.open())
    }

    fn open_read_only(&self) -> Arc<dyn Store> {
        let (url, clock) = (self.url(), Clock::Caller);
        let store = PostgresStore::open_read_only(&url, clock, Duration::ZERO);
        Arc::new(store.expect("the store opens"))
    }

    fn audit(&self) {
        check_counts(&self.url());
        let audit = sql(&self.url(), "SELECT string_agg(a::text, ' ') FROM taskyard.gate_audit a");
        assert_eq!(audit, None, "tasks and their semaphore agree");
    }
}

/// A key prefix in Redis.
struct RedisPrefix {
    prefix: String,
}

fn single() -> &'static redis::RedisInstance {
    static INSTANCE: OnceLock<redis::RedisInstance> = OnceLock::new();
    let program = || redis::program().expect("the caller has checked that it is installed");
    INSTANCE.get_or_init(|| redis::RedisInstance::new(program()))
}

impl RedisPrefix {
    fn url(&self) -> String {
        format!("{}?prefix={}", single().url(), self.prefix)
    }
}

impl TestDatabase for RedisPrefix {
    fn open(&self) -> Arc<dyn Store> {
        let store = RedisStore::open(&self.url(), Clock::Caller);
        Arc::new(store.expect("the store opens"))
    }

    fn open_read_only(&self) -> Arc<dyn Store> {
        let (url, clock) = (self.url(), Clock::Caller);
        let store = RedisStore::open_read_only(&url, clock, Duration::ZERO);
        Arc::new(store.expect("the store opens"))
    }

    fn audit(&self) {
        let prefix = &self.prefix;
        let all = |of: &str, verb: &str| single().talk(&[verb, &format!("{{{prefix}}}:{of}")]);
        // A renamed tube keeps the keys of its first name.
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

/// A prefix of spaces in Tarantool.
struct TarantoolPrefix {
    prefix: String,
}

fn instance() -> &'static tarantool::TarantoolInstance {
    static INSTANCE: OnceLock<tarantool::TarantoolInstance> = OnceLock::new();
    let program = || tarantool::program().expect("the caller has checked that it is installed");
    INSTANCE.get_or_init(|| tarantool::TarantoolInstance::new(program()))
}

impl TarantoolPrefix {
    fn url(&self) -> String {
        format!("{}?prefix={}", instance().url(), self.prefix)
    }
}

impl TestDatabase for TarantoolPrefix {
    fn open(&self) -> Arc<dyn Store> {
        let store = TarantoolStore::open(&self.url(), Clock::Caller);
        Arc::new(store.expect("the store opens"))
    }

    fn open_read_only(&self) -> Arc<dyn Store> {
        let store = TarantoolStore::open_read_only(&self.url(), Clock::Caller, Duration::ZERO);
        Arc::new(store.expect("the store opens"))
    }

    fn audit(&self) {
        instance().audit(&self.prefix);
    }
}

pub fn in_postgres() -> Option<Box<dyn TestDatabase>> {
    programs()?;
    Some(Box::new(Database::new()))
}

pub fn in_tarantool() -> Option<Box<dyn TestDatabase>> {
    tarantool::program()?;
    Some(Box::new(TarantoolPrefix { prefix: format!("case{}", next()) }))
}

pub fn in_redis() -> Option<Box<dyn TestDatabase>> {
    redis::program()?;
    Some(Box::new(RedisPrefix { prefix: format!("case{}", next()) }))
}

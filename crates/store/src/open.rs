//! From a URL to a store.

use std::time::Duration;

use crate::{MemoryStore, OpenError, Store};

/// How to open a store.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// How many bytes of payloads an embedded store keeps in memory; more stay on disk.
    pub memory_bytes: usize,
    /// Open a damaged store with what is left of it.
    pub accept_loss: bool,
    /// How long to wait for a database that is not up yet.
    pub wait: Duration,
    /// Only [`Store::export`] will be asked: a shared store is opened without becoming one of its servers.
    pub to_look: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            memory_bytes: 48 << 20,
            accept_loss: false,
            wait: Duration::ZERO,
            to_look: false,
        }
    }
}

/// Opens the store that `url` names: `memory:`, `sqlite:DIR`, `postgres://…`, `redis://…` or `tarantool://…`.
pub fn open(url: &str, options: &OpenOptions) -> Result<Box<dyn Store>, OpenError> {
    match url.split_once(':') {
        Some(("memory", "")) => Ok(Box::new(MemoryStore::default())),
        #[cfg(feature = "sqlite")]
        Some(("sqlite", folder)) if !folder.is_empty() => {
            let store = crate::sqlite::SqliteStore::open(std::path::Path::new(folder), options)?;
            Ok(Box::new(store))
        }
        #[cfg(feature = "postgres")]
        Some(("postgres" | "postgresql", _)) => {
            use crate::postgres::{Clock, PostgresStore};
            Ok(Box::new(match options.to_look {
                true => PostgresStore::open_to_look(url, Clock::Database, options.wait)?,
                false => PostgresStore::open_within(url, Clock::Database, options.wait)?,
            }))
        }
        #[cfg(feature = "redis")]
        Some(("redis" | "rediss" | "redis+cluster" | "rediss+cluster", _)) => {
            use crate::redis::{Clock, RedisStore};
            Ok(Box::new(match options.to_look {
                true => RedisStore::open_to_look(url, Clock::Database, options.wait)?,
                false => RedisStore::open_within(url, Clock::Database, options.wait)?,
            }))
        }
        #[cfg(feature = "tarantool")]
        Some(("tarantool" | "tarantool+queue", _)) => {
            use crate::tarantool::{Clock, TarantoolStore};
            Ok(Box::new(match options.to_look {
                true => TarantoolStore::open_to_look(url, Clock::Database, options.wait)?,
                false => TarantoolStore::open_within(url, Clock::Database, options.wait)?,
            }))
        }
        _ => Err(OpenError::UnknownUrl(url.to_owned())),
    }
}

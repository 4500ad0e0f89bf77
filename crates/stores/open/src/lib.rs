//! Opens the store that a URL names, and lists what each store can do.

use taskyard_store::{Capabilities, MemoryStore, OpenError, OpenOptions, Store};

/// Opens the store that `url` names: `memory:`, `sqlite:DIR`, `postgres://…`, `redis://…` or `tarantool://…`.
pub fn open(url: &str, options: &OpenOptions) -> Result<Box<dyn Store>, OpenError> {
    // The store in memory has none.
    let _ = options;
    match url.split_once(':') {
        Some(("memory", "")) => Ok(Box::new(MemoryStore::default())),
        #[cfg(feature = "sqlite")]
        Some(("sqlite", folder)) if !folder.is_empty() => {
            use taskyard_store_sqlite::SqliteStore;
            Ok(Box::new(SqliteStore::open(std::path::Path::new(folder), options)?))
        }
        #[cfg(feature = "postgres")]
        Some(("postgres" | "postgresql", _)) => taskyard_store_postgres::open(url, options),
        #[cfg(feature = "redis")]
        Some(("redis" | "rediss" | "redis+cluster" | "rediss+cluster", _)) => {
            taskyard_store_redis::open(url, options)
        }
        #[cfg(feature = "tarantool")]
        Some(("tarantool" | "tarantool+queue", _)) => taskyard_store_tarantool::open(url, options),
        _ => Err(OpenError::UnknownUrl(without_password(url))),
    }
}

/// A URL as messages show it: what stands before its last `@` may be a password.
fn without_password(url: &str) -> String {
    url.rsplit_once('@').map_or_else(|| url.to_owned(), |(_, rest)| format!("***@{rest}"))
}

/// The capabilities of all stores that were built in.
pub fn all_capabilities() -> Vec<Capabilities> {
    vec![
        taskyard_store::MEMORY_CAPABILITIES,
        #[cfg(feature = "sqlite")]
        taskyard_store_sqlite::CAPABILITIES,
        #[cfg(feature = "postgres")]
        taskyard_store_postgres::CAPABILITIES,
        #[cfg(feature = "redis")]
        taskyard_store_redis::CAPABILITIES,
        #[cfg(feature = "tarantool")]
        taskyard_store_tarantool::CAPABILITIES,
    ]
}

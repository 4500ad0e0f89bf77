//! Opens the store that a URL names, and lists what each store can do.

use taskyard_store::{Capabilities, MemoryStore, OpenError, OpenOptions, Store};

/// The stores that were built in.
enum StoreKind {
    Memory,
    #[cfg(feature = "sqlite")]
    Sqlite,
    #[cfg(feature = "postgres")]
    Postgres,
    #[cfg(feature = "redis")]
    Redis,
    #[cfg(feature = "tarantool")]
    Tarantool,
}

/// The kind of store that a URL names.
fn kind_of(url: &str) -> Result<StoreKind, OpenError> {
    Ok(match url.split_once(':') {
        Some(("memory", "")) => StoreKind::Memory,
        #[cfg(feature = "sqlite")]
        Some(("sqlite", folder)) if !folder.is_empty() => StoreKind::Sqlite,
        #[cfg(feature = "postgres")]
        Some(("postgres" | "postgresql", _)) => StoreKind::Postgres,
        #[cfg(feature = "redis")]
        Some(("redis" | "rediss" | "redis+cluster" | "rediss+cluster", _)) => StoreKind::Redis,
        #[cfg(feature = "tarantool")]
        Some(("tarantool" | "tarantool+queue", _)) => StoreKind::Tarantool,
        _ => return Err(OpenError::UnknownUrl(without_password(url))),
    })
}

/// Says if `url` names no store; opens nothing.
pub fn check_url(url: &str) -> Result<(), OpenError> {
    kind_of(url).map(drop)
}

/// Opens the store that `url` names: `memory:`, `sqlite:DIR`, `postgres://…`, `redis://…` or `tarantool://…`.
pub fn open(url: &str, options: &OpenOptions) -> Result<Box<dyn Store>, OpenError> {
    // The store in memory has none.
    let _ = options;
    match kind_of(url)? {
        StoreKind::Memory => Ok(Box::new(MemoryStore::default())),
        #[cfg(feature = "sqlite")]
        StoreKind::Sqlite => {
            use taskyard_store_sqlite::SqliteStore;
            let folder = url.trim_start_matches("sqlite:");
            Ok(Box::new(SqliteStore::open(std::path::Path::new(folder), options)?))
        }
        #[cfg(feature = "postgres")]
        StoreKind::Postgres => taskyard_store_postgres::open(url, options),
        #[cfg(feature = "redis")]
        StoreKind::Redis => taskyard_store_redis::open(url, options),
        #[cfg(feature = "tarantool")]
        StoreKind::Tarantool => taskyard_store_tarantool::open(url, options),
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

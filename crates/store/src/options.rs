//! How a store is opened, whatever its kind.

use std::time::Duration;

/// How to open a store.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// How many bytes of payloads an embedded store keeps in memory; more stay on disk.
    pub memory_bytes: usize,
    /// Open a damaged store with what is left of it.
    pub accept_loss: bool,
    /// How long to wait for a database that is not up yet.
    pub wait: Duration,
    /// Only [`Store::export`](crate::Store::export) will be called: a shared store is opened without becoming one of its servers.
    pub read_only: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            memory_bytes: 48 << 20,
            accept_loss: false,
            wait: Duration::ZERO,
            read_only: false,
        }
    }
}

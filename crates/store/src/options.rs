//! Defines the options with which a store of any kind is opened.

use std::time::Duration;

/// Options for opening a store.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Maximum bytes of payloads that an embedded store keeps in memory; the rest stays on disk.
    pub memory_bytes: usize,
    /// Open a damaged store with the data that is intact.
    pub accept_loss: bool,
    /// How long to wait for a database that is not available yet.
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

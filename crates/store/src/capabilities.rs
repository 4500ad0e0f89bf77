//! Describes the features and guarantees of a store; docs/stores.md is generated from these descriptions.

/// The features and guarantees of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The store's name, as in its URL.
    pub name: &'static str,
    /// Whether an acknowledged task is on disk.
    pub durable: bool,
    /// Whether several servers may use it at the same time.
    pub shared: bool,
    /// Whether it has semaphores.
    pub semaphores: bool,
    /// Whether a tube may have a semaphore as its gate.
    pub gates: bool,
    /// Whether it can be copied from.
    pub exports: bool,
    /// Whether it can be copied to.
    pub imports: bool,
    /// How soon a waiting take learns of a task.
    pub wakes: &'static str,
    /// The data that is lost by each kind of failure.
    pub loses: &'static [(&'static str, &'static str)],
}

impl Capabilities {
    /// A store with no optional feature.
    pub const fn plain(name: &'static str) -> Self {
        Capabilities {
            name,
            durable: false,
            shared: false,
            semaphores: false,
            gates: false,
            exports: false,
            imports: false,
            wakes: "",
            loses: &[],
        }
    }
}

//! What each store can do: its own truth, in one place, from which the page about choosing one is made.

/// What a store can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The store's name, as in its URL.
    pub name: &'static str,
    /// Whether acknowledged means on disk.
    pub durable: bool,
    /// Whether several servers may share it.
    pub shared: bool,
    /// Whether it has semaphores.
    pub semaphores: bool,
    /// Whether a tube may have one before it.
    pub gates: bool,
    /// Whether it can be copied from.
    pub exports: bool,
    /// Whether it can be copied to.
    pub imports: bool,
    /// How soon somebody who waits hears of a task.
    pub wakes: &'static str,
    /// What is lost by which failure.
    pub loses: &'static [(&'static str, &'static str)],
}

impl Capabilities {
    /// A store that can do nothing but the verbs.
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

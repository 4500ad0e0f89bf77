//! Describes the features and guarantees of a store; docs/stores.md is generated from these descriptions.

use taskyard_core::{Command, Error};

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
    /// Whether tasks may have unique keys.
    pub keys: bool,
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
    /// Refuses a command that needs unique keys, where the store has none.
    pub fn check_keys(&self, command: &Command) -> Result<(), Error> {
        if self.keys || !Capabilities::uses_keys(command) { Ok(()) } else { Err(self.no_keys()) }
    }

    /// Whether a command needs unique keys.
    pub(crate) fn uses_keys(command: &Command) -> bool {
        match command {
            Command::Put { tasks, .. } => tasks.iter().any(|task| task.key.is_some()),
            Command::List(list) => list.key.is_some(),
            _ => false,
        }
    }

    /// The error of a store without unique keys.
    pub fn no_keys(&self) -> Error {
        let name = self.name;
        Error::Invalid(format!("the {name} store has no unique keys; leave the key out"))
    }

    /// A store with no optional feature.
    pub const fn plain(name: &'static str) -> Self {
        Capabilities {
            name,
            durable: false,
            shared: false,
            semaphores: false,
            gates: false,
            keys: false,
            exports: false,
            imports: false,
            wakes: "",
            loses: &[],
        }
    }
}

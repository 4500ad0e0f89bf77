//! Wraps a store whose imports fail after some steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use taskyard_core::{Body, Command, Error, Timestamp};
use taskyard_store::{BodyKey, Capabilities, Executed, Export, Exported, Import, Pending, Store};

/// A store that fails after this many imports, and may have fewer capabilities.
pub struct FailingStore {
    store: Arc<dyn Store>,
    steps: AtomicUsize,
    pub capabilities: Capabilities,
}

impl FailingStore {
    pub fn new(store: Arc<dyn Store>, steps: usize) -> Self {
        let capabilities = store.capabilities();
        FailingStore { store, steps: AtomicUsize::new(steps), capabilities }
    }
}

impl Store for FailingStore {
    fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed> {
        self.store.execute(now, commands)
    }

    fn load(&self, keys: Vec<BodyKey>) -> Pending<'_, Vec<Result<Option<Body>, Error>>> {
        self.store.load(keys)
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn export(&self, wanted: Export) -> Pending<'_, Result<Exported, Error>> {
        self.store.export(wanted)
    }

    fn import(&self, now: Timestamp, part: Import) -> Pending<'_, Result<(), Error>> {
        if self.steps.load(Ordering::Relaxed) == 0 {
            return Box::pin(async { Err(Error::Store("a test requested this failure".into())) });
        }
        self.steps.fetch_sub(1, Ordering::Relaxed);
        self.store.import(now, part)
    }

    fn close(&self) -> Pending<'_, Result<(), Error>> {
        self.store.close()
    }
}

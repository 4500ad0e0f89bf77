//! Tracks which backends are alive and which are free.

/// Which backends are alive and which are free.
#[derive(Debug, Default)]
pub(super) struct BackendSlots {
    backends: Vec<BackendSlot>,
}

#[derive(Clone, Copy, Debug, Default)]
struct BackendSlot {
    alive: bool,
    /// The attempt that holds it.
    holder: Option<u64>,
}

impl BackendSlots {
    pub fn alive(&self) -> u32 {
        self.backends.iter().filter(|backend| backend.alive).count() as u32
    }

    pub fn set(&mut self, id: usize, alive: bool) {
        if id >= self.backends.len() {
            self.backends.resize(id + 1, BackendSlot::default());
        }
        self.backends[id] = BackendSlot { alive, holder: None };
    }

    /// Assigns a free backend to this attempt.
    pub fn take(&mut self, attempt: u64) -> Option<usize> {
        let is_free = |backend: &BackendSlot| backend.alive && backend.holder.is_none();
        let id = self.backends.iter().position(is_free)?;
        self.backends[id].holder = Some(attempt);
        Some(id)
    }

    /// Releases the backend of this attempt; a halted attempt has released it before.
    pub fn release(&mut self, id: usize, attempt: u64) {
        if let Some(backend) = self.backends.get_mut(id)
            && backend.holder == Some(attempt)
        {
            backend.holder = None;
        }
    }
}

//! The backends: which live, and which are free.

/// Which backends live, and which are free.
#[derive(Debug, Default)]
pub(super) struct Places {
    backends: Vec<Backend>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Backend {
    alive: bool,
    /// The attempt it is held for.
    holder: Option<u64>,
}

impl Places {
    pub fn alive(&self) -> u32 {
        self.backends.iter().filter(|backend| backend.alive).count() as u32
    }

    pub fn set(&mut self, id: usize, alive: bool) {
        if id >= self.backends.len() {
            self.backends.resize(id + 1, Backend::default());
        }
        self.backends[id] = Backend { alive, holder: None };
    }

    /// Holds a free backend for this attempt.
    pub fn take(&mut self, attempt: u64) -> Option<usize> {
        let free = |backend: &Backend| backend.alive && backend.holder.is_none();
        let id = self.backends.iter().position(free)?;
        self.backends[id].holder = Some(attempt);
        Some(id)
    }

    /// The attempt holds its backend no longer; one that was halted gave it up before.
    pub fn free(&mut self, id: usize, attempt: u64) {
        if let Some(backend) = self.backends.get_mut(id)
            && backend.holder == Some(attempt)
        {
            backend.holder = None;
        }
    }
}

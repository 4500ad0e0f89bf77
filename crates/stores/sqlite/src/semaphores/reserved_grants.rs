//! Reserves numbers of grants on disk ahead of time, so that a grant need not write the row of its semaphore.

use std::collections::HashMap;

use taskyard_core::semaphore::SemaphoreRecord;

/// How many numbers a row reserves; a crash skips at most so many. A small number would make grants of many semaphores write
/// many rows, each in a page of its own.
const GRANTS_RESERVED: u64 = 1024;

/// The number up to which the row of each semaphore reserves grants, as far as this process wrote it.
#[derive(Debug, Default)]
pub(in super::super) struct ReservedGrants {
    ceilings: HashMap<u32, u64>,
}

impl ReservedGrants {
    /// Whether the row on disk allows the latest grant.
    pub fn covers(&self, number: u32, record: &SemaphoreRecord) -> bool {
        self.ceilings.get(&number).is_some_and(|ceiling| record.grant_seq <= *ceiling)
    }

    /// The row to write, with numbers reserved.
    pub fn reserve(&mut self, number: u32, record: &SemaphoreRecord) -> SemaphoreRecord {
        let grant_seq = record.grant_seq.saturating_add(GRANTS_RESERVED);
        self.ceilings.insert(number, grant_seq);
        SemaphoreRecord { grant_seq, ..record.clone() }
    }

    /// The semaphore is removed.
    pub fn forget(&mut self, number: u32) {
        self.ceilings.remove(&number);
    }

    /// A transaction failed: what the rows reserve is not known, and they are written again.
    pub fn clear(&mut self) {
        self.ceilings.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.ceilings.is_empty()
    }

    /// The semaphores with a reservation, ascending; they have none afterwards.
    pub fn take(&mut self) -> Vec<u32> {
        let mut numbers: Vec<u32> = self.ceilings.drain().map(|(number, _)| number).collect();
        numbers.sort_unstable();
        numbers
    }
}

//! Remembers the row locations of this server's deliveries, as hints for acks.
//!
//! An ack names a task by its id, which costs an index lookup, while the location of the row is known from the take. It is
//! only a hint: a row is deleted only if it has the lease, and a task that is not found at its location is looked up.

use std::collections::HashMap;

use taskyard_core::{FinishItem, Holder, Lease, TaskId};

use super::codec::RowLocation;

/// How many of the latest deliveries are remembered at least.
const KEPT: usize = 50_000;

/// The row locations of the latest deliveries.
#[derive(Debug, Default)]
pub(super) struct RowLocations {
    /// In two generations, so that the older one can be dropped at once.
    young: HashMap<Lease, (TaskId, RowLocation)>,
    old: HashMap<Lease, (TaskId, RowLocation)>,
}

impl RowLocations {
    /// Remembers a delivery.
    pub fn note(&mut self, lease: Lease, id: TaskId, place: RowLocation) {
        if self.young.len() >= KEPT {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(lease, (id, place));
    }

    /// The location of each of these; `None` where none is known.
    pub fn of(&self, items: &[FinishItem]) -> Option<Vec<Option<RowLocation>>> {
        let places: Vec<_> = items.iter().map(|item| self.place(item)).collect();
        places.iter().any(Option::is_some).then_some(places)
    }

    fn place(&self, item: &FinishItem) -> Option<RowLocation> {
        let Holder::Lease(lease) = &item.holder else { return None };
        let (id, place) = self.young.get(lease).or_else(|| self.old.get(lease))?;
        // A caller may name one task with the lease of another.
        (*id == item.id).then_some(*place)
    }
}

#[cfg(test)]
mod tests {
    use taskyard_core::Finish;
    use tokio_postgres::types::{FromSql, Type};

    use super::*;

    fn place(line: u8) -> RowLocation {
        RowLocation::from_sql(&Type::TID, &[0, 0, 0, 1, 0, line]).expect("six bytes")
    }

    fn ack(id: u64, holder: Holder) -> FinishItem {
        FinishItem { id: TaskId(id), holder, finish: Finish::Ack }
    }

    #[test]
    fn only_the_task_of_a_lease_has_its_location() {
        let mut places = RowLocations::default();
        places.note(Lease(7), TaskId(1), place(3));
        let right = ack(1, Holder::Lease(Lease(7)));
        let others =
            [ack(2, Holder::Lease(Lease(7))), ack(1, Holder::Lease(Lease(8))), ack(1, Holder::Any)];
        assert_eq!(places.of(&others), None);
        let mixed: Vec<FinishItem> = others.into_iter().chain([right]).collect();
        assert_eq!(places.of(&mixed), Some(vec![None, None, None, Some(place(3))]));
    }

    #[test]
    fn the_oldest_are_dropped() {
        let mut places = RowLocations::default();
        for lease in 0..=2 * KEPT as u64 {
            places.note(Lease(lease), TaskId(lease), place(1));
        }
        let known = |lease| places.place(&ack(lease, Holder::Lease(Lease(lease)))).is_some();
        assert!(!known(0) && known(KEPT as u64) && known(2 * KEPT as u64));
        assert!(places.young.len() + places.old.len() <= 2 * KEPT);
    }
}

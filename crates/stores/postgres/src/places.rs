//! Where the deliveries of this server lie in the table.
//!
//! An ack names a task by its id, which the database would look up; where it put the row when it was taken is known
//! already. That is a hint and no more: a row is meant if it has the lease, wherever it lies, and
//! what is not found at its place is looked up.

use std::collections::HashMap;

use taskyard_core::{FinishItem, Holder, Lease, TaskId};

use super::codec::Place;

/// How many are remembered at least, if there are as many.
const KEPT: usize = 50_000;

/// What is known of the latest deliveries.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// In two halves, so that the older ones can be forgotten at once.
    young: HashMap<Lease, (TaskId, Place)>,
    old: HashMap<Lease, (TaskId, Place)>,
}

impl Places {
    /// Remembers a delivery.
    pub fn note(&mut self, lease: Lease, id: TaskId, place: Place) {
        if self.young.len() >= KEPT {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(lease, (id, place));
    }

    /// Where each of these lies; nothing where none is known.
    pub fn of(&self, items: &[FinishItem]) -> Option<Vec<Option<Place>>> {
        let places: Vec<_> = items.iter().map(|item| self.place(item)).collect();
        places.iter().any(Option::is_some).then_some(places)
    }

    fn place(&self, item: &FinishItem) -> Option<Place> {
        let Holder::Lease(lease) = &item.holder else { return None };
        let (id, place) = self.young.get(lease).or_else(|| self.old.get(lease))?;
        // Somebody may name one task with the lease of another.
        (*id == item.id).then_some(*place)
    }
}

#[cfg(test)]
mod tests {
    use taskyard_core::Finish;
    use tokio_postgres::types::{FromSql, Type};

    use super::*;

    fn place(line: u8) -> Place {
        Place::from_sql(&Type::TID, &[0, 0, 0, 1, 0, line]).expect("six bytes")
    }

    fn ack(id: u64, holder: Holder) -> FinishItem {
        FinishItem { id: TaskId(id), holder, finish: Finish::Ack }
    }

    #[test]
    fn only_the_task_of_a_lease_has_its_place() {
        let mut places = Places::default();
        places.note(Lease(7), TaskId(1), place(3));
        let right = ack(1, Holder::Lease(Lease(7)));
        let others =
            [ack(2, Holder::Lease(Lease(7))), ack(1, Holder::Lease(Lease(8))), ack(1, Holder::Any)];
        assert_eq!(places.of(&others), None);
        let mixed: Vec<FinishItem> = others.into_iter().chain([right]).collect();
        assert_eq!(places.of(&mixed), Some(vec![None, None, None, Some(place(3))]));
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let mut places = Places::default();
        for lease in 0..=2 * KEPT as u64 {
            places.note(Lease(lease), TaskId(lease), place(1));
        }
        let known = |lease| places.place(&ack(lease, Holder::Lease(Lease(lease)))).is_some();
        assert!(!known(0) && known(KEPT as u64) && known(2 * KEPT as u64));
        assert!(places.young.len() + places.old.len() <= 2 * KEPT);
    }
}

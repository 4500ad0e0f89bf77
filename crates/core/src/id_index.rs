//! Finds the place of a task by its id.

use hashbrown::HashTable;

use crate::task::TaskId;

/// Ids in a page. Larger pages waste more where few tasks of many are left: a page of one task has 272 bytes.
const PAGE: usize = 64;

/// No task has this place.
const VACANT: u32 = u32::MAX;

/// Places by id. Ids only grow, and tasks that are put together are mostly found together: so the places of neighbouring ids are
/// neighbours in memory, unlike in a hash table of ids.
#[derive(Debug, Default)]
pub(crate) struct IdIndex {
    pages: HashTable<IdPage>,
    len: usize,
}

/// The places of [`PAGE`] successive ids, at least one of which has one.
#[derive(Debug)]
struct IdPage {
    number: u64,
    used: u32,
    places: Box<[u32; PAGE]>,
}

/// The page of an id, and where it is there.
fn split(id: TaskId) -> (u64, usize) {
    (id.0 / PAGE as u64, (id.0 % PAGE as u64) as usize)
}

/// Fills the upper bits, which the table uses as tags.
fn hash(number: u64) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl IdIndex {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn get(&self, id: TaskId) -> Option<u32> {
        let (number, at) = split(id);
        let page = self.pages.find(hash(number), |page| page.number == number)?;
        Some(page.places[at]).filter(|&place| place != VACANT)
    }

    /// Adds the place of an id that has none.
    pub fn insert(&mut self, id: TaskId, place: u32) {
        assert!(place != VACANT, "a tube has less than 2^32 - 1 tasks");
        let (number, at) = split(id);
        let page = self
            .pages
            .entry(hash(number), |page| page.number == number, |page| hash(page.number))
            .or_insert_with(|| IdPage { number, used: 0, places: Box::new([VACANT; PAGE]) })
            .into_mut();
        debug_assert_eq!(page.places[at], VACANT, "{id} has a place");
        page.places[at] = place;
        page.used += 1;
        self.len += 1;
    }

    pub fn remove(&mut self, id: TaskId) -> Option<u32> {
        let (number, at) = split(id);
        let mut found = self.pages.find_entry(hash(number), |page| page.number == number).ok()?;
        let page = found.get_mut();
        let place = std::mem::replace(&mut page.places[at], VACANT);
        if place == VACANT {
            return None;
        }
        page.used -= 1;
        if page.used == 0 {
            found.remove();
        }
        self.len -= 1;
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// The index answers like a map, and has no page without a task.
    #[test]
    fn places_are_those_of_a_map() {
        for base in [0, 63, 1 << 40, u64::MAX - 400] {
            let mut random = fastrand::Rng::with_seed(base);
            let (mut index, mut map) = (IdIndex::default(), HashMap::new());
            for step in 0..20_000 {
                let id = TaskId(base + random.u64(..400));
                // Mostly puts at first, then mostly removals, so that pages fill and empty.
                if random.u32(..10) < if step % 4_000 < 2_000 { 7 } else { 1 } {
                    let place = map.entry(id).or_insert_with(|| {
                        index.insert(id, step);
                        step
                    });
                    assert_eq!(index.get(id), Some(*place));
                } else {
                    assert_eq!(index.remove(id), map.remove(&id));
                    assert_eq!(index.get(id), None);
                }
                assert_eq!((index.len(), index.is_empty()), (map.len(), map.is_empty()));
            }
            assert!(index.pages.iter().all(|page| page.used > 0));
            let ids = map.keys().map(|id| id.0 / PAGE as u64);
            assert_eq!(index.pages.len(), ids.collect::<std::collections::HashSet<_>>().len());
        }
    }
}

//! Distinguishes the bodies of tubes that had the same number one after the other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use taskyard_core::TaskId;
use taskyard_core::limits::TUBES_MAX;

use taskyard_store::BodyKey;

/// Tube numbers use the lower bits of [`BodyKey::tube`], the generation the rest.
const NUMBER_BITS: u32 = 14;
const _: () = assert!(TUBES_MAX <= 1 << NUMBER_BITS);

/// How often the tube of each number was emptied.
///
/// A body may be requested before its tube is dropped and read after a new tube got the same number and ids
/// from 0 again; so the keys of bodies contain this count.
#[derive(Clone, Debug, Default)]
pub(super) struct Generations(Arc<Mutex<HashMap<u32, u32>>>);

impl Generations {
    /// The key of a body in the current generation.
    pub fn key(&self, number: u32, id: TaskId) -> BodyKey {
        let generation = self.lock().get(&number).copied().unwrap_or(0);
        BodyKey { tube: number | (generation << NUMBER_BITS), id }
    }

    /// Whether the tube was not emptied since the key was created.
    pub fn is_current(&self, key: BodyKey) -> bool {
        self.key(number(key), key.id) == key
    }

    /// Blocks [`Generations::key`] and [`Generations::is_current`] while a commit that empties tubes is in
    /// progress: a reader that has read what the commit wrote then sees the new generation.
    pub fn begin_emptying(&self) -> EmptyingGuard<'_> {
        EmptyingGuard(self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A commit that empties tubes.
pub(super) struct EmptyingGuard<'a>(MutexGuard<'a, HashMap<u32, u32>>);

impl EmptyingGuard<'_> {
    /// Counts the tubes that were emptied, after the commit succeeded.
    pub fn finish(mut self, numbers: &[u32]) {
        for number in numbers {
            let generation = self.0.entry(*number).or_insert(0);
            *generation = (*generation + 1) & (u32::MAX >> NUMBER_BITS);
        }
    }
}

/// Whether a tube can have this number.
pub(super) fn fits(number: u32) -> bool {
    number < 1 << NUMBER_BITS
}

/// The tube's number in a key.
pub(super) fn number(key: BodyKey) -> u32 {
    key.tube & ((1 << NUMBER_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_outdated_once_its_tube_was_emptied() {
        let generations = Generations::default();
        let (old, other) = (generations.key(3, TaskId(0)), generations.key(4, TaskId(0)));
        generations.begin_emptying().finish(&[3]);
        assert!(!generations.is_current(old));
        assert!(generations.is_current(other));
        let new = generations.key(3, TaskId(0));
        assert!(generations.is_current(new));
        assert_eq!(number(new), 3);
    }
}

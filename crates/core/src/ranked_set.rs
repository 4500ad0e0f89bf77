//! A sorted set that finds the number of members before a key, and the member at a place, in O(log n).

use crate::steps;

/// The most members of a chunk.
const CHUNK_MAX: usize = 512;

/// Members in chunks, with a tree of sums over the lengths of the chunks.
#[derive(Clone, Debug)]
pub(crate) struct RankedSet<K> {
    /// Ascending; no chunk is empty.
    chunks: Vec<Vec<K>>,
    /// A Fenwick tree: at `i` the sum of the lengths of the chunks from `i & (i + 1)` to `i`.
    sums: Vec<usize>,
    len: usize,
}

impl<K> Default for RankedSet<K> {
    fn default() -> Self {
        RankedSet { chunks: Vec::new(), sums: Vec::new(), len: 0 }
    }
}

impl<K: Ord + Copy> RankedSet<K> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn first(&self) -> Option<K> {
        self.chunks.first()?.first().copied()
    }

    pub fn contains(&self, key: &K) -> bool {
        let chunk = self.chunks.get(self.chunk_of(key));
        chunk.is_some_and(|chunk| chunk.binary_search(key).is_ok())
    }

    /// The number of members before this key.
    pub fn rank(&self, key: &K) -> usize {
        let at = self.chunk_of(key);
        let Some(chunk) = self.chunks.get(at) else { return 0 };
        self.before_chunk(at) + chunk.partition_point(|member| member < key)
    }

    /// The member with so many before it.
    pub fn nth(&self, place: usize) -> Option<K> {
        let (mut at, mut place) = (0, place);
        let mut step = self.sums.len().checked_next_power_of_two().unwrap_or(0);
        while step > 0 {
            steps::count(1);
            if let Some(sum) = self.sums.get(at + step - 1).filter(|sum| **sum <= place) {
                place -= sum;
                at += step;
            }
            step /= 2;
        }
        self.chunks.get(at)?.get(place).copied()
    }

    /// All members.
    pub fn iter(&self) -> impl Iterator<Item = K> {
        self.chunks.iter().flatten().copied()
    }

    /// The members that are not before this key.
    pub fn from(&self, key: &K) -> impl Iterator<Item = K> {
        let at = self.chunk_of(key);
        let before = self.chunks.get(at).map_or(0, |chunk| chunk.partition_point(|own| own < key));
        self.chunks.get(at..).unwrap_or_default().iter().flatten().skip(before).copied()
    }

    /// Whether it is new.
    pub fn insert(&mut self, key: K) -> bool {
        let at = self.chunk_of(&key);
        let is_last = at + 1 >= self.chunks.len();
        let Some(chunk) = self.chunks.get_mut(at) else {
            self.add_chunk(0, vec![key]);
            return true;
        };
        let Err(place) = chunk.binary_search(&key) else { return false };
        if chunk.len() < CHUNK_MAX {
            chunk.insert(place, key);
            self.change_sum(at, 1);
        } else if is_last && place == CHUNK_MAX {
            self.add_chunk(at + 1, vec![key]);
        } else {
            let mut second = chunk.split_off(CHUNK_MAX / 2);
            if place <= chunk.len() {
                chunk.insert(place, key);
            } else {
                second.insert(place - chunk.len(), key);
            }
            self.add_chunk(at + 1, second);
        }
        true
    }

    /// Whether it was present.
    pub fn remove(&mut self, key: &K) -> bool {
        let at = self.chunk_of(key);
        let Some(chunk) = self.chunks.get_mut(at) else { return false };
        let Ok(place) = chunk.binary_search(key) else { return false };
        chunk.remove(place);
        let left = chunk.len();
        self.change_sum(at, -1);
        if left == 0 {
            self.chunks.remove(at);
            self.count_chunks();
        } else if left < CHUNK_MAX / 8 {
            self.merge(at);
        }
        true
    }

    /// Joins a short chunk with a neighbour that is short too.
    fn merge(&mut self, at: usize) {
        for first in [at, at.saturating_sub(1)] {
            let [own, next] = [first, first + 1].map(|at| self.chunks.get(at).map(Vec::len));
            if let (Some(own), Some(next)) = (own, next)
                && own + next <= CHUNK_MAX / 2
            {
                let next = self.chunks.remove(first + 1);
                self.chunks[first].extend(next);
                self.count_chunks();
                return;
            }
        }
    }

    /// The last chunk that begins with this key or before it, or the first one.
    fn chunk_of(&self, key: &K) -> usize {
        steps::count(self.chunks.len().checked_ilog2().unwrap_or(0) as usize + 1);
        self.chunks.partition_point(|chunk| chunk[0] <= *key).saturating_sub(1)
    }

    /// The number of members in the chunks before this one.
    fn before_chunk(&self, at: usize) -> usize {
        let (mut end, mut sum) = (at, 0);
        while end > 0 {
            steps::count(1);
            sum += self.sums[end - 1];
            end &= end - 1;
        }
        sum
    }

    fn change_sum(&mut self, at: usize, by: isize) {
        self.len = self.len.wrapping_add_signed(by);
        let mut place = at;
        while let Some(sum) = self.sums.get_mut(place) {
            *sum = sum.wrapping_add_signed(by);
            place |= place + 1;
        }
    }

    fn add_chunk(&mut self, at: usize, chunk: Vec<K>) {
        self.chunks.insert(at, chunk);
        self.count_chunks();
    }

    /// Sums up again, after the number of chunks has changed.
    fn count_chunks(&mut self) {
        self.sums.clear();
        self.sums.extend(self.chunks.iter().map(Vec::len));
        self.len = self.sums.iter().sum();
        for place in 0..self.sums.len() {
            let above = place | (place + 1);
            if above < self.sums.len() {
                self.sums[above] += self.sums[place];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The set grows to several chunks and shrinks again, at its ends and inside.
    #[test]
    fn does_what_a_sorted_set_does() {
        for seed in 0..20 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut ranked, mut set) = (RankedSet::default(), BTreeSet::new());
            for step in 0..12_000_u32 {
                let key = random.u32(0..20_000) + step / 8;
                if random.u32(0..10) < if step % 6_000 < 4_000 { 9 } else { 0 } {
                    assert_eq!(ranked.insert(key), set.insert(key), "seed {seed}");
                } else {
                    let key = match random.u8(0..3) {
                        0 => set.first().copied().unwrap_or(key),
                        1 => set.range(key..).next().copied().unwrap_or(key),
                        _ => key,
                    };
                    assert_eq!(ranked.remove(&key), set.remove(&key), "seed {seed}");
                }
                assert_eq!((ranked.len(), ranked.is_empty()), (set.len(), set.is_empty()));
                if step % 97 == 0 {
                    let before = set.range(..key).count();
                    assert_eq!(ranked.rank(&key), before, "seed {seed}");
                    let from = set.range(key..).next().copied();
                    assert_eq!(ranked.nth(before), from, "seed {seed}");
                    assert!(ranked.from(&key).eq(set.range(key..).copied()), "seed {seed}");
                    assert_eq!(ranked.contains(&key), set.contains(&key), "seed {seed}");
                    assert_eq!(ranked.first(), set.first().copied(), "seed {seed}");
                }
            }
            assert!(ranked.iter().eq(set.iter().copied()), "seed {seed}");
            assert_eq!(ranked.nth(set.len()), None);
        }
    }

    /// A set that was large keeps no memory for each member that it had.
    #[test]
    fn short_chunks_are_joined() {
        let mut ranked = RankedSet::default();
        (0..100_000).for_each(|key| assert!(ranked.insert(key)));
        (0..100_000).filter(|key| key % 500 != 0).for_each(|key| assert!(ranked.remove(&key)));
        assert_eq!(ranked.len(), 200);
        assert!(ranked.chunks.len() < 20, "{} chunks", ranked.chunks.len());
    }

    #[test]
    fn a_search_takes_few_steps() {
        let mut ranked = RankedSet::default();
        (0..1_000_000).for_each(|key| assert!(ranked.insert(key)));
        for key in [0, 1, 499_999, 999_999] {
            let (steps, rank) = steps::of(|| ranked.rank(&key));
            assert!(rank == key && steps < 40, "{steps} steps");
            let (steps, nth) = steps::of(|| ranked.nth(key));
            assert!(nth == Some(key) && steps < 40, "{steps} steps");
        }
    }
}

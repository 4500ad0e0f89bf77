//! Finds the entry of a key by the hash of its text.
//!
//! Keys are searched in no order, so nearly every search in a large table waits for memory. A bucket has the hash and the number of the
//! entry side by side, and a key is near the bucket that the upper bits of its hash name: a search reads one line of memory in most
//! cases, an insertion after it no further one, and a table that grows is copied from the beginning to the end.

/// Numbers of entries by hash: open addressing with linear probing.
#[derive(Debug, Default)]
pub(crate) struct KeyTable {
    /// A power of two, or none.
    buckets: Vec<HashBucket>,
    len: usize,
}

/// The hash in the upper half, the number of the entry plus one in the lower half. Zero is vacant, so that a new table needs no
/// writing.
type HashBucket = u64;

/// Buckets of the first table.
const FIRST_BUCKETS: usize = 16;

fn bucket(hash: u32, entry: u32) -> HashBucket {
    (u64::from(hash) << 32) | (u64::from(entry) + 1)
}

fn hash_of(bucket: HashBucket) -> u32 {
    (bucket >> 32) as u32
}

fn entry_of(bucket: HashBucket) -> u32 {
    (bucket as u32).wrapping_sub(1)
}

impl KeyTable {
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The entry with this hash that is wanted.
    pub fn find(&self, hash: u32, is_wanted: impl Fn(u32) -> bool) -> Option<u32> {
        self.position(hash, is_wanted).map(|position| entry_of(self.buckets[position]))
    }

    fn position(&self, hash: u32, is_wanted: impl Fn(u32) -> bool) -> Option<usize> {
        if self.buckets.is_empty() {
            return None;
        }
        let mut position = self.home(hash);
        loop {
            let bucket = self.buckets[position];
            if bucket == 0 {
                return None;
            }
            if hash_of(bucket) == hash && is_wanted(entry_of(bucket)) {
                return Some(position);
            }
            position = self.next(position);
        }
    }

    /// Adds an entry that is not in the table. Its number is less than the largest one of 32 bits.
    pub fn insert(&mut self, hash: u32, entry: u32) {
        if self.len * 4 >= self.buckets.len() * 3 {
            self.grow();
        }
        self.insert_bucket(bucket(hash, entry));
        self.len += 1;
    }

    /// Removes an entry.
    pub fn remove(&mut self, hash: u32, entry: u32) {
        let Some(mut free) = self.position(hash, |found| found == entry) else { return };
        self.len -= 1;
        // A bucket that a search would not reach across the free one moves there.
        let mut position = self.next(free);
        while self.buckets[position] != 0 {
            let home = self.home(hash_of(self.buckets[position]));
            if self.distance(home, position) >= self.distance(free, position) {
                self.buckets[free] = self.buckets[position];
                free = position;
            }
            position = self.next(position);
        }
        self.buckets[free] = 0;
    }

    fn grow(&mut self) {
        let size = (self.buckets.len() * 2).max(FIRST_BUCKETS);
        let before = std::mem::replace(&mut self.buckets, vec![0; size]);
        before
            .into_iter()
            .filter(|bucket| *bucket != 0)
            .for_each(|bucket| self.insert_bucket(bucket));
    }

    fn insert_bucket(&mut self, bucket: HashBucket) {
        let mut position = self.home(hash_of(bucket));
        while self.buckets[position] != 0 {
            position = self.next(position);
        }
        self.buckets[position] = bucket;
    }

    /// Where the search for a hash begins.
    fn home(&self, hash: u32) -> usize {
        (u64::from(hash) << self.buckets.len().trailing_zeros() >> 32) as usize
    }

    fn next(&self, position: usize) -> usize {
        (position + 1) & (self.buckets.len() - 1)
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.buckets.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Compares the table with a map while entries come and go. Few different hashes let many collide, also around the end of the table.
    #[test]
    fn entries_are_found_until_they_are_removed() {
        for hashes in [3, 40, u32::MAX] {
            let mut rng = fastrand::Rng::with_seed(u64::from(hashes));
            let (mut table, mut model) = (KeyTable::default(), HashMap::new());
            for round in 0..4000 {
                let entry = rng.u32(0..300);
                match model.remove(&entry) {
                    Some(hash) => table.remove(hash, entry),
                    None => {
                        let hash = u32::MAX - rng.u32(0..hashes);
                        table.insert(hash, entry);
                        model.insert(entry, hash);
                    }
                }
                assert_eq!((table.len(), table.is_empty()), (model.len(), model.is_empty()));
                if round % 50 == 0 {
                    for entry in 0..300 {
                        let Some(hash) = model.get(&entry) else { continue };
                        assert_eq!(table.find(*hash, |found| found == entry), Some(entry));
                        assert_eq!(table.find(*hash, |_| false), None);
                    }
                }
            }
            for (entry, hash) in model {
                table.remove(hash, entry);
                table.remove(hash, entry);
            }
            assert_eq!(table.buckets.iter().filter(|bucket| **bucket != 0).count(), 0);
        }
    }
}

//! The unique keys of one tube: which task holds which key.
//!
//! The rule, which every store follows:
//!
//! - A key is held by its task while that is ready, delayed, taken or buried, and then until the
//!   moment `end + unique_for`. `unique_for` is the one of the put that added the task, or of the
//!   latest put that replaced it. At that moment itself the key is free.
//! - The end of a task is the moment of the command that acked or deleted it. A task that is not
//!   taken and whose time to live is over has ended when that was over, whether or not a tick has
//!   removed it. A task whose lease is over counts as taken until a tick has released it. Whether a
//!   done task is kept (`keep_done`) or deleted later does not matter.
//! - A put handles its tasks in order. For a task with a key: (1) if the holder's time to live is
//!   over, it is removed as by a tick; (2) if the key was held by an ended task and is free by now,
//!   that is forgotten; (3) if the key is free, the task is added and holds it; (4) with `replace`, a
//!   ready or delayed holder gets body, `pri`, `semaphore_priority`, `ttl`, `ttr`, `delay` or `at`
//!   (and the defaults of the tube for those not given) as if it were put now, and `unique_for`; it
//!   keeps its id, its time of creation, its sub-queue, its attempts and failures; (5) otherwise
//!   nothing changes. The reply of (4) and (5) is the id of the holder and its state, with
//!   `existing`; the state of an ended task is done.
//! - Only tasks that are added need capacity, and count as put. Capacity is compared before the
//!   first task is handled, so that a refused put changes nothing; what (1) removes does not count as
//!   free there.
//! - A tick forgets keys that are free, some time later. A tube remembers at most
//!   [`ENDED_KEYS_MAX`] keys of ended tasks: if there are more, the one that would be free first is
//!   free at once.
//! - Truncate, drop and the restart of a temporary tube forget all keys; a new name keeps them.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::hint;

use hashbrown::HashTable;

use crate::chunks::Chunks;
use crate::id_index::IdIndex;
use crate::key::{EndedKey, HeldKey, Key, KeyRequest};
use crate::limits::ENDED_KEYS_MAX;
use crate::task::TaskId;
use crate::time::{Span, Timestamp};

/// The most keys of ended tasks that a tube remembers. Unit tests reach a small number.
pub(crate) const ENDED_MAX: usize = if cfg!(test) { 100 } else { ENDED_KEYS_MAX };

/// Free keys of ended tasks are removed in groups: when the clock is at a multiple of this.
const CLEANUP_EVERY: Span = Span::from_secs(10);

/// A tube without keys gives back the memory of more entries than this.
const KEPT_ENTRIES: usize = 1024;

/// When a tick removes a key that is free from `until` on.
fn cleanup_at(until: Timestamp) -> Timestamp {
    let (until, every) = (until.as_micros(), CLEANUP_EVERY.as_micros());
    Timestamp::from_micros(until.saturating_add((-until).rem_euclid(every)))
}

/// The keys of one tube. Empty in most tubes.
///
/// Millions of them may be found by key in no order, so what is searched is small: numbers of entries, which are
/// in the order of puts. The text of a key is hashed once, when a put looks for its holder.
#[derive(Debug, Default)]
pub(crate) struct TubeKeys {
    entries: Chunks<KeyEntry>,
    vacant: Vec<u32>,
    /// Entries by task.
    by_id: IdIndex,
    /// Entries by key, with the hash: a table that grows does not have to read all entries, which are far apart.
    by_key: HashTable<KeyPlace>,
    /// The keys of ended tasks by the moment at which they are free.
    by_until: BTreeSet<(Timestamp, TaskId)>,
    /// Clients choose the keys, so they must not be able to choose hashes.
    seed: RandomState,
}

/// Where the entry of a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeyPlace {
    hash: KeyHash,
    index: u32,
}

/// A task that holds a key.
#[derive(Debug)]
struct KeyEntry {
    id: TaskId,
    hash: KeyHash,
    holding: Holding,
}

/// How a task holds its key.
#[derive(Debug)]
enum Holding {
    /// It has not ended. As its put gave it, so that nothing is allocated.
    Living(Box<KeyRequest>),
    Ended(Box<EndedKey>),
}

impl KeyEntry {
    fn key(&self) -> &Key {
        match &self.holding {
            Holding::Living(request) => &request.held.key,
            Holding::Ended(ended) => &ended.key,
        }
    }
}

/// Spreads small differences over all bits of a number.
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

/// Half of the hash of a key's text, with the seed of its tube: enough for the keys of one tube.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyHash(u32);

impl KeyHash {
    /// The hash for the table, which uses the lowest bits for the bucket and the highest as tags.
    fn whole(self) -> u64 {
        u64::from(self.0).wrapping_mul(FACTOR)
    }
}

impl TubeKeys {
    /// The hash of a key.
    pub fn hash(&self, key: &Key) -> KeyHash {
        let mut hasher = self.seed.build_hasher();
        hasher.write(key.as_str().as_bytes());
        KeyHash(hasher.finish() as u32)
    }

    /// The hashes of these keys. What a search for them reads is then in the processor's cache: keys are in no order, so nearly every
    /// search waits for memory, and searches that do not depend on each other wait together.
    pub fn hashes<'a>(&self, keys: impl Iterator<Item = &'a Key>) -> Vec<KeyHash> {
        let hashes: Vec<KeyHash> = keys.map(|key| self.hash(key)).collect();
        for hash in &hashes {
            hint::black_box(self.by_key.find(hash.whole(), |place| place.hash == *hash));
        }
        hashes
    }

    /// The task that holds a key, or held it last.
    pub fn holder(&self, key: &Key) -> Option<TaskId> {
        if self.by_key.is_empty() { None } else { self.holder_hashed(self.hash(key), key) }
    }

    /// The same for a key whose hash is known.
    pub fn holder_hashed(&self, hash: KeyHash, key: &Key) -> Option<TaskId> {
        let entry = |place: &KeyPlace| self.entries.get(place.index).as_ref();
        let has_key = |place: &KeyPlace| entry(place).is_some_and(|entry| entry.key() == key);
        let is_wanted = |place: &KeyPlace| place.hash == hash && has_key(place);
        entry(self.by_key.find(hash.whole(), is_wanted)?).map(|entry| entry.id)
    }

    /// The key of a task that has not ended.
    pub fn of(&self, id: TaskId) -> Option<&HeldKey> {
        self.request(id).map(|request| &request.held)
    }

    /// The same with what the put asked for.
    pub fn request(&self, id: TaskId) -> Option<&KeyRequest> {
        match self.holding(id)? {
            Holding::Living(request) => Some(request),
            Holding::Ended(_) => None,
        }
    }

    /// The key of an ended task.
    pub fn ended(&self, id: TaskId) -> Option<&EndedKey> {
        match self.holding(id)? {
            Holding::Living(_) => None,
            Holding::Ended(ended) => Some(ended),
        }
    }

    fn holding(&self, id: TaskId) -> Option<&Holding> {
        self.entries.get(self.by_id.get(id)?).as_ref().map(|entry| &entry.holding)
    }

    /// The keys of ended tasks, by the moment at which they are free.
    pub fn all_ended(&self) -> impl Iterator<Item = &EndedKey> {
        self.by_until.iter().filter_map(|(_, id)| self.ended(*id))
    }

    /// A task without a key gets one that is free.
    pub fn insert(&mut self, id: TaskId, request: Box<KeyRequest>) {
        self.insert_hashed(id, self.hash(&request.held.key), request);
    }

    /// The same with a key whose hash is known.
    pub fn insert_hashed(&mut self, id: TaskId, hash: KeyHash, request: Box<KeyRequest>) {
        self.insert_entry(KeyEntry { id, hash, holding: Holding::Living(request) });
    }

    /// Changes what is stored with the key of a task, which stays the same.
    pub fn update(&mut self, id: TaskId, held: HeldKey) {
        let index = self.by_id.get(id);
        let entry = index.and_then(|index| self.entries.get_mut(index).as_mut());
        if let Some(KeyEntry { holding: Holding::Living(before), .. }) = entry {
            debug_assert_eq!(before.held.key, held.key);
            before.held = held;
        }
    }

    /// A task loses its key.
    pub fn remove(&mut self, id: TaskId) -> Option<Box<KeyRequest>> {
        match self.remove_entry(id, |holding| matches!(holding, Holding::Living(_)))? {
            Holding::Living(request) => Some(request),
            Holding::Ended(_) => None,
        }
    }

    /// Adds the key of an ended task.
    pub fn insert_ended(&mut self, ended: EndedKey) {
        self.by_until.insert((ended.until, ended.id));
        let (id, hash) = (ended.id, self.hash(&ended.key));
        self.insert_entry(KeyEntry { id, hash, holding: Holding::Ended(Box::new(ended)) });
    }

    /// Removes the key of an ended task.
    pub fn remove_ended(&mut self, id: TaskId) -> Option<Box<EndedKey>> {
        let removed = self.remove_entry(id, |holding| matches!(holding, Holding::Ended(_)))?;
        let Holding::Ended(ended) = removed else { return None };
        self.by_until.remove(&(ended.until, id));
        Some(ended)
    }

    fn insert_entry(&mut self, entry: KeyEntry) {
        let (id, hash) = (entry.id, entry.hash);
        let index = match self.vacant.pop() {
            Some(index) => {
                *self.entries.get_mut(index) = Some(entry);
                index
            }
            None => {
                self.entries.push(entry);
                u32::try_from(self.entries.len() - 1).expect("a tube has less than 2^32 keys")
            }
        };
        self.by_id.insert(id, index);
        let place = KeyPlace { hash, index };
        self.by_key.insert_unique(hash.whole(), place, |place| place.hash.whole());
    }

    fn remove_entry(
        &mut self,
        id: TaskId,
        is_wanted: impl FnOnce(&Holding) -> bool,
    ) -> Option<Holding> {
        let index = self.by_id.get(id)?;
        let removed = self.entries.get_mut(index).take_if(|entry| is_wanted(&entry.holding))?;
        self.vacant.push(index);
        self.by_id.remove(id);
        let is_removed = |place: &KeyPlace| place.index == index;
        if let Ok(found) = self.by_key.find_entry(removed.hash.whole(), is_removed) {
            found.remove();
        }
        if self.by_id.is_empty() && self.entries.len() > KEPT_ENTRIES {
            *self = TubeKeys { seed: self.seed.clone(), ..TubeKeys::default() };
        }
        Some(removed.holding)
    }

    /// The ended task whose key a tick forgets now, because it is free or there are too many.
    pub fn surplus(&self, now: Timestamp) -> Option<TaskId> {
        self.surplus_over(now, ENDED_MAX)
    }

    fn surplus_over(&self, now: Timestamp, max: usize) -> Option<TaskId> {
        let (until, id) = *self.by_until.first()?;
        (cleanup_at(until) <= now || self.by_until.len() > max).then_some(id)
    }

    /// When a tick has to forget some.
    pub fn due(&self) -> Option<Timestamp> {
        self.by_until.first().map(|first| cleanup_at(first.0))
    }

    /// Whether there are too many keys of ended tasks.
    pub fn is_full(&self) -> bool {
        self.by_until.len() > ENDED_MAX
    }
}

#[cfg(test)]
impl TubeKeys {
    /// Panics if the indexes contradict each other; `is_alive` tells which tasks have not ended.
    pub fn audit(&self, is_alive: impl Fn(TaskId) -> bool) {
        let entries: Vec<_> = self.entries.iter().flatten().collect();
        let ended = entries.iter().filter(|entry| matches!(entry.holding, Holding::Ended(_)));
        assert_eq!(ended.count(), self.by_until.len());
        assert_eq!((self.by_id.len(), self.by_key.len()), (entries.len(), entries.len()));
        assert_eq!(self.vacant.len(), self.entries.len() - entries.len());
        for entry in entries {
            let (id, key) = (entry.id, entry.key());
            assert_eq!((self.holder(key), self.hash(key)), (Some(id), entry.hash));
            match &entry.holding {
                Holding::Living(request) => {
                    assert!(is_alive(id), "{id} has ended and holds {request:?}");
                    assert_eq!(self.of(id), Some(&request.held));
                }
                Holding::Ended(ended) => {
                    assert!(!is_alive(id) && self.by_until.contains(&(ended.until, id)));
                    assert_eq!((ended.id, self.ended(id)), (id, Some(&**ended)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(id: u64, until: i64) -> EndedKey {
        let key = Key::new(&format!("key {id}")).unwrap();
        EndedKey { id: TaskId(id), key, until: Timestamp::from_micros(until) }
    }

    /// Millions of these are in memory: this test notices an entry that grows.
    #[test]
    fn an_entry_stays_small() {
        assert_eq!(size_of::<Option<KeyEntry>>(), 32);
    }

    #[test]
    fn the_keys_that_are_free_first_are_forgotten_first() {
        let mut keys = TubeKeys::default();
        for (id, until) in [(1, 30), (2, 10), (3, 20)] {
            keys.insert_ended(ended(id, until));
        }
        let at = Timestamp::from_micros;
        assert_eq!(keys.surplus_over(at(9), 3), None);
        assert_eq!(keys.surplus_over(at(10), 3), None, "not at once");
        assert_eq!(keys.due(), Some(at(10_000_000)));
        assert_eq!(keys.surplus_over(at(10_000_000), 3), Some(TaskId(2)));
        assert_eq!(keys.surplus_over(at(9), 2), Some(TaskId(2)), "too many");
        assert!(keys.remove_ended(TaskId(2)).is_some());
        assert_eq!(keys.holder(&ended(2, 0).key), None);
        assert_eq!(keys.surplus_over(at(10), 2), None);
        assert_eq!(cleanup_at(at(20_000_000)), at(20_000_000));
        keys.audit(|_| false);
    }
}

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

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;

use crate::key::{EndedKey, HeldKey, Key};
use crate::limits::ENDED_KEYS_MAX;
use crate::task::TaskId;
use crate::time::{Span, Timestamp};

/// Free keys of ended tasks are removed in groups: when the clock is at a multiple of this.
const CLEANUP_EVERY: Span = Span::from_secs(10);

/// When a tick removes a key that is free from `until` on.
fn cleanup_at(until: Timestamp) -> Timestamp {
    let (until, every) = (until.as_micros(), CLEANUP_EVERY.as_micros());
    Timestamp::from_micros(until.saturating_add((-until).rem_euclid(every)))
}

/// The keys of one tube. Empty in most tubes.
///
/// The text of a key is hashed once, when a put looks for its holder: its hash is kept with the task.
#[derive(Debug, Default)]
pub(crate) struct TubeKeys {
    /// The keys of tasks that have not ended, by task.
    living: HashTable<LivingKey>,
    /// The keys of ended tasks.
    ended: HashMap<TaskId, EndedKey>,
    /// The same by the moment at which they are free.
    by_until: BTreeSet<(Timestamp, TaskId)>,
    /// The holder of each key, ended or not.
    holders: HashTable<Holder>,
    /// Clients choose the keys, so they must not be able to choose hashes.
    seed: RandomState,
}

/// The key of a task that has not ended.
#[derive(Debug)]
struct LivingKey {
    id: TaskId,
    hash: KeyHash,
    held: Arc<HeldKey>,
}

/// The task that holds a key.
#[derive(Debug)]
struct Holder {
    hash: KeyHash,
    id: TaskId,
}

/// Ids only grow: neighbours are in neighbouring buckets, as long as no other bits than the upper ones, which the
/// table uses as tags, are mixed.
fn hash_id(id: TaskId) -> u64 {
    const TAG: u64 = 0x7f << 57;
    id.0 & !TAG | id.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) & TAG
}

/// The hash of a key's text, with the seed of its tube.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyHash(u64);

impl TubeKeys {
    /// The hash of a key.
    pub fn hash(&self, key: &Key) -> KeyHash {
        let mut hasher = self.seed.build_hasher();
        hasher.write(key.as_str().as_bytes());
        KeyHash(hasher.finish())
    }

    /// The task that holds a key, or held it last.
    pub fn holder(&self, key: &Key) -> Option<TaskId> {
        if self.holders.is_empty() { None } else { self.holder_hashed(self.hash(key), key) }
    }

    /// The same for a key whose hash is known.
    pub fn holder_hashed(&self, hash: KeyHash, key: &Key) -> Option<TaskId> {
        let is_holder = |holder: &Holder| {
            let held = || self.of(holder.id).map(|held| &held.key);
            let ended = || self.ended(holder.id).map(|ended| &ended.key);
            holder.hash == hash && held().or_else(ended) == Some(key)
        };
        self.holders.find(hash.0, is_holder).map(|holder| holder.id)
    }

    /// The key of a task that has not ended.
    pub fn of(&self, id: TaskId) -> Option<&Arc<HeldKey>> {
        // Usually empty: this runs for every record that is written.
        if self.living.is_empty() {
            return None;
        }
        self.living.find(hash_id(id), |living| living.id == id).map(|living| &living.held)
    }

    /// The key of an ended task.
    pub fn ended(&self, id: TaskId) -> Option<&EndedKey> {
        self.ended.get(&id)
    }

    /// The keys of ended tasks, in no order.
    pub fn all_ended(&self) -> impl Iterator<Item = &EndedKey> {
        self.ended.values()
    }

    /// A task without a key gets one that is free.
    pub fn insert(&mut self, id: TaskId, held: Arc<HeldKey>) {
        self.insert_hashed(id, self.hash(&held.key), held);
    }

    /// The same with a key whose hash is known.
    pub fn insert_hashed(&mut self, id: TaskId, hash: KeyHash, held: Arc<HeldKey>) {
        self.insert_holder(hash, id);
        let living = LivingKey { id, hash, held };
        self.living.insert_unique(hash_id(id), living, |living| hash_id(living.id));
    }

    /// Changes what is stored with the key of a task, which stays the same.
    pub fn update(&mut self, id: TaskId, held: HeldKey) {
        if let Some(living) = self.living.find_mut(hash_id(id), |living| living.id == id) {
            debug_assert_eq!(living.held.key, held.key);
            living.held = Arc::new(held);
        }
    }

    /// A task loses its key.
    pub fn remove(&mut self, id: TaskId) -> Option<Arc<HeldKey>> {
        if self.living.is_empty() {
            return None;
        }
        let found = self.living.find_entry(hash_id(id), |living| living.id == id).ok()?;
        let (LivingKey { hash, held, .. }, _) = found.remove();
        self.remove_holder(hash, id);
        Some(held)
    }

    /// Adds the key of an ended task.
    pub fn insert_ended(&mut self, ended: EndedKey) {
        self.insert_holder(self.hash(&ended.key), ended.id);
        self.by_until.insert((ended.until, ended.id));
        self.ended.insert(ended.id, ended);
    }

    /// Removes the key of an ended task.
    pub fn remove_ended(&mut self, id: TaskId) -> Option<EndedKey> {
        let ended = self.ended.remove(&id)?;
        self.by_until.remove(&(ended.until, id));
        self.remove_holder(self.hash(&ended.key), id);
        Some(ended)
    }

    fn insert_holder(&mut self, hash: KeyHash, id: TaskId) {
        self.holders.insert_unique(hash.0, Holder { hash, id }, |holder| holder.hash.0);
    }

    fn remove_holder(&mut self, hash: KeyHash, id: TaskId) {
        if let Ok(found) = self.holders.find_entry(hash.0, |holder| holder.id == id) {
            found.remove();
        }
    }

    /// The ended task whose key a tick forgets now, because it is free or there are too many.
    pub fn surplus(&self, now: Timestamp) -> Option<TaskId> {
        self.surplus_over(now, ENDED_KEYS_MAX)
    }

    fn surplus_over(&self, now: Timestamp, max: usize) -> Option<TaskId> {
        let (until, id) = *self.by_until.first()?;
        (cleanup_at(until) <= now || self.ended.len() > max).then_some(id)
    }

    /// When a tick has to forget some.
    pub fn due(&self) -> Option<Timestamp> {
        self.by_until.first().map(|first| cleanup_at(first.0))
    }

    /// Whether there are too many keys of ended tasks.
    pub fn is_full(&self) -> bool {
        self.ended.len() > ENDED_KEYS_MAX
    }
}

#[cfg(test)]
impl TubeKeys {
    /// Panics if the indexes contradict each other; `is_alive` tells which tasks have not ended.
    pub fn audit(&self, is_alive: impl Fn(TaskId) -> bool) {
        assert_eq!(self.ended.len(), self.by_until.len());
        assert_eq!(self.holders.len(), self.living.len() + self.ended.len());
        for LivingKey { id, hash, held } in &self.living {
            assert!(is_alive(*id), "{id} has ended and holds {held:?}");
            assert_eq!((self.holder(&held.key), self.hash(&held.key)), (Some(*id), *hash));
        }
        for (id, ended) in &self.ended {
            assert!(!is_alive(*id) && self.by_until.contains(&(ended.until, *id)));
            assert_eq!((self.holder(&ended.key), ended.id), (Some(*id), *id));
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

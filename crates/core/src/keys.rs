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

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::command::NewTask;
use crate::key::{EndedKey, HeldKey, Key, KeyHash, KeyRequest};
use crate::limits::ENDED_KEYS_MAX;
use crate::slots::Slots;
use crate::task::TaskId;
use crate::time::{Span, Timestamp};

/// The most keys of ended tasks that a tube remembers. Unit tests reach a small number.
pub(crate) const ENDED_MAX: usize = if cfg!(test) { 100 } else { ENDED_KEYS_MAX };

/// Free keys of ended tasks are removed in groups: when the clock is at a multiple of this.
const CLEANUP_EVERY: Span = Span::from_secs(10);

/// So many holders are removed together. Unit tests reach a small number, here and below.
const RELEASED_MAX: usize = if cfg!(test) { 4 } else { 128 };

/// A tube without keys gives back its memory if it had more keys than this.
const KEPT_KEYS: usize = if cfg!(test) { 8 } else { 1024 };

/// When a tick removes a key that is free from `until` on.
fn cleanup_at(until: Timestamp) -> Timestamp {
    let (until, every) = (until.as_micros(), CLEANUP_EVERY.as_micros());
    Timestamp::from_micros(until.saturating_add((-until).rem_euclid(every)))
}

/// The keys of one tube. Empty in most tubes.
///
/// Millions of them may be found by key in no order, so what is searched is small: ids with the hash of the key.
#[derive(Debug, Default)]
pub(crate) struct TubeKeys {
    living: LivingKeys,
    ended: HashMap<TaskId, Box<EndedKey>>,
    /// The holders by key.
    by_key: HashTable<KeyHolder>,
    /// Those of them that hold their key no longer. They are removed in groups, so that they wait for memory together; a search
    /// skips them, because their tasks have no key.
    released: Vec<KeyHolder>,
    /// The keys of ended tasks by the moment at which they are free.
    by_until: BTreeSet<(Timestamp, TaskId)>,
}

/// The task that holds a key, with the hash: a table that grows does not have to read all keys, which are far apart.
#[derive(Clone, Copy, Debug)]
struct KeyHolder {
    hash: KeyHash,
    /// The upper and the lower half of its id: a number of eight bytes would make this a third larger.
    id: [u32; 2],
}

impl KeyHolder {
    fn new(hash: KeyHash, id: TaskId) -> Self {
        KeyHolder { hash, id: [(id.0 >> 32) as u32, id.0 as u32] }
    }

    fn id(&self) -> TaskId {
        TaskId(u64::from(self.id[0]) << 32 | u64::from(self.id[1]))
    }

    fn whole_hash(&self) -> u64 {
        self.hash.whole()
    }
}

/// The keys of tasks that have not ended, by the place of the slot. As puts gave them, so that nothing is allocated.
#[derive(Debug, Default)]
struct LivingKeys {
    chunks: Vec<KeyChunk>,
    count: usize,
}

/// The keys of neighbouring places. One without keys gives its memory back, unless it is the only one: a tube with many tasks may
/// have few keys.
#[derive(Debug, Default)]
struct KeyChunk {
    places: Vec<Option<Box<KeyRequest>>>,
    count: usize,
}

/// Places in a chunk.
const CHUNK: usize = if cfg!(test) { 4 } else { 4096 };

impl LivingKeys {
    fn get(&self, place: u32) -> Option<&KeyRequest> {
        self.chunks.get(place as usize / CHUNK)?.places.get(place as usize % CHUNK)?.as_deref()
    }

    fn get_mut(&mut self, place: u32) -> Option<&mut Option<Box<KeyRequest>>> {
        self.chunks.get_mut(place as usize / CHUNK)?.places.get_mut(place as usize % CHUNK)
    }

    fn insert(&mut self, place: u32, request: Box<KeyRequest>) {
        let (chunk, at) = (place as usize / CHUNK, place as usize % CHUNK);
        if chunk >= self.chunks.len() {
            self.chunks.resize_with(chunk + 1, KeyChunk::default);
        }
        let chunk = &mut self.chunks[chunk];
        if at >= chunk.places.len() {
            chunk.places.resize_with(at + 1, || None);
        }
        debug_assert!(chunk.places[at].is_none(), "the task at {place} has a key");
        chunk.places[at] = Some(request);
        chunk.count += 1;
        self.count += 1;
    }

    fn remove(&mut self, place: u32) -> Option<Box<KeyRequest>> {
        let is_only = self.chunks.len() == 1;
        let chunk = self.chunks.get_mut(place as usize / CHUNK)?;
        let removed = chunk.places.get_mut(place as usize % CHUNK)?.take()?;
        chunk.count -= 1;
        if chunk.count == 0 && !is_only {
            *chunk = KeyChunk::default();
        }
        self.count -= 1;
        Some(removed)
    }
}

impl TubeKeys {
    /// The task that holds a key, or held it last.
    pub fn holder(&self, slots: &Slots, key: &Key) -> Option<TaskId> {
        let hash = key.hash_code();
        let has_key = |id| key_of(&self.living, &self.ended, slots, id) == Some(key);
        let is_wanted = |holder: &KeyHolder| holder.hash == hash && has_key(holder.id());
        self.by_key.find(hash.whole(), is_wanted).map(KeyHolder::id)
    }

    /// Gives the keys of new tasks, which get successive ids from `first` on, to these ids. Nothing changes if one of the keys has a
    /// holder, which may be a task before it; returns whether none has.
    ///
    /// Keys are in no order, so nearly every search waits for memory. Here they follow each other with nothing in between, so that
    /// they wait together.
    pub fn claim(&mut self, slots: &Slots, first: TaskId, tasks: &[NewTask]) -> bool {
        let TubeKeys { living, ended, by_key, .. } = self;
        for (index, task) in tasks.iter().enumerate() {
            let Some(KeyRequest { held: HeldKey { key, .. }, .. }) = task.key.as_deref() else {
                continue;
            };
            let hash = key.hash_code();
            let before = |id: TaskId| tasks[..index].get(usize::try_from(id.0 - first.0).ok()?);
            let has_key = |id: TaskId| {
                let is_before = id >= first && before(id).and_then(requested) == Some(key);
                is_before || key_of(living, ended, slots, id) == Some(key)
            };
            let is_held = |holder: &KeyHolder| holder.hash == hash && has_key(holder.id());
            match by_key.entry(hash.whole(), is_held, KeyHolder::whole_hash) {
                Entry::Vacant(free) => {
                    free.insert(KeyHolder::new(hash, TaskId(first.0 + index as u64)));
                }
                Entry::Occupied(_) => {
                    self.unclaim(first, &tasks[..index]);
                    return false;
                }
            }
        }
        true
    }

    /// Reverts a claim.
    fn unclaim(&mut self, first: TaskId, tasks: &[NewTask]) {
        for (id, task) in (first.0..).zip(tasks) {
            if let Some(key) = requested(task) {
                remove_holder(&mut self.by_key, KeyHolder::new(key.hash_code(), TaskId(id)));
            }
        }
    }

    /// The key of a task that has not ended, with what its put asked for.
    pub fn request(&self, place: u32) -> Option<&KeyRequest> {
        self.living.get(place)
    }

    /// Whether a task that has not ended has a key.
    pub fn has_living(&self) -> bool {
        self.living.count > 0
    }

    /// The key of an ended task.
    pub fn ended(&self, id: TaskId) -> Option<&EndedKey> {
        if self.ended.is_empty() { None } else { self.ended.get(&id).map(|ended| &**ended) }
    }

    /// The keys of ended tasks, by the moment at which they are free.
    pub fn all_ended(&self) -> impl Iterator<Item = &EndedKey> {
        self.by_until.iter().filter_map(|(_, id)| self.ended(*id))
    }

    /// A task without a key gets one that is free.
    pub fn insert(&mut self, place: u32, id: TaskId, request: Box<KeyRequest>) {
        self.insert_holder(id, request.held.key.hash_code());
        self.insert_claimed(place, request);
    }

    /// A task gets a key that its id has claimed.
    pub fn insert_claimed(&mut self, place: u32, request: Box<KeyRequest>) {
        self.living.insert(place, request);
    }

    /// Changes what is stored with the key of a task, which stays the same.
    pub fn update(&mut self, place: u32, held: HeldKey) {
        if let Some(Some(before)) = self.living.get_mut(place) {
            debug_assert_eq!(before.held.key, held.key);
            before.held = held;
        }
    }

    /// A task loses its key.
    pub fn remove(&mut self, place: u32, id: TaskId) -> Option<Box<KeyRequest>> {
        let removed = self.living.remove(place)?;
        self.release_holder(id, removed.held.key.hash_code());
        Some(removed)
    }

    /// Adds the key of an ended task.
    pub fn insert_ended(&mut self, ended: EndedKey) {
        self.by_until.insert((ended.until, ended.id));
        self.insert_holder(ended.id, ended.key.hash_code());
        self.ended.insert(ended.id, Box::new(ended));
    }

    /// Removes the key of an ended task.
    pub fn remove_ended(&mut self, id: TaskId) -> Option<Box<EndedKey>> {
        let removed = self.ended.remove(&id)?;
        self.by_until.remove(&(removed.until, id));
        self.release_holder(id, removed.key.hash_code());
        Some(removed)
    }

    fn insert_holder(&mut self, id: TaskId, hash: KeyHash) {
        let holder = KeyHolder::new(hash, id);
        self.by_key.insert_unique(hash.whole(), holder, KeyHolder::whole_hash);
    }

    /// Removes the holder of a key that is free now.
    fn release_holder(&mut self, id: TaskId, hash: KeyHash) {
        self.released.push(KeyHolder::new(hash, id));
        let is_last = self.living.count == 0 && self.ended.is_empty();
        if is_last || self.released.len() >= RELEASED_MAX {
            for released in self.released.drain(..) {
                remove_holder(&mut self.by_key, released);
            }
        }
        if is_last && self.by_key.capacity() > KEPT_KEYS {
            *self = TubeKeys::default();
        }
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

fn remove_holder(by_key: &mut HashTable<KeyHolder>, released: KeyHolder) {
    let is_released = |holder: &KeyHolder| holder.id == released.id && holder.hash == released.hash;
    if let Ok(found) = by_key.find_entry(released.hash.whole(), is_released) {
        found.remove();
    }
}

/// The key that a put asks for.
fn requested(task: &NewTask) -> Option<&Key> {
    task.key.as_deref().map(|request| &request.held.key)
}

/// The key of a task, which may have ended.
fn key_of<'a>(
    living: &'a LivingKeys,
    ended: &'a HashMap<TaskId, Box<EndedKey>>,
    slots: &Slots,
    id: TaskId,
) -> Option<&'a Key> {
    match slots.place(id) {
        Some(place) => living.get(place).map(|request| &request.held.key),
        None => ended.get(&id).map(|ended| &ended.key),
    }
}

#[cfg(test)]
impl TubeKeys {
    /// Panics if the indexes contradict each other.
    pub fn audit(&self, slots: &Slots) {
        let living = slots.iter().filter_map(|slot| {
            let request = self.request(slots.place(slot.id)?)?;
            Some((slot.id, &request.held.key))
        });
        let living: Vec<_> = living.collect();
        let stored = |chunk: &KeyChunk| chunk.places.iter().flatten().count();
        assert!(self.living.chunks.iter().all(|chunk| stored(chunk) == chunk.count));
        let stored: usize = self.living.chunks.iter().map(stored).sum();
        assert_eq!((living.len(), stored), (self.living.count, self.living.count));
        assert_eq!(self.by_key.len(), living.len() + self.ended.len() + self.released.len());
        assert_eq!(self.by_until.len(), self.ended.len());
        for (id, ended) in &self.ended {
            assert_eq!(ended.id, *id);
            assert!(slots.get(*id).is_none() && self.by_until.contains(&(ended.until, *id)));
        }
        let ended = self.ended.values().map(|ended| (ended.id, &ended.key));
        for (id, key) in living.into_iter().chain(ended) {
            assert_eq!(self.holder(slots, key), Some(id));
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

    /// Millions of these are in memory: this test notices one that grows.
    #[test]
    fn a_holder_stays_small() {
        assert_eq!(size_of::<KeyHolder>(), 12);
    }

    /// A tube of many tasks with one key at a time kept eight bytes for each place that had a key once.
    #[test]
    fn places_without_keys_have_no_memory() {
        let mut living = LivingKeys::default();
        let request = || Box::new(KeyRequest::new(Key::new("invoice").unwrap()));
        for place in 0..10 * CHUNK as u32 {
            living.insert(place, request());
            assert_eq!(living.remove(place), Some(request()));
            assert!(living.remove(place).is_none() && living.get(place).is_none());
        }
        let places: usize = living.chunks.iter().map(|chunk| chunk.places.capacity()).sum();
        assert!(places <= CHUNK, "{places} places have memory");
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
        assert_eq!(keys.holder(&Slots::default(), &ended(2, 0).key), None);
        assert_eq!(keys.surplus_over(at(10), 2), None);
        assert_eq!(cleanup_at(at(20_000_000)), at(20_000_000));
        keys.audit(&Slots::default());
    }
}

//! Caches what this server knows of tubes, semaphores and sessions between batches.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::ops::{Bound, Range};

use taskyard_core::{NewEvents, SemaphoreKey, SessionId, Timestamp, TubeName};

use super::answers::{SemaphoreHead, TubeHead};
use super::results::Leases;
use super::tubes::HashTag;

/// How often all tubes are asked for due work, in microseconds: other servers may have set deadlines that this one does not
/// know.
const SWEEP: i64 = 1_000_000;
/// How late done tasks are removed, in microseconds, so that many are removed together. They cannot be seen any more.
const REMOVAL_DELAY: i64 = 1_000_000;

/// What this server knows between batches.
#[derive(Debug, Default)]
pub(super) struct TubeCache {
    /// The number of times that all servers were gone. A tube with a lower one restarts itself.
    pub epoch: u64,
    /// Lease numbers that are reserved for this server.
    pub leases: Range<u64>,
    pub sessions: Sessions,
    /// Hash tags of tubes whose tag is not their name.
    pub tags: HashMap<TubeName, HashTag>,
    pub deadlines: Deadlines<TubeName>,
    /// When each tube next has done tasks to remove.
    pub removals: Deadlines<TubeName>,
    /// Tubes in which single commands can be merged.
    pub mergeable: HashSet<TubeName>,
    /// Tubes that have a semaphore.
    pub gated: HashSet<TubeName>,
    pub semaphores: Semaphores,
    /// When the next session without connections ends, by the clock of the tasks.
    pub session_end: Option<i64>,
    /// When the next schedule is due, by the clock of the tasks.
    pub next_schedule: Option<i64>,
    /// How far the clock of the tasks is ahead of the caller's clock.
    pub ahead: i64,
    /// The caller's latest moment.
    pub now: i64,
    /// When all tubes were last asked for due work.
    swept: Option<i64>,
    /// Whether other servers may have changed anything since the latest sweep began.
    sweep_forgotten: bool,
    /// What must be corrected in Redis before the next call.
    pub resync: Option<Resync>,
}

/// The sessions that are connected here, as their callers know them.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    /// The number of connections of each session.
    pub connections: HashMap<SessionId, i64>,
    /// The tags of the tubes that each session took from, as the registry knows them.
    pub held: HashMap<SessionId, HashSet<HashTag>>,
}

/// The differences that there may be between Redis and this server.
#[derive(Clone, Debug, Default)]
pub(super) struct Resync {
    /// Whether the registry has this server's sessions.
    pub is_reported: bool,
    /// Deliveries whose replies were lost: the tag of the tube, and the first and last of their lease numbers.
    pub unacknowledged: Vec<(HashTag, u64, u64)>,
}

/// The next deadline of each tube or semaphore.
#[derive(Debug)]
pub(super) struct Deadlines<K> {
    by_name: HashMap<K, i64>,
    order: BTreeMap<i64, BTreeSet<K>>,
}

impl<K> Default for Deadlines<K> {
    fn default() -> Self {
        Deadlines { by_name: HashMap::new(), order: BTreeMap::new() }
    }
}

impl<K: Clone + Ord + Hash> Deadlines<K> {
    pub fn set(&mut self, name: &K, at: Option<i64>) {
        if at.is_none() && self.by_name.is_empty() {
            return;
        }
        let before = match at {
            Some(at) => self.by_name.insert(name.clone(), at),
            None => self.by_name.remove(name),
        };
        if before == at {
            return;
        }
        if let Some(before) = before
            && let Some(names) = self.order.get_mut(&before)
        {
            names.remove(name);
            if names.is_empty() {
                self.order.remove(&before);
            }
        }
        if let Some(at) = at {
            self.order.entry(at).or_default().insert(name.clone());
        }
    }

    /// The names whose deadline has passed.
    pub fn due(&self, clock: i64) -> Vec<K> {
        self.order.range(..=clock).flat_map(|(_, names)| names.iter().cloned()).collect()
    }

    fn is_due(&self, name: &K, clock: i64) -> bool {
        self.by_name.get(name).is_some_and(|at| *at <= clock)
    }

    fn first(&self) -> Option<i64> {
        self.order.first_key_value().map(|(moment, _)| *moment)
    }

    /// The names whose deadline is after the first moment and not after the second.
    fn between(&self, after: i64, last: i64) -> impl Iterator<Item = &K> {
        let range = (Bound::Excluded(after), Bound::Included(last.max(after)));
        self.order.range(range).flat_map(|(_, names)| names)
    }

    /// The first deadline after this moment.
    fn first_after(&self, moment: i64) -> Option<i64> {
        let after = (Bound::Excluded(moment), Bound::Unbounded);
        self.order.range(after).next().map(|(moment, _)| *moment)
    }
}

/// A semaphore with its number. Numbers are in the order of creation.
pub(super) type Numbered = (u32, SemaphoreKey);

/// What this server knows of semaphores.
#[derive(Debug, Default)]
pub(super) struct Semaphores {
    /// Their keys by number.
    pub keys: BTreeMap<u32, SemaphoreKey>,
    numbers: HashMap<SemaphoreKey, u32>,
    /// When each next needs a tick.
    pub deadlines: Deadlines<Numbered>,
    /// When the next event of each may be delivered.
    pub events: Deadlines<Numbered>,
    /// Events that were due by then are announced to waiting callers.
    announced_until: i64,
    /// Where the next scan for changes of other servers begins.
    pub cursor: u32,
}

impl Semaphores {
    /// Records the state of a semaphore.
    pub fn learn(&mut self, head: &SemaphoreHead) {
        self.list(head.number, &head.key);
        let numbered = (head.number, head.key.clone());
        self.deadlines.set(&numbered, head.next);
        self.events.set(&numbered, head.next_event);
    }

    /// Records the number of a semaphore. Another had it if Redis lost its last writes.
    pub fn list(&mut self, number: u32, key: &SemaphoreKey) {
        if self.numbers.get(key) != Some(&number) {
            self.forget(key);
            self.numbers.insert(key.clone(), number);
        }
        if self.keys.get(&number) != Some(key) {
            self.keys.insert(number, key.clone());
        }
    }

    /// Removes a semaphore that does not exist, or has another number.
    pub fn forget(&mut self, key: &SemaphoreKey) {
        let Some(number) = self.numbers.remove(key) else { return };
        let numbered = (number, key.clone());
        self.deadlines.set(&numbered, None);
        self.events.set(&numbered, None);
        if self.keys.get(&number) == Some(key) {
            self.keys.remove(&number);
        }
    }

    /// Sets when a semaphore is called again that could not be called.
    pub fn retry_at(&mut self, one: &Numbered, at: i64) {
        self.deadlines.set(one, Some(at));
    }

    /// Another server changed this semaphore: the next tick calls it. Answers whether it is known here.
    pub fn mark_stale(&mut self, key: &SemaphoreKey) -> bool {
        let number = self.numbers.get(key).copied();
        if let Some(number) = number {
            self.deadlines.set(&(number, key.clone()), Some(i64::MIN));
            // A fetch of events calls it before that.
            self.events.set(&(number, key.clone()), Some(i64::MIN));
        }
        number.is_some()
    }

    /// The semaphores of which events became due since the last call.
    pub fn take_due_events(&mut self, clock: i64) -> NewEvents {
        let mut due = NewEvents::Nothing;
        for (_, key) in self.events.between(self.announced_until, clock) {
            due.add_key(key);
        }
        self.announced_until = self.announced_until.max(clock);
        due
    }
}

impl TubeCache {
    /// Records the state of a tube.
    pub fn learn(&mut self, tube: &TubeName, head: &TubeHead) {
        self.deadlines.set(tube, head.next.filter(|_| head.present));
        self.removals.set(tube, head.removal.filter(|_| head.present));
        if head.gated {
            self.gated.insert(tube.clone());
        } else {
            self.gated.remove(tube);
        }
        if !head.mergeable {
            self.mergeable.remove(tube);
        } else if !self.mergeable.contains(tube) {
            self.mergeable.insert(tube.clone());
        }
        self.ahead = head.clock.saturating_sub(self.now);
    }

    /// Whether this number of leases is reserved.
    pub fn has_leases(&self, count: u64) -> bool {
        count <= self.leases.end.saturating_sub(self.leases.start)
    }

    /// Returns lease numbers that takes did not use, unless later ones are in use.
    pub fn return_leases(&mut self, leases: &Leases) {
        if leases.end == self.leases.start
            && let Some(unused) = leases.unused
        {
            self.leases.start = unused.min(leases.end);
        }
    }

    /// The clock of the tasks, as far as it is known here.
    pub fn clock(&self) -> i64 {
        self.now.saturating_add(self.ahead)
    }

    /// When the next tick is needed, by the caller's clock.
    pub fn next_wakeup(&self) -> Option<Timestamp> {
        let semaphores = &self.semaphores;
        let events = semaphores.events.first_after(semaphores.announced_until);
        let next = self.deadlines.first().into_iter().chain(self.session_end);
        let removal = self.removals.first().map(|at| at.saturating_add(REMOVAL_DELAY));
        let next = next.chain(semaphores.deadlines.first()).chain(events).chain(removal).min();
        // A server without others sweeps only when it must, so this tick must not be missed.
        let sweep = self.swept.is_none().then_some(self.now);
        let next = next.map(|next| next.saturating_sub(self.ahead)).into_iter().chain(sweep).min();
        next.map(Timestamp::from_micros)
    }

    /// When the next schedule is due, by the caller's clock.
    pub fn next_schedule(&self) -> Option<Timestamp> {
        self.next_schedule.map(|next| Timestamp::from_micros(next.saturating_sub(self.ahead)))
    }

    /// The tubes in which something is due.
    pub fn due_tubes(&self, clock: i64) -> Vec<TubeName> {
        let (mut due, removals) = (self.deadlines.due(clock), self.removals.due(clock));
        due.extend(removals.into_iter().filter(|tube| !self.deadlines.is_due(tube, clock)));
        due
    }

    /// Sets when a tube is ticked again that could not be called.
    pub fn retry_at(&mut self, tube: &TubeName, at: i64) {
        self.deadlines.set(tube, Some(at));
        self.removals.set(tube, None);
    }

    /// Whether all tubes must be asked for due work: at first, and regularly while there are other servers.
    pub fn wants_sweep(&self, has_others: bool) -> bool {
        self.swept.is_none_or(|swept| has_others && self.now.saturating_sub(swept) >= SWEEP)
    }

    /// Whether no sweep has succeeded since the last unknown change.
    pub fn was_never_swept(&self) -> bool {
        self.swept.is_none()
    }

    /// A sweep begins.
    pub fn begin_sweep(&mut self) {
        self.sweep_forgotten = false;
    }

    /// A sweep is done. It counts unless other servers changed something meanwhile.
    pub fn swept(&mut self) {
        if !self.sweep_forgotten {
            self.swept = Some(self.now);
        }
    }

    /// Other servers may have changed anything.
    pub fn forget_sweep(&mut self) {
        self.swept = None;
        self.sweep_forgotten = true;
    }

    /// Redis may differ from what this server knows: it is corrected before the next call.
    pub fn request_resync(&mut self) -> &mut Resync {
        let resync = self.resync.get_or_insert_default();
        resync.is_reported = false;
        resync
    }

    /// A session ends at this moment, by the clock of the tasks.
    pub fn session_ends(&mut self, at: i64) {
        self.session_end = self.session_end.into_iter().chain([at]).min();
    }

    /// Records the registry's epoch. A higher one that is known here stays, also when Redis lost it.
    pub fn raise_epoch(&mut self, epoch: i64) {
        self.epoch = self.epoch.max(epoch.unsigned_abs());
    }
}

impl Sessions {
    pub fn joined(&mut self, session: SessionId) {
        *self.connections.entry(session).or_default() += 1;
    }

    pub fn left(&mut self, session: SessionId) {
        if let Some(count) = self.connections.get_mut(&session) {
            *count -= 1;
            if *count <= 0 {
                self.connections.remove(&session);
            }
        }
    }

    /// A session has ended.
    pub fn ended(&mut self, session: SessionId) {
        self.connections.remove(&session);
        self.held.remove(&session);
    }

    /// Whether the registry does not know yet that a session takes from a tube.
    pub fn is_new_to(&self, session: SessionId, tag: &HashTag) -> bool {
        !self.held.get(&session).is_some_and(|tags| tags.contains(tag))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> TubeName {
        TubeName::new(text).unwrap()
    }

    #[test]
    fn a_tube_has_one_deadline() {
        let mut deadlines = Deadlines::default();
        deadlines.set(&name("a"), Some(5));
        deadlines.set(&name("b"), Some(3));
        deadlines.set(&name("a"), Some(1));
        assert_eq!(deadlines.due(2), [name("a")]);
        assert_eq!(deadlines.due(3), [name("a"), name("b")]);
        deadlines.set(&name("a"), None);
        assert_eq!(deadlines.first(), Some(3));
    }

    #[test]
    fn done_tasks_are_removed_together_with_later_ones() {
        let mut cache = TubeCache { swept: Some(0), ..TubeCache::default() };
        cache.removals.set(&name("a"), Some(5));
        assert_eq!(cache.next_wakeup(), Some(Timestamp::from_micros(5 + REMOVAL_DELAY)));
        assert_eq!(cache.due_tubes(4), []);
        assert_eq!(cache.due_tubes(5), [name("a")], "a tick for another reason removes them");
        cache.deadlines.set(&name("a"), Some(2));
        assert_eq!(cache.due_tubes(5), [name("a")]);
        cache.retry_at(&name("a"), 9);
        assert_eq!(cache.next_wakeup(), Some(Timestamp::from_micros(9)));
    }

    #[test]
    fn due_events_are_announced_once() {
        let mut semaphores = Semaphores::default();
        let key = |text: &str| SemaphoreKey::new(text).unwrap();
        for (number, text, at) in [(1, "a", 5), (2, "b", 7), (3, "c", 5)] {
            semaphores.events.set(&(number, key(text)), Some(at));
        }
        assert_eq!(semaphores.take_due_events(4), NewEvents::Nothing);
        assert_eq!(semaphores.take_due_events(5), NewEvents::Of([key("a"), key("c")].into()));
        assert_eq!(semaphores.take_due_events(5), NewEvents::Nothing);
        assert_eq!(semaphores.take_due_events(3), NewEvents::Nothing, "a clock may be set back");
        assert_eq!(semaphores.take_due_events(9), NewEvents::of(key("b")));
    }

    #[test]
    fn a_sweep_is_repeated_only_when_others_may_have_changed_something() {
        let mut cache = TubeCache::default();
        assert!(cache.wants_sweep(false), "at first");
        cache.begin_sweep();
        cache.swept();
        cache.now = SWEEP;
        assert!(!cache.wants_sweep(false));
        assert!(cache.wants_sweep(true));
        cache.forget_sweep();
        assert!(cache.wants_sweep(false));
        assert!(cache.next_wakeup().is_some(), "a tick is requested");
        // Another server died during a sweep: its sessions were never ended, and their tasks stayed taken.
        cache.begin_sweep();
        cache.forget_sweep();
        cache.swept();
        assert!(cache.wants_sweep(false));
    }

    // Each take used up as many numbers as it requested, so idle takes soon overtook the clock that keeps numbers unique.
    #[test]
    fn unused_lease_numbers_are_returned() {
        let mut cache = TubeCache { leases: 100..200, ..TubeCache::default() };
        assert!(cache.has_leases(100) && !cache.has_leases(101));
        cache.leases.start = 150;
        cache.return_leases(&Leases { end: 150, unused: Some(103) });
        assert_eq!(cache.leases, 103..200);
        cache.return_leases(&Leases { end: 150, unused: Some(110) });
        assert_eq!(cache.leases, 103..200, "later numbers are in use");
        cache.return_leases(&Leases { end: 103, unused: None });
        assert_eq!(cache.leases, 103..200, "unknown");
        cache.return_leases(&Leases { end: 103, unused: Some(u64::MAX) });
        assert_eq!(cache.leases, 103..200, "perhaps all");
    }

    #[test]
    fn a_session_is_connected_until_its_last_connection_leaves() {
        let (mut sessions, session) = (Sessions::default(), SessionId([7; 16]));
        sessions.joined(session);
        sessions.joined(session);
        sessions.left(session);
        assert!(sessions.connections.contains_key(&session));
        sessions.left(session);
        sessions.left(session);
        assert!(sessions.connections.is_empty());
    }
}

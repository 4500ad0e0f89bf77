//! What this server remembers between batches.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::ops::{Bound, Range};

use taskyard_core::{News, SemaphoreKey, SessionId, Timestamp, TubeName};

use super::answers::{Head, SemaphoreHead};
use super::results::Leases;
use super::tubes::Home;

/// Other servers may have set moments that this one knows nothing about: all tubes are asked this often, in
/// microseconds.
const SWEEP: i64 = 1_000_000;

/// What this server remembers.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// How often all servers were gone. A tube that does not know puts itself in order.
    pub epoch: u64,
    /// Lease numbers that are this server's.
    pub leases: Range<u64>,
    pub sessions: Sessions,
    /// Where tubes live that do not live under their name.
    pub homes: HashMap<TubeName, Home>,
    pub moments: Moments<TubeName>,
    /// Tubes in which single commands can be put together.
    pub straight: HashSet<TubeName>,
    /// Tubes that have a semaphore.
    pub gated: HashSet<TubeName>,
    pub semaphores: Semaphores,
    /// When the next session without connections ends, by the clock of the tasks.
    pub session_end: Option<i64>,
    /// How far the clock of the tasks is ahead of the caller's.
    pub ahead: i64,
    /// The caller's latest moment.
    pub now: i64,
    /// When all tubes were last asked what is due.
    swept: Option<i64>,
    /// Whether anything may have happened elsewhere since the latest sweep began.
    sweep_forgotten: bool,
    /// What must be put in order before anything else is asked.
    pub disorder: Option<Disorder>,
}

/// Which sessions are connected here, as their callers were told.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    /// How many connections of each.
    pub connections: HashMap<SessionId, i64>,
    /// Where the tubes live that each took from, as the registry was told.
    pub held: HashMap<SessionId, HashSet<Home>>,
}

/// Why Redis may believe something else.
#[derive(Clone, Debug, Default)]
pub(super) struct Disorder {
    /// Whether the registry knows how things stand.
    pub told: bool,
    /// Deliveries that nobody may have heard of: where the tube lives, and the first and last of their numbers.
    pub unheard: Vec<(Home, u64, u64)>,
}

/// When each tube next wants a tick, or each semaphore something else.
#[derive(Debug)]
pub(super) struct Moments<K> {
    by_name: HashMap<K, i64>,
    order: BTreeMap<i64, BTreeSet<K>>,
}

impl<K> Default for Moments<K> {
    fn default() -> Self {
        Moments { by_name: HashMap::new(), order: BTreeMap::new() }
    }
}

impl<K: Clone + Ord + Hash> Moments<K> {
    pub fn set(&mut self, name: &K, at: Option<i64>) {
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

    /// Those whose moment has come.
    pub fn due(&self, clock: i64) -> Vec<K> {
        self.order.range(..=clock).flat_map(|(_, names)| names.iter().cloned()).collect()
    }

    fn first(&self) -> Option<i64> {
        self.order.first_key_value().map(|(moment, _)| *moment)
    }

    /// Those whose moment comes after the first of these two, and not after the second.
    fn between(&self, after: i64, last: i64) -> impl Iterator<Item = &K> {
        let range = (Bound::Excluded(after), Bound::Included(last.max(after)));
        self.order.range(range).flat_map(|(_, names)| names)
    }

    /// The first moment after this one.
    fn first_after(&self, moment: i64) -> Option<i64> {
        let after = (Bound::Excluded(moment), Bound::Unbounded);
        self.order.range(after).next().map(|(moment, _)| *moment)
    }
}

/// A semaphore with its number, by which they are in the order in which they were made.
pub(super) type Numbered = (u32, SemaphoreKey);

/// What is known of semaphores.
#[derive(Debug, Default)]
pub(super) struct Semaphores {
    /// Their keys by number.
    pub keys: BTreeMap<u32, SemaphoreKey>,
    numbers: HashMap<SemaphoreKey, u32>,
    /// When each next wants a tick.
    pub moments: Moments<Numbered>,
    /// When the next event of each may be handed out.
    pub events: Moments<Numbered>,
    /// Who waits for events knows of those that were due by then.
    told: i64,
    /// Where the next look at what others did begins.
    pub cursor: u32,
}

impl Semaphores {
    /// Takes in how a semaphore stands.
    pub fn learn(&mut self, head: &SemaphoreHead) {
        self.list(head.number, &head.key);
        let numbered = (head.number, head.key.clone());
        self.moments.set(&numbered, head.next);
        self.events.set(&numbered, head.next_event);
    }

    /// There is a semaphore of this number. Another had it if Redis lost its last moments.
    pub fn list(&mut self, number: u32, key: &SemaphoreKey) {
        if self.numbers.get(key) != Some(&number) {
            self.forget(key);
            self.numbers.insert(key.clone(), number);
        }
        if self.keys.get(&number) != Some(key) {
            self.keys.insert(number, key.clone());
        }
    }

    /// It is not there, or not under the number that was known.
    pub fn forget(&mut self, key: &SemaphoreKey) {
        let Some(number) = self.numbers.remove(key) else { return };
        let numbered = (number, key.clone());
        self.moments.set(&numbered, None);
        self.events.set(&numbered, None);
        if self.keys.get(&number) == Some(key) {
            self.keys.remove(&number);
        }
    }

    /// This one could not be asked what is due: it is asked again then.
    pub fn ask_later(&mut self, one: &Numbered, at: i64) {
        self.moments.set(one, Some(at));
    }

    /// Another server did something to this one: it is looked at with the next tick. Answers whether it is known at all.
    pub fn suspect(&mut self, key: &SemaphoreKey) -> bool {
        let number = self.numbers.get(key).copied();
        if let Some(number) = number {
            self.moments.set(&(number, key.clone()), Some(i64::MIN));
            // Whoever wants events looks before that.
            self.events.set(&(number, key.clone()), Some(i64::MIN));
        }
        number.is_some()
    }

    /// Of which semaphores events became due since the last call.
    pub fn tell(&mut self, clock: i64) -> News {
        let mut news = News::Nothing;
        for (_, key) in self.events.between(self.told, clock) {
            news.add_key(key);
        }
        self.told = self.told.max(clock);
        news
    }
}

impl Known {
    /// Takes in how a tube stands.
    pub fn learn(&mut self, tube: &TubeName, head: &Head) {
        self.moments.set(tube, head.next.filter(|_| head.present));
        if head.gated {
            self.gated.insert(tube.clone());
        } else {
            self.gated.remove(tube);
        }
        if !head.straight {
            self.straight.remove(tube);
        } else if !self.straight.contains(tube) {
            self.straight.insert(tube.clone());
        }
        self.ahead = head.clock.saturating_sub(self.now);
    }

    /// Whether so many lease numbers are this server's.
    pub fn has_leases(&self, count: u64) -> bool {
        count <= self.leases.end.saturating_sub(self.leases.start)
    }

    /// Lease numbers that were kept for takes which did not need them are used by the next, unless some behind them are in use.
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

    /// When a tick is wanted, by the caller's clock.
    pub fn next_wakeup(&self) -> Option<Timestamp> {
        let semaphores = &self.semaphores;
        let events = semaphores.events.first_after(semaphores.told);
        let next = self.moments.first().into_iter().chain(self.session_end);
        let next = next.chain(semaphores.moments.first()).chain(events).min();
        // A server that is alone sweeps only when it has to, so that must not be missed.
        let sweep = self.swept.is_none().then_some(self.now);
        let next = next.map(|next| next.saturating_sub(self.ahead)).into_iter().chain(sweep).min();
        next.map(Timestamp::from_micros)
    }

    /// Whether all tubes are to be asked what is due: at first, and now and then where there are other servers.
    pub fn wants_sweep(&self, accompanied: bool) -> bool {
        self.swept.is_none_or(|swept| accompanied && self.now.saturating_sub(swept) >= SWEEP)
    }

    /// Whether all are to be asked for the first time, or as if it were.
    pub fn was_never_swept(&self) -> bool {
        self.swept.is_none()
    }

    /// All are about to be asked.
    pub fn begin_sweep(&mut self) {
        self.sweep_forgotten = false;
    }

    /// All were asked. What happened elsewhere meanwhile may have been missed.
    pub fn swept(&mut self) {
        if !self.sweep_forgotten {
            self.swept = Some(self.now);
        }
    }

    /// Anything may have happened elsewhere.
    pub fn forget_sweep(&mut self) {
        self.swept = None;
        self.sweep_forgotten = true;
    }

    /// Redis may believe something else than this server.
    pub fn doubt(&mut self) -> &mut Disorder {
        let disorder = self.disorder.get_or_insert_default();
        disorder.told = false;
        disorder
    }

    /// A session ends at this moment, by the clock of the tasks.
    pub fn session_ends(&mut self, at: i64) {
        self.session_end = self.session_end.into_iter().chain([at]).min();
    }

    /// The registry knows of this epoch. One that is known here counts also when it was lost there.
    pub fn heard_epoch(&mut self, epoch: i64) {
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

    /// It is no more.
    pub fn ended(&mut self, session: SessionId) {
        self.connections.remove(&session);
        self.held.remove(&session);
    }

    /// Whether the registry does not know yet that this session takes from this tube.
    pub fn is_new_to(&self, session: SessionId, home: &Home) -> bool {
        !self.held.get(&session).is_some_and(|homes| homes.contains(home))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> TubeName {
        TubeName::new(text).unwrap()
    }

    #[test]
    fn a_tube_has_one_moment() {
        let mut moments = Moments::default();
        moments.set(&name("a"), Some(5));
        moments.set(&name("b"), Some(3));
        moments.set(&name("a"), Some(1));
        assert_eq!(moments.due(2), [name("a")]);
        assert_eq!(moments.due(3), [name("a"), name("b")]);
        moments.set(&name("a"), None);
        assert_eq!(moments.first(), Some(3));
    }

    #[test]
    fn events_are_told_once_when_they_are_due() {
        let mut semaphores = Semaphores::default();
        let key = |text: &str| SemaphoreKey::new(text).unwrap();
        for (number, text, at) in [(1, "a", 5), (2, "b", 7), (3, "c", 5)] {
            semaphores.events.set(&(number, key(text)), Some(at));
        }
        assert_eq!(semaphores.tell(4), News::Nothing);
        assert_eq!(semaphores.tell(5), News::Of([key("a"), key("c")].into()));
        assert_eq!(semaphores.tell(5), News::Nothing);
        assert_eq!(semaphores.tell(3), News::Nothing, "a clock may be set back");
        assert_eq!(semaphores.tell(9), News::of(key("b")));
    }

    #[test]
    fn only_whom_others_may_have_changed_is_asked_again_and_again() {
        let mut known = Known::default();
        assert!(known.wants_sweep(false), "at first");
        known.begin_sweep();
        known.swept();
        known.now = SWEEP;
        assert!(!known.wants_sweep(false));
        assert!(known.wants_sweep(true));
        known.forget_sweep();
        assert!(known.wants_sweep(false));
        assert!(known.next_wakeup().is_some(), "it is not left to chance");
        // Another server died while all were asked: its sessions were never ended, and their tasks stayed taken.
        known.begin_sweep();
        known.forget_sweep();
        known.swept();
        assert!(known.wants_sweep(false));
    }

    // Each take used up as many numbers as it asked for, so that idle ones soon outran the clock that keeps numbers from being given twice.
    #[test]
    fn only_leases_that_were_given_are_used_up() {
        let mut known = Known { leases: 100..200, ..Known::default() };
        assert!(known.has_leases(100) && !known.has_leases(101));
        known.leases.start = 150;
        known.return_leases(&Leases { end: 150, unused: Some(103) });
        assert_eq!(known.leases, 103..200);
        known.return_leases(&Leases { end: 150, unused: Some(110) });
        assert_eq!(known.leases, 103..200, "others have got some since");
        known.return_leases(&Leases { end: 103, unused: None });
        assert_eq!(known.leases, 103..200, "nobody knows");
        known.return_leases(&Leases { end: 103, unused: Some(u64::MAX) });
        assert_eq!(known.leases, 103..200, "perhaps all");
    }

    #[test]
    fn a_session_is_here_until_its_last_connection_leaves() {
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

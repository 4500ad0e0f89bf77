//! What this server remembers between batches.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

use taskyard_core::{SessionId, Timestamp, TubeName};

use super::answers::Head;

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
    pub moments: Moments,
    /// When the next session without connections ends, by the clock of the tasks.
    pub session_end: Option<i64>,
    /// How far the clock of the tasks is ahead of the caller's.
    pub ahead: i64,
    /// The caller's latest moment.
    pub now: i64,
    /// When all tubes were last asked what is due.
    swept: Option<i64>,
    /// What must be put in order before anything else is asked.
    pub disorder: Option<Disorder>,
}

/// Which sessions are connected here, as their callers were told.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    /// How many connections of each.
    pub connections: HashMap<SessionId, i64>,
    /// The tubes that each took from, as the registry was told.
    pub held: HashMap<SessionId, HashSet<TubeName>>,
}

/// Why Redis may believe something else.
#[derive(Clone, Debug, Default)]
pub(super) struct Disorder {
    /// Deliveries that nobody may have heard of: the tube, and the first and last of their numbers.
    pub unheard: Vec<(TubeName, u64, u64)>,
}

/// When each tube next wants a tick.
#[derive(Debug, Default)]
pub(super) struct Moments {
    by_tube: HashMap<TubeName, i64>,
    order: BTreeSet<(i64, TubeName)>,
}

impl Moments {
    pub fn set(&mut self, tube: &TubeName, at: Option<i64>) {
        let before = match at {
            Some(at) => self.by_tube.insert(tube.clone(), at),
            None => self.by_tube.remove(tube),
        };
        if before == at {
            return;
        }
        if let Some(before) = before {
            self.order.remove(&(before, tube.clone()));
        }
        if let Some(at) = at {
            self.order.insert((at, tube.clone()));
        }
    }

    /// The tubes whose moment has come.
    pub fn due(&self, clock: i64) -> Vec<TubeName> {
        let due = self.order.iter().take_while(|moment| moment.0 <= clock);
        due.map(|moment| moment.1.clone()).collect()
    }

    fn first(&self) -> Option<i64> {
        self.order.first().map(|moment| moment.0)
    }
}

impl Known {
    /// Takes in how a tube stands.
    pub fn learn(&mut self, tube: &TubeName, head: &Head) {
        self.moments.set(tube, head.next.filter(|_| head.present));
        self.ahead = head.clock.saturating_sub(self.now);
    }

    /// The clock of the tasks, as far as it is known here.
    pub fn clock(&self) -> i64 {
        self.now.saturating_add(self.ahead)
    }

    /// When a tick is wanted, by the caller's clock.
    pub fn next_wakeup(&self) -> Option<Timestamp> {
        let next = self.moments.first().into_iter().chain(self.session_end).min()?;
        Some(Timestamp::from_micros(next.saturating_sub(self.ahead)))
    }

    /// Whether all tubes are to be asked what is due: at first, and now and then where there are other servers.
    pub fn wants_sweep(&self, accompanied: bool) -> bool {
        self.swept.is_none_or(|swept| accompanied && self.now.saturating_sub(swept) >= SWEEP)
    }

    /// All were asked.
    pub fn swept(&mut self) {
        self.swept = Some(self.now);
    }

    /// Anything may have happened elsewhere.
    pub fn forget_sweep(&mut self) {
        self.swept = None;
    }

    /// Redis may believe something else than this server.
    pub fn doubt(&mut self) -> &mut Disorder {
        self.disorder.get_or_insert_default()
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
    pub fn is_new_to(&self, session: SessionId, tube: &TubeName) -> bool {
        !self.held.get(&session).is_some_and(|tubes| tubes.contains(tube))
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
    fn only_whom_others_may_have_changed_is_asked_again_and_again() {
        let mut known = Known::default();
        assert!(known.wants_sweep(false), "at first");
        known.swept();
        known.now = SWEEP;
        assert!(!known.wants_sweep(false));
        assert!(known.wants_sweep(true));
        known.forget_sweep();
        assert!(known.wants_sweep(false));
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

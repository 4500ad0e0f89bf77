//! Who waits: consumers for a task, producers for room, in the order of their arrival.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use taskyard_core::limits::{PENDING_BYTES_MAX, WAITERS_MAX};
use taskyard_core::{Command, Error, Reply, Result, SessionId, Timestamp, TubeName};

use crate::jobs::Place;

/// The number of a waiter: grows with arrival, never used twice.
pub(crate) type WaiterId = u64;

/// What somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// A put waits for room in a full tube.
    Put,
    /// A take waits for a task.
    Take,
}

/// Somebody who waits, as pages and the command line show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// On which tube.
    pub tube: TubeName,
    /// For what.
    pub side: Side,
    /// Since when.
    pub since: Timestamp,
    /// Until when.
    pub until: Timestamp,
    /// Who takes, if the take names a session.
    pub session: Option<SessionId>,
}

/// How many wait on a tube.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitingCount {
    /// Consumers.
    pub takes: usize,
    /// Producers.
    pub puts: usize,
}

/// A parked command.
#[derive(Debug)]
pub(crate) struct Waiter {
    /// Where its reply belongs.
    pub place: Place,
    /// What it waits for.
    pub side: Side,
    /// Where it waits.
    pub tube: TubeName,
    /// What to run when it is its turn.
    pub command: Command,
    /// When it came.
    pub since: Timestamp,
    /// When it gives up.
    pub until: Timestamp,
    /// What it is answered when it gives up.
    pub otherwise: Result<Reply>,
}

/// Everybody who waits.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    waiters: HashMap<WaiterId, Waiter>,
    takes: Lines,
    puts: Lines,
    deadlines: BTreeSet<(Timestamp, WaiterId)>,
    next_id: WaiterId,
    bytes: usize,
}

type Lines = HashMap<TubeName, BTreeSet<WaiterId>>;

impl Waiters {
    /// Whether anybody waits there.
    pub fn has(&self, side: Side, tube: &TubeName) -> bool {
        let lines = self.lines(side);
        !lines.is_empty() && lines.contains_key(tube)
    }

    /// Parks a command behind those who wait there already; refused when too many wait.
    pub fn park(&mut self, waiter: Waiter) -> Result<WaiterId> {
        if self.waiters.len() >= WAITERS_MAX {
            return Err(Error::Overloaded("too many takes and puts are waiting"));
        }
        let bytes = waiter.command.payload_bytes();
        if self.bytes + bytes > PENDING_BYTES_MAX {
            return Err(Error::Overloaded("too many payload bytes wait for room in full tubes"));
        }
        self.bytes += bytes;
        let id = self.next_id;
        self.next_id += 1;
        self.lines_mut(waiter.side).entry(waiter.tube.clone()).or_default().insert(id);
        if waiter.until != Timestamp::NEVER {
            self.deadlines.insert((waiter.until, id));
        }
        self.waiters.insert(id, waiter);
        Ok(id)
    }

    /// Lets a waiter go; `None` when it is gone already.
    pub fn remove(&mut self, id: WaiterId) -> Option<Waiter> {
        let waiter = self.waiters.remove(&id)?;
        self.bytes -= waiter.command.payload_bytes();
        self.deadlines.remove(&(waiter.until, id));
        let lines = self.lines_mut(waiter.side);
        if let Some(line) = lines.get_mut(&waiter.tube) {
            line.remove(&id);
            if line.is_empty() {
                lines.remove(&waiter.tube);
            }
        }
        Some(waiter)
    }

    /// Notes a newer answer for the case that the waiter gives up.
    pub fn refused_again(&mut self, id: WaiterId, otherwise: Result<Reply>) {
        if let Some(waiter) = self.waiters.get_mut(&id) {
            waiter.otherwise = otherwise;
        }
    }

    /// Those who wait there, the oldest first.
    pub fn line(&self, side: Side, tube: &TubeName) -> impl Iterator<Item = (WaiterId, &Waiter)> {
        let line = self.lines(side).get(tube).into_iter().flatten();
        line.filter_map(|id| Some((*id, self.waiters.get(id)?)))
    }

    /// The oldest waiter whose time is over.
    pub fn expired(&self, now: Timestamp) -> Option<WaiterId> {
        self.deadlines.first().filter(|first| first.0 <= now).map(|first| first.1)
    }

    /// When the next waiter gives up.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.deadlines.first().map(|first| first.0)
    }

    /// The tubes where anybody waits.
    pub fn tubes(&self) -> impl Iterator<Item = TubeName> {
        self.takes.keys().chain(self.puts.keys()).cloned()
    }

    /// Everybody, in the order of their arrival.
    pub fn ids(&self) -> Vec<WaiterId> {
        let mut ids: Vec<_> = self.waiters.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Everybody, for pages: by tube, in the order of their arrival.
    pub fn list(&self) -> Vec<Waiting> {
        let mut all: Vec<_> = self.waiters.iter().collect();
        all.sort_by(|(a_id, a), (b_id, b)| (&a.tube, a.side, a_id).cmp(&(&b.tube, b.side, b_id)));
        all.into_iter().map(|(_, waiter)| waiter.shown()).collect()
    }

    /// How many wait on which tube.
    pub fn counts(&self) -> BTreeMap<TubeName, WaitingCount> {
        let mut counts: BTreeMap<_, WaitingCount> = BTreeMap::new();
        for (tube, line) in &self.takes {
            counts.entry(tube.clone()).or_default().takes = line.len();
        }
        for (tube, line) in &self.puts {
            counts.entry(tube.clone()).or_default().puts = line.len();
        }
        counts
    }

    fn lines(&self, side: Side) -> &Lines {
        match side {
            Side::Take => &self.takes,
            Side::Put => &self.puts,
        }
    }

    fn lines_mut(&mut self, side: Side) -> &mut Lines {
        match side {
            Side::Take => &mut self.takes,
            Side::Put => &mut self.puts,
        }
    }
}

impl Waiter {
    /// How much it needs at least: one task, or room for all of its own.
    pub fn need(&self) -> u64 {
        match &self.command {
            Command::Put { tasks, .. } => tasks.len() as u64,
            _ => 1,
        }
    }

    fn shown(&self) -> Waiting {
        let session = match &self.command {
            Command::Take(take) => take.session,
            _ => None,
        };
        let Waiter { tube, side, since, until, .. } = self;
        Waiting { tube: tube.clone(), side: *side, since: *since, until: *until, session }
    }
}

#[cfg(test)]
mod tests {
    use taskyard_core::{Span, Take};

    use super::*;

    fn waiter(tube: &str, until: Timestamp) -> Waiter {
        let tube = TubeName::new(tube).unwrap();
        let take =
            Take { tube: tube.clone(), count: 1, session: None, lease: None, wait: Span::FOREVER };
        Waiter {
            place: Place { slot: 0, index: 0 },
            side: Side::Take,
            tube,
            command: Command::Take(take),
            since: Timestamp::EPOCH,
            until,
            otherwise: Ok(Reply::Taken(Vec::new())),
        }
    }

    #[test]
    fn a_line_keeps_the_order_of_arrival_whoever_leaves() {
        let mut waiters = Waiters::default();
        let ids: Vec<_> =
            (0..4).map(|_| waiters.park(waiter("a", Timestamp::NEVER)).unwrap()).collect();
        let other = waiters.park(waiter("b", Timestamp::NEVER)).unwrap();
        assert!(waiters.remove(ids[1]).is_some());
        assert!(waiters.remove(ids[1]).is_none());
        let tube = TubeName::new("a").unwrap();
        let line: Vec<_> = waiters.line(Side::Take, &tube).map(|(id, _)| id).collect();
        assert_eq!(line, [ids[0], ids[2], ids[3]]);
        waiters.remove(other);
        assert!(!waiters.has(Side::Take, &TubeName::new("b").unwrap()));
        assert!(waiters.has(Side::Take, &tube) && !waiters.has(Side::Put, &tube));
        assert_eq!(waiters.counts()[&tube], WaitingCount { takes: 3, puts: 0 });
    }

    #[test]
    fn the_earliest_deadline_comes_first_and_leaves_with_its_waiter() {
        let mut waiters = Waiters::default();
        waiters.park(waiter("a", Timestamp::from_micros(9))).unwrap();
        let soon = waiters.park(waiter("a", Timestamp::from_micros(5))).unwrap();
        waiters.park(waiter("a", Timestamp::NEVER)).unwrap();
        assert_eq!(waiters.next_deadline(), Some(Timestamp::from_micros(5)));
        assert_eq!(waiters.expired(Timestamp::from_micros(4)), None);
        assert_eq!(waiters.expired(Timestamp::from_micros(5)), Some(soon));
        waiters.remove(soon);
        assert_eq!(waiters.next_deadline(), Some(Timestamp::from_micros(9)));
    }

    #[test]
    fn there_is_a_limit() {
        let mut waiters = Waiters::default();
        for _ in 0..WAITERS_MAX {
            waiters.park(waiter("a", Timestamp::NEVER)).unwrap();
        }
        let refused = waiters.park(waiter("a", Timestamp::NEVER)).unwrap_err();
        assert!(matches!(refused, Error::Overloaded(_)), "{refused}");
    }
}

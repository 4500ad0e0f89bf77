//! The waiting commands: takes that wait for a task and puts that wait for capacity, in the order
//! of their arrival.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use taskyard_core::limits::{PENDING_BYTES_MAX, WAITERS_MAX};
use taskyard_core::{Command, Error, NewTask, Reply, Result, SessionId, Timestamp, TubeName};

use crate::jobs::ReplySlot;

/// Identifies a waiter: grows with arrival, never reused.
pub(crate) type WaiterId = u64;

/// What a waiting command waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// A put waits for free capacity in a full tube.
    Put,
    /// A take waits for a task.
    Take,
}

/// A waiting command, as the dashboard and the command line show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The tube.
    pub tube: TubeName,
    /// What it waits for.
    pub side: Side,
    /// When it began to wait.
    pub since: Timestamp,
    /// When it stops waiting.
    pub until: Timestamp,
    /// The session of a take, if it names one.
    pub session: Option<SessionId>,
}

/// The number of waiting commands of a tube.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitingCount {
    /// Waiting takes.
    pub takes: usize,
    /// Waiting puts.
    pub puts: usize,
}

/// A parked command.
#[derive(Debug)]
pub(crate) struct Waiter {
    /// Where its reply goes.
    pub slot: ReplySlot,
    /// What it waits for.
    pub side: Side,
    /// The tube where it waits.
    pub tube: TubeName,
    /// The command to run when it is next.
    pub command: Command,
    /// When it began to wait.
    pub since: Timestamp,
    /// When it stops waiting.
    pub until: Timestamp,
    /// Its reply when it stops waiting.
    pub fallback: Result<Reply>,
}

/// All waiting commands.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    waiters: HashMap<WaiterId, Waiter>,
    takes: WaiterQueues,
    puts: WaiterQueues,
    deadlines: BTreeSet<(Timestamp, WaiterId)>,
    next_id: WaiterId,
    bytes: usize,
}

type WaiterQueues = HashMap<TubeName, BTreeSet<WaiterId>>;

impl Waiters {
    /// Whether any command waits there.
    pub fn has(&self, side: Side, tube: &TubeName) -> bool {
        let queues = self.queues(side);
        !queues.is_empty() && queues.contains_key(tube)
    }

    /// Parks a command behind those that already wait there; refused when too many wait.
    pub fn park(&mut self, waiter: Waiter) -> Result<WaiterId> {
        if self.waiters.len() >= WAITERS_MAX {
            return Err(Error::Overloaded("too many waiting takes and puts"));
        }
        let bytes = waiter.command.payload_bytes();
        if self.bytes + bytes > PENDING_BYTES_MAX {
            return Err(Error::Overloaded(
                "too many payload bytes in puts that wait for full tubes",
            ));
        }
        self.bytes += bytes;
        let id = self.next_id;
        self.next_id += 1;
        self.queues_mut(waiter.side).entry(waiter.tube.clone()).or_default().insert(id);
        if waiter.until != Timestamp::NEVER {
            self.deadlines.insert((waiter.until, id));
        }
        self.waiters.insert(id, waiter);
        Ok(id)
    }

    /// Removes a waiter; `None` when it is gone already.
    pub fn remove(&mut self, id: WaiterId) -> Option<Waiter> {
        let waiter = self.waiters.remove(&id)?;
        self.bytes -= waiter.command.payload_bytes();
        self.deadlines.remove(&(waiter.until, id));
        let queues = self.queues_mut(waiter.side);
        if let Some(queue) = queues.get_mut(&waiter.tube) {
            queue.remove(&id);
            if queue.is_empty() {
                queues.remove(&waiter.tube);
            }
        }
        Some(waiter)
    }

    /// Replaces the reply that the waiter gets when it stops waiting.
    pub fn update_fallback(&mut self, id: WaiterId, fallback: Result<Reply>) {
        if let Some(waiter) = self.waiters.get_mut(&id) {
            waiter.fallback = fallback;
        }
    }

    /// The commands that wait there, the oldest first.
    pub fn queue(&self, side: Side, tube: &TubeName) -> impl Iterator<Item = (WaiterId, &Waiter)> {
        let queue = self.queues(side).get(tube).into_iter().flatten();
        queue.filter_map(|id| Some((*id, self.waiters.get(id)?)))
    }

    /// The first waiter whose time is over.
    pub fn expired(&self, now: Timestamp) -> Option<WaiterId> {
        self.deadlines.first().filter(|first| first.0 <= now).map(|first| first.1)
    }

    /// When the next wait ends.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.deadlines.first().map(|first| first.0)
    }

    /// The tubes where commands wait.
    pub fn tubes(&self) -> impl Iterator<Item = TubeName> {
        self.takes.keys().chain(self.puts.keys()).cloned()
    }

    /// All waiters, in the order of arrival.
    pub fn ids(&self) -> Vec<WaiterId> {
        let mut ids: Vec<_> = self.waiters.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// All waiters, for display: by tube, in the order of arrival.
    pub fn list(&self) -> Vec<Waiting> {
        let mut all: Vec<_> = self.waiters.iter().collect();
        all.sort_by(|(a_id, a), (b_id, b)| (&a.tube, a.side, a_id).cmp(&(&b.tube, b.side, b_id)));
        all.into_iter().map(|(_, waiter)| waiter.shown()).collect()
    }

    /// The named workers that wait for a task, each with the tube.
    pub fn workers(&self) -> impl Iterator<Item = (&Arc<str>, &TubeName)> {
        self.waiters.values().filter_map(|waiter| match &waiter.command {
            Command::Take(take) => Some((take.worker.as_ref()?, &take.tube)),
            _ => None,
        })
    }

    /// The number of waiting commands for each tube.
    pub fn counts(&self) -> BTreeMap<TubeName, WaitingCount> {
        let mut counts: BTreeMap<_, WaitingCount> = BTreeMap::new();
        for (tube, queue) in &self.takes {
            counts.entry(tube.clone()).or_default().takes = queue.len();
        }
        for (tube, queue) in &self.puts {
            counts.entry(tube.clone()).or_default().puts = queue.len();
        }
        counts
    }

    fn queues(&self, side: Side) -> &WaiterQueues {
        match side {
            Side::Take => &self.takes,
            Side::Put => &self.puts,
        }
    }

    fn queues_mut(&mut self, side: Side) -> &mut WaiterQueues {
        match side {
            Side::Take => &mut self.takes,
            Side::Put => &mut self.puts,
        }
    }
}

impl Waiter {
    /// The amount it needs at least: one task, or capacity for all its tasks without a key.
    pub fn need(&self) -> u64 {
        match &self.command {
            Command::Put { tasks, .. } => needed_capacity(tasks),
            _ => 1,
        }
    }

    /// Whether it needs exactly that much: the key of a task may be held, so that it needs none.
    pub fn is_need_exact(&self) -> bool {
        match &self.command {
            Command::Put { tasks, .. } => needed_capacity(tasks) == tasks.len() as u64,
            _ => true,
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

/// The capacity that a put of these tasks needs at least: a task whose key is held needs none.
pub(crate) fn needed_capacity(tasks: &[NewTask]) -> u64 {
    tasks.iter().filter(|task| task.key.is_none()).count() as u64
}

#[cfg(test)]
mod tests {
    use taskyard_core::{Span, Take};

    use super::*;

    fn waiter(tube: &str, until: Timestamp) -> Waiter {
        let tube = TubeName::new(tube).unwrap();
        let take = Take {
            tube: tube.clone(),
            count: 1,
            session: None,
            lease: None,
            worker: None,
            wait: Span::FOREVER,
        };
        Waiter {
            slot: ReplySlot { job: 0, index: 0 },
            side: Side::Take,
            tube,
            command: Command::Take(take),
            since: Timestamp::EPOCH,
            until,
            fallback: Ok(Reply::Taken(Vec::new())),
        }
    }

    #[test]
    fn a_queue_keeps_the_order_of_arrival_when_a_waiter_is_removed() {
        let mut waiters = Waiters::default();
        let ids: Vec<_> =
            (0..4).map(|_| waiters.park(waiter("a", Timestamp::NEVER)).unwrap()).collect();
        let other = waiters.park(waiter("b", Timestamp::NEVER)).unwrap();
        assert!(waiters.remove(ids[1]).is_some());
        assert!(waiters.remove(ids[1]).is_none());
        let tube = TubeName::new("a").unwrap();
        let queue: Vec<_> = waiters.queue(Side::Take, &tube).map(|(id, _)| id).collect();
        assert_eq!(queue, [ids[0], ids[2], ids[3]]);
        waiters.remove(other);
        assert!(!waiters.has(Side::Take, &TubeName::new("b").unwrap()));
        assert!(waiters.has(Side::Take, &tube) && !waiters.has(Side::Put, &tube));
        assert_eq!(waiters.counts()[&tube], WaitingCount { takes: 3, puts: 0 });
    }

    #[test]
    fn the_earliest_deadline_comes_first_and_is_removed_with_its_waiter() {
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
    fn the_number_of_waiters_is_limited() {
        let mut waiters = Waiters::default();
        for _ in 0..WAITERS_MAX {
            waiters.park(waiter("a", Timestamp::NEVER)).unwrap();
        }
        let refused = waiters.park(waiter("a", Timestamp::NEVER)).unwrap_err();
        assert!(matches!(refused, Error::Overloaded(_)), "{refused}");
    }
}

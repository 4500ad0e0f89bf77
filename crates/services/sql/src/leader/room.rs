//! How many tasks may begin, and which groups wait because no more may.
//!
//! A look at all groups costs as much as there are groups with planned tasks. So what such a look leaves behind is kept
//! in order, and as tasks end only the groups at its front are looked at.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use super::Leader;
use crate::scheduler::Going;
use crate::table::Table;
use crate::wire::{Ask, AskError, Wire};

/// How many tasks run at the same time where neither the configuration nor the server sets another limit.
const RUN_DEFAULT: usize = 1000;
/// How many tasks one claim brings at most.
const CLAIM_MAX: usize = 1000;
/// How many bytes of input are kept for tasks under way, before no more are claimed.
pub(super) const INPUT_BYTES_MAX: usize = 128 << 20;
/// How many waiting groups of each side are kept. The claim answers one more where there are more.
const WAITING_MAX: usize = 2000;
/// How many times as long as a look at all groups takes, the next one is put off while groups are known to wait.
const FULL_LOOK_PAUSE: u32 = 4;
/// For how long a count of the server's connections is good enough.
const ALLOWANCE_FRESH: Duration = Duration::from_secs(1);
/// How often at most the log says that the limit is reached.
const LIMIT_LOGGED: Duration = Duration::from_secs(60);

/// The connections that are not reserved, those in use, and the schedulers that lead a table of this server.
const CONNECTIONS: &str = "SELECT current_setting('max_connections')::integer \
     - current_setting('superuser_reserved_connections')::integer \
     - coalesce(current_setting('reserved_connections', true), '0')::integer, \
     (SELECT sum(numbackends) FROM pg_stat_database), \
     (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1952543592 AND objsubid = 2 AND granted)";

/// The lock that a scheduler holds while tasks wait because of its limit, so that `sql list` can say so.
pub const LIMIT_LOCK: &str = "1952543593";

/// How many tasks may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// In all.
    pub all: usize,
    /// In this database.
    pub local: usize,
}

/// What a claim was, and whether it brought something.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    /// Whether it looked at all groups.
    pub all: bool,
    /// For how many tasks there was room.
    pub room: Room,
    /// Whether it brought something.
    pub found: bool,
}

/// How many sessions this scheduler may have in its own database, as of a count of connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    sessions: usize,
    looked: Instant,
}

/// A group with a task that may begin as soon as there is room.
#[derive(Debug, serde::Deserialize)]
pub(super) struct Waiter {
    key: String,
    /// How many of it may begin beside those that run: the higher, the sooner.
    allowance: i64,
    /// Its first task: the lower, the sooner.
    id: i64,
    /// Whether it runs on a remote.
    far: bool,
}

type Place = (Reverse<i64>, i64);

/// Groups that wait on one side: in this database, or on remotes.
#[derive(Debug, Default)]
struct Side {
    order: BTreeMap<Place, String>,
    places: HashMap<String, Place>,
    /// Whether there are more than are kept.
    cut: bool,
}

impl Side {
    fn insert(&mut self, waiter: Waiter) {
        if self.places.len() >= WAITING_MAX {
            self.cut = true;
            return;
        }
        self.remove(&waiter.key);
        let place = (Reverse(waiter.allowance), waiter.id);
        self.places.insert(waiter.key.clone(), place);
        if let Some(before) = self.order.insert(place, waiter.key) {
            self.places.remove(&before);
        }
    }

    fn remove(&mut self, key: &str) {
        if let Some(place) = self.places.remove(key) {
            self.order.remove(&place);
        }
    }

    fn take(&mut self, count: usize) -> Vec<String> {
        let first = self.order.iter().take(count).map(|(place, _)| *place).collect::<Vec<_>>();
        let keys = first.iter().filter_map(|place| self.order.remove(place));
        let keys: Vec<String> = keys.collect();
        for key in &keys {
            self.places.remove(key);
        }
        keys
    }
}

/// Groups that wait for room, first the one that is next.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    local: Side,
    far: Side,
    /// Whether groups were left out that brought nothing although they wait: another transaction holds their rows.
    dropped: bool,
}

impl Waiting {
    /// Takes what a claim left behind. What brought nothing although there was room is looked at again with the next look
    /// at all groups.
    pub(super) fn left(&mut self, waiters: Vec<Waiter>, claim: Claim) {
        if claim.all {
            *self = Waiting::default();
        }
        for waiter in waiters {
            let room = if waiter.far { claim.room.all } else { claim.room.local };
            let side = if waiter.far { &mut self.far } else { &mut self.local };
            if claim.all || claim.found || room == 0 {
                side.insert(waiter);
            } else {
                self.dropped = true;
            }
        }
    }

    /// A group that is looked at for another reason.
    pub(super) fn remove(&mut self, key: &str) {
        self.local.remove(key);
        self.far.remove(key);
    }

    /// The groups that are next where there is so much room.
    pub(super) fn take(&mut self, room: Room) -> Vec<String> {
        let mut keys = self.local.take(room.local);
        keys.extend(self.far.take(room.all));
        keys
    }

    /// Whether a group waits.
    pub(super) fn is_any(&self) -> bool {
        let any = |side: &Side| side.cut || !side.order.is_empty();
        any(&self.local) || any(&self.far)
    }

    fn sides(&self, room: Room) -> impl Iterator<Item = &Side> {
        let sides = [(room.local, &self.local), (room.all, &self.far)];
        sides.into_iter().filter(|(room, _)| *room > 0).map(|(_, side)| side)
    }

    /// Whether one is known that may begin where there is so much room.
    fn has(&self, room: Room) -> bool {
        self.sides(room).any(|side| !side.order.is_empty())
    }

    /// Whether only a look at all groups finds the next.
    fn is_drained(&self, room: Room) -> bool {
        self.sides(room).any(|side| side.cut && side.order.is_empty())
    }
}

impl Leader {
    /// How many tasks may begin.
    pub(super) fn room(&self, now: Instant) -> Room {
        let busy = self.crew.busy();
        let run = self.settings.borrow().run;
        let mut all = run.unwrap_or(RUN_DEFAULT).saturating_sub(busy).min(CLAIM_MAX);
        if self.crew.input_bytes() >= INPUT_BYTES_MAX {
            all = 0;
        }
        let local = self.crew.local();
        let local = if self.full_until.is_some_and(|until| until > now) {
            // Where the server has no room, those that are there may go on.
            local.open - local.busy
        } else {
            match (run, self.allowance) {
                (None, Some(allowance)) => allowance.sessions.saturating_sub(local.busy),
                _ => all,
            }
        };
        Room { all, local: local.min(all) }
    }

    /// Whether to claim now.
    pub(super) fn claims(&mut self, now: Instant) -> bool {
        if self.waiting.is_drained(self.room(now))
            || (self.waiting.dropped && now >= self.full_at + self.settings.borrow().sleep)
        {
            self.look.all = true;
        }
        self.may_claim(now)
    }

    /// Whether a claim may bring something now.
    pub(super) fn may_claim(&self, now: Instant) -> bool {
        let room = self.room(now);
        if *self.going.borrow() != Going::On || room.all == 0 {
            return false;
        }
        let drained = self.waiting.is_drained(room);
        let keys = !self.look.keys.is_empty() || self.waiting.has(room);
        keys || ((self.look.all || drained) && self.may_look_at_all(now))
    }

    /// Whether all groups may be looked at now. While some are known to wait that may take only a part of the time.
    pub(super) fn may_look_at_all(&self, now: Instant) -> bool {
        !self.waiting.is_any() || now >= self.full_after
    }

    /// All groups were looked at, which took so long.
    pub(super) fn looked_at_all(&mut self, took: Duration) {
        self.full_at = Instant::now();
        self.full_after = self.full_at + took * FULL_LOOK_PAUSE;
    }

    /// When what keeps tasks waiting may have changed by itself.
    pub(super) fn wake_for_room(&self) -> Option<Instant> {
        let allowance = self.allowance.filter(|_| self.settings.borrow().run.is_none())?;
        self.waiting.is_any().then_some(allowance.looked + ALLOWANCE_FRESH)
    }

    /// Counts the connections of the server, where the configuration sets no limit: the reserved ones and a fifth of the
    /// others stay free, and schedulers that ask at the same time share what is left. One session may always be open.
    pub(super) async fn count_connections(
        &mut self,
        wire: &mut Wire,
        now: Instant,
    ) -> Result<(), AskError> {
        let is_fresh = |allowance: Allowance| now < allowance.looked + ALLOWANCE_FRESH;
        if self.settings.borrow().run.is_some() || self.allowance.is_some_and(is_fresh) {
            return Ok(());
        }
        let rows = wire.ask(Ask::new(CONNECTIONS, [])).await?;
        let Some(row) = rows.first() else { return Ok(()) };
        let number = |place: usize| row.parsed::<i64>(place).unwrap_or(0).max(0) as usize;
        let (usable, used, leaders) = (number(0), number(1), number(2).max(1));
        let local = self.crew.local();
        let used = used + local.unopened;
        let free = (usable - usable.div_ceil(5)).saturating_sub(used);
        let more = if free == 0 { 0 } else { (free / leaders).max(1) };
        self.allowance = Some(Allowance { sessions: (local.open + more).max(1), looked: now });
        Ok(())
    }

    /// Says in the log, on the page and to `sql list` whether tasks wait because of the limit.
    pub(super) async fn tell_limit(
        &mut self,
        wire: &mut Wire,
        table: &Table,
    ) -> Result<(), AskError> {
        let now = Instant::now();
        let room = self.room(now);
        let reached = self.waiting.is_any() && (room.all == 0 || room.local == 0);
        if reached == self.limit_told || self.crew.input_bytes() >= INPUT_BYTES_MAX {
            return Ok(());
        }
        let oid = table.oid.cast_signed();
        let verb = if reached { "pg_try_advisory_lock" } else { "pg_advisory_unlock" };
        let sql = format!("SELECT {verb}({LIMIT_LOCK}, {oid})");
        wire.ask(Ask::new(&sql, [])).await?;
        self.limit_told = reached;
        let limit = if reached { self.crew.busy() } else { 0 };
        self.status.limit.store(limit as u64, std::sync::atomic::Ordering::Relaxed);
        let silent = self.limit_logged.is_some_and(|logged| now < logged + LIMIT_LOGGED);
        if reached && !silent {
            self.limit_logged = Some(now);
            let hint = match self.settings.borrow().run {
                Some(_) => "\"run\" of the configuration is reached",
                None => {
                    "the reserved connections and a fifth of the others stay free; \
                     set \"run\" or raise max_connections to run more"
                }
            };
            tracing::warn!(table = self.name, "limit reached: {limit} tasks running; {hint}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiter(key: &str, allowance: i64, id: i64, far: bool) -> Waiter {
        Waiter { key: key.into(), allowance, id, far }
    }

    fn claim(all: bool, found: bool) -> Claim {
        Claim { all, found, room: Room { all: 1, local: 1 } }
    }

    #[test]
    fn groups_wait_in_the_order_in_which_they_begin() {
        let mut waiting = Waiting::default();
        let left = vec![
            waiter("b", 0, 2, false),
            waiter("a", 0, 1, false),
            waiter("high", 3, 9, false),
            waiter("far", 0, 7, true),
        ];
        waiting.left(left, claim(true, true));
        let none = Room { all: 0, local: 0 };
        assert!(waiting.is_any() && !waiting.has(none));
        // Those of a full server do not keep those on remotes from beginning.
        assert_eq!(waiting.take(Room { all: 5, local: 0 }), ["far"]);
        assert_eq!(waiting.take(Room { all: 2, local: 2 }), ["high", "a"]);
        waiting.remove("b");
        assert!(!waiting.is_any());
    }

    #[test]
    fn a_group_that_brings_nothing_is_left_for_the_next_full_look() {
        // A row that another transaction holds locked would be claimed again and again, and no other group's.
        let mut waiting = Waiting::default();
        waiting.left(vec![waiter("locked", 0, 1, false)], claim(true, false));
        let room = Room { all: 1, local: 1 };
        assert_eq!(waiting.take(room), ["locked"]);
        waiting.left(vec![waiter("locked", 0, 1, false)], claim(false, false));
        assert!(waiting.dropped && !waiting.has(room));
        // One that found no room is kept.
        let full = Claim { room: Room { all: 1, local: 0 }, ..claim(false, false) };
        waiting.left(vec![waiter("later", 0, 2, false)], full);
        assert!(waiting.has(room));
    }

    #[test]
    fn more_groups_than_are_kept_are_looked_for_again() {
        let mut waiting = Waiting::default();
        let many = (0..=WAITING_MAX as i64).map(|id| waiter(&id.to_string(), 0, id, false));
        waiting.left(many.collect(), claim(true, true));
        let room = Room { all: WAITING_MAX, local: WAITING_MAX };
        assert!(!waiting.is_drained(room));
        assert_eq!(waiting.take(room).len(), WAITING_MAX);
        assert!(waiting.is_drained(room));
    }
}

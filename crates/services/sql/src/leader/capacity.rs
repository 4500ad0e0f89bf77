//! Computes how many tasks may start, and reports when that limit keeps tasks waiting.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::Leader;
use crate::connection::{Connection, Query, QueryError};
use crate::scheduler::RunState;
use crate::table::Table;

/// How many tasks run at the same time where neither the configuration nor the server sets another limit.
const RUN_DEFAULT: usize = 1000;
/// How many tasks one claim brings at most.
const CLAIM_MAX: usize = 1000;
/// How many bytes of input are kept for assigned tasks, before no more are claimed.
pub(super) const INPUT_BYTES_MAX: usize = 128 << 20;
/// How long a count of the server's connections is used.
const BUDGET_FRESH: Duration = Duration::from_secs(1);
/// How often at most the log says that the limit is reached.
const LIMIT_LOGGED: Duration = Duration::from_secs(60);

/// The connections that are not reserved, those in use, and the schedulers that lead a table of this server.
const CONNECTIONS: &str = "SELECT current_setting('max_connections')::integer \
     - current_setting('superuser_reserved_connections')::integer \
     - coalesce(current_setting('reserved_connections', true), '0')::integer, \
     (SELECT sum(numbackends) FROM pg_stat_database), \
     (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1952543592 AND objsubid = 2 AND granted)";

/// The advisory lock that a scheduler holds while tasks wait because of its limit, so that `sql list` can show it.
pub const LIMIT_LOCK: &str = "1952543593";

/// How many tasks may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capacity {
    /// In this database and on remotes.
    pub all: usize,
    /// In this database.
    pub local: usize,
}

/// How many sessions this scheduler may have in its own database, as of a count of connections.
#[derive(Clone, Copy, Debug)]
struct ConnectionBudget {
    sessions: usize,
    counted_at: Instant,
}

/// The connections that the server has room for, and whether the limit was reported.
#[derive(Default)]
pub(super) struct LimitMonitor {
    /// Used where the configuration sets no limit.
    budget: Option<ConnectionBudget>,
    /// Whether the lock that shows the limit is held.
    reported: bool,
    logged_at: Option<Instant>,
}

impl LimitMonitor {
    /// Prepares for a new connection, which holds no lock.
    pub fn reset(&mut self) {
        (self.reported, self.budget) = (false, None);
    }
}

impl Leader {
    /// How many tasks may start.
    pub(super) fn capacity(&self, now: Instant) -> Capacity {
        let busy = self.sessions.busy();
        let run = self.settings.borrow().run;
        let mut all = run.unwrap_or(RUN_DEFAULT).saturating_sub(busy).min(CLAIM_MAX);
        if self.sessions.input_bytes() >= INPUT_BYTES_MAX {
            all = 0;
        }
        let local = self.sessions.local();
        let local = if self.retries.server_full_until.is_some_and(|until| until > now) {
            // A server without room for more sessions still lets idle ones run tasks.
            local.open - local.busy
        } else {
            match (run, self.limits.budget) {
                (None, Some(budget)) => budget.sessions.saturating_sub(local.busy),
                _ => all,
            }
        };
        Capacity { all, local: local.min(all) }
    }

    /// Whether to claim now; requests all groups where only that finds the next one.
    pub(super) fn should_claim(&mut self, now: Instant) -> bool {
        let poll = self.settings.borrow().sleep;
        self.claims.request_missing(self.capacity(now), now, poll);
        self.can_claim(now)
    }

    /// Whether a claim may bring a task now.
    pub(super) fn can_claim(&self, now: Instant) -> bool {
        let capacity = self.capacity(now);
        *self.run_state.borrow() == RunState::Running
            && capacity.all > 0
            && self.claims.is_useful(capacity, now)
    }

    /// When the count of connections that keeps tasks waiting is out of date.
    pub(super) fn connections_stale_at(&self) -> Option<Instant> {
        let budget = self.limits.budget.filter(|_| self.settings.borrow().run.is_none())?;
        self.claims.waiting.is_any().then_some(budget.counted_at + BUDGET_FRESH)
    }

    /// Counts the connections of the server, where the configuration sets no limit: the reserved ones and a fifth of the
    /// others stay free, and schedulers that ask at the same time share what is left. One session may always be open.
    pub(super) async fn count_connections(
        &mut self,
        connection: &mut Connection,
        now: Instant,
    ) -> Result<(), QueryError> {
        let is_fresh = |budget: ConnectionBudget| now < budget.counted_at + BUDGET_FRESH;
        if self.settings.borrow().run.is_some() || self.limits.budget.is_some_and(is_fresh) {
            return Ok(());
        }
        let rows = connection.query(Query::new(CONNECTIONS, [])).await?;
        let Some(row) = rows.first() else { return Ok(()) };
        let number = |column: usize| row.parsed::<i64>(column).unwrap_or(0).max(0) as usize;
        let (usable, used, leaders) = (number(0), number(1), number(2).max(1));
        let local = self.sessions.local();
        let used = used + local.connecting;
        let free = (usable - usable.div_ceil(5)).saturating_sub(used);
        let more = if free == 0 { 0 } else { (free / leaders).max(1) };
        let sessions = (local.open + more).max(1);
        self.limits.budget = Some(ConnectionBudget { sessions, counted_at: now });
        Ok(())
    }

    /// Reports in the log, on the page and to `sql list` whether tasks wait because of the limit.
    pub(super) async fn report_limit(
        &mut self,
        connection: &mut Connection,
        table: &Table,
    ) -> Result<(), QueryError> {
        let now = Instant::now();
        let capacity = self.capacity(now);
        let reached = self.claims.waiting.is_any() && (capacity.all == 0 || capacity.local == 0);
        if reached == self.limits.reported || self.sessions.input_bytes() >= INPUT_BYTES_MAX {
            return Ok(());
        }
        let oid = table.oid.cast_signed();
        let verb = if reached { "pg_try_advisory_lock" } else { "pg_advisory_unlock" };
        let sql = format!("SELECT {verb}({LIMIT_LOCK}, {oid})");
        connection.query(Query::new(&sql, [])).await?;
        self.limits.reported = reached;
        let limit = if reached { self.sessions.busy() } else { 0 };
        self.status.limit.store(limit as u64, Ordering::Relaxed);
        if reached {
            self.log_limit(limit, now);
        }
        Ok(())
    }

    /// Logs that the limit is reached, unless that was logged a short time ago.
    fn log_limit(&mut self, limit: usize, now: Instant) {
        if self.limits.logged_at.is_some_and(|logged_at| now < logged_at + LIMIT_LOGGED) {
            return;
        }
        self.limits.logged_at = Some(now);
        let hint = match self.settings.borrow().run {
            Some(_) => "this is \"run\" of the configuration; raise it to run more",
            None => {
                "the reserved connections and a fifth of the others stay free; \
                 set \"run\" or raise max_connections to run more"
            }
        };
        let tasks = if limit == 1 { "task" } else { "tasks" };
        tracing::warn!(table = self.table_name, "limit reached: {limit} {tasks} running; {hint}");
    }
}

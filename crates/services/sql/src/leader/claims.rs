//! Builds claims and assigns the claimed tasks to sessions.

use std::time::Duration;

use taskyard_core::schedule::Interval;
use tokio::time::Instant;

use super::Leader;
use super::capacity::{Capacity, INPUT_BYTES_MAX};
use super::waiting_groups::WaitingGroup;
use crate::clock::DatabaseClock;
use crate::connection::{Query, Row, SqlError};
use crate::outcome::{TaskOutcome, parse_cron};
use crate::session_pool::{AssignedTask, array};
use crate::status::SchedulerStatus;
use crate::table::{Profile, Table};
use crate::task::{self, COLUMNS_COUNT, Task};

/// How many more rows are read once some had expired.
const EXTRA_ROWS: usize = 1000;

/// The columns of a claimed row after those of the task. Between `EXPIRED` and `CLOCK` is the one that makes the claim
/// wait for the disk.
const GROUP_KEY: usize = COLUMNS_COUNT;
const EXPIRED: usize = COLUMNS_COUNT + 1;
const CLOCK: usize = COLUMNS_COUNT + 3;
/// The columns of the last row, which has no task.
const NEXT_PLAN: usize = COLUMNS_COUNT + 4;
const WAITING: usize = COLUMNS_COUNT + 5;

impl Leader {
    /// The claim for this capacity.
    pub(super) fn claim_query<'a>(
        &mut self,
        table: &'a Table,
        capacity: Capacity,
        now: Instant,
    ) -> Query<'a> {
        let busy = self.sessions.busy_json(self.context.clock.now());
        let idle = self.sessions.idle_json();
        let keys = self.claims.start(capacity, now).map(array);
        let bytes = INPUT_BYTES_MAX.saturating_sub(self.sessions.input_bytes());
        let params = vec![
            Some(busy),
            Some(idle),
            Some(capacity.all.to_string()),
            Some(self.claims.extra_rows.to_string()),
            keys,
            Some(bytes.to_string()),
            Some(capacity.local.to_string()),
        ];
        Query { sql: &table.statements.claim, params }
    }

    /// Handles the rows of a claim: tasks, and a last row with the next plan and the groups that wait.
    pub(super) fn handle_claimed(&mut self, rows: Vec<Row>, capacity: Capacity, table: &Table) {
        let mut found = false;
        let mut waiting: Vec<WaitingGroup> = Vec::new();
        self.claims.extra_rows = 0;
        for mut row in rows {
            if let Some(shown) = row.text(CLOCK).and_then(task::timestamp) {
                self.context.clock = DatabaseClock::synced_to(shown);
            }
            let Some(key) = row.take(GROUP_KEY) else {
                let pause_end = self.sessions.next_slot(self.context.clock.now());
                let next_plan = row.text(NEXT_PLAN).and_then(task::timestamp);
                self.claims.set_next(next_plan, pause_end);
                waiting =
                    serde_json::from_str(row.text(WAITING).unwrap_or("[]")).unwrap_or_default();
                continue;
            };
            found |= self.handle_claimed_task(key, row, table);
        }
        if !found && self.retries.server_full_until.is_none() && self.sessions.busy() == 0 {
            self.retries.succeeded();
        }
        self.claims.finish(waiting, capacity, found);
    }

    /// Starts a claimed task, or ends it if it has expired. Returns `false` if the row cannot be read.
    fn handle_claimed_task(&mut self, key: String, mut row: Row, table: &Table) -> bool {
        let expired = row.is_true(EXPIRED);
        let escapes_itself = self.context.profile == Profile::Extended;
        let Some(task) = Task::read(&mut row, escapes_itself) else {
            tracing::error!(table = self.table_name, "cannot read a claimed row");
            return false;
        };
        SchedulerStatus::count(&self.status.claimed);
        if expired {
            self.claims.extra_rows = EXTRA_ROWS;
            SchedulerStatus::count(&self.status.expired);
            let outcome = self.context.outcome(|rules, now| rules.expired(&task, now));
            self.outbox.outcomes.push(outcome);
        } else {
            self.assign(key, task, table);
        }
        true
    }

    /// Assigns a task to the session that it was claimed for, or opens one.
    fn assign(&mut self, key: String, task: Task, table: &Table) {
        if let Some(error) = invalid_columns(&task) {
            let outcome = self.context.outcome(|rules, now| rules.rejected(&task, now, &error));
            self.outbox.outcomes.push(TaskOutcome { old_pid: task.pid, ..outcome });
            // It was claimed instead of another task of its group.
            self.claims.request_group(&key);
            return;
        }
        if let Some(pid) = task.pid {
            match self.sessions.find_idle(&key, pid) {
                Some(session) => {
                    let start = self.context.clock.now();
                    self.sessions.assign(session, AssignedTask::new(task, Some(start), None));
                    self.run(session, true, table);
                }
                None => {
                    let outcome = self.context.outcome(|rules, _| rules.returned(&task, Some(pid)));
                    self.outbox.outcomes.push(outcome);
                }
            }
            return;
        }
        match self.session_target(&task, table) {
            Ok(target) => {
                // The timeout of a task on a remote includes connecting.
                let limit = timeout(task.timeout).filter(|_| task.remote.is_some());
                let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
                let assigned = AssignedTask::new(task, None, deadline);
                self.sessions.open(key, assigned, self.context.clock.now(), target);
            }
            Err(error) => {
                let outcome = self.context.outcome(|rules, now| rules.rejected(&task, now, &error));
                self.outbox.outcomes.push(outcome);
            }
        }
    }
}

/// The error of a task whose columns cannot be used.
fn invalid_columns(task: &Task) -> Option<SqlError> {
    let wrong = task.format.as_ref().err().cloned().or_else(|| parse_cron(task).err())?;
    Some(SqlError::new(wrong))
}

pub(super) fn timeout(interval: Interval) -> Option<Duration> {
    interval.is_positive().then(|| Duration::from(interval.span()))
}

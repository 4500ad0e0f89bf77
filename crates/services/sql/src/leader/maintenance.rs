//! Runs the periodic jobs: deletes old tasks, returns abandoned ones, cancels stopped ones.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Leader;
use crate::clock::DatabaseClock;
use crate::connection::{Connection, Query, QueryError, SqlError};
use crate::outcome::RunTimes;
use crate::session::{RunResult, SessionCommand};
use crate::session_pool::{array, json};
use crate::status::SchedulerStatus;
use crate::table::{DELETED_MAX, Table};
use crate::task::{self, COLUMNS_COUNT, Task, timestamp_text};

/// How often finished tasks that are old enough are deleted.
const CLEANUP: Duration = Duration::from_secs(10);
/// How often outcomes are tried again that the database refused.
const REJECTED: Duration = Duration::from_secs(10);
/// How long to wait between two checks whether the sessions of another scheduler have ended.
const ORPHANS_WAIT: Duration = Duration::from_millis(20);
/// How many such checks are made before the tasks are returned although they may still run.
const ORPHANS_CHECKS_MAX: usize = 500;

/// When the periodic jobs are due.
pub(super) struct MaintenanceTimers {
    /// Deleting old tasks.
    pub next_cleanup: Instant,
    /// Returning abandoned tasks.
    pub next_reset: Instant,
    /// Writing rejected outcomes again.
    pub next_rejected: Instant,
}

impl MaintenanceTimers {
    /// All jobs are due now.
    pub fn new(now: Instant) -> Self {
        MaintenanceTimers { next_cleanup: now, next_reset: now, next_rejected: now }
    }
}

impl Leader {
    /// Runs the periodic jobs that are due.
    pub(super) async fn maintain(
        &mut self,
        connection: &mut Connection,
        table: &Table,
        now: Instant,
    ) -> Result<(), QueryError> {
        let (reset, keep) = {
            let settings = self.settings.borrow();
            (settings.reset, settings.keep.clone())
        };
        if self.timers.next_reset <= now {
            self.timers.next_reset = now + reset;
            self.reset(connection, table).await?;
            self.claims.request_all();
        }
        if self.timers.next_rejected <= now && !self.outbox.rejected.is_empty() {
            self.timers.next_rejected = now + REJECTED;
            self.outbox.outcomes.append(&mut self.outbox.rejected);
        }
        if let Some(keep) = keep
            && self.timers.next_cleanup <= now
        {
            let query = Query::new(&table.statements.delete_finished, [&keep]);
            let deleted = connection.query(query).await?;
            let deleted = deleted.first().and_then(|row| row.parsed(0)).unwrap_or(0);
            // Where there may be more, the next round deletes them.
            let more = deleted >= DELETED_MAX;
            self.timers.next_cleanup = if more { now } else { now + CLEANUP };
        }
        Ok(())
    }

    /// Writes again which tasks are assigned here. A database that crashed may have lost the claim and the start of a
    /// task, which are not on disk when they are answered: without this the row would wait for an outcome with a process
    /// that it does not show, or the task would start a second time.
    pub(super) async fn restore(
        &mut self,
        connection: &mut Connection,
        table: &Table,
    ) -> Result<(), QueryError> {
        let assigned = self.sessions.assigned().map(|assigned| {
            (assigned.task.id, assigned.shown_pid, assigned.start.map(timestamp_text))
        });
        let outcomes = self.outbox.all_outcomes();
        let outcomes = outcomes.map(|outcome| (outcome.id, outcome.old_pid, outcome.start.clone()));
        let own: Vec<_> = assigned
            .chain(outcomes)
            .map(|(id, pid, start)| serde_json::json!({ "id": id, "pid": pid, "start": start }))
            .collect();
        if !own.is_empty() {
            let params = vec![Some(json(own))];
            connection.query(Query { sql: &table.statements.restore, params }).await?;
        }
        Ok(())
    }

    /// Ends the sessions of a scheduler that is gone, so that no task runs twice at the same time, and returns its tasks.
    pub(super) async fn end_orphans(
        &mut self,
        connection: &mut Connection,
        table: &Table,
    ) -> Result<(), QueryError> {
        for _ in 0..ORPHANS_CHECKS_MAX {
            let sessions = self.sessions.sessions.values();
            let pids = array(sessions.filter_map(|session| session.pid));
            let own = self.own_ids();
            let query = Query::new(&table.statements.orphans, [&pids, &own]);
            let rows = connection.query(query).await?;
            if rows.first().and_then(|row| row.parsed(0)) == Some(0) {
                break;
            }
            sleep(ORPHANS_WAIT).await;
        }
        self.reset(connection, table).await?;
        self.timers.next_reset = Instant::now() + self.settings.borrow().reset;
        Ok(())
    }

    /// Returns tasks that no session runs. A task on a remote ends with an error instead: whether the remote has run it is
    /// unknown, so it is not run again.
    async fn reset(
        &mut self,
        connection: &mut Connection,
        table: &Table,
    ) -> Result<(), QueryError> {
        let own = self.own_ids();
        let query = Query::new(&table.statements.abandoned, [&own]);
        for mut row in connection.query(query).await? {
            let start = row.text(COLUMNS_COUNT).and_then(task::timestamp);
            let now = row.text(COLUMNS_COUNT + 1).and_then(task::timestamp);
            let (Some(now), Some(task)) = (now, Task::read(&mut row, false)) else { continue };
            self.context.clock = DatabaseClock::synced_to(now);
            SchedulerStatus::count(&self.status.lost);
            let why = "the scheduler that ran the task is gone";
            let error = Some(SqlError::with_detail("the connection was lost", why));
            let result = RunResult { error, lost: true, ..RunResult::default() };
            let times = RunTimes { pid: task.pid, start, stop: now };
            let outcome = self.context.outcome(|rules, _| rules.ended(&task, times, result));
            self.outbox.outcomes.push(outcome);
        }
        let own = self.own_ids();
        connection.query(Query::new(&table.statements.reset, [&own])).await?;
        Ok(())
    }

    /// Cancels the assigned tasks that a user has stopped or deleted.
    pub(super) async fn cancel_stopped(
        &mut self,
        connection: &mut Connection,
        table: &Table,
    ) -> Result<(), QueryError> {
        let ids = array(self.sessions.ids());
        if ids == "{}" {
            return Ok(());
        }
        let rows = connection.query(Query::new(&table.statements.stopped, [&ids])).await?;
        let stopped: Vec<i64> = rows.iter().filter_map(|row| row.parsed(0)).collect();
        let mut not_started = Vec::new();
        for (number, session) in &self.sessions.sessions {
            let Some(assigned) = &session.assigned else { continue };
            if stopped.contains(&assigned.task.id) {
                if assigned.shown_pid.is_some() {
                    session.send(SessionCommand::Cancel);
                } else {
                    not_started.push(*number);
                }
            }
        }
        for number in not_started {
            // It has not started, so there is no outcome to write.
            self.sessions.take(number);
            self.sessions.close(number);
            self.outbox.starts.retain(|start| *start != number);
        }
        Ok(())
    }
}

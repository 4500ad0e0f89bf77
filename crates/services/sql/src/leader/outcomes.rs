//! Handles the events of sessions and writes the outcomes of tasks.

use super::Leader;
use crate::connection::{ConnectError, Connection, Query, QueryError, SqlError};
use crate::outcome::{OutcomeForm, RunTimes, TaskOutcome};
use crate::session::{RunResult, SessionEvent};
use crate::session_pool::{AssignedTask, EndedTask, json};
use crate::status::SchedulerStatus;
use crate::table::{REPEATED_COLUMNS, Table};
use tokio::time::Instant;

impl Leader {
    /// Handles an event of a session.
    pub(super) fn handle_event(&mut self, number: u64, event: SessionEvent) {
        match event {
            SessionEvent::Opened(pid) => {
                if let Some(session) = self.sessions.sessions.get_mut(&number) {
                    session.pid = Some(pid);
                    let assigned = session.assigned.as_ref();
                    if assigned.is_some_and(|assigned| assigned.task.remote.is_none()) {
                        self.retries.succeeded();
                    }
                    self.outbox.starts.push(number);
                }
            }
            SessionEvent::Failed(error) => self.handle_open_failure(number, error),
            SessionEvent::TaskEnded(result) => self.handle_end(number, result),
        }
    }

    /// A task has ended: queues its outcome, and closes its session unless that may run another task.
    fn handle_end(&mut self, number: u64, result: RunResult) {
        let Some(session) = self.sessions.sessions.get(&number) else { return };
        self.claims.request_group(&session.key);
        let (key, unusable) = (session.key.clone(), result.lost || result.cancelled);
        let Some(AssignedTask { task, start, shown_pid, return_on_end, .. }) =
            self.sessions.take(number)
        else {
            return;
        };
        let stop = self.context.clock.now();
        if return_on_end && result.error.is_some() {
            let outcome = self.context.outcome(|rules, _| rules.returned(&task, shown_pid));
            self.outbox.outcomes.push(outcome);
            return self.sessions.close(number);
        }
        let counter = match (&result.error, result.lost) {
            (_, true) => &self.status.lost,
            (Some(_), false) => &self.status.failed,
            (None, false) => &self.status.done,
        };
        SchedulerStatus::count(counter);
        let times = RunTimes { pid: shown_pid, start, stop };
        let outcome = self.context.outcome(|rules, _| rules.ended(&task, times, result));
        self.outbox.outcomes.push(outcome);
        let ended = EndedTask { plan: task.plan, stop, max: task.reuse.max, drift: task.drift };
        self.sessions.pause(&key, &ended, &self.context.zone);
        if unusable || !task.reuse.goes_on() {
            self.sessions.close(number);
        }
    }

    /// The session of a task could not be opened: tries again later, returns the task, or ends it with an error.
    fn handle_open_failure(&mut self, number: u64, error: ConnectError) {
        let Some(session) = self.sessions.sessions.get_mut(&number) else { return };
        self.claims.request_group(&session.key);
        let Some(assigned) = session.assigned.as_mut() else { return };
        let full = matches!(&error, ConnectError::Refused(error) if error.is_full());
        if assigned.task.remote.is_some() && full && !assigned.return_on_end {
            assigned.connect_attempts = assigned.connect_attempts.saturating_add(1);
            let (attempts, deadline) = (assigned.connect_attempts, assigned.deadline);
            if self.retries.retry_remote(number, attempts, deadline) {
                return;
            }
        }
        let Some(AssignedTask { task, return_on_end, .. }) = self.sessions.take(number) else {
            return;
        };
        self.sessions.close(number);
        let outcome = match task.remote {
            // A task does not fail because its own database cannot open a session.
            None => {
                tracing::debug!("cannot open a session: {}", error.line());
                // A full server is a passing state; any other reason needs an administrator.
                if !full {
                    self.retries.failed(error.line());
                }
                self.retries.server_refused();
                self.context.outcome(|rules, _| rules.returned(&task, None))
            }
            Some(_) if return_on_end => {
                self.context.outcome(|rules, _| rules.returned(&task, None))
            }
            Some(_) => {
                SchedulerStatus::count(&self.status.failed);
                let error = remote_error(&error);
                self.context.outcome(|rules, now| rules.unreachable(&task, now, &error))
            }
        };
        self.outbox.outcomes.push(outcome);
    }

    /// Opens sessions again whose remote had no room.
    pub(super) fn reopen_due(&mut self, table: &Table, now: Instant) {
        for number in self.retries.take_due(now) {
            let session = self.sessions.sessions.get(&number);
            let Some(key) = session.map(|session| session.key.clone()) else { continue };
            let Some(assigned) = self.sessions.take(number) else { continue };
            self.sessions.close(number);
            match self.session_target(&assigned.task, table) {
                Ok(target) => {
                    self.sessions.open(key, assigned, self.context.clock.now(), target);
                }
                Err(error) => {
                    let task = &assigned.task;
                    let outcome =
                        self.context.outcome(|rules, now| rules.rejected(task, now, &error));
                    self.outbox.outcomes.push(outcome);
                }
            }
        }
    }

    /// Returns the tasks whose session is not connected yet.
    pub(super) fn return_unconnected(&mut self) {
        let sessions = self.sessions.sessions.iter().filter(|(_, session)| session.pid.is_none());
        for number in sessions.map(|(number, _)| *number).collect::<Vec<_>>() {
            if let Some(AssignedTask { task, shown_pid, .. }) = self.sessions.take(number) {
                let outcome = self.context.outcome(|rules, _| rules.returned(&task, shown_pid));
                self.outbox.outcomes.push(outcome);
            }
            self.sessions.close(number);
        }
    }

    /// The statement that writes these outcomes.
    pub(super) async fn finish_statement(
        &self,
        connection: &mut Connection,
        table: &Table,
        outcomes: &[TaskOutcome],
    ) -> Result<String, QueryError> {
        if outcomes.iter().all(|outcome| outcome.next.is_none()) {
            return Ok(table.statements.finish.clone());
        }
        // Read each time, because a user may have added a column.
        let query = Query::new(REPEATED_COLUMNS, [&table.oid.to_string(), "{}"]);
        let rows = connection.query(query).await?;
        let row = rows.first().ok_or_else(|| QueryError::Lost("no answer".into()))?;
        let text = |column| row.text(column).unwrap_or_default();
        Ok(table.statements.finish_and_repeat(text(0), text(1)))
    }

    /// Writes outcomes one by one, because the database refused them together: one that cannot be written must not block
    /// the others.
    pub(super) async fn write_one_by_one(
        &mut self,
        connection: &mut Connection,
        table: &Table,
        outcomes: Vec<TaskOutcome>,
    ) -> Result<(), QueryError> {
        // They count as sent until each is answered: this future may be dropped at any moment.
        self.outbox.sent.outcomes = outcomes;
        let written = self.write_sent(connection, table).await;
        self.outbox.outcomes.append(&mut self.outbox.sent.outcomes);
        written
    }

    async fn write_sent(
        &mut self,
        connection: &mut Connection,
        table: &Table,
    ) -> Result<(), QueryError> {
        while let Some(outcome) = self.outbox.sent.outcomes.last().cloned() {
            if !self.write_one(connection, table, outcome).await? {
                break;
            }
            self.outbox.sent.outcomes.pop();
        }
        Ok(())
    }

    /// Writes one outcome, in a simpler form each time the database refuses it. Returns `false` where nothing can be
    /// written now.
    async fn write_one(
        &mut self,
        connection: &mut Connection,
        table: &Table,
        outcome: TaskOutcome,
    ) -> Result<bool, QueryError> {
        let mut reason = String::new();
        let mut last = outcome.clone();
        for form in OutcomeForm::ALL {
            let Some(outcome) = outcome.in_form(form, &reason) else { continue };
            let one = std::slice::from_ref(&outcome);
            let sql = self.finish_statement(connection, table, one).await?;
            let query = Query { sql: &sql, params: vec![Some(json([&outcome]))] };
            match connection.query(query).await {
                Ok(locked) => {
                    self.outbox.confirm(vec![outcome], &locked);
                    return Ok(true);
                }
                Err(QueryError::Refused(error)) if error.is_transient() => {
                    self.outbox.block(&error);
                    return Ok(false);
                }
                // The table itself is gone or changed: nothing can be written there now.
                Err(QueryError::Refused(error)) if error.code.starts_with("42P") => {
                    return Err(QueryError::Refused(error));
                }
                Err(QueryError::Refused(error)) => reason = error.line(),
                Err(lost) => return Err(lost),
            }
            last = outcome;
        }
        let (table, id) = (&self.table_name, last.id);
        tracing::error!(table, id, "cannot write the outcome of a task: {reason}");
        // The task has run, so it is not given to another session.
        self.outbox.rejected.push(last);
        Ok(true)
    }
}

/// The error of a task whose remote cannot be reached.
fn remote_error(error: &ConnectError) -> SqlError {
    match error {
        ConnectError::Unreachable(why) => {
            SqlError::with_detail("could not connect to the remote", why)
        }
        ConnectError::Refused(error) => {
            let detail = format!("{}:  {}", error.severity, error.message);
            SqlError::with_detail("could not connect to the remote", detail)
        }
        ConnectError::PasswordUnused => SqlError {
            hint: Some("Target server's authentication method must be changed.".into()),
            ..SqlError::with_detail(
                "password is required",
                "Non-superuser cannot connect if the server does not request a password.",
            )
        },
    }
}

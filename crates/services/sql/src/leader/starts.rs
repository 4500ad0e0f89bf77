//! Opens sessions for tasks and sends the tasks to them once the table shows them as running.

use std::collections::HashMap;

use tokio::time::Instant;

use super::Leader;
use super::claims::timeout;
use crate::clock::DatabaseClock;
use crate::connection::{Row, SessionOptions, SqlError};
use crate::scheduler::{CHECK_CLIENT, KEEPALIVES, Settings};
use crate::session::{Job, SessionCommand};
use crate::session_pool::json;
use crate::table::{Table, literal};
use crate::task::{self, Task};
use taskyard_postgres::Conninfo;

/// The longest group that is a setting of the startup message, which the server limits. A longer one is set once the
/// session is open.
const STARTUP_GROUP_BYTES_MAX: usize = 1000;
/// The longest name that the server accepts, in bytes.
const NAME_BYTES_MAX: usize = 63;

impl Leader {
    /// Where and with which settings the session of a task is opened.
    pub(super) fn session_target(
        &self,
        task: &Task,
        table: &Table,
    ) -> Result<(Conninfo, SessionOptions), Box<SqlError>> {
        let settings = self.settings.borrow();
        let names = &settings.names;
        let name = format!("pg_task {} {} {}", names.schema, names.table, task.group);
        let name = name[..name.floor_char_boundary(NAME_BYTES_MAX)].to_owned();
        let mut session = vec![("application_name".into(), name)];
        if let Some(remote) = &task.remote {
            let options =
                SessionOptions { settings: session, require_password_auth: !table.superuser };
            return Ok((remote_conninfo(remote, table)?, options));
        }
        if task.group.len() <= STARTUP_GROUP_BYTES_MAX {
            session.extend(task_settings(task, &settings, table));
        }
        session.extend(KEEPALIVES.map(|(name, value)| (name.into(), value.into())));
        let (name, value) = CHECK_CLIENT;
        session.extend(table.checks_client.then(|| (name.into(), value.into())));
        let options = SessionOptions { settings: session, require_password_auth: false };
        Ok((settings.conninfo.clone(), options))
    }

    /// Sends the task of a session to it; `reused` says whether the session has run another task before.
    pub(super) fn run(&mut self, number: u64, reused: bool, table: &Table) {
        let settings = self.settings.borrow();
        let Some(session) = self.sessions.sessions.get_mut(&number) else { return };
        let Some(assigned) = &mut session.assigned else { return };
        assigned.sent_at = Some(Instant::now());
        let task = &assigned.task;
        let Ok(format) = task.format.clone() else { return };
        let job = Job {
            input: task.input.clone(),
            timeout: match assigned.deadline {
                Some(deadline) => Some(deadline.saturating_duration_since(Instant::now())),
                None => timeout(task.timeout),
            },
            format,
            output_bytes_max: settings.output_bytes_max,
            attempt: task.remote.as_ref().map(|_| check_client_statement()),
            before: settings_statement(task, reused, &settings, table),
            clean: task.reuse.goes_on() && !task.save,
        };
        session.send(SessionCommand::Run(Box::new(job)));
    }

    /// The starts that are sent, as the statement reads them.
    pub(super) fn starts_json(&self) -> String {
        let mut items = Vec::new();
        for number in &self.outbox.sent.starts {
            let Some(session) = self.sessions.sessions.get(number) else { continue };
            if let (Some(assigned), Some(pid)) = (&session.assigned, session.pid) {
                items.push(serde_json::json!({ "id": assigned.task.id, "pid": pid }));
            }
        }
        json(items)
    }

    /// Runs the tasks that the table shows as running now; the others were stopped or are locked.
    pub(super) fn handle_started(&mut self, starts: Vec<u64>, rows: &[Row], table: &Table) {
        let started =
            |row: &Row| Some((row.parsed::<i64>(0)?, row.text(1).and_then(task::timestamp)));
        let started: HashMap<i64, _> = rows.iter().filter_map(started).collect();
        // Our clock may be behind by the duration of the last claim, and no task may end before it started.
        let latest = started.values().copied().flatten().max();
        if let Some(latest) = latest.filter(|latest| *latest > self.context.clock.now()) {
            self.context.clock = DatabaseClock::synced_to(latest);
        }
        for number in starts {
            let Some(session) = self.sessions.sessions.get_mut(&number) else { continue };
            let pid = session.pid;
            let Some(assigned) = &mut session.assigned else { continue };
            if let Some(start) = started.get(&assigned.task.id) {
                (assigned.shown_pid, assigned.start) = (pid, *start);
                self.run(number, false, table);
            } else {
                // Its row is locked, or it was stopped, which the check finds.
                self.outbox.starts.push(number);
                self.check_stopped = true;
                self.outbox.retry_soon();
            }
        }
    }
}

/// Reads the connection string of a remote; a scheduler that is no superuser demands a password and allows no files.
fn remote_conninfo(remote: &str, table: &Table) -> Result<Conninfo, Box<SqlError>> {
    let wrong = |error: taskyard_postgres::ConninfoError| {
        Box::new(SqlError::with_detail("PQconninfoParse failed", error.to_string()))
    };
    let mut conninfo = Conninfo::parse(remote).map_err(wrong)?;
    if !table.superuser && conninfo.names_files() {
        return Err(Box::new(SqlError::with_detail(
            "files are not allowed in a remote",
            "Non-superusers must not name sslrootcert, sslcert, sslkey or passfile in the connection string.",
        )));
    }
    conninfo.fill(|name| std::env::var(name).ok()).map_err(wrong)?;
    if !table.superuser && conninfo.password.is_none() {
        return Err(Box::new(SqlError::with_detail(
            "password is required",
            "Non-superusers must provide a password in the connection string.",
        )));
    }
    Ok(conninfo)
}

/// The statement that prepares the session for its task; none where the startup message has set everything.
fn settings_statement(
    task: &Task,
    reused: bool,
    settings: &Settings,
    table: &Table,
) -> Option<String> {
    let all = task.remote.is_some() || task.group.len() > STARTUP_GROUP_BYTES_MAX;
    if !all && !reused {
        return None;
    }
    // Cleaning a session restores the settings of its startup message.
    let own = task_settings(task, settings, table).into_iter();
    let own = own.filter(|(name, _)| all || name == "pg_task.id");
    // The encoding that an earlier task chose must not change how this one is read.
    let own = own.chain(reused.then(|| ("client_encoding".into(), "UTF8".into())));
    let set = own
        .map(|(name, value)| format!("set_config({}, {}, false)", literal(&name), literal(&value)));
    Some(format!("SELECT {}", set.collect::<Vec<_>>().join(", ")))
}

/// Lets the session of a remote end soon after the scheduler is gone, so that its task does not go on without one. Older
/// servers refuse it.
fn check_client_statement() -> String {
    let set = [CHECK_CLIENT].into_iter().chain(KEEPALIVES);
    let set = set.map(|(name, value)| format!("set_config('{name}', '{value}', false)"));
    format!("SELECT {}", set.collect::<Vec<_>>().join(", "))
}

/// The settings from which a task reads its id, its group and its table.
fn task_settings(task: &Task, settings: &Settings, table: &Table) -> Vec<(String, String)> {
    let names = &settings.names;
    [
        ("id", task.id.to_string()),
        ("group", task.group.clone()),
        ("schema", names.schema.clone()),
        ("table", names.table.clone()),
        ("oid", table.oid.to_string()),
    ]
    .into_iter()
    .map(|(name, value)| (format!("pg_task.{name}"), value))
    .collect()
}

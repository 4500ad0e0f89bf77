//! What a person asks about tasks and does to them: list, show, run, stop, next.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use taskyard_core::schedule::next_plan_after;
use taskyard_core::{Reason, Timestamp};

use crate::table::{Names, REPEATED};
use crate::task::{COLUMNS, Task, moment, moment_text};
use crate::verdict::cron_of;
use crate::wire::{Ask, AskError, Opening, Row, Wire, connect};
use crate::zone::Named;
use taskyard_postgres::{Conninfo, masked};

/// How many planned tasks are looked at for the coming runs.
const PLANNED_MAX: usize = 1000;

/// A table that a person looks at.
pub struct Desk {
    wire: Wire,
    names: Names,
}

/// A task in a list.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its id.
    pub id: i64,
    /// Its state.
    pub state: String,
    /// Its group.
    pub group: String,
    /// When it is to begin, in seconds since 1970.
    pub plan: Timestamp,
    /// Why it does not run now.
    pub reason: Reason,
    /// What it runs.
    pub input: String,
    /// Where, without passwords.
    pub remote: Option<String>,
    /// What it said, or its beginning.
    pub output: Option<String>,
    /// What went wrong.
    pub error: Option<String>,
}

/// What came of telling a task to run or to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It does.
    Done,
    /// It had ended, so another was made like it.
    Copied(i64),
    /// It was so already.
    Already,
    /// There is no such task.
    Missing,
}

/// A run to come.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Coming {
    /// When.
    pub at: Timestamp,
    /// Which task, or one like it.
    pub id: i64,
    /// Its group.
    pub group: String,
    /// What it runs.
    pub input: String,
}

/// Why a table cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum DeskError {
    /// There is no connection.
    #[error("{0}")]
    Unreachable(String),
    /// There is no such table.
    #[error("there is no table {0}; taskyard sql makes it when it starts")]
    NoTable(String),
    /// The database refused.
    #[error("{0}")]
    Refused(AskError),
}

impl From<AskError> for DeskError {
    fn from(error: AskError) -> Self {
        DeskError::Refused(error)
    }
}

impl Desk {
    /// Connects and finds the table.
    pub async fn open(conninfo: &Conninfo, names: Names) -> Result<Self, DeskError> {
        let wire = connect(conninfo, &Opening::default()).await;
        let mut wire = wire.map_err(|error| DeskError::Unreachable(error.line()))?;
        let found = wire.ask(Ask::new("SELECT to_regclass($1)", [&names.quoted()])).await?;
        if found.first().and_then(|row| row.text(0)).is_none() {
            return Err(DeskError::NoTable(names.quoted()));
        }
        Ok(Desk { wire, names })
    }

    /// The newest tasks, of one state if it is given.
    pub async fn list(
        &mut self,
        state: Option<&str>,
        count: usize,
    ) -> Result<Vec<Listed>, DeskError> {
        let sql = format!(
            "SELECT t.id, t.state, t.\"group\", encode(timestamptz_send(t.plan), 'hex'), left(t.input, 1000), \
             t.remote, left(t.error, 1000), encode(timestamptz_send(clock_timestamp()), 'hex'), \
             CASE WHEN t.plan <= clock_timestamp() \
             THEN clock_timestamp() >= t.plan + least(t.active, '1000 years') ELSE false END, EXISTS (SELECT FROM {table} o WHERE o.state IN ('TAKE', 'WORK') \
             AND o.hash = t.hash AND o.\"group\" = t.\"group\" AND o.remote IS NOT DISTINCT FROM t.remote), \
             left(t.output, 1000) FROM {table} t WHERE $1 = '' OR t.state::text = $1 ORDER BY t.id DESC LIMIT $2::bigint",
            table = self.names.quoted()
        );
        let params = [state.unwrap_or_default(), &count.to_string()];
        let rows = self.wire.ask(Ask::new(&sql, params)).await?;
        Ok(rows.into_iter().filter_map(listed).collect())
    }

    /// Every column of a task by name, passwords masked.
    pub async fn show(
        &mut self,
        id: i64,
    ) -> Result<Option<Vec<(String, Option<String>)>>, DeskError> {
        let sql = format!(
            "SELECT key, value FROM {} t, json_each_text(row_to_json(t)) WHERE t.id = $1::bigint",
            self.names.quoted()
        );
        let rows = self.wire.ask(Ask::new(&sql, [&id.to_string()])).await?;
        let columns = rows.into_iter().filter_map(|mut row| {
            let (name, value) = (row.take(0)?, row.take(1));
            let value = if name == "remote" { value.map(|text| masked(&text)) } else { value };
            Some((name, value))
        });
        Ok(Some(columns.collect::<Vec<_>>()).filter(|columns| !columns.is_empty()))
    }

    /// Lets a task run now; one that has ended is run again as another.
    pub async fn run(&mut self, id: i64) -> Result<Told, DeskError> {
        let (table, id) = (self.names.quoted(), id.to_string());
        let sql = format!(
            "UPDATE {table} SET origin = coalesce(origin, plan), plan = clock_timestamp(), state = 'PLAN', start = NULL, \
             stop = NULL, pid = NULL \
             WHERE id = $1::bigint AND (state = 'PLAN' OR (state = 'STOP' AND (pid IS NULL OR stop IS NOT NULL))) \
             RETURNING id"
        );
        if !self.wire.ask(Ask::new(&sql, [&id])).await?.is_empty() {
            return Ok(Told::Done);
        }
        let number = format!("SELECT '{}'::regclass::oid", table.replace('\'', "''"));
        let number = self.wire.ask(Ask::new(&number, [])).await?;
        let oid = number.first().and_then(|row| row.text(0)).unwrap_or_default().to_owned();
        // Whatever follows it was planned when it ended: another one that repeats would be a second chain.
        let once = "{repeat,cron}";
        let columns = self.wire.ask(Ask::new(REPEATED, [&oid, once])).await?;
        let text = |place| columns.first().and_then(|row| row.text(place)).unwrap_or_default();
        let sql = format!(
            "INSERT INTO {table} (parent{}) SELECT t.id{} FROM {table} t WHERE t.id = $1::bigint \
             AND t.stop IS NOT NULL RETURNING id",
            text(0),
            text(1)
        );
        let copied = self.wire.ask(Ask::new(&sql, [&id])).await?;
        if let Some(new) = copied.first().and_then(|row| row.parsed(0)) {
            return Ok(Told::Copied(new));
        }
        self.exists(&id).await
    }

    /// Stops a task: one that runs is cancelled, one that is planned never begins.
    pub async fn stop(&mut self, id: i64) -> Result<Told, DeskError> {
        let (table, id) = (self.names.quoted(), id.to_string());
        let sql = format!(
            "UPDATE {table} SET state = 'STOP' WHERE id = $1::bigint AND state IN ('PLAN', 'TAKE', 'WORK') RETURNING id"
        );
        if !self.wire.ask(Ask::new(&sql, [&id])).await?.is_empty() {
            return Ok(Told::Done);
        }
        self.exists(&id).await
    }

    async fn exists(&mut self, id: &str) -> Result<Told, DeskError> {
        let sql = format!("SELECT 1 FROM {} WHERE id = $1::bigint", self.names.quoted());
        let found = self.wire.ask(Ask::new(&sql, [id])).await?;
        Ok(if found.is_empty() { Told::Missing } else { Told::Already })
    }

    /// The coming runs, of all planned tasks or of one, soonest first. How long tasks take is not known, so a task with
    /// drift is shown as if it took no time.
    pub async fn next(&mut self, id: Option<i64>, count: usize) -> Result<Vec<Coming>, DeskError> {
        let sql = format!(
            "SELECT {COLUMNS}, encode(timestamptz_send(clock_timestamp()), 'hex'), current_setting('TimeZone') \
             FROM {} t WHERE t.state = 'PLAN' AND ($1 = '' OR t.id::text = $1) ORDER BY t.plan, t.id LIMIT {PLANNED_MAX}",
            self.names.quoted()
        );
        let id = id.map(|id| id.to_string()).unwrap_or_default();
        let rows = self.wire.ask(Ask::new(&sql, [&id])).await?;
        let place = crate::task::COLUMNS_COUNT;
        let first = rows.first();
        let now = first.and_then(|row| moment(row.text(place)?)).unwrap_or(Timestamp::EPOCH);
        let zone = Named::or_utc(first.and_then(|row| row.text(place + 1)).unwrap_or("UTC"));
        let tasks: Vec<Task> =
            rows.into_iter().filter_map(|mut row| Task::read(&mut row, false)).collect();
        Ok(coming(&tasks, now, &zone, count))
    }
}

fn listed(mut row: Row) -> Option<Listed> {
    let state = row.take(1)?;
    let (plan, now) = (moment(row.text(3)?)?, moment(row.text(7)?)?);
    let reason = match state.as_str() {
        "TAKE" | "WORK" => Reason::Running,
        "PLAN" if plan > now => Reason::NotDue(plan),
        "PLAN" if row.is_true(8) => Reason::Expired,
        "PLAN" if row.is_true(9) => Reason::SubqueueBusy,
        "PLAN" => Reason::WaitsForConsumer,
        "STOP" => Reason::Buried,
        _ => Reason::Finished,
    };
    Some(Listed {
        id: row.parsed(0)?,
        state,
        group: row.take(2)?,
        plan,
        reason,
        input: row.take(4)?,
        remote: row.take(5).map(|text| masked(&text)),
        error: row.take(6),
        output: row.take(10),
    })
}

/// The first runs of these tasks and of their repetitions.
fn coming(tasks: &[Task], now: Timestamp, zone: &Named, count: usize) -> Vec<Coming> {
    let first = tasks.iter().enumerate();
    let mut heap: BinaryHeap<Reverse<(Timestamp, usize, Timestamp)>> = first
        .map(|(place, task)| Reverse((task.plan.max(now), place, task.origin.unwrap_or(task.plan))))
        .collect();
    let mut found = Vec::new();
    while found.len() < count
        && let Some(Reverse((at, place, plan))) = heap.pop()
    {
        let task = &tasks[place];
        if at == Timestamp::NEVER {
            continue;
        }
        let (id, group, input) = (task.id, task.group.clone(), task.input.clone());
        found.push(Coming { at, id, group, input });
        let next = match cron_of(task) {
            Ok(Some((cron, own))) => cron.next(at, own.as_ref().unwrap_or(zone)),
            Ok(None) => next_plan_after(plan, at, task.repeat, task.drift, zone),
            Err(_) => None,
        };
        heap.extend(next.map(|next| Reverse((next, place, next))));
    }
    found
}

/// A moment as a person reads it, in UTC.
pub fn shown(at: Timestamp) -> String {
    match jiff::Timestamp::from_microsecond(at.as_micros()) {
        Ok(at) => at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        Err(_) => moment_text(at),
    }
}

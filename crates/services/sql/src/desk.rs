//! What a person asks about tasks and does to them: list, show, run, stop, next.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use taskyard_core::Timestamp;
use taskyard_core::schedule::next_plan_after;

use crate::leader::LIMIT_LOCK;
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
    pub why: Why,
    /// What it runs.
    pub input: String,
    /// Where, without passwords.
    pub remote: Option<String>,
    /// What it said, or its beginning.
    pub output: Option<String>,
    /// What went wrong.
    pub error: Option<String>,
}

/// Why a task does not run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It runs.
    Running,
    /// Its session is being opened.
    SessionOpening,
    /// Its plan is in the future.
    NotDue,
    /// Its `active` is over: it will not run.
    NotActive,
    /// As many tasks of its group run as its `max` allows.
    GroupFull,
    /// As many tasks run in all as may.
    RunLimit,
    /// No scheduler runs the tasks of this table.
    NoScheduler,
    /// It may begin at any moment, or when the pause of its group is over.
    Ready,
    /// It was stopped.
    Stopped,
    /// It has ended.
    Finished,
}

impl Why {
    /// Its name, the same on every face.
    pub const fn name(self) -> &'static str {
        match self {
            Why::Running => "running",
            Why::SessionOpening => "session_opening",
            Why::NotDue => "not_due",
            Why::NotActive => "not_active",
            Why::GroupFull => "group_full",
            Why::RunLimit => "run_limit",
            Why::NoScheduler => "no_scheduler",
            Why::Ready => "ready",
            Why::Stopped => "stopped",
            Why::Finished => "finished",
        }
    }
}

/// What a scheduler says about a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leading {
    /// Whether one runs its tasks.
    pub leads: bool,
    /// How many tasks run where that is as many as may, and others wait for that.
    pub limit: Option<u64>,
}

/// Which task is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// The one with this id; or, where it has ended and repeats, the one that follows it.
    Id(i64),
    /// The one of this group that repeats.
    Group(String),
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
    /// There are several tasks to choose from.
    #[error("group '{group}' has several tasks that repeat; say which by its id: {ids}")]
    Several {
        /// The group.
        group: String,
        /// Their ids.
        ids: String,
    },
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
        let leading = self.leading().await?;
        let sql = format!(
            "SELECT t.id, t.state, t.\"group\", encode(timestamptz_send(t.plan), 'hex'), left(t.input, 1000), \
             t.remote, left(t.error, 1000), encode(timestamptz_send(clock_timestamp()), 'hex'), \
             CASE WHEN t.plan <= clock_timestamp() \
             THEN clock_timestamp() >= t.plan + least(t.active, '1000 years') ELSE false END, \
             t.state = 'PLAN' AND greatest(t.max, 0) < (SELECT count(*) FROM {table} o WHERE o.state IN ('TAKE', 'WORK') \
             AND o.\"group\" = t.\"group\" AND o.remote IS NOT DISTINCT FROM t.remote), \
             left(t.output, 1000) FROM {table} t WHERE $1 = '' OR t.state::text = $1 ORDER BY t.id DESC LIMIT $2::bigint",
            table = self.names.quoted()
        );
        let params = [state.unwrap_or_default(), &count.to_string()];
        let rows = self.wire.ask(Ask::new(&sql, params)).await?;
        Ok(rows.into_iter().filter_map(|row| listed(row, leading)).collect())
    }

    /// What a scheduler says about the table. It is told by the locks it holds, which every role can see.
    pub async fn leading(&mut self) -> Result<Leading, DeskError> {
        let table = self.names.quoted();
        let lock = |class: &str| {
            format!(
                "EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid = {class} \
                 AND objid = $1::regclass::oid AND objsubid = 2 AND granted \
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
            )
        };
        let sql = format!(
            "SELECT {}, CASE WHEN {} THEN (SELECT count(*) FROM {table} WHERE state IN ('TAKE', 'WORK')) END",
            lock("1952543592"),
            lock(LIMIT_LOCK)
        );
        let rows = self.wire.ask(Ask::new(&sql, [&table])).await?;
        let row = rows.first();
        let leads = row.is_some_and(|row| row.is_true(0));
        Ok(Leading { leads, limit: row.and_then(|row| row.parsed(1)) })
    }

    /// The id of the task that is meant, for a command that is about what is under way or to come. `None` where there is
    /// none.
    pub async fn find(&mut self, which: &Which) -> Result<Option<i64>, DeskError> {
        let table = self.names.quoted();
        let live = "t.state IN ('PLAN', 'TAKE', 'WORK')";
        match which {
            Which::Id(id) => {
                let id = id.to_string();
                let sql = format!(
                    "SELECT t.id FROM {table} t WHERE t.id = $1::bigint OR t.chain = $1::bigint OR t.chain = \
                     (SELECT f.chain FROM {table} f WHERE f.id = $1::bigint) \
                     ORDER BY t.id = $1::bigint AND {live} DESC, {live} DESC, t.id = $1::bigint DESC, t.id DESC LIMIT 1"
                );
                let rows = self.wire.ask(Ask::new(&sql, [&id])).await?;
                Ok(rows.first().and_then(|row| row.parsed(0)))
            }
            Which::Group(group) => {
                let sql = format!(
                    "SELECT max(t.id), {live} FROM {table} t WHERE t.\"group\" = $1 \
                     AND (t.repeat > '0 sec' OR t.cron IS NOT NULL) \
                     GROUP BY coalesce(t.chain, t.id), 2 ORDER BY 2 DESC, 1 DESC LIMIT 6"
                );
                let rows = self.wire.ask(Ask::new(&sql, [group])).await?;
                let live = rows.first().is_some_and(|row| row.is_true(1));
                let found = rows.iter().filter(|row| row.is_true(1) == live);
                let found: Vec<i64> = found.filter_map(|row| row.parsed(0)).collect();
                if live && found.len() > 1 {
                    let ids = found.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
                    return Err(DeskError::Several { group: group.clone(), ids });
                }
                Ok(found.first().copied())
            }
        }
    }

    /// The task of this id, or the newest of its repetitions where it is gone.
    pub async fn exact(&mut self, which: &Which) -> Result<Option<i64>, DeskError> {
        if let Which::Id(id) = which {
            let sql = format!("SELECT 1 FROM {} WHERE id = $1::bigint", self.names.quoted());
            if !self.wire.ask(Ask::new(&sql, [&id.to_string()])).await?.is_empty() {
                return Ok(Some(*id));
            }
        }
        self.find(which).await
    }

    /// What gives the roles that may INSERT the right on the sequence that a table of pg_task or of an earlier version needs
    /// beside it.
    pub async fn missing_grants(&mut self) -> Result<Vec<String>, DeskError> {
        let sql = "SELECT DISTINCT format('GRANT USAGE ON SEQUENCE %s TO %s', q.name, r.name) \
             FROM (SELECT c.oid, c.relowner, c.relacl, a.attnum, pg_get_serial_sequence($1, 'id') AS name FROM pg_class c \
                 JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'id' \
                 WHERE c.oid = $1::regclass AND coalesce(to_jsonb(a) ->> 'attidentity', '') = '') AS q \
             CROSS JOIN LATERAL (SELECT e.grantee FROM aclexplode(q.relacl) AS e WHERE e.privilege_type = 'INSERT' \
                 UNION SELECT e.grantee FROM pg_attribute a CROSS JOIN LATERAL aclexplode(a.attacl) AS e \
                 WHERE a.attrelid = q.oid AND e.privilege_type = 'INSERT') AS g \
             CROSS JOIN LATERAL (SELECT CASE WHEN g.grantee = 0 THEN 'PUBLIC' \
                 ELSE quote_ident(pg_get_userbyid(g.grantee)) END AS name) AS r \
             WHERE q.name IS NOT NULL AND NOT CASE WHEN g.grantee = 0 THEN has_sequence_privilege('public', q.name, 'USAGE') \
                 ELSE has_sequence_privilege(g.grantee, q.name, 'USAGE') END ORDER BY 1";
        let rows = self.wire.ask(Ask::new(sql, [&self.names.quoted()])).await?;
        Ok(rows.into_iter().filter_map(|mut row| row.take(0)).collect())
    }

    /// Shows times by the clocks of this machine and lengths of time in words, from now on.
    pub async fn speak_to_people(&mut self) -> Result<(), DeskError> {
        let zone = jiff::tz::TimeZone::system();
        for (name, value) in
            [("TimeZone", zone.iana_name()), ("IntervalStyle", Some("postgres_verbose"))]
        {
            let Some(value) = value else { continue };
            let set = Ask::new("SELECT set_config($1, $2, false)", [name, value]);
            match self.wire.ask(set).await {
                // A zone that the database does not know: it shows its own.
                Ok(_) | Err(AskError::Refused(_)) => {}
                Err(lost) => return Err(lost.into()),
            }
        }
        Ok(())
    }

    /// How long a task waited after its plan and how long it ran or has run, as the database writes it.
    pub async fn lengths(&mut self, id: i64) -> Result<[Option<String>; 2], DeskError> {
        let sql = format!(
            "SELECT date_trunc('milliseconds', t.start - t.plan), \
             date_trunc('milliseconds', coalesce(t.stop, clock_timestamp()) - t.start) \
             FROM {} t WHERE t.id = $1::bigint",
            self.names.quoted()
        );
        let mut rows = self.wire.ask(Ask::new(&sql, [&id.to_string()])).await?;
        Ok(rows.first_mut().map_or([None, None], |row| [row.take(0), row.take(1)]))
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
             stop = NULL, pid = NULL, output = NULL, error = NULL, attempts = 0 \
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

fn listed(mut row: Row, leading: Leading) -> Option<Listed> {
    let state = row.take(1)?;
    let (plan, now) = (moment(row.text(3)?)?, moment(row.text(7)?)?);
    let why = match state.as_str() {
        "TAKE" => Why::SessionOpening,
        "WORK" => Why::Running,
        "PLAN" if plan > now => Why::NotDue,
        "PLAN" if row.is_true(8) => Why::NotActive,
        "PLAN" if !leading.leads => Why::NoScheduler,
        "PLAN" if row.is_true(9) => Why::GroupFull,
        "PLAN" if leading.limit.is_some() => Why::RunLimit,
        "PLAN" => Why::Ready,
        "STOP" => Why::Stopped,
        _ => Why::Finished,
    };
    Some(Listed {
        id: row.parsed(0)?,
        state,
        group: row.take(2)?,
        plan,
        why,
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

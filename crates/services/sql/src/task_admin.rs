//! Lists, shows, runs and stops tasks for a person.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use taskyard_core::Timestamp;
use taskyard_core::schedule::next_plan_after;

use crate::connection::{Connection, Query, QueryError, Row, SessionOptions, connect};
use crate::leader::LIMIT_LOCK;
use crate::outcome::parse_cron;
use crate::table::{REPEATED_COLUMNS, TableName};
use crate::task::{COLUMNS, Task, timestamp, timestamp_text};
use taskyard_postgres::{Conninfo, masked};
use taskyard_timezone::NamedZone;

/// How many planned tasks are read to compute the next runs.
const PLANNED_MAX: usize = 1000;

/// Shows and changes the tasks of one table.
pub struct TaskAdmin {
    connection: Connection,
    names: TableName,
}

/// A task in a list.
#[derive(Clone, Debug)]
pub struct ListedTask {
    /// Its id.
    pub id: i64,
    /// Its state.
    pub state: String,
    /// Its group.
    pub group: String,
    /// When it is planned to start.
    pub plan: Timestamp,
    /// WaitReason it does not run now.
    pub why: WaitReason,
    /// The beginning of its statements.
    pub input: String,
    /// The connection string of its remote, without passwords.
    pub remote: Option<String>,
    /// The beginning of its output.
    pub output: Option<String>,
    /// The beginning of its error.
    pub error: Option<String>,
}

/// WaitReason a task does not run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// It runs.
    Running,
    /// Its session is being opened.
    SessionOpening,
    /// Its plan is in the future.
    NotDue,
    /// Its `active` interval is over: it will not run.
    NotActive,
    /// Its group runs as many tasks as its `max` allows.
    GroupFull,
    /// The scheduler runs as many tasks as it may.
    RunLimit,
    /// No scheduler runs the tasks of this table.
    NoScheduler,
    /// It starts at any moment, or when the pause of its group is over.
    Ready,
    /// It was stopped.
    Stopped,
    /// It has ended.
    Finished,
}

impl WaitReason {
    /// Its name, the same in every interface.
    pub const fn name(self) -> &'static str {
        match self {
            WaitReason::Running => "running",
            WaitReason::SessionOpening => "session_opening",
            WaitReason::NotDue => "not_due",
            WaitReason::NotActive => "not_active",
            WaitReason::GroupFull => "group_full",
            WaitReason::RunLimit => "run_limit",
            WaitReason::NoScheduler => "no_scheduler",
            WaitReason::Ready => "ready",
            WaitReason::Stopped => "stopped",
            WaitReason::Finished => "finished",
        }
    }
}

/// Whether a scheduler runs the tasks of a table, and whether it has reached its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaderStatus {
    /// Whether a scheduler runs the tasks.
    pub active: bool,
    /// The number of running tasks, where tasks wait because it is the limit.
    pub limit: Option<u64>,
}

/// Selects a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskSelector {
    /// The task with this id; where it has ended and repeats, its next run.
    Id(i64),
    /// The repeating task of this group.
    Group(String),
}

/// The result of running or stopping a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminOutcome {
    /// The task was changed.
    Done,
    /// The task had ended, so a copy with this id was inserted.
    Copied(i64),
    /// The task was already in the requested state.
    Already,
    /// There is no such task.
    Missing,
}

/// A planned run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlannedRun {
    /// When it starts.
    pub at: Timestamp,
    /// The task, or the one that it repeats.
    pub id: i64,
    /// Its group.
    pub group: String,
    /// The statements that it runs.
    pub input: String,
}

/// Why a table cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum TaskAdminError {
    /// The connection could not be opened.
    #[error("{0}")]
    Unreachable(String),
    /// The table does not exist.
    #[error("table {0} does not exist; start `taskyard sql` once to create it")]
    NoTable(String),
    /// The group has several repeating tasks.
    #[error("group '{group}' has several repeating tasks; select one by its id: {ids}")]
    Several {
        /// The group.
        group: String,
        /// Their ids.
        ids: String,
    },
    /// A query failed.
    #[error("{0}")]
    Refused(QueryError),
}

impl From<QueryError> for TaskAdminError {
    fn from(error: QueryError) -> Self {
        TaskAdminError::Refused(error)
    }
}

impl TaskAdmin {
    /// Connects and checks that the table exists.
    pub async fn open(conninfo: &Conninfo, names: TableName) -> Result<Self, TaskAdminError> {
        let connection = connect(conninfo, &SessionOptions::default()).await;
        let mut connection = connection.map_err(|error| {
            let described = error.described(conninfo);
            TaskAdminError::Unreachable(match error.missing_role(conninfo) {
                Some(statement) => format!("{described}; an administrator can run: {statement}"),
                None => described,
            })
        })?;
        let found =
            connection.query(Query::new("SELECT to_regclass($1)", [&names.quoted()])).await?;
        if found.first().and_then(|row| row.text(0)).is_none() {
            return Err(TaskAdminError::NoTable(names.quoted()));
        }
        Ok(TaskAdmin { connection, names })
    }

    /// The newest tasks, of one state if it is given.
    pub async fn list(
        &mut self,
        state: Option<&str>,
        count: usize,
    ) -> Result<Vec<ListedTask>, TaskAdminError> {
        let leader = self.leader_status().await?;
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
        let rows = self.connection.query(Query::new(&sql, params)).await?;
        Ok(rows.into_iter().filter_map(|row| listed(row, leader)).collect())
    }

    /// Whether a scheduler runs the tasks of the table. Its locks show that, and every role can see them.
    pub async fn leader_status(&mut self) -> Result<LeaderStatus, TaskAdminError> {
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
        let rows = self.connection.query(Query::new(&sql, [&table])).await?;
        let row = rows.first();
        let active = row.is_some_and(|row| row.is_true(0));
        Ok(LeaderStatus { active, limit: row.and_then(|row| row.parsed(1)) })
    }

    /// The id of the running or planned task that is selected; `None` where there is none.
    pub async fn find(&mut self, which: &TaskSelector) -> Result<Option<i64>, TaskAdminError> {
        Ok(self.find_run(which).await?.map(|run| run.id))
    }

    /// The running or planned task that is selected, and the first of its repetitions.
    async fn find_run(&mut self, which: &TaskSelector) -> Result<Option<FoundRun>, TaskAdminError> {
        let table = self.names.quoted();
        let live = "t.state IN ('PLAN', 'TAKE', 'WORK')";
        match which {
            TaskSelector::Id(id) => {
                let id = id.to_string();
                let sql = format!(
                    "SELECT t.id, coalesce(t.chain, t.id) FROM {table} t WHERE t.id = $1::bigint OR t.chain = $1::bigint OR t.chain = \
                     (SELECT f.chain FROM {table} f WHERE f.id = $1::bigint) \
                     ORDER BY t.id = $1::bigint AND {live} DESC, {live} DESC, t.id = $1::bigint DESC, t.id DESC LIMIT 1"
                );
                let rows = self.connection.query(Query::new(&sql, [&id])).await?;
                Ok(rows.first().and_then(FoundRun::read))
            }
            TaskSelector::Group(group) => {
                let sql = format!(
                    "SELECT max(t.id), coalesce(t.chain, t.id), {live} FROM {table} t WHERE t.\"group\" = $1 \
                     AND (t.repeat > '0 sec' OR t.cron IS NOT NULL) \
                     GROUP BY 2, 3 ORDER BY 3 DESC, 1 DESC LIMIT 6"
                );
                let rows = self.connection.query(Query::new(&sql, [group])).await?;
                let live = rows.first().is_some_and(|row| row.is_true(2));
                let found = rows.iter().filter(|row| row.is_true(2) == live);
                let mut found: Vec<FoundRun> = found.filter_map(FoundRun::read).collect();
                if live && found.len() > 1 {
                    let ids = found.iter().map(|run| run.id.to_string());
                    let ids = ids.collect::<Vec<_>>().join(", ");
                    return Err(TaskAdminError::Several { group: group.clone(), ids });
                }
                Ok(found.drain(..).next())
            }
        }
    }

    /// The task with this id, or the newest of its repetitions where its row is deleted.
    pub async fn find_exact(
        &mut self,
        which: &TaskSelector,
    ) -> Result<Option<i64>, TaskAdminError> {
        if let TaskSelector::Id(id) = which {
            let sql = format!("SELECT 1 FROM {} WHERE id = $1::bigint", self.names.quoted());
            if !self.connection.query(Query::new(&sql, [&id.to_string()])).await?.is_empty() {
                return Ok(Some(*id));
            }
        }
        self.find(which).await
    }

    /// The GRANT statements that are missing for roles that may INSERT: a table of pg_task or of an earlier version also
    /// needs USAGE on a sequence.
    pub async fn missing_grants(&mut self) -> Result<Vec<String>, TaskAdminError> {
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
        let rows = self.connection.query(Query::new(sql, [&self.names.quoted()])).await?;
        Ok(rows.into_iter().filter_map(|mut row| row.take(0)).collect())
    }

    /// Makes the database write times in the time zone of this machine and intervals in words.
    pub async fn use_local_formats(&mut self) -> Result<(), TaskAdminError> {
        let zone = jiff::tz::TimeZone::system();
        for (name, value) in
            [("TimeZone", zone.iana_name()), ("IntervalStyle", Some("postgres_verbose"))]
        {
            let Some(value) = value else { continue };
            let set = Query::new("SELECT set_config($1, $2, false)", [name, value]);
            match self.connection.query(set).await {
                // The database does not know this time zone and uses its own.
                Ok(_) | Err(QueryError::Refused(_)) => {}
                Err(lost) => return Err(lost.into()),
            }
        }
        Ok(())
    }

    /// How long a task waited after its plan, and how long it ran or has been running, as text.
    pub async fn durations(&mut self, id: i64) -> Result<[Option<String>; 2], TaskAdminError> {
        let sql = format!(
            "SELECT date_trunc('milliseconds', t.start - t.plan), \
             date_trunc('milliseconds', coalesce(t.stop, clock_timestamp()) - t.start) \
             FROM {} t WHERE t.id = $1::bigint",
            self.names.quoted()
        );
        let mut rows = self.connection.query(Query::new(&sql, [&id.to_string()])).await?;
        Ok(rows.first_mut().map_or([None, None], |row| [row.take(0), row.take(1)]))
    }

    /// Every column of a task by name, passwords masked.
    pub async fn show(
        &mut self,
        id: i64,
    ) -> Result<Option<Vec<(String, Option<String>)>>, TaskAdminError> {
        let sql = format!(
            "SELECT key, value FROM {} t, json_each_text(row_to_json(t)) WHERE t.id = $1::bigint",
            self.names.quoted()
        );
        let rows = self.connection.query(Query::new(&sql, [&id.to_string()])).await?;
        let columns = rows.into_iter().filter_map(|mut row| {
            let (name, value) = (row.take(0)?, row.take(1));
            let value = if name == "remote" { value.map(|text| masked(&text)) } else { value };
            Some((name, value))
        });
        Ok(Some(columns.collect::<Vec<_>>()).filter(|columns| !columns.is_empty()))
    }

    /// Runs a task now; one that has ended is copied, and the copy runs.
    pub async fn run(&mut self, id: i64) -> Result<AdminOutcome, TaskAdminError> {
        let (table, id) = (self.names.quoted(), id.to_string());
        let sql = format!(
            "UPDATE {table} SET origin = coalesce(origin, plan), plan = clock_timestamp(), state = 'PLAN', start = NULL, \
             stop = NULL, pid = NULL, output = NULL, error = NULL, attempts = 0 \
             WHERE id = $1::bigint AND (state = 'PLAN' OR (state = 'STOP' AND (pid IS NULL OR stop IS NOT NULL))) \
             RETURNING id"
        );
        if !self.connection.query(Query::new(&sql, [&id])).await?.is_empty() {
            return Ok(AdminOutcome::Done);
        }
        let number = format!("SELECT '{}'::regclass::oid", table.replace('\'', "''"));
        let number = self.connection.query(Query::new(&number, [])).await?;
        let oid = number.first().and_then(|row| row.text(0)).unwrap_or_default().to_owned();
        // Its next run was planned when it ended: a copy that repeats would start a second chain.
        let omitted = "{repeat,cron}";
        let columns = self.connection.query(Query::new(REPEATED_COLUMNS, [&oid, omitted])).await?;
        let text = |index| columns.first().and_then(|row| row.text(index)).unwrap_or_default();
        let sql = format!(
            "INSERT INTO {table} (parent{}) SELECT t.id{} FROM {table} t WHERE t.id = $1::bigint \
             AND t.stop IS NOT NULL RETURNING id",
            text(0),
            text(1)
        );
        let copied = self.connection.query(Query::new(&sql, [&id])).await?;
        if let Some(new) = copied.first().and_then(|row| row.parsed(0)) {
            return Ok(AdminOutcome::Copied(new));
        }
        self.already_or_missing(&id).await
    }

    /// Stops the selected task and returns its id: a running one is cancelled, a planned one does not start. A repeating
    /// task may end in between, which plans its next run: then that one is stopped.
    pub async fn stop(
        &mut self,
        which: &TaskSelector,
    ) -> Result<Option<(i64, AdminOutcome)>, TaskAdminError> {
        let Some(mut run) = self.find_run(which).await? else { return Ok(None) };
        loop {
            let outcome = self.stop_run(run.id).await?;
            if outcome == AdminOutcome::Done {
                return Ok(Some((run.id, outcome)));
            }
            // The row that was selected may be deleted by now.
            match self.find_run(&TaskSelector::Id(run.chain)).await? {
                Some(next) if next.id != run.id => run = next,
                _ => return Ok(Some((run.id, outcome))),
            }
        }
    }

    async fn stop_run(&mut self, id: i64) -> Result<AdminOutcome, TaskAdminError> {
        let (table, id) = (self.names.quoted(), id.to_string());
        let sql = format!(
            "UPDATE {table} SET state = 'STOP' WHERE id = $1::bigint AND state IN ('PLAN', 'TAKE', 'WORK') RETURNING id"
        );
        if !self.connection.query(Query::new(&sql, [&id])).await?.is_empty() {
            return Ok(AdminOutcome::Done);
        }
        self.already_or_missing(&id).await
    }

    async fn already_or_missing(&mut self, id: &str) -> Result<AdminOutcome, TaskAdminError> {
        let sql = format!("SELECT 1 FROM {} WHERE id = $1::bigint", self.names.quoted());
        let found = self.connection.query(Query::new(&sql, [id])).await?;
        Ok(if found.is_empty() { AdminOutcome::Missing } else { AdminOutcome::Already })
    }

    /// The next runs of all planned tasks or of one, soonest first. How long tasks take is unknown, so a task with drift is
    /// shown as if it took no time.
    pub async fn next(
        &mut self,
        id: Option<i64>,
        count: usize,
    ) -> Result<Vec<PlannedRun>, TaskAdminError> {
        let sql = format!(
            "SELECT {COLUMNS}, encode(timestamptz_send(clock_timestamp()), 'hex'), current_setting('TimeZone') \
             FROM {} t WHERE t.state = 'PLAN' AND ($1 = '' OR t.id::text = $1) ORDER BY t.plan, t.id LIMIT {PLANNED_MAX}",
            self.names.quoted()
        );
        let id = id.map(|id| id.to_string()).unwrap_or_default();
        let rows = self.connection.query(Query::new(&sql, [&id])).await?;
        let index = crate::task::COLUMNS_COUNT;
        let first = rows.first();
        let now = first.and_then(|row| timestamp(row.text(index)?)).unwrap_or(Timestamp::EPOCH);
        let zone = NamedZone::or_utc(first.and_then(|row| row.text(index + 1)).unwrap_or("UTC"));
        let tasks: Vec<Task> =
            rows.into_iter().filter_map(|mut row| Task::read(&mut row, false)).collect();
        Ok(planned_runs(&tasks, now, &zone, count))
    }
}

/// A task that was found.
struct FoundRun {
    id: i64,
    /// The first of its repetitions.
    chain: i64,
}

impl FoundRun {
    fn read(row: &Row) -> Option<Self> {
        Some(FoundRun { id: row.parsed(0)?, chain: row.parsed(1)? })
    }
}

fn listed(mut row: Row, leader: LeaderStatus) -> Option<ListedTask> {
    let state = row.take(1)?;
    let (plan, now) = (timestamp(row.text(3)?)?, timestamp(row.text(7)?)?);
    let why = match state.as_str() {
        "TAKE" => WaitReason::SessionOpening,
        "WORK" => WaitReason::Running,
        "PLAN" if plan > now => WaitReason::NotDue,
        "PLAN" if row.is_true(8) => WaitReason::NotActive,
        "PLAN" if !leader.active => WaitReason::NoScheduler,
        "PLAN" if row.is_true(9) => WaitReason::GroupFull,
        "PLAN" if leader.limit.is_some() => WaitReason::RunLimit,
        "PLAN" => WaitReason::Ready,
        "STOP" => WaitReason::Stopped,
        _ => WaitReason::Finished,
    };
    Some(ListedTask {
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

/// The next runs of these tasks and of their repetitions.
fn planned_runs(tasks: &[Task], now: Timestamp, zone: &NamedZone, count: usize) -> Vec<PlannedRun> {
    let first = tasks.iter().enumerate();
    let mut heap: BinaryHeap<Reverse<(Timestamp, usize, Timestamp)>> = first
        .map(|(index, task)| Reverse((task.plan.max(now), index, task.origin.unwrap_or(task.plan))))
        .collect();
    let mut found = Vec::new();
    while found.len() < count
        && let Some(Reverse((at, index, plan))) = heap.pop()
    {
        let task = &tasks[index];
        if at == Timestamp::NEVER {
            continue;
        }
        let (id, group, input) = (task.id, task.group.clone(), task.input.clone());
        found.push(PlannedRun { at, id, group, input });
        let next = match parse_cron(task) {
            Ok(Some((cron, own))) => cron.next(at, own.as_ref().unwrap_or(zone)),
            Ok(None) => next_plan_after(plan, at, task.repeat, task.drift, zone),
            Err(_) => None,
        };
        heap.extend(next.map(|next| Reverse((next, index, next))));
    }
    found
}

/// Writes a timestamp in UTC for a person.
pub fn utc_text(at: Timestamp) -> String {
    match jiff::Timestamp::from_microsecond(at.as_micros()) {
        Ok(at) => at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        Err(_) => timestamp_text(at),
    }
}

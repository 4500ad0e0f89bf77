//! Connects to the database, waits until this scheduler leads its table, and runs the leader.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use crate::config::TableConfig;
use crate::connection::{ConnectError, Connection, Query, QueryError, SessionOptions, connect};
use crate::leader::{Leader, LeaderExit};
use crate::provision::provision;
use crate::status::SchedulerStatus;
use crate::table::{self, Profile, Table, TableName};
use taskyard_postgres::Conninfo;

/// How long to wait before connecting again: at first, and at most.
const RECONNECT_MIN: Duration = Duration::from_millis(50);
const RECONNECT_MAX: Duration = Duration::from_secs(5);
/// How often a standby tries to become the leader.
const LEAD_RETRY: Duration = Duration::from_millis(200);

/// How long a stopping scheduler waits for an unreachable database beyond the time that tasks may continue.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// Lets the server end a session soon after its scheduler is gone, where it supports that.
pub const CHECK_CLIENT: (&str, &str) = ("client_connection_check_interval", "2000");

/// Lets the server notice within half a minute that a machine is gone without closing its connections, and release its
/// lock. By default that takes two hours.
pub const KEEPALIVES: [(&str, &str); 3] = [
    ("tcp_keepalives_idle", "10"),
    ("tcp_keepalives_interval", "5"),
    ("tcp_keepalives_count", "3"),
];

/// The settings of the scheduler's own session. Query plans are made once and kept, so they must suit a full table
/// although they may be made while it is empty.
const SESSION: [(&str, &str); 16] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    // A bitmap scan does not mark the index entries of dead rows, so the next one reads them again.
    ("enable_bitmapscan", "off"),
    // Few rows are joined with a table that may be large: always through its primary key.
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("enable_material", "off"),
    ("enable_sort", "off"),
    ("jit", "off"),
    // A user's transaction may hold the table locked; the scheduler must keep serving its sessions.
    ("lock_timeout", "2000"),
    ("taskyard.quiet", "on"),
    ("statement_timeout", "0"),
    ("search_path", "pg_catalog, pg_temp"),
    // Set here to learn whether the server supports it; sessions of tasks then start with it.
    (CHECK_CLIENT.0, CHECK_CLIENT.1),
    KEEPALIVES[0],
    KEEPALIVES[1],
    KEEPALIVES[2],
];

/// The settings of one scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The table of tasks.
    pub names: TableName,
    /// The database and the role.
    pub conninfo: Conninfo,
    /// The interval at which the table is polled without a notification.
    pub sleep: Duration,
    /// The interval at which tasks are searched that no session runs.
    pub reset: Duration,
    /// How many tasks may run at the same time; `None` for as many as leave enough connections free.
    pub run: Option<usize>,
    /// How long finished tasks are kept, as an interval; `None` for ever.
    pub keep: Option<String>,
    /// The states of the table.
    pub profile: Profile,
    /// The longest output, in bytes.
    pub output_bytes_max: usize,
}

/// Whether a scheduler claims tasks or stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// It claims tasks.
    Running,
    /// It claims no more tasks and ends after the running ones.
    Draining,
    /// The same, for at most this time; tasks that still run then are returned.
    DrainingFor(Duration),
}

/// A scheduler for one table.
pub struct Scheduler {
    /// Its settings, which may change while it runs.
    pub settings: watch::Receiver<Settings>,
    /// Whether it claims tasks or stops.
    pub run_state: watch::Receiver<RunState>,
    /// Its counters and its problem.
    pub status: Arc<SchedulerStatus>,
    /// The row that it was started for.
    pub row: TableConfig,
    /// How to connect to create a missing role or database.
    pub database: Conninfo,
}

impl Scheduler {
    /// Runs until it is asked to stop.
    pub async fn run(mut self) {
        let table = self.settings.borrow().names.quoted();
        let mut leader =
            Leader::new(self.settings.clone(), self.run_state.clone(), self.status.clone());
        let mut wait = RECONNECT_MIN;
        let mut stuck = false;
        while !self.is_done(&leader) {
            let settings = self.settings.borrow().clone();
            let prepared = tokio::select! {
                prepared = self.become_leader(&settings, stuck) => prepared,
                // A scheduler with tasks keeps trying, to write their outcomes.
                () = stopped(self.run_state.clone(), leader.has_tasks()) => break,
            };
            let exit = match prepared {
                Ok((connection, table)) => Ok(leader.lead(connection, table).await),
                Err(error) => Err(error),
            };
            self.status.leads.store(false, Ordering::Relaxed);
            self.status.connected.store(false, Ordering::Relaxed);
            match exit {
                Ok(LeaderExit::Stopped) => break,
                // The table is prepared again at once.
                Ok(LeaderExit::Changed(what)) if leader.take_progress() => {
                    (wait, stuck) = (RECONNECT_MIN, false);
                    tracing::info!(table, "{what}");
                }
                // Preparing the table did not help.
                Ok(LeaderExit::Changed(what)) => {
                    stuck = true;
                    self.status.set_problem(&table, Some(what));
                }
                Ok(LeaderExit::Lost(error)) => {
                    (wait, stuck) = (RECONNECT_MIN, false);
                    self.status.set_problem(&table, Some(error));
                }
                Err(error) => self.status.set_problem(&table, Some(error)),
            }
            tokio::select! {
                () = sleep(wait) => wait = (wait * 2).min(RECONNECT_MAX),
                () = stopped(self.run_state.clone(), leader.has_tasks()) => break,
            }
        }
        leader.close();
        self.status.set_problem(&table, None);
    }

    fn is_done(&mut self, leader: &Leader) -> bool {
        *self.run_state.borrow_and_update() != RunState::Running && !leader.has_tasks()
    }

    /// Connects, prepares the table, and waits until this scheduler leads. The problem of a scheduler that is `stuck` is
    /// cleared only by a successful round.
    async fn become_leader(
        &self,
        settings: &Settings,
        stuck: bool,
    ) -> Result<(Connection, Table), String> {
        let mut connection = match open(settings).await {
            Ok(connection) => connection,
            Err(error) if is_missing(&error) => {
                let made = provision(&self.database, &self.row, &error).await;
                let described = error.described(&settings.conninfo);
                made.map_err(|why| match why == described {
                    true => why,
                    false => format!("{described}; {why}"),
                })?;
                open(settings).await.map_err(|error| error.described(&settings.conninfo))?
            }
            Err(error) => return Err(error.described(&settings.conninfo)),
        };
        let made = table::prepare(&mut connection, &settings.names, settings.profile).await;
        let table = made.map_err(|error| error.to_string())?;
        self.status.connected.store(true, Ordering::Relaxed);
        if !stuck {
            self.status.set_problem(&settings.names.quoted(), None);
        }
        wait_to_lead(&mut connection, &table).await.map_err(|error| error.line())?;
        connection.run("LISTEN taskyard_sql").await.map_err(|error| error.line())?;
        self.status.leads.store(true, Ordering::Relaxed);
        Ok((connection, table))
    }
}

/// Whether the error may mean that the role, the database or a right is missing.
fn is_missing(error: &ConnectError) -> bool {
    let ConnectError::Refused(error) = error else { return false };
    ["3D000", "28000", "28P01", "42501"].contains(&error.code.as_str())
}

/// Ready when a scheduler without connection ends: as soon as it is asked to stop, or after the drain time where it has
/// outcomes to write.
async fn stopped(mut run_state: watch::Receiver<RunState>, has_tasks: bool) {
    let state = run_state.wait_for(|state| *state != RunState::Running).await.map(|state| *state);
    match state {
        Ok(RunState::DrainingFor(patience)) if has_tasks => sleep(patience + STOP_GRACE).await,
        Ok(_) if has_tasks => std::future::pending().await,
        // A closed channel means that the service is gone.
        Ok(_) | Err(_) => {}
    }
}

async fn open(settings: &Settings) -> Result<Connection, ConnectError> {
    let TableName { schema, table } = &settings.names;
    let millis = settings.sleep.as_millis();
    let name = format!("pg_work {schema} {table} {millis}");
    let mut connection = connect(&settings.conninfo, &SessionOptions::default()).await?;
    // Not in the startup message: older versions do not know all of them, and poolers refuse them.
    for (setting, value) in SESSION.into_iter().chain([("application_name", name.as_str())]) {
        let set = "SELECT set_config($1, $2, false)";
        match connection.query(Query::new(set, [setting, value])).await {
            Ok(_) => {}
            Err(QueryError::Refused(error)) => tracing::debug!(setting, "{}", error.line()),
            Err(QueryError::Lost(why)) => return Err(ConnectError::Unreachable(why)),
        }
    }
    // `taskyard.sync` is the setting for transactions that must be on disk; all others do not wait for the disk.
    let sync = "SELECT set_config('taskyard.sync', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' \
                ELSE current_setting('synchronous_commit') END, false)";
    connection
        .query(Query::new(sync, []))
        .await
        .map_err(|error| ConnectError::Unreachable(error.line()))?;
    Ok(connection)
}

/// Waits until no other scheduler leads this table. The lock ends with the connection, so the next scheduler leads as
/// soon as the database notices that this one is gone.
async fn wait_to_lead(connection: &mut Connection, table: &Table) -> Result<(), QueryError> {
    let number = table.oid.cast_signed().to_string();
    loop {
        let query = Query::new("SELECT pg_try_advisory_lock(1952543592, $1::integer)", [&number]);
        if connection.query(query).await?.first().is_some_and(|row| row.is_true(0)) {
            return Ok(());
        }
        sleep(LEAD_RETRY).await;
    }
}

//! One scheduler: connects, becomes the one that leads its table, and leads.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use crate::config::Row;
use crate::leader::{Leader, Why};
use crate::provision::provision;
use crate::status::Status;
use crate::table::{self, Names, Profile, Table};
use crate::wire::{Ask, AskError, ConnectError, Opening, Wire, connect};
use taskyard_postgres::Conninfo;

/// How long to wait before another try to connect: at first, and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// How often one that does not lead asks whether it may.
const ASK_TO_LEAD: Duration = Duration::from_millis(200);

/// How long a database that cannot be reached is waited for, beyond the patience with tasks.
const PATIENCE_MORE: Duration = Duration::from_secs(2);

/// Lets a session end by itself soon after its scheduler is gone, where the server can see that.
pub const CHECK_CLIENT: (&str, &str) = ("client_connection_check_interval", "2000");

/// Lets the server see within half a minute that a machine is gone without a word, and with it give up its lead.
/// Otherwise it takes two hours.
pub const KEEPALIVES: [(&str, &str); 3] = [
    ("tcp_keepalives_idle", "10"),
    ("tcp_keepalives_interval", "5"),
    ("tcp_keepalives_count", "3"),
];

/// How the scheduler's own session is set. Plans are made once and kept, so they must suit a full table although
/// they may be made while it is empty.
const SESSION: [(&str, &str); 16] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    // Such a scan does not mark the entries of dead rows that it meets, so the next one meets them again.
    ("enable_bitmapscan", "off"),
    // Few rows are joined with a table that may be large: always through its key.
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("enable_material", "off"),
    ("enable_sort", "off"),
    ("jit", "off"),
    // Somebody's own transaction may hold the table; the scheduler must go on seeing to its sessions.
    ("lock_timeout", "2000"),
    ("taskyard.quiet", "on"),
    ("statement_timeout", "0"),
    ("search_path", "pg_catalog, pg_temp"),
    // Asked for here to learn whether the server can do it; sessions of tasks then have it from their beginning.
    (CHECK_CLIENT.0, CHECK_CLIENT.1),
    KEEPALIVES[0],
    KEEPALIVES[1],
    KEEPALIVES[2],
];

/// What one scheduler does, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The table of tasks.
    pub names: Names,
    /// The database, and as whom.
    pub conninfo: Conninfo,
    /// How often to look where nothing says that there is something to do.
    pub sleep: Duration,
    /// How often to look for tasks that nobody runs any more.
    pub reset: Duration,
    /// How many tasks may run at the same time; where it is not given, as many as leave enough connections free.
    pub run: Option<usize>,
    /// For how long finished tasks are kept, as an interval; for ever where it is not given.
    pub keep: Option<String>,
    /// Which states there are.
    pub profile: Profile,
    /// The longest output, in bytes.
    pub output_bytes_max: usize,
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Going {
    /// Yes.
    On,
    /// No more tasks; those that run may end.
    AfterTasks,
    /// The same, but only for so long; what still runs then is given back.
    Within(Duration),
}

/// What a scheduler is given.
pub struct Scheduler {
    /// What it does; may change while it runs.
    pub settings: watch::Receiver<Settings>,
    /// Whether to go on.
    pub going: watch::Receiver<Going>,
    /// What it tells.
    pub status: Arc<Status>,
    /// The row that it was started for.
    pub row: Row,
    /// How to connect to make what is missing.
    pub database: Conninfo,
}

impl Scheduler {
    /// Runs until it is told to stop.
    pub async fn run(mut self) {
        let table = self.settings.borrow().names.quoted();
        let mut leader =
            Leader::new(self.settings.clone(), self.going.clone(), self.status.clone());
        let mut wait = AGAIN.0;
        let mut stuck = false;
        while !self.is_over(&leader) {
            let settings = self.settings.borrow().clone();
            let turn = tokio::select! {
                turn = self.turn(&settings, stuck) => turn,
                // One that has tasks tries on, to write down how they end.
                () = end_of(self.going.clone(), leader.has_tasks()) => break,
            };
            let why = match turn {
                Ok((wire, table)) => Ok(leader.lead(wire, table).await),
                Err(said) => Err(said),
            };
            self.status.leads.store(false, Ordering::Relaxed);
            self.status.connected.store(false, Ordering::Relaxed);
            match why {
                Ok(Why::Over) => break,
                // It is looked at anew at once.
                Ok(Why::Changed(said)) if leader.has_worked() => {
                    (wait, stuck) = (AGAIN.0, false);
                    tracing::info!(table, "{said}");
                }
                // That did not help.
                Ok(Why::Changed(said)) => {
                    stuck = true;
                    self.status.trouble(&table, Some(said));
                }
                Ok(Why::Lost(said)) => {
                    (wait, stuck) = (AGAIN.0, false);
                    self.status.trouble(&table, Some(said));
                }
                Err(said) => self.status.trouble(&table, Some(said)),
            }
            tokio::select! {
                () = sleep(wait) => wait = (wait * 2).min(AGAIN.1),
                () = end_of(self.going.clone(), leader.has_tasks()) => break,
            }
        }
        leader.close();
        self.status.trouble(&table, None);
    }

    fn is_over(&mut self, leader: &Leader) -> bool {
        *self.going.borrow_and_update() != Going::On && !leader.has_tasks()
    }

    /// Connects, sees to the table, and waits for its turn to lead.
    /// One that is `stuck` is not well before a round has gone well.
    async fn turn(&self, settings: &Settings, stuck: bool) -> Result<(Wire, Table), String> {
        let mut wire = match open(settings).await {
            Ok(wire) => wire,
            Err(error) if is_missing(&error) => {
                let made = provision(&self.database, &self.row, &error).await;
                made.map_err(|why| format!("{}: {why}", error.line()))?;
                open(settings).await.map_err(|error| error.line())?
            }
            Err(error) => return Err(error.line()),
        };
        let made = table::prepare(&mut wire, &settings.names, settings.profile).await;
        let table = made.map_err(|error| error.to_string())?;
        self.status.connected.store(true, Ordering::Relaxed);
        if !stuck {
            self.status.trouble(&settings.names.quoted(), None);
        }
        wait_to_lead(&mut wire, &table).await.map_err(|error| error.line())?;
        wire.run("LISTEN taskyard_sql").await.map_err(|error| error.line())?;
        self.status.leads.store(true, Ordering::Relaxed);
        Ok((wire, table))
    }
}

/// Whether the role or the database may not be there, or a right of it.
fn is_missing(error: &ConnectError) -> bool {
    let ConnectError::Refused(refusal) = error else { return false };
    ["3D000", "28000", "28P01", "42501"].contains(&refusal.code.as_str())
}

/// Ready when there is nothing more to do: at once when it is told to stop, or when its patience is over where it
/// still has something to write down.
async fn end_of(mut going: watch::Receiver<Going>, has_tasks: bool) {
    let told = going.wait_for(|going| *going != Going::On).await.map(|going| *going);
    match told {
        Ok(Going::Within(patience)) if has_tasks => sleep(patience + PATIENCE_MORE).await,
        Ok(_) if has_tasks => std::future::pending().await,
        // Whoever could tell is gone: that is an end too.
        Ok(_) | Err(_) => {}
    }
}

async fn open(settings: &Settings) -> Result<Wire, ConnectError> {
    let Names { schema, table } = &settings.names;
    let millis = settings.sleep.as_millis();
    let name = format!("pg_work {schema} {table} {millis}");
    let mut wire = connect(&settings.conninfo, &Opening::default()).await?;
    // Not with the connection: older versions do not know all of them, and poolers refuse them.
    for (setting, value) in SESSION.into_iter().chain([("application_name", name.as_str())]) {
        let set = "SELECT set_config($1, $2, false)";
        match wire.ask(Ask::new(set, [setting, value])).await {
            Ok(_) => {}
            Err(AskError::Refused(refusal)) => tracing::debug!(setting, "{}", refusal.line()),
            Err(AskError::Lost(why)) => return Err(ConnectError::Unreachable(why)),
        }
    }
    // What is to be on disk is so however the server is set; the rest is not waited for.
    let sync = "SELECT set_config('taskyard.sync', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' \
                ELSE current_setting('synchronous_commit') END, false)";
    wire.ask(Ask::new(sync, [])).await.map_err(|error| ConnectError::Unreachable(error.line()))?;
    Ok(wire)
}

/// Waits until no other scheduler has this table. The lock goes with the connection, so the next one leads as soon as
/// the database sees that this one is gone.
async fn wait_to_lead(wire: &mut Wire, table: &Table) -> Result<(), AskError> {
    let number = table.oid.cast_signed().to_string();
    loop {
        let ask = Ask::new("SELECT pg_try_advisory_lock(1952543592, $1::integer)", [&number]);
        if wire.ask(ask).await?.first().is_some_and(|row| row.is_true(0)) {
            return Ok(());
        }
        sleep(ASK_TO_LEAD).await;
    }
}

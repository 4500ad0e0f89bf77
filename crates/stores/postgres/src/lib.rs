//! Stores tasks in a PostgreSQL database that any number of servers share.
//!
//! Every command is one call of a function in the schema `taskyard`; the rules are in `verbs/*.sql` and are
//! compared with the core's machine by the conformance suite. A batch is usually one transaction whose
//! calls are sent together, so it costs one round trip and one sync of the disk, however many
//! callers share it. A large batch is divided between two connections (`connections`), and commands that
//! lock several tubes or replace tasks are transactions of their own (`order`): each command is atomic, a batch is not.
//!
//! Start reading at `verbs/put.sql`, `take.sql` and `finish.sql`. In Rust, `plan` turns commands into calls, `execute`
//! sends them on a `connection`, `answers` decodes the rows, and `presence` sends heartbeats and exchanges notifications
//! with other servers. When a connection breaks, `connector` makes the next one, and `session_registry` has the sessions whose rows
//! the database may have wrong.
//!
//! Design decisions:
//! - Functions lock first and decide in later statements, under READ COMMITTED. An operation on the tasks of a tube holds
//!   an advisory lock shared; one that alters, empties or drops the tube holds it exclusively. A foreign key would write
//!   into the tube's row at every put.
//! - Payloads are in the task's row. A separate table costs a second row and a second index entry for each task, while
//!   what it saves, the copy of a small payload at a take, is cheaper. PostgreSQL stores payloads above 2 kB outside of
//!   the row and does not copy them.
//! - Operations are counted in memory and added to the database once a second. The counts of states are sums of small
//!   rows, one for each call, which ticks add up: a counter that every put updates would make puts wait for each other.
//! - Unique keys have a table of their own, and tasks without a key no entry there: see `verbs/keys.sql`.
//! - `head_hints` remembers where a take begins, because of transactions that stay open for long.

mod answers;
mod call_grouping;
mod calls;
mod codec;
mod columns;
mod connection;
mod connections;
mod connector;
mod counter_deltas;
mod counters;
mod execute;
mod head_hints;
mod limited_tubes;
mod list_answers;
mod migrate;
mod order;
mod plan;
mod presence;
mod put_answers;
mod row_locations;
mod schedules;
mod semaphores;
mod session_registry;
mod statements;
mod status;
mod take_answers;
mod tls;
mod transaction;
mod transfer;
mod tube_answers;
mod url;

use std::collections::HashSet;
use std::sync::{Arc, Mutex as Lock, MutexGuard, PoisonError};
use std::time::Duration;

use taskyard_core::{Command, Error, Timestamp, TubeName};
use taskyard_store::remote::{Access, Backend, RemoteStore};
use taskyard_store::{
    Capabilities, Executed, Export, Exported, Import, OpenError, OpenOptions, Store, Watcher,
};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use connection::{Connection, describe};
use connector::Connector;
use counter_deltas::CounterDeltas;
use counters::Counters;
use execute::ConnectionRole;
use head_hints::{HeadHints, TimerHint};
use limited_tubes::LimitedTubes;
use migrate::MigrateError;
use presence::Presence;
use row_locations::RowLocations;
use session_registry::SessionRegistry;
use statements::{self as sql, Call, param};
use url::DatabaseUrl;

pub use taskyard_store::remote::{Clock, HEARTBEAT};
pub use transaction::put_in;

/// How long to wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection may be silent while an answer is expected.
const SILENCE: Duration = Duration::from_secs(10);
/// How long a migration may take. A large table may get a new index, or another server may be migrating.
const MIGRATE_MAX: Duration = Duration::from_secs(600);
/// What it can do.
pub const CAPABILITIES: Capabilities = Capabilities {
    durable: true,
    shared: true,
    exports: true,
    imports: true,
    semaphores: true,
    gates: true,
    keys: true,
    retries: true,
    rates: true,
    schedules: true,
    wakes: "at once by NOTIFY, within a second behind a pooler",
    loses: &[
        (
            "the server is killed or stopped",
            "nothing; its sessions end two heartbeats later, then others get what they held",
        ),
        ("the machine fails", "nothing, if it is not the one of the database"),
        (
            "the database fails over",
            "nothing that was answered, if the standby is synchronous; without that the last moments",
        ),
        ("the disk fails", "what the database's backups and standbys do not have"),
    ],
    instead_of_backup: Some(
        "the backups of PostgreSQL (pg_dump, pg_basebackup), or `taskyard copy`",
    ),
    ..Capabilities::plain("postgres")
};

/// A store in a PostgreSQL database. With `pooler=transaction` in its URL nothing is kept in a connection between two
/// transactions, and changes made by other servers are noticed by polling only. `sslmode` and `sslrootcert` say how the connection
/// is protected.
pub type PostgresStore = RemoteStore<Postgres>;

/// Opens the store of this URL.
pub fn open(url: &str, options: &OpenOptions) -> Result<Box<dyn Store>, OpenError> {
    PostgresStore::open_boxed(url, options)
}

/// The database, as the store and its background work share it.
pub struct Postgres {
    connector: Connector,
    clock: Clock,
    /// This server's identity in the database.
    server: Vec<u8>,
    /// Whether this server is registered in the database.
    serves: bool,
    connection: Mutex<Option<Connection>>,
    /// Opened by the first health check: a long batch does not delay it.
    health_connection: Mutex<Option<Connection>>,
    /// A second one, for large batches.
    second_connection: Mutex<Option<Connection>>,
    known: Lock<LocalState>,
    presence: Presence,
    /// The background work, until the store is closed.
    background: Lock<Option<JoinHandle<()>>>,
}

/// The state that this server keeps between batches.
#[derive(Default)]
struct LocalState {
    counters: Counters,
    head_hints: HeadHints,
    row_locations: RowLocations,
    sessions: SessionRegistry,
    timers: TimerHint,
    /// Tubes that are known to have neither sub-queues nor a capacity.
    plain: HashSet<TubeName>,
    /// Tubes that are known to have a semaphore.
    gated: HashSet<TubeName>,
    /// Tubes in which a take has reached the rate limit.
    limited: LimitedTubes,
    /// When the next schedule is due, by the clock of the tasks, as far as this server knows.
    next_schedule: Option<i64>,
    /// The next deadline that this server knows of, by the clock of the tasks.
    deadline: Option<i64>,
    /// What happened to tasks of sessions that had ended when the rows of this server were repaired; the next batch reports it.
    ended_sessions: CounterDeltas,
    /// How far the clock of the tasks is ahead of the caller's.
    ahead: i64,
    /// The caller's latest moment.
    now: i64,
}

impl Backend for Postgres {
    const NAME: &'static str = "the PostgreSQL database";
    const THREAD: &'static str = "taskyard-postgres";

    fn open(
        url: &str,
        access: Access,
    ) -> Result<impl Future<Output = Result<Self, OpenError>> + Send + 'static, OpenError> {
        let mut address = DatabaseUrl::parse(url).map_err(|error| Self::unavailable(&error))?;
        let config = &mut address.config;
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        // A cut cable is silent: a batch must not wait until the operating system gives up.
        config.keepalives_idle(SILENCE).tcp_user_timeout(SILENCE);
        let connector = Connector::new(address).map_err(|error| Self::unavailable(&error))?;
        Ok(Postgres::connect(connector, access))
    }

    fn start(self: &Arc<Self>, runtime: &Handle) {
        let task = runtime.spawn(presence::run(Arc::clone(self)));
        *self.background.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
    }

    async fn execute(self: Arc<Self>, now: Timestamp, commands: Vec<Command>) -> Executed {
        Postgres::execute(&self, now, commands).await
    }

    async fn export(&self, wanted: Export) -> Result<Exported, Error> {
        Postgres::export(self, wanted).await
    }

    async fn import(&self, now: Timestamp, part: Import) -> Result<(), Error> {
        Postgres::import(self, now, part).await
    }

    async fn check_write(&self) -> Result<(), Error> {
        let call = [Call::new(&sql::CHECK_WRITE, [param(self.server.clone())])];
        let mut place = self.health_connection.lock().await;
        // A check that was given up may have left the connection in the middle of an answer.
        let mut connection = match place.take().filter(Connection::is_open) {
            Some(connection) => connection,
            None => self.connector.connect().await.map_err(|failure| failure.error())?,
        };
        connection.transact(&call).await.map_err(|failure| failure.error())?;
        *place = Some(connection);
        Ok(())
    }

    async fn close(&self) -> Result<(), Error> {
        Postgres::close(self).await
    }

    fn watch(&self, watcher: Watcher) {
        self.presence.watch(watcher);
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }
}

impl Postgres {
    async fn connect(connector: Connector, access: Access) -> Result<Self, OpenError> {
        let Access { clock, wait, serves } = access;
        let unavailable = |why: &str| Self::unavailable(why);
        if connector.pooled {
            tracing::info!("behind a pooler: other servers' changes are noticed within a second");
        }
        let connection = connector.wait_for(wait).await;
        let mut connection = connection.map_err(|error| unavailable(&error.text()))?;
        let migrated = timeout(MIGRATE_MAX, migrate::migrate(connection.client())).await;
        let silent = |_| unavailable("the migration did not end within ten minutes");
        migrated.map_err(silent)?.map_err(|error| match error {
            MigrateError::TooNew { found, known } => Self::too_new(found, known),
            MigrateError::Database(error) => unavailable(&describe(&error)),
            MigrateError::NoRight { why, advice } => unavailable(&format!("{why}; {advice}")),
        })?;
        let random = "SELECT uuid_send(gen_random_uuid())";
        let rows = connection.client().query_typed(random, &[]).await;
        let rows = rows.map_err(|error| unavailable(&describe(&error)))?;
        let server: Vec<u8> = rows.first().map(|row| row.get(0)).unwrap_or_default();
        let patience = presence::heartbeat_timeout();
        let begin = [Call::new(&sql::BEGIN_SERVER, [param(server.clone()), param(patience)])];
        if serves {
            connection.transact(&begin).await.map_err(|failure| unavailable(&failure.text()))?;
        }
        let (connection, known) = (Mutex::new(Some(connection)), Lock::default());
        let (second_connection, health_connection) = Default::default();
        let (presence, background) = Default::default();
        Ok(Postgres {
            connector,
            clock,
            server,
            serves,
            connection,
            health_connection,
            second_connection,
            known,
            presence,
            background,
        })
    }

    fn known(&self) -> MutexGuard<'_, LocalState> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn close(&self) -> Result<(), Error> {
        self.presence.stop();
        let background = self.background.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(background) = background {
            // A sign of life on its way would bring this server back after its end.
            let _ = timeout(HEARTBEAT, background).await;
        }
        let now = (self.clock == Clock::Caller).then(|| self.known().now);
        let params = [param(self.server.clone()), param(presence::heartbeat_timeout()), param(now)];
        let mut end: Vec<Call> = self.known().counters.flush_call().into_iter().collect();
        end.push(Call::new(&sql::END_SERVER, params));
        let ended = match self.serves {
            true => self.transact(ConnectionRole::Main, &[], &end).await,
            false => Ok(Vec::new()),
        };
        *self.connection.lock().await = None;
        *self.second_connection.lock().await = None;
        *self.health_connection.lock().await = None;
        ended.map(|_| ()).map_err(|failure| failure.error())
    }
}

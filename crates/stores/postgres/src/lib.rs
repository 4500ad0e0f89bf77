//! Tasks in a PostgreSQL database, shared by any number of servers.
//!
//! Every verb is one call of a function in the schema `taskyard`; the rules are in `verbs/*.sql` and are
//! compared with the core's machine by the conformance suite. A batch is one transaction whose
//! calls leave together, so a batch costs one round trip and one sync of the disk, however many
//! callers share it.
//!
//! Start reading at `verbs/put.sql`, `take.sql` and `finish.sql`. On this side `plan` turns commands into
//! calls, `execute` sends them by a `connection`, `answers` reads what comes back, `presence` tells the other
//! servers that this one lives and hears from them. When a connection breaks, `reach` makes the next one and
//! `attendance` knows what the database must be told again.
//!
//! Choices that could have been others:
//! - Functions lock first and decide in later statements, under READ COMMITTED. Who works on a tube holds an
//!   advisory lock shared; who alters, empties or drops it holds it alone. A foreign key would write into
//!   the tube's row at every put.
//! - Payloads are in the task's row. A table of their own was weighed: it costs a second row and a second index
//!   entry for each task, while what it saves, the copy of a small payload at a take, is cheaper. Those
//!   above 2 kB are kept outside of the row by PostgreSQL itself and are not copied.
//! - What is done is counted in memory and added to the database once a second. The counts of states are sums of small rows, one for each call,
//!   which ticks put together: a counter that every put updates would make them wait for each other.
//! - Where a take begins is remembered in `heads`, for the sake of transactions that stay open for long.

mod answers;
mod attendance;
mod calls;
mod codec;
mod connection;
mod counters;
mod execute;
mod gather;
mod heads;
mod lanes;
mod migrate;
mod order;
mod places;
mod plan;
mod presence;
mod reach;
mod semaphores;
mod statements;
mod tally;
mod tls;
mod transaction;
mod transfer;
mod url;

use std::collections::HashSet;
use std::sync::{Arc, Mutex as Lock, MutexGuard, PoisonError};
use std::time::Duration;

use taskyard_core::{Command, Error, Timestamp, TubeName};
use taskyard_store::remote::{Access, Backend, RemoteStore};
use taskyard_store::{Capabilities, Executed, Export, Exported, Import, OpenError, Watcher};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use attendance::Attendance;
use connection::{Connection, describe};
use counters::Counters;
use execute::Lane;
use heads::{Heads, Timers};
use migrate::MigrateError;
use places::Places;
use presence::Presence;
use reach::Reach;
use statements::{self as sql, Call, param};
use url::Place;

pub use presence::HEARTBEAT;
pub use taskyard_store::remote::Clock;
pub use transaction::put_in;

/// How long to wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection may be silent while something is expected of it.
const SILENCE: Duration = Duration::from_secs(10);
/// How long a change of the tables may take. A large table may get a new index, or another server is at it.
const MIGRATE_MAX: Duration = Duration::from_secs(600);
/// What it can do.
pub const CAPABILITIES: Capabilities = Capabilities {
    durable: true,
    shared: true,
    exports: true,
    imports: true,
    semaphores: true,
    gates: true,
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
    ..Capabilities::plain("postgres")
};

/// A store in a PostgreSQL database. With `pooler=transaction` in its URL nothing is kept in a connection between two
/// transactions, and changes made by other servers are noticed by polling only. `sslmode` and `sslrootcert` say how the connection
/// is protected.
pub type PostgresStore = RemoteStore<Postgres>;

/// The database, as the store and its background work share it.
pub struct Postgres {
    reach: Reach,
    clock: Clock,
    /// This server's identity in the database.
    server: Vec<u8>,
    /// Whether the database knows of this one.
    serves: bool,
    connection: Mutex<Option<Connection>>,
    /// A second one, for large batches.
    side: Mutex<Option<Connection>>,
    known: Lock<Known>,
    presence: Presence,
    /// The background work, until the store is closed.
    background: Lock<Option<JoinHandle<()>>>,
}

/// What this server remembers between batches.
#[derive(Default)]
struct Known {
    counters: Counters,
    heads: Heads,
    places: Places,
    attendance: Attendance,
    timers: Timers,
    /// Tubes that were seen to have neither sub-queues nor a capacity.
    plain: HashSet<TubeName>,
    /// Tubes that are known to have a semaphore before them.
    gated: HashSet<TubeName>,
    /// When time next changes something, as far as this server knows, by the clock of the tasks.
    deadline: Option<i64>,
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
        let mut place = Place::parse(url).map_err(|error| Self::unavailable(&error))?;
        let config = &mut place.config;
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        // A cable that is cut says nothing: a batch must not wait for it until the system gives up.
        config.keepalives_idle(SILENCE).tcp_user_timeout(SILENCE);
        let reach = Reach::new(place).map_err(|error| Self::unavailable(&error))?;
        Ok(Postgres::connect(reach, access))
    }

    fn start(self: &Arc<Self>, runtime: &Handle) {
        let task = runtime.spawn(presence::live(Arc::clone(self)));
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
    async fn connect(reach: Reach, access: Access) -> Result<Self, OpenError> {
        let Access { clock, wait, serves } = access;
        let unavailable = |why: &str| Self::unavailable(why);
        if reach.pooled {
            tracing::info!("behind a pooler: other servers' changes are noticed within a second");
        }
        let connection = reach.wait_for(wait).await;
        let mut connection = connection.map_err(|error| unavailable(&error.text()))?;
        let migrated = timeout(MIGRATE_MAX, migrate::migrate(connection.client())).await;
        let silent = |_| unavailable("it did not end a change of its tables within ten minutes");
        migrated.map_err(silent)?.map_err(|error| match error {
            MigrateError::TooNew { found, known } => Self::too_new(found, known),
            MigrateError::Database(error) => unavailable(&describe(&error)),
            MigrateError::NoRight { why, advice } => unavailable(&format!("{why}; {advice}")),
        })?;
        let random = "SELECT uuid_send(gen_random_uuid())";
        let rows = connection.client().query_typed(random, &[]).await;
        let rows = rows.map_err(|error| unavailable(&describe(&error)))?;
        let server: Vec<u8> = rows.first().map(|row| row.get(0)).unwrap_or_default();
        let patience = presence::patience();
        let begin = [Call::new(&sql::BEGIN_SERVER, [param(server.clone()), param(patience)])];
        if serves {
            connection.transact(&begin).await.map_err(|failure| unavailable(&failure.text()))?;
        }
        let (connection, known) = (Mutex::new(Some(connection)), Lock::default());
        let (side, presence, background) = Default::default();
        Ok(Postgres { reach, clock, server, serves, connection, side, known, presence, background })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
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
        let params = [param(self.server.clone()), param(presence::patience()), param(now)];
        let mut end: Vec<Call> = self.known().counters.adding().into_iter().collect();
        end.push(Call::new(&sql::END_SERVER, params));
        let ended = match self.serves {
            true => self.transact(Lane::Main, &[], &end).await,
            false => Ok(Vec::new()),
        };
        *self.connection.lock().await = None;
        *self.side.lock().await = None;
        ended.map(|_| ()).map_err(|failure| failure.error())
    }
}

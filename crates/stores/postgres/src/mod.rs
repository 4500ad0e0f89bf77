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
use std::future::ready;
use std::sync::{Arc, Mutex as Lock, MutexGuard, PoisonError};
use std::time::Duration;

use taskyard_core::{Body, Command, Effects, Error, Span, Timestamp, TubeName};
use tokio::runtime::Runtime;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::opening::on_own_thread;
use crate::{
    BodyKey, Capabilities, Executed, Export, Exported, Import, OpenError, Pending, Store, Watcher,
};
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
pub use transaction::put_in;

/// How long to wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection may be silent while something is expected of it.
const SILENCE: Duration = Duration::from_secs(10);
/// How long a change of the tables may take. A large table may get a new index, or another server is at it.
const MIGRATE_MAX: Duration = Duration::from_secs(600);
/// Other servers and plain SQL may change what this one knows nothing about: it looks this often.
const POLL: Span = Span::from_secs(1);

/// Whose time counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The database's, so that servers whose clocks differ agree.
    #[default]
    Database,
    /// That of whoever calls, for tests.
    Caller,
}

/// What it can do.
pub(crate) const CAPABILITIES: Capabilities = Capabilities {
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

/// A store in a PostgreSQL database.
pub struct PostgresStore {
    shared: Arc<Shared>,
    /// Taken out when the store is dropped: a runtime must not be dropped where waiting is forbidden.
    runtime: Option<Runtime>,
    /// The background work, until the store is closed.
    living: Lock<Option<JoinHandle<()>>>,
}

/// What the store and its background work share.
struct Shared {
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

impl PostgresStore {
    /// Opens the database of this URL. With `pooler=transaction` among its parameters nothing is kept in a
    /// connection between two transactions, and changes made by other servers are noticed by
    /// looking only. `sslmode` and `sslrootcert` say how the connection is protected.
    pub fn open(url: &str, clock: Clock) -> Result<Self, OpenError> {
        Self::open_within(url, clock, Duration::ZERO)
    }

    /// The same for a database that may come up only in that time.
    pub fn open_within(url: &str, clock: Clock, wait: Duration) -> Result<Self, OpenError> {
        Self::open_as(url, clock, wait, true)
    }

    /// The same without becoming one of its servers, which would begin with giving back what is taken where there is
    /// no other: only [`Store::export`] may be asked.
    pub fn open_to_look(url: &str, clock: Clock, wait: Duration) -> Result<Self, OpenError> {
        Self::open_as(url, clock, wait, false)
    }

    fn open_as(url: &str, clock: Clock, wait: Duration, serves: bool) -> Result<Self, OpenError> {
        let mut place = Place::parse(url).map_err(|error| unavailable(&error))?;
        let (config, pooled) = (&mut place.config, place.pooled);
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        // A cable that is cut says nothing: a batch must not wait for it until the system gives up.
        config.keepalives_idle(SILENCE).tcp_user_timeout(SILENCE);
        let reach = Reach::new(place).map_err(|error| unavailable(&error))?;
        let open = Shared::open(reach, clock, wait, serves);
        let (runtime, shared) =
            on_own_thread("taskyard-postgres", |error| unavailable(error), open)?;
        let shared = Arc::new(shared);
        let live = || runtime.spawn(presence::live(Arc::clone(&shared)));
        let living = Lock::new(serves.then(live));
        if pooled {
            tracing::info!("behind a pooler: other servers' changes are noticed within a second");
        }
        Ok(PostgresStore { shared, runtime: Some(runtime), living })
    }
}

impl PostgresStore {
    /// Does it on the connection's own thread, and begins before anybody waits for it.
    fn spawned<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Pending<'_, Result<T, Error>> {
        let Some(runtime) = &self.runtime else {
            return Box::pin(ready(Err(Error::Store("the store is closed".into()))));
        };
        let task = runtime.spawn(work);
        Box::pin(
            async move { task.await.unwrap_or_else(|error| Err(Error::Store(error.to_string()))) },
        )
    }
}

impl Store for PostgresStore {
    fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed> {
        let count = commands.len();
        let shared = Arc::clone(&self.shared);
        let Some(runtime) = &self.runtime else { return Box::pin(ready(closed(count))) };
        // On the connection's own thread, so that a batch costs two changes of threads and not two for
        // each of its answers.
        let task = runtime.spawn(async move { shared.execute(now, commands).await });
        Box::pin(async move { task.await.unwrap_or_else(|error| ended(count, &error.to_string())) })
    }

    fn load(&self, keys: Vec<BodyKey>) -> Pending<'_, Vec<Result<Option<Body>, Error>>> {
        // Every reply has its bodies already.
        Box::pin(ready(vec![Ok(None); keys.len()]))
    }

    fn watch(&self, watcher: Watcher) {
        self.shared.presence.watch(watcher);
    }

    fn poll_every(&self) -> Option<Span> {
        Some(POLL)
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn export(&self, wanted: Export) -> Pending<'_, Result<Exported, Error>> {
        let shared = Arc::clone(&self.shared);
        self.spawned(async move { shared.export(wanted).await })
    }

    fn import(&self, now: Timestamp, part: Import) -> Pending<'_, Result<(), Error>> {
        let shared = Arc::clone(&self.shared);
        self.spawned(async move { shared.import(now, part).await })
    }

    fn close(&self) -> Pending<'_, Result<(), Error>> {
        let shared = Arc::clone(&self.shared);
        let Some(runtime) = &self.runtime else { return Box::pin(ready(Ok(()))) };
        let living = self.living.lock().unwrap_or_else(PoisonError::into_inner).take();
        let task = runtime.spawn(async move { shared.close(living).await });
        Box::pin(
            async move { task.await.unwrap_or_else(|error| Err(Error::Store(error.to_string()))) },
        )
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn closed(count: usize) -> Executed {
    ended(count, "the store is closed")
}

/// The answers of a store that is no more.
fn ended(count: usize, why: &str) -> Executed {
    let replies = vec![Err(Error::Store(why.to_owned())); count];
    Executed { replies, effects: Effects::default(), unloaded: Vec::new() }
}

impl Shared {
    async fn open(
        reach: Reach,
        clock: Clock,
        wait: Duration,
        serves: bool,
    ) -> Result<Self, OpenError> {
        let connection = reach.wait_for(wait).await;
        let mut connection = connection.map_err(|error| unavailable(&error.text()))?;
        let migrated = timeout(MIGRATE_MAX, migrate::migrate(connection.client())).await;
        let silent = |_| unavailable("it did not end a change of its tables within ten minutes");
        migrated.map_err(silent)?.map_err(|error| match error {
            MigrateError::TooNew { found, known } => {
                OpenError::TooNew { folder: PLACE.into(), found, known }
            }
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
        let presence = Presence::default();
        let side = Mutex::default();
        Ok(Shared { reach, clock, server, serves, connection, side, known, presence })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn close(&self, living: Option<JoinHandle<()>>) -> Result<(), Error> {
        self.presence.stop();
        if let Some(living) = living {
            // A sign of life on its way would bring this server back after its end.
            let _ = timeout(HEARTBEAT, living).await;
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

/// What the name of a folder is for other stores. A URL may have a password in it, so it is not shown.
const PLACE: &str = "the PostgreSQL database";

fn unavailable(why: &(impl ToString + ?Sized)) -> OpenError {
    OpenError::Unavailable { folder: PLACE.into(), what: why.to_string() }
}

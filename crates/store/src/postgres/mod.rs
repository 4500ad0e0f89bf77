//! Tasks in a PostgreSQL database, shared by any number of servers.
//!
//! Every verb is one call of a function in the schema `taskyard`; the rules are in `verbs/*.sql` and are
//! compared with the core's machine by the conformance suite. A batch is one transaction whose
//! calls leave together, so a batch costs one round trip and one sync of the disk, however many
//! callers share it.
//!
//! Start reading at `verbs/put.sql`, `take.sql` and `finish.sql`. On this side `plan` turns commands into
//! calls, `connection` sends them, `answers` reads what comes back, `presence` tells the other servers
//! that this one lives and hears from them.
//!
//! Choices that could have been others:
//! - Functions lock first and decide in later statements, under READ COMMITTED. Who works on a tube holds an
//!   advisory lock shared; who alters, empties or drops it holds it alone. A foreign key would write into
//!   the tube's row at every put.
//! - Payloads are in the task's row. A table of their own was weighed: it costs a second row and a second index
//!   entry for each task, while what it saves, the copy of a small payload at a take, is cheaper. Those
//!   above 2 kB are kept outside of the row by PostgreSQL itself and are not copied.
//! - Counters of calls are in memory, by server. The counts of states are sums of small rows, one for each call,
//!   which ticks put together: a counter that every put updates would make them wait for each other.
//! - Where a take begins is remembered in `heads`, for the sake of transactions that stay open for long.

mod answers;
mod calls;
mod codec;
mod connection;
mod heads;
mod migrate;
mod plan;
mod presence;
mod semaphores;
mod statements;
mod tally;
mod transaction;

use std::future::ready;
use std::sync::{Arc, Mutex as Lock, MutexGuard, PoisonError};
use std::time::Duration;

use taskyard_core::{Body, Command, Effects, Error, Reply, Span, Timestamp};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Mutex;
use tokio_postgres::{Config, Row};

use crate::{BodyKey, Capabilities, Executed, OpenError, Pending, Store, Watcher};
use answers::Reader;
use connection::{Connection, Failure, describe};
use heads::Heads;
use migrate::MigrateError;
use plan::{Ask, Context, Step, plan};
use presence::Presence;
use statements::{self as sql, Call, param};
use tally::{Counters, Tally};

pub use presence::HEARTBEAT;
pub use transaction::put_in;

/// How often a batch is sent again that the database gave up for the sake of another.
const RETRIES: usize = 8;
/// How long to wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection may be silent while something is expected of it.
const SILENCE: Duration = Duration::from_secs(10);
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

/// A store in a PostgreSQL database.
pub struct PostgresStore {
    shared: Arc<Shared>,
    /// Taken out when the store is dropped: a runtime must not be dropped where waiting is forbidden.
    runtime: Option<Runtime>,
}

/// What the store and its background work share.
struct Shared {
    config: Config,
    /// Behind a pooler in transaction mode.
    pooled: bool,
    clock: Clock,
    /// This server's identity in the database.
    server: Vec<u8>,
    connection: Mutex<Option<Connection>>,
    known: Lock<Known>,
    presence: Presence,
}

/// What this server remembers between batches.
#[derive(Default)]
struct Known {
    counters: Counters,
    heads: Heads,
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
    /// looking only.
    pub fn open(url: &str, clock: Clock) -> Result<Self, OpenError> {
        let (url, pooled) = without_pooler(url);
        let mut config: Config = url.parse().map_err(|error| unavailable(&error))?;
        config.connect_timeout(CONNECT_TIMEOUT);
        // A cable that is cut says nothing: a batch must not wait for it until the system gives up.
        config.keepalives_idle(SILENCE).tcp_user_timeout(SILENCE);
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("taskyard-postgres")
            .enable_all()
            .build()
            .map_err(|error| unavailable(&error))?;
        let (done, opened) = std::sync::mpsc::channel();
        // The caller may be on a runtime of its own, where it must not wait for this one.
        runtime.spawn(async move { done.send(Shared::open(config, pooled, clock).await) });
        let shared = opened.recv().map_err(|error| unavailable(&error))??;
        let shared = Arc::new(shared);
        runtime.spawn(presence::live(Arc::clone(&shared)));
        if pooled {
            tracing::info!("behind a pooler: other servers' changes are noticed within a second");
        }
        Ok(PostgresStore { shared, runtime: Some(runtime) })
    }
}

impl Store for PostgresStore {
    fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed> {
        let count = commands.len();
        let shared = Arc::clone(&self.shared);
        let Some(runtime) = &self.runtime else { return Box::pin(ready(failed(count, CLOSED))) };
        // On the connection's own thread, so that a batch costs two changes of threads and not two for
        // each of its answers.
        let task = runtime.spawn(async move { shared.execute(now, commands).await });
        Box::pin(
            async move { task.await.unwrap_or_else(|error| failed(count, &error.to_string())) },
        )
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
        Capabilities { name: "postgres", durable: true, shared: true }
    }

    fn close(&self) -> Pending<'_, Result<(), Error>> {
        let shared = Arc::clone(&self.shared);
        let Some(runtime) = &self.runtime else { return Box::pin(ready(Ok(()))) };
        let task = runtime.spawn(async move { shared.close().await });
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

const CLOSED: &str = "the store is closed";

impl Shared {
    async fn open(config: Config, pooled: bool, clock: Clock) -> Result<Self, OpenError> {
        let connection = Connection::open(&config, pooled, None).await;
        let mut connection = connection.map_err(|error| unavailable(&describe(&error)))?;
        migrate::migrate(connection.client()).await.map_err(|error| match error {
            MigrateError::TooNew { found, known } => {
                OpenError::TooNew { folder: PLACE.into(), found, known }
            }
            MigrateError::Database(error) => unavailable(&describe(&error)),
        })?;
        let random = "SELECT uuid_send(gen_random_uuid())";
        let rows = connection.client().query_typed(random, &[]).await;
        let rows = rows.map_err(|error| unavailable(&describe(&error)))?;
        let server: Vec<u8> = rows.first().map(|row| row.get(0)).unwrap_or_default();
        let patience = presence::patience();
        let begin = [Call::new(&sql::BEGIN_SERVER, [param(server.clone()), param(patience)])];
        connection.transact(&begin).await.map_err(|failure| unavailable(&failure.text()))?;
        let (connection, known) = (Mutex::new(Some(connection)), Lock::default());
        let presence = Presence::default();
        Ok(Shared { config, pooled, clock, server, connection, known, presence })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Executed {
        let count = commands.len();
        let (steps, calls) = self.plan(now, commands);
        match self.transact(&calls).await {
            Ok(rows) => self.read(now, count, &steps, rows),
            Err(Failure::Refused(text)) if calls.len() > 1 => {
                tracing::warn!(%text, "a batch was refused; trying its commands one by one");
                self.one_by_one(now, steps, calls).await
            }
            Err(failure) => {
                self.known().heads.forget_all();
                failed(count, &failure.text())
            }
        }
    }

    fn plan(&self, now: Timestamp, commands: Vec<Command>) -> (Vec<Step>, Vec<Call>) {
        let mut known = self.known();
        let moment = now.as_micros();
        known.now = moment;
        let now = (self.clock == Clock::Caller).then_some(moment);
        plan(commands, &Context { now, server: &self.server, heads: &known.heads, moment })
    }

    /// Runs the calls in one transaction, again if the database gave it up for the sake of another.
    async fn transact(&self, calls: &[Call]) -> Result<Vec<Vec<Row>>, Failure> {
        if calls.is_empty() {
            return Ok(Vec::new());
        }
        let mut place = self.connection.lock().await;
        let mut tries = 0;
        loop {
            let connection = match place.as_mut().filter(|connection| connection.is_open()) {
                Some(connection) => connection,
                None => place.insert(self.connect().await?),
            };
            match connection.transact(calls).await {
                Err(Failure::Conflict(text)) if tries < RETRIES => {
                    tracing::debug!(%text, "a batch met another; trying again");
                    tries += 1;
                }
                Err(Failure::Lost(text)) => {
                    *place = None;
                    return Err(Failure::Lost(text));
                }
                other => return other,
            }
        }
    }

    async fn connect(&self) -> Result<Connection, Failure> {
        let connection = Connection::open(&self.config, self.pooled, None).await;
        connection.map_err(|error| Failure::Unreachable(describe(&error)))
    }

    /// Each call in a transaction of its own, so that only what cannot be done fails.
    async fn one_by_one(&self, now: Timestamp, steps: Vec<Step>, calls: Vec<Call>) -> Executed {
        let mut calls = calls.into_iter();
        let mut whole = failed(0, "");
        for step in steps {
            let places = 0..step.places.len();
            let call: Vec<Call> = match step.ask {
                Ask::Refused(_) => Vec::new(),
                _ => calls.next().into_iter().collect(),
            };
            let count = places.len();
            let part = match self.transact(&call).await {
                Ok(rows) => self.read(now, count, &[Step { places, ask: step.ask }], rows),
                Err(failure) => failed(count, &failure.text()),
            };
            whole.replies.extend(part.replies);
            whole.effects.ready.extend(part.effects.ready);
            whole.effects.room.extend(part.effects.room);
            whole.effects.next_wakeup = part.effects.next_wakeup;
        }
        whole
    }

    /// Reads the answers to a batch that took effect.
    fn read(&self, now: Timestamp, count: usize, steps: &[Step], rows: Vec<Vec<Row>>) -> Executed {
        let mut rows = rows.into_iter();
        let mut known = self.known();
        let Known { counters, heads, .. } = &mut *known;
        let mut reader = Reader { counters, tally: Tally::default() };
        let mut replies = Vec::with_capacity(count);
        for Step { places, ask } in steps {
            let answer = match ask {
                Ask::Refused(_) => Vec::new(),
                _ => rows.next().unwrap_or_default(),
            };
            replies.extend(reader.read(ask, &answer).unwrap_or_else(|error| {
                tracing::error!(%error, "an answer of the database could not be read");
                unreadable(places.len())
            }));
            follow(heads, ask, &mut reader.tally, now);
        }
        let tally = reader.tally;
        known.counters.add(&tally);
        let next_wakeup = known.learn(now, &tally);
        drop(known);
        self.presence.tell(&tally);
        Executed { replies, effects: tally.into_effects(next_wakeup), unloaded: Vec::new() }
    }

    async fn close(&self) -> Result<(), Error> {
        self.presence.stop();
        let now = (self.clock == Clock::Caller).then(|| self.known().now);
        let params = [param(self.server.clone()), param(presence::patience()), param(now)];
        let end = [Call::new(&sql::END_SERVER, params)];
        let ended = self.transact(&end).await;
        *self.connection.lock().await = None;
        ended.map(|_| ()).map_err(|failure| Error::Store(failure.text()))
    }
}

impl Known {
    /// Takes in what a batch says about the time. Answers when a tick is wanted, by the caller's clock.
    fn learn(&mut self, now: Timestamp, tally: &Tally) -> Option<Timestamp> {
        self.deadline = self.deadline.into_iter().chain(tally.deadline).min();
        if let Some(exact) = tally.exact {
            self.deadline = exact.deadline;
            self.ahead = exact.clock.saturating_sub(now.as_micros());
        }
        self.deadline.map(|at| Timestamp::from_micros(at.saturating_sub(self.ahead)))
    }
}

/// Keeps the hints right after one step of a batch.
fn follow(heads: &mut Heads, ask: &Ask, tally: &mut Tally, now: Timestamp) {
    for tube in tally.back.drain(..) {
        heads.forget(&tube);
    }
    match ask {
        Ask::Put { tube, usual, .. } => {
            if let Some(best) = tally.best_put.take() {
                heads.put(tube, best, *usual);
            }
        }
        Ask::Take { tube, hinted, .. } => {
            if let Some(last) = tally.last_taken.take() {
                heads.took(tube, *hinted, last, now.as_micros());
            }
        }
        Ask::Drop { tube } | Ask::Create { tube, .. } => heads.forget(tube),
        _ => {}
    }
}

/// What the name of a folder is for other stores. A URL may have a password in it, so it is not shown.
const PLACE: &str = "the PostgreSQL database";

fn unavailable(why: &(impl ToString + ?Sized)) -> OpenError {
    OpenError::Unavailable { folder: PLACE.into(), what: why.to_string() }
}

fn failed(count: usize, why: &str) -> Executed {
    let replies: Vec<Result<Reply, Error>> = vec![Err(Error::Store(why.to_owned())); count];
    Executed { replies, effects: Effects::default(), unloaded: Vec::new() }
}

fn unreadable(count: usize) -> Vec<Result<Reply, Error>> {
    let what = "it was done, but the database's answer could not be read; see the log";
    vec![Err(Error::Store(what.into())); count]
}

/// The URL without our own parameter, and whether it was there.
fn without_pooler(url: &str) -> (String, bool) {
    let Some((base, parameters)) = url.split_once('?') else { return (url.to_owned(), false) };
    let (ours, others): (Vec<&str>, Vec<&str>) =
        parameters.split('&').partition(|parameter| *parameter == "pooler=transaction");
    let url = match others.join("&") {
        rest if rest.is_empty() => base.to_owned(),
        rest => format!("{base}?{rest}"),
    };
    (url, !ours.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pooler_is_our_own_parameter() {
        let plain = "postgres://a@b/c?connect_timeout=3";
        assert_eq!(without_pooler(plain), (plain.into(), false));
        let pooled = "postgres://a@b/c?pooler=transaction&connect_timeout=3";
        assert_eq!(without_pooler(pooled), (plain.into(), true));
        let only = "postgres://a@b/c?pooler=transaction";
        assert_eq!(without_pooler(only), ("postgres://a@b/c".into(), true));
    }
}

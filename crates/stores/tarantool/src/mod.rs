//! Tasks in Tarantool, shared by any number of servers.
//!
//! The rules are procedures in `lua/*.lua`, loaded into Tarantool by whoever connects, and are compared with the core's machine by
//! the conformance suite. A batch is one call and one transaction of memtx, in which nothing yields until its commit, so
//! nobody sees half of it. What it wrote is in the log before it is answered.
//!
//! Start reading at `lua/batch.lua`, `lua/spaces.lua` and `lua/put.lua`. On this side `execute` turns a batch into calls,
//! `link` finds the instance that can be written to and brings it the procedures, `presence` tells the other servers that
//! this one lives.
//!
//! Choices that could have been others:
//! - Commands and replies travel in the layouts of our own protocol, and a task lies in its space as it is answered: a
//!   taken task is copied into the answer and never becomes a table in Lua.
//! - A delivery is a row of its own, so that a take writes no task anew: a take is a delete and an insert of small rows. One space
//!   with an index for each order was tried: takes cost three times as much.
//! - Counts are in a space of this instance alone, which is in the transaction but not in the log. An instance that has just begun to
//!   be written to counts once. **Invariant**: whatever writes there writes something into the log too. What has nothing for the log is
//!   done at once, before others that wait for it, and Tarantool ends when it must undo one of those below it.
//! - Nobody waits in Tarantool for tasks, because it stops reading at 768 requests under way: consumers wait in the engine.
//! - Lease numbers come from ranges that begin at the clock of Tarantool: even when a replica takes over that has not heard the
//!   last of them, none is issued twice.

mod durability;
mod execute;
mod known;
mod library;
mod link;
mod presence;
mod transfer;

use std::collections::hash_map::RandomState;
use std::future::ready;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex as Lock, MutexGuard, PoisonError};
use std::time::Duration;

use taskyard_core::{Body, Command, Effects, Error, Span, Timestamp};
use taskyard_tarantool::{Failure, Place};
use tokio::runtime::Runtime;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::opening::on_own_thread;
use crate::{
    BodyKey, Capabilities, Executed, Export, Exported, Import, OpenError, Pending, Store, Watcher,
};
use durability::Durability;
use known::Known;
use library::{FORMAT, Library};
use link::{Link, Reach, error_of, may_come_up};
use presence::Presence;

pub use presence::HEARTBEAT;

/// Notices of other servers may be lost: this one looks this often.
const POLL: Span = Span::from_secs(1);
const ADAPTER_POLL: Span = Span::from_micros(100_000);

/// Whose time counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// That of Tarantool, so that servers whose clocks differ agree.
    #[default]
    Database,
    /// That of whoever calls, for tests.
    Caller,
}

/// A store in Tarantool.
pub struct TarantoolStore {
    shared: Arc<Shared>,
    /// Taken out when the store is dropped: a runtime must not be dropped where waiting is forbidden.
    runtime: Option<Runtime>,
}

/// What the store and its background work share.
struct Shared {
    reach: Arc<Reach>,
    clock: Clock,
    /// This server's identity in Tarantool.
    server: Vec<u8>,
    link: Mutex<Link>,
    known: Lock<Known>,
    /// When a tick is wanted, as was heard last.
    wakeup: Lock<Option<Timestamp>>,
    presence: Presence,
    durability: Durability,
    /// Whether Tarantool knows of this one.
    serves: bool,
}

impl TarantoolStore {
    /// Opens the Tarantool of this URL.
    pub fn open(url: &str, clock: Clock) -> Result<Self, OpenError> {
        Self::open_within(url, clock, Duration::ZERO)
    }

    /// The same for one that may come up only in that time.
    pub fn open_within(url: &str, clock: Clock, wait: Duration) -> Result<Self, OpenError> {
        Self::open_as(url, clock, wait, true)
    }

    /// The same without becoming one of its servers, which would begin with giving back what is taken where there is
    /// no other: only [`Store::export`] may be asked.
    pub fn open_to_look(url: &str, clock: Clock, wait: Duration) -> Result<Self, OpenError> {
        Self::open_as(url, clock, wait, false)
    }

    fn open_as(url: &str, clock: Clock, wait: Duration, serves: bool) -> Result<Self, OpenError> {
        let reach = reach(url).map_err(|error| unavailable(&error))?;
        let open = Shared::open(reach, clock, wait, serves);
        let (runtime, shared) =
            on_own_thread("taskyard-tarantool", |error| unavailable(error), open)?;
        let shared = Arc::new(shared);
        if serves {
            runtime.spawn(presence::live(Arc::clone(&shared)));
            runtime.spawn(presence::listen(Arc::clone(&shared)));
        }
        Ok(TarantoolStore { shared, runtime: Some(runtime) })
    }

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

impl Store for TarantoolStore {
    fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed> {
        let count = commands.len();
        let shared = Arc::clone(&self.shared);
        let Some(runtime) = &self.runtime else { return Box::pin(ready(ended(count, "closed"))) };
        // On the connection's own thread, so that a batch costs two changes of threads.
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
        // Nobody tells what others put into an existing queue.
        Some(if self.shared.reach.is_adapter { ADAPTER_POLL } else { POLL })
    }

    fn capabilities(&self) -> Capabilities {
        let durable = self.shared.durability == Durability::Always;
        if self.shared.reach.is_adapter {
            // Its tasks get their ids and attempts from nobody but itself.
            let plain = Capabilities { semaphores: false, gates: false, ..CAPABILITIES };
            return Capabilities { name: ADAPTED, durable, imports: false, ..plain };
        }
        Capabilities { durable, ..CAPABILITIES }
    }

    fn export(&self, wanted: Export) -> Pending<'_, Result<Exported, Error>> {
        let shared = Arc::clone(&self.shared);
        self.spawned(async move { shared.export(wanted).await })
    }

    fn import(&self, now: Timestamp, part: Import) -> Pending<'_, Result<(), Error>> {
        let shared = Arc::clone(&self.shared);
        self.spawned(async move { shared.import(now, part).await })
    }

    fn lacks(&self) -> &'static [&'static str] {
        if self.shared.reach.is_adapter { LACKS } else { &[] }
    }

    fn durability(&self) -> Option<String> {
        let text = self.shared.durability.text();
        Some(match self.shared.reach.replicas {
            0 => text.to_owned(),
            count => format!("{text}; {count} replicas have it before it is answered"),
        })
    }

    fn close(&self) -> Pending<'_, Result<(), Error>> {
        let shared = Arc::clone(&self.shared);
        self.spawned(async move { shared.close().await })
    }
}

impl Drop for TarantoolStore {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The answers of a store that is no more.
fn ended(count: usize, why: &str) -> Executed {
    let replies = vec![Err(Error::Store(format!("the store has ended: {why}"))); count];
    Executed { replies, effects: Effects::default(), unloaded: Vec::new() }
}

/// Schemes of URLs: tubes of our own, and those of an existing tarantool/queue.
const OURS: &str = "tarantool";

/// What it is like with Tarantool's own settings; `wal_mode = 'fsync'` makes it durable.
pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    shared: true,
    exports: true,
    imports: true,
    semaphores: true,
    gates: true,
    wakes: "at once by one call that waits for news",
    loses: &[
        (
            "the server is killed or stopped",
            "nothing; its sessions end two heartbeats later, then others get what they held",
        ),
        (
            "the machine fails",
            "nothing, if it is not the one of Tarantool; there what `wal_mode` had not synced",
        ),
        (
            "the database fails over",
            "what the replica had not received, unless `replicas=N` is set",
        ),
        ("the disk fails", "what replicas and backups of Tarantool do not have"),
    ],
    ..Capabilities::plain("tarantool")
};
const ADAPTED: &str = "tarantool+queue";

/// What an existing tarantool/queue does not have. What of it can be asked is refused.
const LACKS: &[&str] = &[
    "attempts and a limit of them",
    "the previous start of a task, and since when the oldest waits",
    "meta of tasks",
    "atomic batches",
    "altering, pausing, renaming and numbering tubes",
    "sessions that outlive their connections",
    "semaphores",
    "ids that are never used again",
];

/// What a URL says.
fn reach(url: &str) -> Result<Arc<Reach>, String> {
    let place = Place::parse(url, &[OURS, ADAPTED])?;
    let is_adapter = url.starts_with(ADAPTED);
    let (mut prefix, mut replicas) = ("taskyard".to_owned(), 0);
    for (name, value) in &place.parameters {
        match name.as_str() {
            "prefix" => prefix.clone_from(value),
            "replicas" => {
                let wrong = || format!("'{value}' is no number for replicas");
                replicas = value.parse().map_err(|_| wrong())?;
            }
            _ => return Err(format!("{name}= is not known; it may be prefix or replicas")),
        }
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if prefix.is_empty() || prefix.len() > 32 || !prefix.chars().all(plain) {
        return Err("prefix= has 1 to 32 letters, digits and _".into());
    }
    if is_adapter && !place.parameters.is_empty() {
        return Err("a tarantool+queue:// URL has no parameters".into());
    }
    let library = if is_adapter { Library::adapter() } else { Library::new() };
    Ok(Arc::new(Reach { place, prefix, replicas, library, is_adapter }))
}

impl Shared {
    async fn open(
        reach: Arc<Reach>,
        clock: Clock,
        wait: Duration,
        serves: bool,
    ) -> Result<Self, OpenError> {
        let server = identity();
        let mut link = Link::new(Arc::clone(&reach));
        let until = Instant::now() + wait;
        let mut waits = false;
        let durability = loop {
            match begin(&mut link, &server, serves).await {
                Ok(durability) => break durability?,
                Err(failure) if may_come_up(&failure) && Instant::now() < until => {
                    if !std::mem::replace(&mut waits, true) {
                        tracing::warn!(why = said(&failure), "waiting for Tarantool");
                    }
                    tokio::time::sleep(link.pause()).await;
                }
                Err(failure) => return Err(unavailable(&said(&failure))),
            }
        };
        let (wakeup, presence) = Default::default();
        let known = Lock::new(Known { link: link.number(), ..Known::default() });
        let link = Mutex::new(link);
        Ok(Shared { reach, clock, server, link, known, wakeup, presence, durability, serves })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wakeup(&self) -> MutexGuard<'_, Option<Timestamp>> {
        self.wakeup.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn close(&self) -> Result<(), Error> {
        self.presence.stop();
        if !self.serves {
            return Ok(());
        }
        let mut link = self.link.lock().await;
        let now = self.moment();
        let ended = link.call_again("end", |args| {
            _ = args.bytes(&self.server).optional(now).uint(presence::patience());
        });
        ended.await.map(drop).map_err(|failure| error_of(&failure))
    }
}

/// Says that this server begins, if it is to be one. Answers how Tarantool keeps what it is told.
async fn begin(
    link: &mut Link,
    server: &[u8],
    serves: bool,
) -> Result<Result<Durability, OpenError>, Failure> {
    let answer = link
        .call_again(if serves { "begin" } else { "look" }, |args| {
            _ = args.bytes(server).optional(None).uint(presence::patience());
        })
        .await?;
    let (found, wal_mode) = match answer.list() {
        [_, _, _, read_only, ..] if serves && read_only.is_true() => {
            return Err(Failure::Unreachable("it has become read-only".into()));
        }
        [found, wal_mode, ..] => (found.uint(), wal_mode.text().unwrap_or("none")),
        _ => return Err(Failure::Lost("it answered something else".into())),
    };
    let found = found.and_then(|found| i64::try_from(found).ok()).unwrap_or(0);
    if found > FORMAT {
        return Ok(Err(OpenError::TooNew { folder: PLACE.into(), found, known: FORMAT }));
    }
    Ok(Ok(Durability::read(wal_mode)))
}

/// Why it cannot be opened.
fn said(failure: &Failure) -> String {
    match failure {
        Failure::Refused(_) => match error_of(failure) {
            Error::Store(why) => why,
            other => other.to_string(),
        },
        other => other.to_string(),
    }
}

/// Sixteen bytes that no other server has.
fn identity() -> Vec<u8> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = (std::process::id(), now.map_or(0, |since| since.as_nanos()));
    // The keys of these are random.
    let parts = [RandomState::new().hash_one(seed), RandomState::new().hash_one(seed)];
    parts.into_iter().flat_map(u64::to_be_bytes).collect()
}

/// What the name of a folder is for other stores. A URL may have a password in it, so it is not shown.
const PLACE: &str = "Tarantool";

fn unavailable(why: &(impl ToString + ?Sized)) -> OpenError {
    OpenError::Unavailable { folder: PLACE.into(), what: why.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_checked() {
        assert_eq!(reach("tarantool://h?prefix=mail_2").unwrap().prefix, "mail_2");
        assert_eq!(reach("tarantool://h?replicas=2").unwrap().replicas, 2);
        assert!(reach("tarantool://h?timeout=1").is_err());
        for url in ["tarantool://h?prefix=", "tarantool://h?prefix=a-b", "tarantool://h?replicas=x"]
        {
            assert!(reach(url).is_err(), "{url}");
        }
    }
}

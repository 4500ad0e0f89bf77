//! Tasks in Redis, shared by any number of servers.
//!
//! The rules are functions in `lua/*.lua`, loaded into Redis as one library, and are compared with the core's machine by
//! the conformance suite. All that a batch asks of a tube is one call, which is atomic; the calls of a batch leave
//! together. All keys of a tube have one hash tag, so that a tube is whole on one node of a cluster; what is about all
//! tubes (their names, sessions, servers, lease numbers) has a tag of its own, and no function touches keys of two.
//!
//! Start reading at `lua/call.lua`, `lua/tube.lua` and `lua/put.lua`. On this side `execute` turns a batch into calls and
//! `registry` does what concerns more than one tube, `codec` and `answers` know the layouts,
//! `presence` tells the other servers that this one lives. How Redis is reached is `taskyard_redis`.
//!
//! Choices that could have been others:
//! - That a tube exists is what its own keys say. The registry lists a name before the tube is made and until it is gone.
//! - When all servers were gone, no tube is touched: an epoch is counted up, and each tube that hears of it for the first time gives
//!   back what was taken. So a start takes as long with ten thousand tubes as with one.
//! - Lease numbers come from ranges that begin at the clock of Redis: even when the last second is lost in a crash or a failover, none
//!   is issued twice.

mod again;
mod answers;
mod codec;
mod durability;
mod execute;
mod failure;
mod known;
mod library;
mod overlap;
mod presence;
mod refuse;
mod registry;
mod replicas;
mod results;
mod runs;
mod semaphores;
mod settling;
mod transfer;
mod tubes;

use std::collections::hash_map::RandomState;
use std::future::ready;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex as Lock, MutexGuard, PoisonError};
use std::time::Duration;

use taskyard_core::{Body, Command, Effects, Error, Span, Timestamp};
use taskyard_redis::{Failure, Link, Place, Reach, Value};
use tokio::runtime::Runtime;
use tokio::sync::{Mutex, RwLock};
use tokio::time::Instant;

use crate::opening::on_own_thread;
use crate::{
    BodyKey, Capabilities, Executed, Export, Exported, Import, OpenError, Pending, Store, Watcher,
};
use durability::Durability;
use execute::Batch;
use known::Known;
use library::FORMAT;
use overlap::Line;
use presence::Presence;
use transfer::Pages;

pub use presence::HEARTBEAT;

/// Notices of other servers may be lost: this one looks this often.
const POLL: Span = Span::from_secs(1);

/// What it is like with Redis's own settings; `appendfsync always` makes it durable.
pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    shared: true,
    exports: true,
    imports: true,
    semaphores: true,
    gates: true,
    wakes: "at once by PUBLISH, within a second when a notice is lost",
    loses: &[
        (
            "the server is killed or stopped",
            "nothing; its sessions end two heartbeats later, then others get what they held",
        ),
        (
            "the machine fails",
            "nothing, if it is not the one of Redis; there what `appendfsync` had not synced",
        ),
        ("the database fails over", "what the replica had not received, unless `wait=N` is set"),
        ("the disk fails", "what replicas and backups of Redis do not have"),
    ],
    ..Capabilities::plain("redis")
};

/// Whose time counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// That of Redis, so that servers whose clocks differ agree.
    #[default]
    Database,
    /// That of whoever calls, for tests.
    Caller,
}

/// A store in Redis.
pub struct RedisStore {
    shared: Arc<Shared>,
    /// Taken out when the store is dropped: a runtime must not be dropped where waiting is forbidden.
    runtime: Option<Runtime>,
}

/// What the store and its background work share.
struct Shared {
    reach: Arc<Reach>,
    clock: Clock,
    /// This server's identity in Redis.
    server: Vec<u8>,
    link: Mutex<Link>,
    /// Batches that may leave beside others read this, those that may not write it.
    turns: RwLock<()>,
    line: Line,
    landings: Line,
    known: Lock<Known>,
    presence: Presence,
    durability: Option<Durability>,
    /// Whether Redis knows of this one.
    serves: bool,
    pages: Lock<Pages>,
    /// The policy by which it throws tasks away, if it does and that is accepted.
    evicts: Option<String>,
}

impl RedisStore {
    /// Opens the Redis of this URL, with `redis+cluster://` a cluster.
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
        let place = Place::parse(url).map_err(|error| unavailable(&error))?;
        let open = Shared::open(place, clock, wait, serves);
        let (runtime, shared) = on_own_thread("taskyard-redis", |error| unavailable(error), open)?;
        let shared = Arc::new(shared);
        if serves {
            runtime.spawn(presence::live(Arc::clone(&shared)));
        }
        Ok(RedisStore { shared, runtime: Some(runtime) })
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

impl Store for RedisStore {
    fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed> {
        let count = commands.len();
        let shared = Arc::clone(&self.shared);
        let Some(runtime) = &self.runtime else { return Box::pin(ready(ended(count, "closed"))) };
        // On the connection's own thread, so that a batch costs two changes of threads.
        let entry = shared.line.enter();
        let task = runtime.spawn(async move { shared.execute(now, entry, commands).await });
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

    fn batches_max(&self) -> usize {
        2
    }

    fn capabilities(&self) -> Capabilities {
        let always = self.shared.durability == Some(Durability::Always);
        let durable = always && self.shared.evicts.is_none();
        // Nodes of a cluster decide alone, and a tube and its semaphore may be on two.
        let gates = !self.shared.reach.place.cluster;
        Capabilities { durable, gates, ..CAPABILITIES }
    }

    fn export(&self, wanted: Export) -> Pending<'_, Result<Exported, Error>> {
        let shared = Arc::clone(&self.shared);
        self.spawned(async move { shared.export(wanted).await })
    }

    fn import(&self, now: Timestamp, part: Import) -> Pending<'_, Result<(), Error>> {
        let shared = Arc::clone(&self.shared);
        self.spawned(async move { shared.import(now, part).await })
    }

    fn durability(&self) -> Option<String> {
        let unknown = "Redis does not say how it keeps what is acknowledged";
        let mut text = self.shared.durability.map_or(unknown, Durability::text).to_owned();
        let place = &self.shared.reach.place;
        if place.replicas > 0 {
            text = format!("{text}; {} replicas have it before it is answered", place.replicas);
        }
        if let Some(policy) = &self.shared.evicts {
            text = format!("{text}; it throws tasks away when its memory is full ({policy})");
        }
        Some(text)
    }

    fn close(&self) -> Pending<'_, Result<(), Error>> {
        let shared = Arc::clone(&self.shared);
        self.spawned(async move { shared.close().await })
    }
}

impl Drop for RedisStore {
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

impl Shared {
    async fn open(
        place: Place,
        clock: Clock,
        wait: Duration,
        serves: bool,
    ) -> Result<Self, OpenError> {
        let server = identity();
        let presence = Presence::new(&server);
        let name = format!("taskyard-{}", presence.name());
        let reach = Arc::new(
            Reach::new(place, name, library::library()).map_err(|error| unavailable(&error))?,
        );
        let link = Mutex::new(Link::orderly(Arc::clone(&reach)));
        let (turns, line, landings, known) = Default::default();
        let (durability, evicts, pages) = Default::default();
        let mut shared = Shared {
            reach,
            clock,
            server,
            link,
            turns,
            line,
            landings,
            known,
            presence,
            durability,
            evicts,
            serves,
            pages,
        };
        let until = Instant::now() + wait;
        loop {
            match shared.begin().await {
                Err(Failure::Unreachable(_) | Failure::Lost(_)) if Instant::now() < until => {
                    let pause = shared.link.get_mut().pause();
                    tokio::time::sleep(pause).await;
                }
                Err(failure) => return Err(unavailable(&failure.text())),
                Ok(found) if found > FORMAT => {
                    return Err(OpenError::TooNew { folder: PLACE.into(), found, known: FORMAT });
                }
                Ok(_) => return Ok(shared),
            }
        }
    }

    /// Says that this server begins. Answers the version of what is there.
    async fn begin(&mut self) -> Result<i64, Failure> {
        if !self.serves {
            let mut link = self.link.lock().await;
            return Batch::new(self, &mut link).look_at_format().await;
        }
        let format = FORMAT.to_string().into_bytes();
        let words = vec![self.server.clone(), presence::patience(), format];
        let call = self.registry_call("begin", words);
        let may_evict = self.reach.place.may_evict;
        let link = self.link.get_mut();
        self.evicts = durability::ask_eviction(link, may_evict).await?;
        let answer = link.call(&[call]).await.pop();
        let answer = answer.unwrap_or_else(|| Err(execute::unreadable_registry()))?;
        let parts = answer.list().unwrap_or_default();
        let numbers: Vec<i64> = parts.iter().filter_map(Value::int).collect();
        let [epoch, found] = numbers[..] else { return Err(execute::unreadable_registry()) };
        self.durability = Durability::ask(link).await?;
        self.known().epoch = epoch.unsigned_abs();
        self.presence.seen(Instant::now());
        Ok(found)
    }

    /// The epoch that this server knows, as functions are told.
    fn epoch_word(&self) -> Vec<u8> {
        self.known().epoch.to_string().into_bytes()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where servers tell each other what happened.
    fn channel(&self) -> String {
        format!("{{{}}}:news", self.reach.place.prefix)
    }

    async fn close(&self) -> Result<(), Error> {
        self.presence.stop().await;
        if !self.serves {
            return Ok(());
        }
        let call = self.registry_call("end", vec![self.server.clone()]);
        let answer = self.link.lock().await.call(&[call]).await.pop();
        match answer {
            Some(Err(failure)) => Err(failure::error(&failure)),
            _ => Ok(()),
        }
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
const PLACE: &str = "Redis";

fn unavailable(why: &(impl ToString + ?Sized)) -> OpenError {
    OpenError::Unavailable { folder: PLACE.into(), what: why.to_string() }
}

//! Stores tasks in Redis, shared by any number of servers.
//!
//! The rules are functions in `lua/*.lua` and the shared Lua files of the store crate, loaded into Redis as one library; the
//! conformance suite compares them with the core's machine. All commands of a batch for one tube are one atomic call; the
//! calls of a batch are sent together. All keys of a tube have one hash tag, so that a cluster keeps a tube on one node. The
//! registry (names of tubes, sessions, servers, lease numbers) has a tag of its own, and no function uses keys of two tags.
//!
//! Start reading at `lua/call.lua`, `lua/tube.lua` and `lua/put.lua`. In Rust, `execute` turns a batch into calls,
//! `registry` handles what concerns more than one tube, `codec`, `tasks` and `answers` encode and decode the calls, and
//! `presence` sends heartbeats and receives notices of other servers. Connections are in `taskyard_redis`.
//!
//! Design decisions:
//! - The keys of a tube decide whether it exists. The registry lists a name before the tube is created and until it is dropped.
//! - When all servers were gone, no tube is changed: the epoch is increased, and the first call to each tube with a lower epoch
//!   gives back its taken tasks. So a start takes as long with ten thousand tubes as with one.
//! - Lease numbers come from ranges that begin at the clock of Redis: none is issued twice, even when a crash or a failover loses
//!   the last second.

mod answers;
mod checks;
mod codec;
mod durability;
mod execute;
mod extension;
mod failure;
mod library;
mod merge;
mod pipeline;
mod presence;
mod registry;
mod replicas;
mod results;
mod resync;
mod retry;
mod schedules;
mod semaphores;
mod tasks;
mod transfer;
mod tube_cache;
mod tubes;

use std::sync::{Arc, Mutex as Lock, MutexGuard, PoisonError};

use taskyard_core::{Command, Error, Timestamp};
use taskyard_redis::{Call, Connector, Failure, Link, RedisUrl, Value};
use taskyard_store::remote::{Access, Backend, RemoteStore, server_identity};
use taskyard_store::{
    Capabilities, Executed, Export, Exported, Import, OpenError, OpenOptions, Store, Watcher,
};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, RwLock};
use tokio::time::Instant;

use durability::Durability;
use execute::Batch;
use library::FORMAT;
use pipeline::Sequence;
use presence::Presence;
use transfer::Pages;
use tube_cache::TubeCache;

pub use taskyard_store::remote::{Clock, HEARTBEAT};

/// The capabilities with Redis's default settings; `appendfsync always` makes it durable.
pub const CAPABILITIES: Capabilities = Capabilities {
    shared: true,
    exports: true,
    imports: true,
    semaphores: true,
    gates: true,
    keys: true,
    retries: true,
    rates: true,
    schedules: true,
    wakes: "at once by PUBLISH, within a second when a notice is lost",
    loses: &[
        (
            "the server is killed or stopped",
            "nothing; its sessions end two heartbeats later, then their tasks are ready again",
        ),
        (
            "the machine fails",
            "nothing, if it is not the one of Redis; there what `appendfsync` had not synced",
        ),
        ("the database fails over", "what the replica had not received, unless `wait=N` is set"),
        ("the disk fails", "what replicas and backups of Redis do not have"),
    ],
    instead_of_backup: Some("the backups of Redis (BGSAVE), or `taskyard copy`"),
    ..Capabilities::plain("redis")
};

/// A store in Redis, or in a cluster with `redis+cluster://`.
pub type RedisStore = RemoteStore<Redis>;

/// Opens the store of this URL.
pub fn open(url: &str, options: &OpenOptions) -> Result<Box<dyn Store>, OpenError> {
    RedisStore::open_boxed(url, options)
}

/// The Redis, as the store and its background work share it.
pub struct Redis {
    connector: Arc<Connector>,
    clock: Clock,
    /// This server's identity in Redis.
    server: Vec<u8>,
    link: Mutex<Link>,
    /// Connected by the first health check.
    health_link: Mutex<Link>,
    /// Batches that run beside others lock it for reading, batches that run alone lock it for writing.
    exclusion: RwLock<()>,
    start_order: Sequence,
    reply_order: Sequence,
    cache: Lock<TubeCache>,
    presence: Presence,
    durability: Option<Durability>,
    /// Whether this is one of the servers of Redis.
    serves: bool,
    pages: Lock<Pages>,
    /// The eviction policy of Redis, if it evicts tasks and the URL accepts that.
    evicts: Option<String>,
}

impl Backend for Redis {
    const NAME: &'static str = "Redis";
    const THREAD: &'static str = "taskyard-redis";

    fn open(
        url: &str,
        access: Access,
    ) -> Result<impl Future<Output = Result<Self, OpenError>> + Send + 'static, OpenError> {
        let place = RedisUrl::parse(url).map_err(|error| Self::unavailable(&error))?;
        Ok(Redis::connect(place, access))
    }

    fn start(self: &Arc<Self>, runtime: &Handle) {
        runtime.spawn(presence::run(Arc::clone(self)));
    }

    fn execute(
        self: Arc<Self>,
        now: Timestamp,
        commands: Vec<Command>,
    ) -> impl Future<Output = Executed> + Send + 'static {
        // At once: batches are done in the order of their calls.
        let entry = self.start_order.enter();
        async move { Redis::execute(&self, now, entry, commands).await }
    }

    async fn export(&self, wanted: Export) -> Result<Exported, Error> {
        Redis::export(self, wanted).await
    }

    async fn import(&self, now: Timestamp, part: Import) -> Result<(), Error> {
        Redis::import(self, now, part).await
    }

    async fn check_write(&self) -> Result<(), Error> {
        let mut link = self.health_link.lock().await;
        let unusable = |failure| failure::error(&failure);
        let keys = link.keys_of_masters(&self.connector.url.prefix).await.map_err(unusable)?;
        let call = |key| Call { function: "check_write", key, args: Vec::new(), replicate: true };
        let calls: Vec<Call> = keys.into_iter().map(call).collect();
        for answer in link.call(&calls).await {
            answer.map_err(unusable)?;
        }
        Ok(())
    }

    async fn close(&self) -> Result<(), Error> {
        Redis::close(self).await
    }

    fn watch(&self, watcher: Watcher) {
        self.presence.watch(watcher);
    }

    fn batches_max(&self) -> usize {
        2
    }

    fn capabilities(&self) -> Capabilities {
        let always = self.durability == Some(Durability::Always);
        let durable = always && self.evicts.is_none();
        // Nodes of a cluster decide alone, and a tube and its semaphore may be on two.
        let gates = !self.connector.url.cluster;
        Capabilities { durable, gates, ..CAPABILITIES }
    }

    fn durability(&self) -> Option<String> {
        let unknown = "the durability of Redis is unknown (CONFIG GET is not allowed)";
        let mut text = self.durability.map_or(unknown, Durability::text).to_owned();
        let place = &self.connector.url;
        if place.replicas > 0 {
            text = format!(
                "{text}; {} replicas have a write before it is acknowledged",
                place.replicas
            );
        }
        if let Some(policy) = &self.evicts {
            text = format!("{text}; tasks are evicted when its memory is full ({policy})");
        }
        Some(text)
    }
}

impl Redis {
    async fn connect(place: RedisUrl, access: Access) -> Result<Self, OpenError> {
        let Access { clock, wait, serves } = access;
        let server = server_identity();
        let presence = Presence::new(&server);
        let name = format!("taskyard-{}", presence.name());
        let connector = Arc::new(
            Connector::new(place, name, library::library())
                .map_err(|error| Self::unavailable(&error))?,
        );
        let link = Mutex::new(Link::ordered(Arc::clone(&connector)));
        let health_link = Mutex::new(Link::new(Arc::clone(&connector)));
        let (exclusion, start_order, reply_order, cache) = Default::default();
        let (durability, evicts, pages) = Default::default();
        let mut shared = Redis {
            connector,
            clock,
            server,
            link,
            health_link,
            exclusion,
            start_order,
            reply_order,
            cache,
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
                Err(failure) => return Err(Self::unavailable(&failure.text())),
                Ok(found) if found > FORMAT => {
                    return Err(Self::too_new(found, FORMAT));
                }
                Ok(_) => return Ok(shared),
            }
        }
    }

    /// Registers this server. Answers the version of the stored format.
    async fn begin(&mut self) -> Result<i64, Failure> {
        if !self.serves {
            let mut link = self.link.lock().await;
            return Batch::new(self, &mut link).read_format().await;
        }
        let format = FORMAT.to_string().into_bytes();
        let words = vec![self.server.clone(), presence::heartbeat_timeout(), format];
        let call = self.registry_call("begin", words);
        let may_evict = self.connector.url.may_evict;
        let link = self.link.get_mut();
        self.evicts = durability::ask_eviction(link, may_evict).await?;
        let answer = link.call(&[call]).await.pop();
        let answer = answer.unwrap_or_else(|| Err(execute::unreadable_registry()))?;
        let parts = answer.list().unwrap_or_default();
        let numbers: Vec<i64> = parts.iter().filter_map(Value::int).collect();
        let [epoch, found] = numbers[..] else { return Err(execute::unreadable_registry()) };
        self.durability = Durability::ask(link).await?;
        self.cache().epoch = epoch.unsigned_abs();
        self.presence.last.note(Instant::now());
        Ok(found)
    }

    /// The epoch that this server knows, as an argument of calls.
    fn epoch_word(&self) -> Vec<u8> {
        self.cache().epoch.to_string().into_bytes()
    }

    fn cache(&self) -> MutexGuard<'_, TubeCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The channel on which servers notify each other.
    fn channel(&self) -> String {
        format!("{{{}}}:news", self.connector.url.prefix)
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

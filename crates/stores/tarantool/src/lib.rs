//! Stores tasks in Tarantool, shared by any number of servers.
//!
//! The rules are procedures in `lua/*.lua` and the shared Lua files of the store crate, which a server loads into Tarantool when it
//! connects; the conformance suite compares them with the core's machine. A batch is one call, or several if it is large, that
//! are sent together. A call is one transaction of memtx, in which nothing yields until its commit, so no other call sees half of it.
//! Its writes are in the log before it is answered.
//!
//! Start reading at `lua/batch.lua`, `lua/spaces.lua` and `lua/put.lua`. In Rust, `execute` turns a batch into calls, `link` finds the
//! writable instance and loads the procedures, and `presence` sends heartbeats and receives notices of other servers.
//!
//! Design decisions:
//! - Commands and replies use the layouts of our own protocol, and a task is stored as it is answered: a taken task is copied into the
//!   answer and never becomes a table in Lua.
//! - A delivery is a row of its own, so that a take does not rewrite the task: a take is a delete and an insert of small rows. One space
//!   with an index for each order was tried: takes cost three times as much.
//! - Counts are in a temporary space of the instance, which is part of the transaction but not of the log. An instance that became
//!   writable counts once. **Invariant**: a transaction that writes counts also writes to the log. A transaction without log rows
//!   commits at once, before others that wait for the log, and Tarantool aborts if it must roll back one of those below it.
//! - Done tasks that a tube keeps are rows of a space of their own (`lua/done.lua`), and so are unique keys (`lua/keys.lua`): tubes
//!   without them do the same work as before.
//! - Consumers do not wait in Tarantool, because it stops reading at 768 requests in flight: they wait in the engine.
//! - Lease numbers come from ranges that begin at the clock of Tarantool: none is issued twice, even when a replica takes over that did
//!   not receive the last writes.

mod checks;
mod durability;
mod execute;
mod library;
mod link;
mod presence;
mod transfer;
mod tube_cache;

use std::sync::{Arc, Mutex as Lock, MutexGuard, PoisonError};

use taskyard_core::{Command, Error, Span, Timestamp};
use taskyard_store::remote::{Access, Backend, POLL, RemoteStore, server_identity};
use taskyard_store::{
    Capabilities, Executed, Export, Exported, Import, OpenError, OpenOptions, Store, Watcher,
};
use taskyard_tarantool::{Failure, TarantoolUrl};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::Instant;

use durability::Durability;
use library::{FORMAT, Library};
use link::{Connector, Link, error_of, may_come_up};
use presence::Presence;
use tube_cache::TubeCache;

pub use taskyard_store::remote::{Clock, HEARTBEAT};

/// An existing queue sends no notices of what others put: it is polled this often.
const ADAPTER_POLL: Span = Span::from_micros(100_000);

/// A store in Tarantool.
pub type TarantoolStore = RemoteStore<Tarantool>;

/// Opens the store of this URL.
pub fn open(url: &str, options: &OpenOptions) -> Result<Box<dyn Store>, OpenError> {
    TarantoolStore::open_boxed(url, options)
}

/// The Tarantool, as the store and its background work share it.
pub struct Tarantool {
    connector: Arc<Connector>,
    clock: Clock,
    /// This server's identity in Tarantool.
    server: Vec<u8>,
    link: Mutex<Link>,
    /// Connected by the first health check.
    health_link: Mutex<Link>,
    cache: Lock<TubeCache>,
    /// What is due next, as far as known.
    due: Lock<NextDue>,
    presence: Presence,
    durability: Durability,
    /// Whether this is one of the servers of Tarantool.
    serves: bool,
}

/// What is due next.
#[derive(Clone, Copy, Debug, Default)]
struct NextDue {
    /// When the next tick is needed.
    wakeup: Option<Timestamp>,
    /// When the next schedule fires.
    schedule: Option<Timestamp>,
}

impl Backend for Tarantool {
    const NAME: &'static str = "Tarantool";
    const THREAD: &'static str = "taskyard-tarantool";

    fn open(
        url: &str,
        access: Access,
    ) -> Result<impl Future<Output = Result<Self, OpenError>> + Send + 'static, OpenError> {
        let connector = parse_url(url).map_err(|error| Self::unavailable(&error))?;
        Ok(Tarantool::connect(connector, access))
    }

    fn start(self: &Arc<Self>, runtime: &Handle) {
        runtime.spawn(presence::run(Arc::clone(self)));
        runtime.spawn(presence::receive_notices(Arc::clone(self)));
    }

    async fn execute(self: Arc<Self>, now: Timestamp, commands: Vec<Command>) -> Executed {
        Tarantool::execute(&self, now, commands).await
    }

    async fn export(&self, wanted: Export) -> Result<Exported, Error> {
        Tarantool::export(self, wanted).await
    }

    async fn import(&self, now: Timestamp, part: Import) -> Result<(), Error> {
        Tarantool::import(self, now, part).await
    }

    async fn check_write(&self) -> Result<(), Error> {
        let mut link = self.health_link.lock().await;
        let replicas = self.connector.replicas;
        let written = link.call_with_retry("check_write", |args| _ = args.uint(replicas)).await;
        match written.map_err(|failure| error_of(&failure))?.is_true() {
            true => Ok(()),
            false => Err(Error::StoreUnavailable(format!(
                "{replicas} replicas have not confirmed a write in time"
            ))),
        }
    }

    async fn close(&self) -> Result<(), Error> {
        Tarantool::close(self).await
    }

    fn watch(&self, watcher: Watcher) {
        self.presence.watch(watcher);
    }

    fn poll_every(&self) -> Span {
        if self.connector.is_adapter { ADAPTER_POLL } else { POLL }
    }

    fn capabilities(&self) -> Capabilities {
        let durable = self.durability == Durability::Always;
        if self.connector.is_adapter {
            // The module alone gives ids and attempts to its tasks.
            return Capabilities { durable, ..ADAPTED_CAPABILITIES };
        }
        Capabilities { durable, ..CAPABILITIES }
    }

    fn unsupported(&self) -> &'static [&'static str] {
        if self.connector.is_adapter { UNSUPPORTED } else { &[] }
    }

    fn durability(&self) -> Option<String> {
        let text = self.durability.text();
        Some(match self.connector.replicas {
            0 => text.to_owned(),
            count => format!("{text}; {count} replicas have a write before it is acknowledged"),
        })
    }
}

/// Schemes of URLs: our own tubes, and those of an existing tarantool/queue.
const OURS: &str = "tarantool";

/// What to use instead of backups by the server.
const INSTEAD_OF_BACKUP: Option<&str> =
    Some("the backups of Tarantool (its snapshots and logs), or `taskyard copy`");

/// The capabilities with Tarantool's default settings; `wal_mode = 'fsync'` makes it durable.
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
    wakes: "at once by one call that waits for notices",
    loses: &[
        (
            "the server is killed or stopped",
            "nothing; its sessions end two heartbeats later, then their tasks are ready again",
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
    instead_of_backup: INSTEAD_OF_BACKUP,
    ..Capabilities::plain("tarantool")
};
const ADAPTED: &str = "tarantool+queue";
/// The capabilities of an existing tarantool/queue.
const ADAPTED_CAPABILITIES: Capabilities = Capabilities {
    shared: true,
    exports: true,
    wakes: CAPABILITIES.wakes,
    loses: CAPABILITIES.loses,
    instead_of_backup: INSTEAD_OF_BACKUP,
    ..Capabilities::plain(ADAPTED)
};

/// What an existing tarantool/queue does not support. Commands that need it are refused.
const UNSUPPORTED: &[&str] = &[
    "attempts and a limit of them",
    "names of workers and failures of tasks",
    "kicking tasks by id",
    "positions of waiting tasks",
    "the previous start of a task, and since when the oldest waits",
    "meta of tasks",
    "atomic batches",
    "altering, pausing, renaming and numbering tubes",
    "sessions that outlive their connections",
    "semaphores",
    "keeping done tasks and their results",
    "unique keys",
    "retry policies and rate limits",
    "schedules",
    "ids that are never used again",
];

/// Parses a URL.
fn parse_url(url: &str) -> Result<Arc<Connector>, String> {
    let place = TarantoolUrl::parse(url, &[OURS, ADAPTED])?;
    let is_adapter = url.starts_with(ADAPTED);
    let (mut prefix, mut replicas) = ("taskyard".to_owned(), 0);
    for (name, value) in &place.parameters {
        match name.as_str() {
            "prefix" => prefix.clone_from(value),
            "replicas" => {
                let wrong = || format!("replicas= must be a number, not '{value}'");
                replicas = value.parse().map_err(|_| wrong())?;
            }
            _ => return Err(format!("unknown parameter {name}=; known are prefix and replicas")),
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
    Ok(Arc::new(Connector { place, prefix, replicas, library, is_adapter }))
}

impl Tarantool {
    async fn connect(connector: Arc<Connector>, access: Access) -> Result<Self, OpenError> {
        let Access { clock, wait, serves } = access;
        let server = server_identity();
        let mut link = Link::new(Arc::clone(&connector));
        let until = Instant::now() + wait;
        let mut waits = false;
        let durability = loop {
            match begin(&mut link, &server, serves).await {
                Ok(durability) => break durability?,
                Err(failure) if may_come_up(&failure) && Instant::now() < until => {
                    if !std::mem::replace(&mut waits, true) {
                        tracing::warn!(why = describe(&failure), "waiting for Tarantool");
                    }
                    tokio::time::sleep(link.pause()).await;
                }
                Err(failure) => return Err(Self::unavailable(&describe(&failure))),
            }
        };
        let (due, presence) = Default::default();
        let cache = Lock::new(TubeCache { link: link.number(), ..TubeCache::default() });
        let link = Mutex::new(link);
        let health_link = Mutex::new(Link::new(Arc::clone(&connector)));
        Ok(Tarantool {
            connector,
            clock,
            server,
            link,
            health_link,
            cache,
            due,
            presence,
            durability,
            serves,
        })
    }

    fn cache(&self) -> MutexGuard<'_, TubeCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn due(&self) -> MutexGuard<'_, NextDue> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn close(&self) -> Result<(), Error> {
        self.presence.stop();
        if !self.serves {
            return Ok(());
        }
        let mut link = self.link.lock().await;
        let now = self.moment();
        let ended = link.call_with_retry("end", |args| {
            _ = args.bytes(&self.server).optional(now).uint(presence::heartbeat_timeout());
        });
        ended.await.map(drop).map_err(|failure| error_of(&failure))
    }
}

/// Registers this server, if it is to be one. Answers the durability of Tarantool.
async fn begin(
    link: &mut Link,
    server: &[u8],
    serves: bool,
) -> Result<Result<Durability, OpenError>, Failure> {
    let answer = link
        .call_with_retry(if serves { "begin" } else { "probe" }, |args| {
            _ = args.bytes(server).optional(None).uint(presence::heartbeat_timeout());
        })
        .await?;
    let (found, wal_mode) = match answer.list() {
        [_, _, _, read_only, ..] if serves && read_only.is_true() => {
            return Err(Failure::Unreachable("the instance has become read-only".into()));
        }
        [found, wal_mode, ..] => (found.uint(), wal_mode.text().unwrap_or("none")),
        _ => return Err(Failure::Lost("unexpected answer".into())),
    };
    let found = found.and_then(|found| i64::try_from(found).ok()).unwrap_or(0);
    if found > FORMAT {
        return Ok(Err(Tarantool::too_new(found, FORMAT)));
    }
    Ok(Ok(Durability::read(wal_mode)))
}

/// The description of a failure to open.
fn describe(failure: &Failure) -> String {
    match failure {
        Failure::Refused(_) => match error_of(failure) {
            Error::Store(why) => why,
            other => other.to_string(),
        },
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_checked() {
        assert_eq!(parse_url("tarantool://h?prefix=mail_2").unwrap().prefix, "mail_2");
        assert_eq!(parse_url("tarantool://h?replicas=2").unwrap().replicas, 2);
        assert!(parse_url("tarantool://h?timeout=1").is_err());
        for url in ["tarantool://h?prefix=", "tarantool://h?prefix=a-b", "tarantool://h?replicas=x"]
        {
            assert!(parse_url(url).is_err(), "{url}");
        }
    }
}

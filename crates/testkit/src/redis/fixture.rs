//! A part of Redis for each case.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use taskyard_conformance::StoreHarness;
use taskyard_core::TubeName;
use taskyard_store_redis::{Clock, Redis, RedisStore};

use super::instance::{RedisInstance, program};
use crate::faulty_proxy::{FaultyProxy, Protocol, Target};
use crate::storm::StormDatabase;
use crate::{LossyPath, OwnServer, Request, SharedDatabase};

/// The server that the tests of this process share.
pub fn instance() -> &'static RedisInstance {
    static INSTANCE: OnceLock<RedisInstance> = OnceLock::new();
    INSTANCE.get_or_init(|| {
        RedisInstance::new(program().expect("the caller has checked that it is installed"))
    })
}

/// A part of a test's own of this Redis, as a URL: its keys have a prefix that no other has.
pub fn own(url: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{url}?prefix=case{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

/// A store whose clock is the caller's.
pub fn open(url: &str) -> RedisStore {
    RedisStore::open(url, Clock::Caller).expect("the store opens")
}

/// A queue in a part of its own.
pub fn queue() -> StoreHarness {
    let url = own(&instance().url());
    StoreHarness::new(move || Box::new(open(&url)))
}

/// The Redis that the tests of this process share.
pub struct SharedRedis;

impl SharedDatabase for SharedRedis {
    type Backend = Redis;
    type Part = String;
    type Server = RedisInstance;
    const LEASES_INCREASE: bool = false;
    const TIMES_ARE_DOUBLES: bool = true;

    fn is_installed() -> bool {
        program().is_some()
    }

    fn part() -> String {
        own(&instance().url())
    }

    fn url(part: &String) -> String {
        part.clone()
    }

    fn server() -> Option<RedisInstance> {
        program().map(RedisInstance::new)
    }

    fn lossy_path() -> LossyPath<String> {
        lossy_path_to(instance())
    }

    fn word_of(request: Request) -> &'static [u8] {
        match request {
            Request::Put => b"_grow",
            Request::Take | Request::ShowTube => b"_call",
            Request::Join => b"\r\njoin\r\n",
            Request::Leave => b"\r\nleave\r\n",
            Request::ListTubes => b"\r\ntubes\r\n",
            Request::DueSchedules => b"\r\nschedule_due\r\n",
            Request::ShowSchedule => b"\r\nschedule_get\r\n",
        }
    }

    fn audit(part: &String) {
        instance().audit(prefix_of(part), "mail");
    }

    fn server_count(part: &String) -> usize {
        server_count(instance(), prefix_of(part))
    }

    fn write_format(part: &String, format: u32) {
        let key = format!("{{{}}}:format", prefix_of(part));
        assert_eq!(instance().talk(&["SET", &key, &format.to_string()]), "OK");
    }
}

impl OwnServer for RedisInstance {
    fn url(&self) -> String {
        format!("{}?prefix=kill", self.url())
    }

    fn kill(&self) {
        RedisInstance::kill(self);
    }

    fn start(&self) {
        RedisInstance::start(self);
    }

    fn audit(&self, tube: &TubeName) {
        RedisInstance::audit(self, "kill", tube.as_str());
    }
}

impl StormDatabase for RedisInstance {
    fn steady() -> Option<Self> {
        SharedRedis::server()
    }

    fn freeze(&self) {
        self.signal("STOP");
    }

    fn thaw(&self) {
        self.signal("CONT");
    }

    fn close_connections(&self) {
        for kind in ["normal", "pubsub"] {
            self.talk(&["CLIENT", "KILL", "TYPE", kind]);
        }
    }

    fn target(&self) -> Target {
        Target::Port(self.port())
    }

    fn url_by(&self, proxy: SocketAddr) -> String {
        format!("redis://{proxy}?prefix=kill")
    }

    fn server_count(&self) -> usize {
        server_count(self, "kill")
    }

    /// The audit of each tube covers its sub-queues.
    fn audit_sessions(&self) {}

    fn audit_semaphores(&self) {
        let keys = self.talk(&["HKEYS", "{kill}:semaphores"]);
        keys.lines().for_each(|key| self.audit_semaphore(&format!("{{kill:/{key}}}")));
    }
}

/// The number of servers that use this prefix.
fn server_count(instance: &RedisInstance, prefix: &str) -> usize {
    instance.talk(&["ZCARD", &format!("{{{prefix}}}:v")]).parse().expect("a number")
}

/// The prefix of the keys in a URL.
fn prefix_of(url: &str) -> &str {
    url.rsplit_once('=').expect("it has a prefix").1
}

/// Runs a case, unless Redis is not installed and the tests may go on without it.
pub fn run(case: impl Future) {
    SharedRedis::run(case);
}

/// A store in a part of its own.
pub fn store() -> RedisStore {
    SharedRedis::open(&SharedRedis::part())
}

/// A part of this server behind a proxy that can lose replies.
pub fn lossy_path_to(instance: &RedisInstance) -> LossyPath<String> {
    let proxy = FaultyProxy::new(Target::Port(instance.port()), Protocol::default());
    let url = own(&format!("redis://{}", proxy.address()));
    LossyPath { part: url.clone(), url, proxy }
}

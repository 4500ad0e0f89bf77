//! A part of Tarantool for each case.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use taskyard_conformance::StoreHarness;
use taskyard_core::TubeName;
use taskyard_store_tarantool::{Clock, Tarantool, TarantoolStore};
use taskyard_tarantool::LuaValue;

use super::instance::{TarantoolInstance, program, url_of_store};
use crate::faulty_proxy::{FaultyProxy, Protocol, Target};
use crate::storm::StormDatabase;
use crate::{LossyPath, OwnServer, Request, SharedDatabase};

/// The server that the tests of this process share.
pub fn instance() -> &'static TarantoolInstance {
    static INSTANCE: OnceLock<TarantoolInstance> = OnceLock::new();
    INSTANCE.get_or_init(|| {
        TarantoolInstance::new(program().expect("the caller has checked that it is installed"))
    })
}

/// A part of a test's own of this Tarantool, as a URL: its spaces have a prefix that no other has.
pub fn own(url: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{url}?prefix=case{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

/// A store whose clock is the caller's.
pub fn open(url: &str) -> TarantoolStore {
    TarantoolStore::open(url, Clock::Caller).expect("the store opens")
}

/// A queue in a part of its own.
pub fn queue() -> StoreHarness {
    let url = own(&instance().url());
    StoreHarness::new(move || Box::new(open(&url)))
}

/// The beginning of a script that calls procedures as a server does: `call(verb, …)`, and `server`, one that is there.
pub const CALL: &str = "
    local library
    for key, value in pairs(_G) do
        if type(key) == 'string' and key:match('^taskyard_1_%x+$') then library = value end
    end
    local function call(...) return library.call('taskyard', ...) end
    local server = box.space.taskyard_server and box.space.taskyard_server:select()[1][1]
";

/// The Tarantool that the tests of this process share.
pub struct SharedTarantool;

impl SharedDatabase for SharedTarantool {
    type Backend = Tarantool;
    type Part = String;
    type Server = TarantoolInstance;
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

    fn server() -> Option<TarantoolInstance> {
        program().map(TarantoolInstance::new)
    }

    fn lossy_path() -> LossyPath<String> {
        lossy_path_to(instance())
    }

    fn word_of(_: Request) -> &'static [u8] {
        b"batch"
    }

    fn audit(part: &String) {
        instance().audit(prefix_of(part));
    }

    fn server_count(part: &String) -> usize {
        server_count(instance(), prefix_of(part))
    }

    fn write_format(part: &String, format: u32) {
        let space = format!("box.space.{}_meta", prefix_of(part));
        instance().talk(&format!("{space}:replace{{'format', {format}}}"));
    }
}

impl OwnServer for TarantoolInstance {
    fn url(&self) -> String {
        format!("{}?prefix=kill", self.url())
    }

    fn kill(&self) {
        TarantoolInstance::kill(self);
    }

    fn start(&self) {
        TarantoolInstance::start(self);
    }

    fn audit(&self, _: &TubeName) {
        TarantoolInstance::audit(self, "kill");
    }
}

impl StormDatabase for TarantoolInstance {
    fn steady() -> Option<Self> {
        SharedTarantool::server()
    }

    fn freeze(&self) {
        self.signal("STOP");
    }

    fn thaw(&self) {
        self.signal("CONT");
    }

    fn close_connections(&self) {
        TarantoolInstance::close_connections(self);
    }

    fn target(&self) -> Target {
        Target::Port(self.port())
    }

    fn url_by(&self, proxy: SocketAddr) -> String {
        format!("{}?prefix=kill", url_of_store(&proxy.to_string()))
    }

    fn server_count(&self) -> usize {
        server_count(self, "kill")
    }

    fn audit_sessions(&self) {
        TarantoolInstance::audit(self, "kill");
    }

    fn audit_semaphores(&self) {
        TarantoolInstance::audit(self, "kill");
    }
}

/// The number of servers that use this prefix.
fn server_count(instance: &TarantoolInstance, prefix: &str) -> usize {
    match instance.talk(&format!("return box.space.{prefix}_server:len()")) {
        LuaValue::Int(count) => count.try_into().expect("a number of servers"),
        other => panic!("a number was expected, not {other:?}"),
    }
}

/// The prefix of the spaces in a URL.
fn prefix_of(url: &str) -> &str {
    url.rsplit_once('=').expect("it has a prefix").1
}

/// Runs a case, unless Tarantool is not installed and the tests may go on without it.
pub fn run(case: impl Future) {
    SharedTarantool::run(case);
}

/// A store in a part of its own.
pub fn store() -> TarantoolStore {
    SharedTarantool::open(&SharedTarantool::part())
}

/// A part of this server behind a proxy that can lose replies.
pub fn lossy_path_to(instance: &TarantoolInstance) -> LossyPath<String> {
    let proxy = FaultyProxy::new(Target::Port(instance.port()), Protocol::default());
    let url = own(&url_of_store(&proxy.address().to_string()));
    LossyPath { part: url.clone(), url, proxy }
}

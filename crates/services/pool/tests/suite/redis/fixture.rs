//! Starts gateways, schedulers and backends over one Redis.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use taskyard_pool::Config;
use taskyard_pool::backend::{LocalRunner, Runner, StubRunner};
use taskyard_pool::gateway::router;
use taskyard_pool::redis::{
    BackendHost, BackendHostOptions, BackendTrust, Identity, PoolAddress, RedisClient,
    RedisGateway, RedisScheduler, read_status,
};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::process::{Behavior, Process};
use crate::fixture::{Client, PROGRAMS, connect, enable_sandboxes, post, try_connect};
use taskyard_testkit::redis::{RedisCluster, RedisInstance, program};

/// Redis keeps nothing on disk.
pub const FORGETFUL: &[&str] = &["--appendonly", "no", "--save", ""];
/// How long anything may take before the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// A part of the pool; it is stopped in order, or aborted when this is dropped.
pub struct Part {
    stop: Option<oneshot::Sender<()>>,
    pub task: JoinHandle<()>,
}

impl Part {
    /// Stops it in order.
    pub async fn stop(mut self) {
        drop(self.stop.take());
        (&mut self.task).await.unwrap();
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The Redis of a pool.
pub enum RedisServer {
    One(RedisInstance),
    Shared(Arc<RedisInstance>),
    Many(RedisCluster),
}

pub struct RedisFixture {
    home: RedisServer,
    pub url: String,
    pub config: Config,
    text: String,
    wire: RedisClient,
}

/// A gateway of this process.
pub struct TestGateway {
    far: GatewayAddress,
    _gateway: RedisGateway,
    serving: JoinHandle<()>,
}

/// The address of a gateway, in this process or another.
#[derive(Clone)]
pub struct GatewayAddress {
    pub address: String,
}

impl std::ops::Deref for TestGateway {
    type Target = GatewayAddress;

    fn deref(&self) -> &GatewayAddress {
        &self.far
    }
}

impl RedisFixture {
    /// A Redis without parts; `None` if no Redis is available.
    pub fn new(backends: u32, more: &str) -> Option<Self> {
        let redis = RedisInstance::with(program()?, FORGETFUL);
        let url = redis.url();
        Some(RedisFixture::at(RedisServer::One(redis), url, backends, more))
    }

    /// A pool beside others: its keys begin with this prefix.
    pub fn beside(redis: &Arc<RedisInstance>, prefix: &str, backends: u32, more: &str) -> Self {
        let url = format!("{}?prefix={prefix}", redis.url());
        RedisFixture::at(RedisServer::Shared(redis.clone()), url, backends, more)
    }

    /// Three masters with a replica each.
    pub fn of_cluster(backends: u32, more: &str) -> Option<Self> {
        let cluster = RedisCluster::new(&program()?);
        let url = cluster.url();
        Some(RedisFixture::at(RedisServer::Many(cluster), url, backends, more))
    }

    /// The server that has the pool.
    pub fn redis(&self) -> &RedisInstance {
        match &self.home {
            RedisServer::One(redis) => redis,
            RedisServer::Shared(redis) => redis,
            RedisServer::Many(cluster) => cluster.master_of("{pool}"),
        }
    }

    /// The cluster, if there is one.
    pub fn cluster(&self) -> Option<&RedisCluster> {
        match &self.home {
            RedisServer::One(_) | RedisServer::Shared(_) => None,
            RedisServer::Many(cluster) => Some(cluster),
        }
    }

    fn at(home: RedisServer, url: String, backends: u32, more: &str) -> Self {
        let text = format!("backends: {backends}\nseed: 1\n{PROGRAMS}{more}");
        let config = Config::parse(&text).unwrap();
        let wire = RedisClient::open(&PoolAddress::parse(&url, "test").unwrap());
        RedisFixture { home, url, config, text, wire }
    }

    /// Starts a part of the pool as a process.
    pub fn process(&self, role: &str) -> Process {
        Process::start(role, &self.url, &self.text)
    }

    /// The same for a process that counts its calls, or ends itself at one of them.
    pub fn process_that(&self, role: &str, behavior: &Behavior) -> Process {
        Process::start_with(role, &self.url, &self.text, behavior)
    }

    /// Calls a function as every client of Redis can, and returns the reply.
    pub fn function(&self, call_parts: &[&str]) -> String {
        let list = self.redis().talk(&["FUNCTION", "LIST", "LIBRARYNAME", "taskyard_pool*"]);
        let library = list.lines().find(|line| line.contains("taskyard_pool_"));
        let library = library.and_then(|line| line.split_whitespace().last()).unwrap();
        let name = format!("{library}_{}", call_parts[0]);
        let base = self.base();
        let mut call = vec!["FCALL", &name, "1", &base];
        call.extend_from_slice(&call_parts[1..]);
        self.redis().talk(&call)
    }

    /// The prefix of its keys.
    pub fn base(&self) -> String {
        match self.url.split_once("?prefix=") {
            Some((_, prefix)) => format!("{prefix}:"),
            None if self.cluster().is_some() => "{pool}".into(),
            None => String::new(),
        }
    }

    pub fn site(&self, role: &str) -> PoolAddress {
        PoolAddress::parse(&self.url, role).unwrap()
    }

    pub fn scheduler(&self, name: &str) -> Part {
        let leader =
            RedisScheduler::new(self.config.clone(), &self.site("scheduler"), name).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(leader.run(async move { _ = stopped.await }));
        Part { stop: Some(stop), task }
    }

    /// Backends that run programs.
    pub async fn backends(&self) -> Part {
        let config = enable_sandboxes(&self.config);
        self.backends_with(Arc::new(LocalRunner::start(&config).await.unwrap())).await
    }

    /// Backends that simulate tasks.
    pub async fn stubs(&self, takes: Duration) -> Part {
        self.backends_with(Arc::new(StubRunner { takes })).await
    }

    pub async fn backends_with(&self, runner: Arc<dyn Runner>) -> Part {
        self.backends_at(runner, None).await
    }

    /// The same with another advertised address.
    pub async fn backends_at(&self, runner: Arc<dyn Runner>, advertise: Option<String>) -> Part {
        self.backends_as(runner, advertise, None).await
    }

    /// The same with a certificate.
    pub async fn backends_as(
        &self,
        runner: Arc<dyn Runner>,
        advertise: Option<String>,
        identity: Option<Identity>,
    ) -> Part {
        let listen: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let grace = Duration::from_millis(100);
        let options = BackendHostOptions { listen, advertise, identity, grace };
        let site = self.site("backend");
        let host = BackendHost::open(self.config.clone(), &site, runner, options).await.unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(host.run(async move { _ = stopped.await }));
        Part { stop: Some(stop), task }
    }

    pub async fn gateway(&self) -> TestGateway {
        self.gateway_trusting(BackendTrust::default()).await
    }

    /// A gateway that connects only to these backends.
    pub async fn gateway_trusting(&self, trust: BackendTrust) -> TestGateway {
        let site = self.site("gateway");
        let gateway = RedisGateway::with_trust(&self.config, &site, trust).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let app =
            router(gateway.gateway().clone()).into_make_service_with_connect_info::<SocketAddr>();
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        TestGateway { far: GatewayAddress { address }, _gateway: gateway, serving }
    }

    pub async fn status(&self) -> Value {
        read_status(&self.wire).await.unwrap_or_default()
    }

    /// Polls until the status is as required.
    #[track_caller]
    pub fn until(&self, mut what: impl FnMut(&Value) -> bool) -> impl Future<Output = Value> {
        let caller = std::panic::Location::caller();
        async move {
            let given_up = Instant::now() + PATIENCE;
            loop {
                let status = self.status().await;
                if what(&status) {
                    return status;
                }
                assert!(Instant::now() < given_up, "{caller}: waited in vain: {status:#}");
                pause().await;
            }
        }
    }

    /// Polls until no task holds or waits for anything, in Redis and in the scheduler, and no key of a task is left.
    pub async fn until_empty(&self) {
        let status = self
            .until(|status| {
                status["in_redis"]["waiting"] == 0
                    && status["in_redis"]["allocations"] == Value::Array(Vec::new())
                    && status["tracked"] == 0
            })
            .await;
        assert_eq!(status["inconsistency"], Value::Null, "{status:#}");
        let given_up = Instant::now() + PATIENCE;
        loop {
            let left = self.redis().talk(&["KEYS", &format!("{}task:*", self.base())]);
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < given_up, "left in Redis: {left}");
            pause().await;
        }
    }
}

/// Delay between two polls.
async fn pause() {
    // tidy: sleep because many pools are polled together, and must not wait for the polling
    tokio::time::sleep(Duration::from_millis(5)).await;
}

impl GatewayAddress {
    pub async fn run(&self, script: &str) -> Value {
        let file = serde_json::json!({ "filename": "a.sh", "text": script });
        post(&self.address, "sh", serde_json::json!({ "input": [file] })).await.1
    }

    /// A client that has sent a script and `start`.
    pub async fn start(&self, options: &str, script: &str) -> Client {
        let mut client = connect(&self.address, "/pool/run/sh").await;
        client.send(&format!("options {options}")).await;
        client.file("a.sh", script).await;
        client.send("start {}").await;
        client
    }

    /// The same for a gateway that may fail at any moment.
    pub async fn try_start(&self, options: &str, script: &str) -> Option<Client> {
        let mut client = try_connect(&self.address, "/pool/run/sh").await?;
        client.send_late(&format!("options {options}")).await;
        client.send_file_late("a.sh", script).await;
        client.send_late("start {}").await;
        Some(client)
    }

    /// A session of a gateway that may fail at any moment.
    pub async fn try_session(&self) -> Option<Client> {
        let mut client = try_connect(&self.address, "/pool/run/sh/interactive").await?;
        client.send_late("start {}").await;
        Some(client)
    }

    pub async fn session(&self) -> Client {
        let mut client = connect(&self.address, "/pool/run/sh/interactive").await;
        client.send("start {}").await;
        client
    }
}

impl Drop for TestGateway {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

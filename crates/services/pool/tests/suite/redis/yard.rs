//! Gateways, schedulers and backends over one Redis.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use taskyard_pool::Config;
use taskyard_pool::backend::{Runner, Stub, Workshop};
use taskyard_pool::gateway::router;
use taskyard_pool::redis::{
    Bay, BayOptions, Identity, Leader, RedisGateway, Site, Trust, Wire, look,
};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::play::{Fate, Process};
use crate::rig::{Client, PROGRAMS, connect, post, try_connect, walls};
use taskyard_testkit::redis::{Cluster, Instance, program};

/// Nothing is kept: what is lost with Redis is lost.
pub const FORGETFUL: &[&str] = &["--appendonly", "no", "--save", ""];
/// How long anything may take before the test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// A part of the pool; it ends when it is told, or at once when this is dropped.
pub struct Part {
    stop: Option<oneshot::Sender<()>>,
    pub task: JoinHandle<()>,
}

impl Part {
    /// Ends it in good order.
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
pub enum Home {
    One(Instance),
    Shared(Arc<Instance>),
    Many(Cluster),
}

pub struct Yard {
    home: Home,
    pub url: String,
    pub config: Config,
    text: String,
    wire: Wire,
}

/// A gateway of this process.
pub struct Gateway {
    far: Far,
    _gateway: RedisGateway,
    serving: JoinHandle<()>,
}

/// A gateway, wherever it is.
#[derive(Clone)]
pub struct Far {
    pub address: String,
}

impl std::ops::Deref for Gateway {
    type Target = Far;

    fn deref(&self) -> &Far {
        &self.far
    }
}

impl Yard {
    /// A Redis without anybody; nothing where there is no Redis to be had.
    pub fn new(backends: u32, more: &str) -> Option<Self> {
        let redis = Instance::with(program()?, FORGETFUL);
        let url = redis.url();
        Some(Yard::at(Home::One(redis), url, backends, more))
    }

    /// A pool beside others: its keys begin with this.
    pub fn beside(redis: &Arc<Instance>, prefix: &str, backends: u32, more: &str) -> Self {
        let url = format!("{}?prefix={prefix}", redis.url());
        Yard::at(Home::Shared(redis.clone()), url, backends, more)
    }

    /// Three masters with a replica each.
    pub fn of_cluster(backends: u32, more: &str) -> Option<Self> {
        let cluster = Cluster::new(&program()?);
        let url = cluster.url();
        Some(Yard::at(Home::Many(cluster), url, backends, more))
    }

    /// The server that has the pool.
    pub fn redis(&self) -> &Instance {
        match &self.home {
            Home::One(redis) => redis,
            Home::Shared(redis) => redis,
            Home::Many(cluster) => cluster.master_of("{pool}"),
        }
    }

    /// All of them, where they are several.
    pub fn cluster(&self) -> Option<&Cluster> {
        match &self.home {
            Home::One(_) | Home::Shared(_) => None,
            Home::Many(cluster) => Some(cluster),
        }
    }

    fn at(home: Home, url: String, backends: u32, more: &str) -> Self {
        let text = format!("backends: {backends}\nseed: 1\n{PROGRAMS}{more}");
        let config = Config::parse(&text).unwrap();
        let wire = Wire::open(&Site::parse(&url, "test").unwrap());
        Yard { home, url, config, text, wire }
    }

    /// A part of the pool as a process of its own.
    pub fn process(&self, role: &str) -> Process {
        Process::start(role, &self.url, &self.text)
    }

    /// The same for one that counts its calls, or ends itself at one of them.
    pub fn process_that(&self, role: &str, fate: &Fate) -> Process {
        Process::start_with(role, &self.url, &self.text, fate)
    }

    /// Calls a function as anybody could who reaches Redis, and answers what that says.
    pub fn function(&self, words: &[&str]) -> String {
        let list = self.redis().talk(&["FUNCTION", "LIST", "LIBRARYNAME", "taskyard_pool*"]);
        let library = list.lines().find(|line| line.contains("taskyard_pool_"));
        let library = library.and_then(|line| line.split_whitespace().last()).unwrap();
        let name = format!("{library}_{}", words[0]);
        let base = self.base();
        let mut call = vec!["FCALL", &name, "1", &base];
        call.extend_from_slice(&words[1..]);
        self.redis().talk(&call)
    }

    /// What its keys begin with.
    pub fn base(&self) -> String {
        match self.url.split_once("?prefix=") {
            Some((_, prefix)) => format!("{prefix}:"),
            None if self.cluster().is_some() => "{pool}".into(),
            None => String::new(),
        }
    }

    pub fn site(&self, role: &str) -> Site {
        Site::parse(&self.url, role).unwrap()
    }

    pub fn scheduler(&self, name: &str) -> Part {
        let leader = Leader::new(self.config.clone(), &self.site("scheduler"), name).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(leader.run(async move { _ = stopped.await }));
        Part { stop: Some(stop), task }
    }

    /// Backends that run programs.
    pub async fn backends(&self) -> Part {
        walls();
        self.backends_with(Arc::new(Workshop::start(&self.config).await.unwrap())).await
    }

    /// Backends that only pretend.
    pub async fn stubs(&self, takes: Duration) -> Part {
        self.backends_with(Arc::new(Stub { takes })).await
    }

    pub async fn backends_with(&self, runner: Arc<dyn Runner>) -> Part {
        self.backends_at(runner, None).await
    }

    /// The same where gateways are told another address.
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
        let options = BayOptions { listen, advertise, identity, grace };
        let site = self.site("backend");
        let bay = Bay::open(self.config.clone(), &site, runner, options).await.unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(bay.run(async move { _ = stopped.await }));
        Part { stop: Some(stop), task }
    }

    pub async fn gateway(&self) -> Gateway {
        self.gateway_trusting(Trust::default()).await
    }

    /// One that goes to these backends only.
    pub async fn gateway_trusting(&self, trust: Trust) -> Gateway {
        let site = self.site("gateway");
        let gateway = RedisGateway::trusting(&self.config, &site, trust).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let app =
            router(gateway.gate().clone()).into_make_service_with_connect_info::<SocketAddr>();
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Gateway { far: Far { address }, _gateway: gateway, serving }
    }

    pub async fn status(&self) -> Value {
        look(&self.wire).await.unwrap_or_default()
    }

    /// Looks until the pool is as it should be.
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

    /// Looks until nobody holds anything, in Redis or at the desk, and nothing of any task is left.
    pub async fn until_empty(&self) {
        let status = self
            .until(|status| {
                status["in_redis"]["waiting"] == 0
                    && status["in_redis"]["allocations"] == Value::Array(Vec::new())
                    && status["remembered"] == 0
            })
            .await;
        assert_eq!(status["wrong"], Value::Null, "{status:#}");
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

/// Between two looks.
async fn pause() {
    // tidy: sleep because many pools are looked at together, and must not wait for those who look
    tokio::time::sleep(Duration::from_millis(5)).await;
}

impl Far {
    pub async fn run(&self, script: &str) -> Value {
        let file = serde_json::json!({ "filename": "a.sh", "text": script });
        post(&self.address, "sh", serde_json::json!({ "input": [file] })).await.1
    }

    /// A client that has sent a script and said start.
    pub async fn start(&self, options: &str, script: &str) -> Client {
        let mut client = connect(&self.address, "/pool/run/sh").await;
        client.say(&format!("options {options}")).await;
        client.file("a.sh", script).await;
        client.say("start {}").await;
        client
    }

    /// The same of a gateway that may be gone at any moment.
    pub async fn try_start(&self, options: &str, script: &str) -> Option<Client> {
        let mut client = try_connect(&self.address, "/pool/run/sh").await?;
        client.say_late(&format!("options {options}")).await;
        client.file_late("a.sh", script).await;
        client.say_late("start {}").await;
        Some(client)
    }

    /// A session of a gateway that may be gone at any moment.
    pub async fn try_session(&self) -> Option<Client> {
        let mut client = try_connect(&self.address, "/pool/run/sh/interactive").await?;
        client.say_late("start {}").await;
        Some(client)
    }

    pub async fn session(&self) -> Client {
        let mut client = connect(&self.address, "/pool/run/sh/interactive").await;
        client.say("start {}").await;
        client
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

//! Starts a server in the test process, with a clock that the test moves.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use taskyard::{Client, Http, Iproto};
use taskyard_core::Timestamp;
use taskyard_core::limits::TUBES_MAX;
use taskyard_engine::{Engine, ManualClock, Settings};
use taskyard_server::{Config, IprotoConfig, Server, Token};
use taskyard_store::{MemoryStore, Store};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::recorded_output::{keep_log, register_secret};

/// When the clock of a new server stands: any moment that is not the epoch will do.
const BEGINNING: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// A running server.
pub struct TestServer {
    /// Its engine.
    pub engine: Engine,
    /// Its clock.
    pub clock: Arc<ManualClock>,
    /// A client over HTTP.
    pub http: Http,
    /// Where the server speaks iproto.
    pub iproto: SocketAddr,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

/// A clock for a new server.
pub fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(BEGINNING))
}

/// The usual settings, on any free port.
pub fn config() -> Config {
    let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    // The conformance suite creates as many tubes as a store may have.
    Config {
        iproto: Some(IprotoConfig::new(anywhere)),
        tubes_per_user_max: TUBES_MAX,
        ..Config::new(anywhere)
    }
}

impl TestServer {
    /// A server over this store.
    pub async fn start(store: Box<dyn Store>, clock: Arc<ManualClock>, config: Config) -> Self {
        TestServer::start_with(store, clock, config, Settings::default()).await
    }

    /// A server that does not fire schedules by itself, for the conformance suite: its cases fire
    /// them.
    pub async fn without_firing(
        store: Box<dyn Store>,
        clock: Arc<ManualClock>,
        config: Config,
    ) -> Self {
        let settings = Settings { fires_schedules: false, ..Settings::default() };
        TestServer::start_with(store, clock, config, settings).await
    }

    async fn start_with(
        store: Box<dyn Store>,
        clock: Arc<ManualClock>,
        config: Config,
        settings: Settings,
    ) -> Self {
        keep_log();
        let engine = Engine::start(store, clock.clone(), settings);
        let server = Server::bind(config, engine.clone()).await.expect("a free port is found");
        let http = Http::new(&server.url()).expect("a server has a good address");
        let iproto = server.iproto_address().expect("the usual settings have iproto");
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(async move {
            let stopped = async { drop(stopped.await) };
            server.run(stopped).await.expect("the server stops properly");
        });
        TestServer { engine, clock, http, iproto, stop, serving }
    }

    /// A server over a store in memory.
    pub async fn in_memory() -> Self {
        TestServer::start(Box::new(MemoryStore::default()), clock(), config()).await
    }

    /// The same that asks for a token.
    pub async fn with_token(token: &str) -> Self {
        register_secret(token);
        let token = Some(Token::new(token).expect("tokens of tests are good"));
        let config = Config { token, ..config() };
        TestServer::start(Box::new(MemoryStore::default()), clock(), config).await
    }

    /// A client of it.
    pub fn client(&self) -> Client {
        Client::new(self.http.clone())
    }

    /// A connection of its own over iproto.
    pub fn connect(&self) -> Iproto {
        Iproto::new(&self.iproto.to_string()).expect("a server has a good address")
    }

    /// Stops it properly; the store is free then.
    pub async fn stop(self) {
        let _ = self.stop.send(());
        self.serving.await.expect("the server ends without a panic");
    }
}

/// Runs a test with the runtime that servers need.
pub fn block_on<F: Future>(work: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime can be made").block_on(work)
}

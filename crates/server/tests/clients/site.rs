//! A server for each client.

use std::net::SocketAddr;
use std::sync::Arc;

use taskyard_engine::{Engine, Settings, SystemClock};
use taskyard_server::{Config, Grant, Grants, IprotoConfig, Server, User, Users, Verb};
use taskyard_store::MemoryStore;
use taskyard_testkit::recorded_output::{keep_log, register_secret};
use tokio::task::JoinHandle;

use crate::scenario::{LIMITED_TUBE, LIMITED_USER, PASSWORD, USER};

/// A running server over the memory store, for the users of the scenario and for
/// clients without a user name.
pub struct ScenarioServer {
    address: SocketAddr,
    running: JoinHandle<taskyard_core::Result<()>>,
}

impl ScenarioServer {
    pub async fn new() -> Self {
        ScenarioServer::with(Grants::All).await
    }

    /// The same with these grants for clients without a user name.
    pub async fn with(guest: Grants) -> Self {
        keep_log();
        register_secret(PASSWORD);
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut iproto = IprotoConfig::new(any_port);
        iproto.users = users(guest);
        let mut config = Config::new(any_port);
        config.iproto = Some(iproto);
        let store = Box::new(MemoryStore::default());
        let engine = Engine::start(store, Arc::new(SystemClock::new()), Settings::default());
        let server = Server::bind(config, engine).await.unwrap();
        let address = server.iproto_address().unwrap();
        let running = tokio::spawn(server.run(std::future::pending()));
        ScenarioServer { address, running }
    }

    /// Its iproto address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn users(guest: Grants) -> Users {
    let limited = Grants::List(vec![Grant::new(LIMITED_TUBE, &[Verb::Put])]);
    Users::new(vec![
        User::guest(guest),
        User::new(USER, PASSWORD, Grants::All),
        User::new(LIMITED_USER, PASSWORD, limited),
    ])
}

impl Drop for ScenarioServer {
    fn drop(&mut self) {
        self.running.abort();
    }
}

//! The server: bind, run, stop.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use taskyard_core::Result as CoreResult;
use taskyard_engine::Engine;
use tokio::net::TcpListener;

use crate::app::{App, Shared};
use crate::config::{BindError, Config};
use crate::connections::Connections;
use crate::guard::Hosts;
use crate::http::router;
use crate::openapi;

/// How long requests under way may take to finish once the server is stopping.
const FINISH_MAX: Duration = Duration::from_secs(10);

/// A server that listens. It answers once it runs.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    app: Shared,
}

impl Server {
    /// Listens on the configured address. Refused are addresses that others can reach while nothing
    /// keeps them out.
    pub async fn bind(config: Config, engine: Engine) -> Result<Self, BindError> {
        config.check()?;
        let wanted = config.http;
        let listener = TcpListener::bind(wanted).await;
        let listener = listener.map_err(|error| BindError::new(wanted, error))?;
        let address = listener.local_addr().map_err(|error| BindError::new(wanted, error))?;
        let hosts = Hosts::new(address, config.host_names.clone());
        let document = openapi::document(config.wait_seconds_max);
        let app = App::new(config, engine, hosts, document.into());
        Ok(Server { listener, address, app: Arc::new(app) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How it is called from this machine, for the first screen of `serve`.
    pub fn url(&self) -> String {
        let ip = match self.address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        format!("http://{}", SocketAddr::new(ip, self.address.port()))
    }

    /// Whether callers must show a token.
    pub fn needs_token(&self) -> bool {
        self.app.token.is_some()
    }

    /// Serves until `stop` is ready. Then it accepts no more connections, stops the engine, which
    /// answers those who wait, lets requests under way finish, and closes what is left after ten
    /// seconds. Answers what came of stopping the engine.
    pub async fn run(self, stop: impl Future<Output = ()>) -> CoreResult<()> {
        let Server { listener, app, .. } = self;
        let mut connections = Connections::new(app.clone(), router(app.clone()));
        tokio::select! {
            () = connections.accept(&listener) => {}
            () = stop => {}
        }
        drop(listener);
        let (stopped, ()) = tokio::join!(app.engine.stop(), connections.finish(FINISH_MAX));
        stopped
    }
}

//! The server: bind, run, stop.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use taskyard_core::Result as CoreResult;
use taskyard_engine::Engine;
use tokio::net::TcpListener;

use crate::app::{App, Shared};
use crate::config::{ADMIN, BindError, Config};
use crate::connections::Connections;
use crate::forward::forward;
use crate::guard::Hosts;
use crate::http::router;
use crate::openapi;

/// How long requests under way may take to finish once the server is stopping.
const FINISH_MAX: Duration = Duration::from_secs(10);

/// A server that listens. It answers once it runs.
pub struct Server {
    http: TcpListener,
    address: SocketAddr,
    iproto: Option<TcpListener>,
    iproto_address: Option<SocketAddr>,
    /// Whether the token is the only password over iproto.
    token_admits: bool,
    app: Shared,
}

impl Server {
    /// Listens on the configured addresses. Refused are addresses that others can reach while nothing
    /// keeps them out.
    pub async fn bind(config: Config, engine: Engine) -> Result<Self, BindError> {
        let users = config.iproto.as_ref().is_some_and(|iproto| !iproto.users.is_empty());
        let token_admits = config.iproto.is_some() && config.token.is_some() && !users;
        let config = config.share_token();
        config.check()?;
        let (http, address) = listen(config.http, BindError::new).await?;
        let (iproto, iproto_address) = match &config.iproto {
            Some(iproto) => {
                let (listener, address) = listen(iproto.address, BindError::iproto).await?;
                (Some(listener), Some(address))
            }
            None => (None, None),
        };
        let mut instance = [0; 16];
        getrandom::fill(&mut instance)
            .map_err(|error| BindError::new(address, io::Error::other(error)))?;
        let hosts = Hosts::new(address, config.host_names.clone());
        let document = openapi::document(config.wait_seconds_max);
        let app = App::new(config, engine, hosts, document.into(), instance);
        Ok(Server { http, address, iproto, iproto_address, token_admits, app: Arc::new(app) })
    }

    /// Where it listens for HTTP.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it listens for clients of Tarantool's queue, if it does.
    pub fn iproto_address(&self) -> Option<SocketAddr> {
        self.iproto_address
    }

    /// The user whose password over iproto is the token, if that is how it is.
    pub fn iproto_admin(&self) -> Option<&'static str> {
        self.token_admits.then_some(ADMIN)
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
    /// seconds. Services are stopped meanwhile. Answers what came of stopping the engine.
    pub async fn run(self, stop: impl Future<Output = ()>) -> CoreResult<()> {
        let Server { http, iproto, app, .. } = self;
        let mut connections = Connections::new(app.clone(), router(app.clone()));
        tokio::select! {
            () = connections.accept(&http, iproto.as_ref()) => {}
            () = forward(&app, app.events_tube.clone()) => {}
            () = app.lookout.watch(&app) => {}
            () = stop => {}
        }
        drop((http, iproto));
        let services = async {
            for service in &app.services {
                service.stop().await;
            }
        };
        let (stopped, (), ()) =
            tokio::join!(app.engine.stop(), connections.finish(FINISH_MAX), services);
        stopped
    }
}

async fn listen(
    wanted: SocketAddr,
    refusal: fn(SocketAddr, io::Error) -> BindError,
) -> Result<(TcpListener, SocketAddr), BindError> {
    let listener = TcpListener::bind(wanted).await.map_err(|error| refusal(wanted, error))?;
    let address = listener.local_addr().map_err(|error| refusal(wanted, error))?;
    Ok((listener, address))
}

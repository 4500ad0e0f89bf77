//! Binds, runs and stops the server.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use taskyard_core::{Command, Result as CoreResult};
use taskyard_engine::Engine;
use taskyard_tls::ServerTls;
use tokio::net::TcpListener;

use crate::app::{App, SharedApp};
use crate::audit::AuditHandle;
use crate::config::{ADMIN, BindError, Config};
use crate::connections::{Connections, http_tls};
use crate::document::document;
use crate::event_forwarding::forward_events;
use crate::guard::AllowedHosts;
use crate::http::http_routes;
use crate::startup::StartupResponder;
use crate::users::UsersHandle;

/// How long requests in progress may take to finish once the server is stopping.
const FINISH_MAX: Duration = Duration::from_secs(10);

/// A bound server. It answers requests while it runs.
pub struct Server {
    http: TcpListener,
    address: SocketAddr,
    iproto: Option<TcpListener>,
    iproto_address: Option<SocketAddr>,
    /// Whether the token is the only password over iproto.
    token_is_password: bool,
    app: SharedApp,
}

/// Addresses that are bound before there is an engine.
///
/// Until [`Listeners::serve`], HTTP requests are answered with 503 and `Retry-After`, and
/// connections of clients of Tarantool's queue wait to be accepted.
pub struct Listeners {
    /// The configuration of the server. Its addresses are already bound.
    pub config: Config,
    starting: StartupResponder,
    address: SocketAddr,
    iproto: Option<(TcpListener, SocketAddr)>,
    token_is_password: bool,
}

impl Listeners {
    /// Listens on the configured addresses. Refuses addresses that other machines can reach without
    /// any authentication.
    pub async fn bind(config: Config) -> Result<Self, BindError> {
        let users = config.iproto.as_ref().is_some_and(|iproto| !iproto.users.is_empty());
        let token_is_password = config.iproto.is_some() && config.token.is_some() && !users;
        config.check()?;
        // The address that is most often in use comes first, so that the other one is bound only
        // once.
        let iproto = match &config.iproto {
            Some(iproto) => Some(listen(iproto.address, BindError::iproto).await?),
            None => None,
        };
        let (http, address) = listen(config.http, BindError::new).await?;
        Ok(Listeners {
            starting: StartupResponder::begin(http, http_tls(&config)),
            config,
            address,
            iproto,
            token_is_password,
        })
    }

    /// The HTTP address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts the server on these addresses, now that there is an engine.
    pub async fn serve(self, engine: Engine) -> Result<Server, BindError> {
        let Listeners { config, starting, address, iproto, token_is_password } = self;
        let failed = |error| BindError::new(address, error);
        let mut instance = [0; 16];
        getrandom::fill(&mut instance).map_err(|error| failed(io::Error::other(error)))?;
        let hosts = AllowedHosts::new(address, config.host_names.clone());
        let document = document(config.wait_seconds_max);
        let app = App::new(config, engine, hosts, document.into(), instance);
        app.tubes.load(&app.engine).await;
        let lost = || failed(io::Error::other("the listener was lost"));
        let http = starting.end().await.ok_or_else(lost)?;
        let (iproto, iproto_address) = iproto.unzip();
        Ok(Server { http, address, iproto, iproto_address, token_is_password, app: Arc::new(app) })
    }
}

impl Server {
    /// Listens on the configured addresses. Refuses addresses that other machines can reach without
    /// any authentication.
    pub async fn bind(config: Config, engine: Engine) -> Result<Self, BindError> {
        Listeners::bind(config).await?.serve(engine).await
    }

    /// The HTTP address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address for clients of Tarantool's queue, if enabled.
    pub fn iproto_address(&self) -> Option<SocketAddr> {
        self.iproto_address
    }

    /// The user whose password over iproto is the token, if that is configured.
    pub fn iproto_admin(&self) -> Option<&'static str> {
        self.token_is_password.then_some(ADMIN)
    }

    /// The URL of the server from this machine, for the start screen of `serve`.
    pub fn url(&self) -> String {
        let ip = match self.address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        self.url_at(ip)
    }

    /// The URL of the server at this address of the machine, with a name of the certificate if that is not for the address.
    pub fn url_at(&self, ip: IpAddr) -> String {
        let address = SocketAddr::new(ip, self.address.port());
        let Some(tls) = &self.app.tls else { return format!("http://{address}") };
        match tls.tls().host_of(ip) {
            Some(host) if host != ip.to_string() => format!("https://{host}:{}", address.port()),
            _ => format!("https://{address}"),
        }
    }

    /// Whether connections of clients of Tarantool's queue are encrypted.
    pub fn encrypts_iproto(&self) -> bool {
        self.app.iproto.as_ref().is_some_and(|iproto| iproto.tls.is_some())
    }

    /// The certificates of the server: for HTTP and for iproto, where connections are encrypted.
    pub fn certificates(&self) -> impl Iterator<Item = &ServerTls> {
        let iproto = self.app.iproto.iter().filter_map(|iproto| iproto.tls.as_ref());
        self.app.tls.iter().chain(iproto).map(|tls| tls.tls())
    }

    /// Whether callers must send a token.
    pub fn needs_token(&self) -> bool {
        !self.app.users.is_empty()
    }

    /// The users of both protocols, to be replaced while the server runs.
    pub fn users(&self) -> UsersHandle {
        self.app.users.clone()
    }

    /// The users of iproto, to be replaced while the server runs: its own, or those of both protocols.
    pub fn iproto_users(&self) -> Option<UsersHandle> {
        self.app.iproto.as_ref().map(|iproto| iproto.users.clone())
    }

    /// The audit of the server.
    pub fn audit(&self) -> AuditHandle {
        AuditHandle(self.app.audit.clone())
    }

    /// Serves until `stop` is ready. Then it accepts no more connections, stops the engine, which
    /// answers waiting requests, lets requests in progress finish, and closes the rest after ten
    /// seconds. Services are stopped meanwhile. Returns the result of stopping the engine.
    pub async fn run(self, stop: impl Future<Output = ()>) -> CoreResult<()> {
        let Server { http, iproto, app, .. } = self;
        // If the store does not answer now, the tubes are counted with the next list.
        let counted = app.clone();
        tokio::spawn(async move { drop(counted.run(Command::Tubes { tube: None }).await) });
        let mut connections = Connections::new(app.clone(), http_routes(app.clone()));
        tokio::select! {
            () = connections.accept(&http, iproto.as_ref()) => {}
            () = forward_events(&app, app.events_tube.clone()) => {}
            () = app.semaphore_monitor.watch(&app) => {}
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

//! The configuration of a server, and the errors of a configuration that cannot be served.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use taskyard_core::TubeName;
use taskyard_core::limits::{
    ANSWER_BYTES_MAX, ANSWER_BYTES_TOTAL_MAX, BATCH_BYTES_MAX, CONNECTIONS_MAX, METRICS_TUBES_MAX,
    REQUEST_BYTES_TOTAL_MAX, TUBES_PER_USER_MAX,
};
use taskyard_core::service::Service;
use taskyard_tls::ServerTls;

use crate::audit::AuditFile;
use crate::auth::Token;
use crate::iproto::IprotoConfig;
use crate::page_sessions::PageSessionConfig;
use crate::peer_servers::PeerServer;
use crate::tls_listener::HandshakeLimits;
use crate::users::Users;

/// Largest request, in bytes: a full batch as base64, and the JSON around it.
pub(crate) const BODY_BYTES_MAX: usize = BATCH_BYTES_MAX + BATCH_BYTES_MAX / 2;

/// The default for the longest wait, in seconds: about as long as common proxies keep a silent
/// connection open.
pub(crate) const WAIT_SECONDS_MAX: f64 = 300.0;

/// The default for how long a request may make no progress.
const REQUEST_STALL_MAX: Duration = Duration::from_secs(10);
/// The default for how long a request waits for the response budget.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(5);
/// The default for how long a client may read nothing of its response.
const ANSWER_STALL_MAX: Duration = Duration::from_secs(30);

/// The name of HTTP as a protocol above TLS.
pub const HTTP_PROTOCOL: &str = "http/1.1";

/// The user whose token, and password over iproto, is the token of the server.
pub(crate) const ADMIN: &str = "admin";

/// The settings of the operator.
#[derive(Clone, Debug)]
pub struct Config {
    /// The HTTP address; port 0 is any free port.
    pub http: SocketAddr,
    /// Certificate and key; HTTP connections are encrypted if this is set.
    pub tls: Option<ServerTls>,
    /// The limits of TLS handshakes, for each address.
    pub handshake_limits: HandshakeLimits,
    /// The token of an administrator. Without it and without users every caller has all rights.
    pub token: Option<Token>,
    /// The users of both protocols.
    pub users: Users,
    /// How long sessions of users who sign in on the page last.
    pub page_sessions: PageSessionConfig,
    /// Listen on addresses that other machines can reach although there is no token.
    pub insecure: bool,
    /// Host names under which the server may be called when there is no token, in addition to those
    /// of this machine.
    pub host_names: Vec<String>,
    /// The name of the command line program, for commands that the dashboard shows.
    pub program: String,
    /// Offer no actions on the dashboard. The API accepts them all the same.
    pub read_only_dashboard: bool,
    /// Refuse a put to an unknown tube instead of creating the tube.
    pub strict_tubes: bool,
    /// Put events of semaphores into this tube as they occur.
    pub events_tube: Option<TubeName>,
    /// Maximum number of open connections.
    pub connections_max: usize,
    /// Largest request, in bytes.
    pub body_bytes_max: usize,
    /// Maximum bytes of requests that are received at once.
    pub request_bytes_total_max: usize,
    /// How long a request may make no progress while it is received.
    pub request_stall_max: Duration,
    /// Maximum bytes of responses that all clients together have not read yet.
    pub answer_bytes_total_max: usize,
    /// Largest response, and so the most that one connection may leave unread.
    pub answer_bytes_max: usize,
    /// How long a request waits for the response budget before it is refused.
    pub answer_wait_max: Duration,
    /// How long a client may read nothing of its response before its connection is closed.
    pub answer_stall_max: Duration,
    /// Maximum number of tubes that one user may create.
    pub tubes_per_user_max: usize,
    /// How many tubes have their own rows in `/metrics`.
    pub metrics_tubes_max: usize,
    /// The longest wait of a take for a task, or of a put for capacity, in seconds.
    pub wait_seconds_max: f64,
    /// Settings of the protocol of Tarantool's queue; `None` disables it.
    pub iproto: Option<IprotoConfig>,
    /// The file to which actions of operators and administrators are written.
    pub audit: Option<AuditFile>,
    /// The services hosted beside the queue; they are stopped with the server.
    pub services: Vec<Arc<dyn Service>>,
    /// Routes added by hosted services and by the documents.
    pub extra_routes: Vec<ExtraRoutes>,
    /// The other servers of the store, at most 32.
    pub peers: Vec<Arc<dyn PeerServer>>,
}

/// Routes added to those of the server, behind the same checks as all others.
#[derive(Clone, Debug)]
pub struct ExtraRoutes {
    /// The routes.
    pub router: Router,
    /// Whether a path needs no token: a static file that shows no data.
    pub is_open: fn(&str) -> bool,
}

impl Config {
    /// The default settings for this address, with HTTP only.
    pub fn new(http: SocketAddr) -> Self {
        Config {
            http,
            tls: None,
            handshake_limits: HandshakeLimits::default(),
            token: None,
            users: Users::default(),
            page_sessions: PageSessionConfig::default(),
            insecure: false,
            host_names: Vec::new(),
            program: "taskyard".into(),
            read_only_dashboard: false,
            strict_tubes: false,
            events_tube: None,
            connections_max: CONNECTIONS_MAX,
            body_bytes_max: BODY_BYTES_MAX,
            request_bytes_total_max: REQUEST_BYTES_TOTAL_MAX,
            request_stall_max: REQUEST_STALL_MAX,
            answer_bytes_total_max: ANSWER_BYTES_TOTAL_MAX,
            answer_bytes_max: ANSWER_BYTES_MAX,
            answer_wait_max: ANSWER_WAIT_MAX,
            answer_stall_max: ANSWER_STALL_MAX,
            tubes_per_user_max: TUBES_PER_USER_MAX,
            metrics_tubes_max: METRICS_TUBES_MAX,
            wait_seconds_max: WAIT_SECONDS_MAX,
            iproto: None,
            audit: None,
            services: Vec::new(),
            extra_routes: Vec::new(),
            peers: Vec::new(),
        }
    }

    /// Refuses an address that other machines can reach without any authentication.
    pub fn check(&self) -> Result<(), BindError> {
        if self.insecure {
            return Ok(());
        }
        let is_open = self.token.is_none() && self.users.is_empty();
        if !self.http.ip().is_loopback() && is_open {
            return Err(BindError::Exposed(self.http));
        }
        match &self.iproto {
            Some(iproto)
                if !iproto.address.ip().is_loopback() && is_open && iproto.users.is_empty() =>
            {
                Err(BindError::IprotoExposed(iproto.address))
            }
            _ => Ok(()),
        }
    }
}

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Other machines could reach it without any authentication.
    #[error(
        "{0} can be reached from other machines and there is no token; set TASKYARD_TOKEN or \
         --token-file, listen on 127.0.0.1, or say --insecure"
    )]
    Exposed(SocketAddr),
    /// The address is in use.
    #[error(
        "{0} is in use, perhaps by another taskyard; stop it or choose another address with --http"
    )]
    Busy(SocketAddr),
    /// Other machines could reach the iproto address without any authentication.
    #[error(
        "{0} can be reached from other machines and there are neither users nor a token; give \
         --users or TASKYARD_TOKEN, listen on 127.0.0.1, say --iproto off, or say --insecure"
    )]
    IprotoExposed(SocketAddr),
    /// The iproto address is in use.
    #[error(
        "{0} is in use, perhaps by a Tarantool; stop it, choose another address with --iproto, or \
         go on without it by --iproto off"
    )]
    IprotoBusy(SocketAddr),
    /// The system does not allow it.
    #[error("listening on {0} is not allowed; ports below 1024 need more rights")]
    Denied(SocketAddr),
    /// Any other error.
    #[error("cannot listen on {address}: {source}")]
    Io {
        /// The address to listen on.
        address: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
}

impl BindError {
    pub(crate) fn new(address: SocketAddr, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrInUse => BindError::Busy(address),
            io::ErrorKind::PermissionDenied => BindError::Denied(address),
            _ => BindError::Io { address, source },
        }
    }

    /// The same for the iproto address.
    pub(crate) fn iproto(address: SocketAddr, source: io::Error) -> Self {
        match BindError::new(address, source) {
            BindError::Busy(address) => BindError::IprotoBusy(address),
            other => other,
        }
    }
}

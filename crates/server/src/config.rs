//! What an operator sets, and why a server may refuse to start with it.

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

use crate::auth::Token;
use crate::iproto::{Grants, IprotoConfig, User, Users};

/// Largest request, in bytes: a full batch as base64, and room for what stands around it.
pub(crate) const BODY_BYTES_MAX: usize = BATCH_BYTES_MAX + BATCH_BYTES_MAX / 2;

/// The longest wait unless the operator sets another, in seconds: about as long as the usual proxies
/// keep a silent connection open.
pub(crate) const WAIT_SECONDS_MAX: f64 = 300.0;

/// How long a request may make no progress, unless the operator sets another time.
const REQUEST_STALL_MAX: Duration = Duration::from_secs(10);
/// How long a request waits for room for its answer, unless the operator sets another time.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(5);
/// How long a client may accept nothing of its answer, unless the operator sets another time.
const ANSWER_STALL_MAX: Duration = Duration::from_secs(30);

/// The user whose password is the token, where no users are listed.
pub(crate) const ADMIN: &str = "admin";

/// What an operator sets.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen; port 0 is any free one.
    pub http: SocketAddr,
    /// What callers must show; without it everybody who can connect may do everything.
    pub token: Option<Token>,
    /// Listen outside this machine although there is no token.
    pub insecure: bool,
    /// Names under which the server may be called when there is no token, beside this machine's own.
    pub host_names: Vec<String>,
    /// How to call the command line, in what the page shows to paste.
    pub program: String,
    /// Refuse a put to an unknown tube instead of creating the tube.
    pub strict_tubes: bool,
    /// Put events of semaphores into this tube as they come.
    pub events_tube: Option<TubeName>,
    /// Most open connections.
    pub connections_max: usize,
    /// Largest request, in bytes.
    pub body_bytes_max: usize,
    /// Most bytes of requests that are received at once.
    pub request_bytes_total_max: usize,
    /// How long a request may make no progress while it is received.
    pub request_stall_max: Duration,
    /// Most bytes of answers that all clients together have not read yet.
    pub answer_bytes_total_max: usize,
    /// Largest answer, and so the most that one connection may leave unread.
    pub answer_bytes_max: usize,
    /// How long a request waits for room for its answer before it is refused.
    pub answer_wait_max: Duration,
    /// How long a client may accept nothing of its answer before its connection is closed.
    pub answer_stall_max: Duration,
    /// Most tubes that one user may create.
    pub tubes_per_user_max: usize,
    /// How many tubes have rows of their own in `/metrics`.
    pub metrics_tubes_max: usize,
    /// The longest a take may wait for a task, or a put for room, in seconds.
    pub wait_seconds_max: f64,
    /// How to speak to clients of Tarantool's queue; `None` is not at all.
    pub iproto: Option<IprotoConfig>,
    /// What runs beside the queue; it is stopped with the server.
    pub services: Vec<Arc<dyn Service>>,
    /// Addresses that somebody else answers.
    pub guests: Option<Guests>,
}

/// Addresses that somebody else answers, behind the same guard as all others.
#[derive(Clone, Debug)]
pub struct Guests {
    /// What answers.
    pub router: Router,
    /// Whether an address needs no token: a file of a page that shows nothing by itself.
    pub is_open: fn(&str) -> bool,
}

impl Config {
    /// The usual settings for this address, with HTTP alone.
    pub fn new(http: SocketAddr) -> Self {
        Config {
            http,
            token: None,
            insecure: false,
            host_names: Vec::new(),
            program: "taskyard".into(),
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
            services: Vec::new(),
            guests: None,
        }
    }

    /// With a token and no users, whoever knows the token may do everything over iproto too: as the user
    /// [`ADMIN`], with the token as password. Nobody else may do anything there.
    pub(crate) fn share_token(mut self) -> Self {
        if let (Some(token), Some(iproto)) = (&self.token, &mut self.iproto)
            && iproto.users.is_empty()
        {
            iproto.users = Users::new(vec![User::new(ADMIN, token.text(), Grants::All)]);
        }
        self
    }

    /// Refuses an address that others can reach while nothing keeps them out.
    pub(crate) fn check(&self) -> Result<(), BindError> {
        if self.insecure {
            return Ok(());
        }
        if !self.http.ip().is_loopback() && self.token.is_none() {
            return Err(BindError::Exposed(self.http));
        }
        match &self.iproto {
            Some(iproto) if !iproto.address.ip().is_loopback() && iproto.users.is_empty() => {
                Err(BindError::IprotoExposed(iproto.address))
            }
            _ => Ok(()),
        }
    }
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Others could reach it and nothing would keep them out.
    #[error(
        "{0} can be reached from other machines and there is no token; set TASKYARD_TOKEN or \
         --token-file, listen on 127.0.0.1, or say --insecure"
    )]
    Exposed(SocketAddr),
    /// Somebody else listens there.
    #[error(
        "{0} is in use, perhaps by another taskyard; stop it or choose another address with --http"
    )]
    Busy(SocketAddr),
    /// Others could reach the iproto address and nothing would keep them out.
    #[error(
        "{0} can be reached from other machines and there are neither users nor a token; give \
         --iproto-users or TASKYARD_TOKEN, listen on 127.0.0.1, say --iproto off, or say --insecure"
    )]
    IprotoExposed(SocketAddr),
    /// Somebody else listens on the iproto address.
    #[error(
        "{0} is in use, perhaps by a Tarantool; stop it, choose another address with --iproto, or \
         go on without it by --iproto off"
    )]
    IprotoBusy(SocketAddr),
    /// The system does not allow it.
    #[error("listening on {0} is not allowed; ports below 1024 need more rights")]
    Denied(SocketAddr),
    /// Anything else.
    #[error("cannot listen on {address}: {source}")]
    Io {
        /// Where it should have listened.
        address: SocketAddr,
        /// What the system said.
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

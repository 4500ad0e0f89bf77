//! Settings of the iproto server.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use taskyard_core::limits::{
    BATCH_BYTES_MAX, CONNECTIONS_MAX, PENDING_BYTES_MAX, PENDING_COMMANDS_MAX, TUBES_PER_USER_MAX,
    WAITERS_MAX,
};
use taskyard_tls::ServerTls;

use crate::tls_listener::HandshakeLimits;
use crate::users::Users;

/// Largest frame in bytes, by default: a full batch, and the bytes around its tasks.
const FRAME_BYTES_MAX: usize = BATCH_BYTES_MAX + (8 << 20);
/// Most unanswered requests of one connection, by default.
const IN_FLIGHT_MAX: usize = 10_000;
/// How long a large frame may make no progress, by default.
const STALL_MAX: Duration = Duration::from_secs(30);
/// One connection of this many is reserved for HTTP, so that an operator can always reach the
/// server.
const FOR_HTTP: usize = 10;

/// Settings of the iproto server.
#[derive(Clone, Debug)]
pub struct IprotoConfig {
    /// The address to listen on; port 0 is any free port.
    pub address: SocketAddr,
    /// The name with which all functions begin.
    pub prefix: String,
    /// The users of this address alone; if there are none, those of the whole server.
    pub users: Users,
    /// Largest frame, in bytes.
    pub frame_bytes_max: usize,
    /// Most unanswered requests of one connection.
    pub in_flight_max: usize,
    /// Most unanswered requests of all connections together.
    pub in_flight_total_max: usize,
    /// Most bytes of incomplete frames of all connections together. Small frames do not count.
    pub arriving_bytes_max: usize,
    /// How long a large frame may make no progress before its connection is closed.
    pub stall_max: Duration,
    /// Most iproto connections. They also count for the limit of all connections; the rest of that
    /// limit is for HTTP.
    pub connections_max: usize,
    /// Most tubes that one user may create; the server sets it to the limit for HTTP.
    pub tubes_per_user_max: usize,
    /// Certificate and key; connections are encrypted if this is set.
    pub tls: Option<ServerTls>,
    /// The limits of TLS handshakes; the server sets them to those for HTTP.
    pub handshake_limits: HandshakeLimits,
    /// Where salts and the identities of sessions come from: the system, unless a simulation has its own.
    pub random: Arc<dyn RandomSource>,
}

/// A source of random bytes that cannot be guessed.
pub trait RandomSource: fmt::Debug + Send + Sync {
    /// Fills all bytes.
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()>;
}

/// The random bytes of the operating system.
#[derive(Clone, Copy, Debug)]
struct SystemRandom;

impl RandomSource for SystemRandom {
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()> {
        getrandom::fill(bytes).map_err(io::Error::other)
    }
}

impl IprotoConfig {
    /// The default settings for this address.
    pub fn new(address: SocketAddr) -> Self {
        IprotoConfig {
            address,
            prefix: "queue".into(),
            users: Users::default(),
            frame_bytes_max: FRAME_BYTES_MAX,
            in_flight_max: IN_FLIGHT_MAX,
            in_flight_total_max: PENDING_COMMANDS_MAX + WAITERS_MAX,
            arriving_bytes_max: PENDING_BYTES_MAX,
            stall_max: STALL_MAX,
            connections_max: CONNECTIONS_MAX - CONNECTIONS_MAX / FOR_HTTP,
            tubes_per_user_max: TUBES_PER_USER_MAX,
            tls: None,
            handshake_limits: HandshakeLimits::default(),
            random: Arc::new(SystemRandom),
        }
    }
}

//! What an operator sets for clients of Tarantool's queue.

use std::net::SocketAddr;
use std::time::Duration;

use taskyard_core::limits::{
    BATCH_BYTES_MAX, CONNECTIONS_MAX, PENDING_BYTES_MAX, PENDING_COMMANDS_MAX, TUBES_PER_USER_MAX,
    WAITERS_MAX,
};

use super::tls::Tls;
use super::users::Users;

/// Largest frame unless the operator sets another, in bytes: a full batch, and room for what stands
/// around its tasks.
const FRAME_BYTES_MAX: usize = BATCH_BYTES_MAX + (8 << 20);
/// Most requests of one connection that are not answered yet, unless the operator sets another.
const IN_FLIGHT_MAX: usize = 10_000;
/// How long a large frame may make no progress, unless the operator sets another.
const STALL_MAX: Duration = Duration::from_secs(30);
/// One connection in so many stays free for HTTP, so that an operator can always look at the server.
const FOR_HTTP: usize = 10;

/// What an operator sets for clients of Tarantool's queue.
#[derive(Clone, Debug)]
pub struct IprotoConfig {
    /// Where to listen; port 0 is any free one.
    pub address: SocketAddr,
    /// What the names of all functions begin with.
    pub prefix: String,
    /// Who may do what.
    pub users: Users,
    /// Largest frame, in bytes.
    pub frame_bytes_max: usize,
    /// Most requests of one connection that are not answered yet.
    pub in_flight_max: usize,
    /// Most requests of all connections together that are not answered yet.
    pub in_flight_total_max: usize,
    /// Most bytes of frames of all connections together that are not complete yet. A frame that is small
    /// needs none of it.
    pub arriving_bytes_max: usize,
    /// How long a large frame may make no progress before its connection is closed.
    pub stall_max: Duration,
    /// Most connections. The limit for connections of every kind counts these too, and what is left of
    /// it is for HTTP.
    pub connections_max: usize,
    /// Most tubes that one user may create; the server sets it as for HTTP.
    pub tubes_per_user_max: usize,
    /// Certificate and key, for connections that are encrypted.
    pub tls: Option<Tls>,
}

impl IprotoConfig {
    /// The usual settings for this address.
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
        }
    }
}

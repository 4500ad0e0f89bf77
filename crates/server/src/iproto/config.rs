//! What an operator sets for clients of Tarantool's queue.

use std::net::SocketAddr;

use taskyard_core::limits::{BATCH_BYTES_MAX, PENDING_COMMANDS_MAX, WAITERS_MAX};

use super::tls::Tls;
use super::users::Users;

/// Largest frame unless the operator sets another, in bytes: a full batch, and room for what stands
/// around its tasks.
const FRAME_BYTES_MAX: usize = BATCH_BYTES_MAX + (8 << 20);
/// Most requests of one connection that are not answered yet, unless the operator sets another.
const IN_FLIGHT_MAX: usize = 10_000;

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
            tls: None,
        }
    }
}

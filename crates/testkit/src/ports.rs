//! Free ports for servers.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::TcpListener;

/// Ports below the range from which the system takes those of outgoing connections: one of these could use the port before the
/// server does.
const FIRST: u16 = 10_000;
const COUNT: u16 = 22_000;

/// A port that no server uses.
pub fn free_port() -> u16 {
    let random = RandomState::new();
    let ports = (0_u32..).map(|number| FIRST + (random.hash_one(number) % u64::from(COUNT)) as u16);
    let mut free = ports.filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.next().expect("a port is free")
}

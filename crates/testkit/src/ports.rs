//! Free ports for servers.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::TcpListener;
use std::sync::{Mutex, PoisonError};

/// Ports below the range from which the system takes those of outgoing connections: one of these could use the port before the
/// server does.
const FIRST: u16 = 10_000;
const COUNT: u16 = 22_000;

/// The ports of this process. A test may stop its server and start it again: in between the port looks free.
static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

/// A port that no server uses and that no other test of this process has.
pub fn free_port() -> u16 {
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let given = given.get_or_insert_default();
    let random = RandomState::new();
    let ports = (0_u32..).map(|number| FIRST + (random.hash_one(number) % u64::from(COUNT)) as u16);
    let mut free = ports
        .filter(|port| !given.contains(port) && TcpListener::bind(("127.0.0.1", *port)).is_ok());
    let port = free.next().expect("a port is free");
    given.insert(port);
    port
}

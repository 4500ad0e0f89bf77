//! A proxy that stops a connection at a chosen step: before, in the middle or at the end of one request or one reply. What happens
//! then is up to the test, which may close the connection, let it go on, or kill what is at either end.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::faulty_proxy::{Protocol, Socket, Target, contains, forward_at_once};

/// More than any request or reply of the tests, so that one arrives at once.
const BUFFER_BYTES: usize = 1 << 16;

/// How much of a request or a reply passes before its connection stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Portion {
    /// Nothing.
    Nothing,
    /// Half of its bytes.
    Half,
    /// All bytes except the last.
    AllButOne,
}

impl Portion {
    fn of(self, bytes: usize) -> usize {
        match self {
            Portion::Nothing => 0,
            Portion::Half => bytes / 2,
            Portion::AllButOne => bytes.saturating_sub(1),
        }
    }
}

/// Where a connection stops.
#[derive(Clone, Copy, Debug)]
pub struct StopPoint {
    /// A word of the request that is step 0. Steps are counted on its connection.
    pub word: &'static [u8],
    /// How many requests and replies pass before.
    pub step: usize,
    /// How much of the next one passes.
    pub portion: Portion,
}

/// The proxy.
pub struct StepProxy {
    address: SocketAddr,
    shared: Arc<SharedSteps>,
}

/// Called when a connection has stopped.
type Reached = Box<dyn FnOnce() + Send>;

struct SharedSteps {
    protocol: Protocol,
    /// How replies name the port of the server, and that of the proxy instead.
    ports: Option<[String; 2]>,
    state: Mutex<StepState>,
    changed: Condvar,
}

#[derive(Default)]
struct StepState {
    /// The step to come.
    stop: Option<ArmedStop>,
    /// The connection that has stopped.
    stopped: Option<usize>,
    is_killed: bool,
    /// How many connections were opened.
    opened: usize,
    connections: HashMap<usize, (TcpStream, Socket)>,
}

struct ArmedStop {
    point: StopPoint,
    /// The connection whose steps are counted, once there is one.
    connection: Option<usize>,
    reached: Reached,
}

impl StepProxy {
    /// A proxy that stops nothing until [`StepProxy::stop_at`] is called.
    pub fn new(target: Target, protocol: Protocol) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it has an address");
        let (state, changed) = (Mutex::default(), Condvar::new());
        let ports = match target {
            Target::Port(port) if protocol.shows_port => {
                Some([port, address.port()].map(|port| format!("\r\n:{port}\r\n")))
            }
            _ => None,
        };
        let shared = Arc::new(SharedSteps { protocol, ports, state, changed });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if let Ok(server) = Socket::connect(&target) {
                    forward(client, server, &accepting);
                }
            }
        });
        StepProxy { address, shared }
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops a connection at this point, and calls `reached` then.
    pub fn stop_at(&self, point: StopPoint, reached: impl FnOnce() + Send + 'static) {
        let reached = Box::new(reached);
        self.shared.state().stop = Some(ArmedStop { point, connection: None, reached });
    }

    /// Forgets a point that was not reached.
    pub fn forget_stop(&self) {
        self.shared.state().stop = None;
    }

    /// Lets the stopped connection go on.
    pub fn resume(&self) {
        self.shared.state().stopped = None;
        self.shared.changed.notify_all();
    }

    /// Closes the stopped connection.
    pub fn close_stopped(&self) {
        let mut state = self.shared.state();
        if let Some(stopped) = state.stopped.take()
            && let Some(connection) = state.connections.remove(&stopped)
        {
            close(&connection);
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Closes all connections and accepts no other, as when the process of the client is killed.
    pub fn kill_client(&self) {
        let mut state = self.shared.state();
        (state.is_killed, state.stopped, state.stop) = (true, None, None);
        state.connections.drain().for_each(|(_, connection)| close(&connection));
        drop(state);
        self.shared.changed.notify_all();
    }
}

impl SharedSteps {
    fn state(&self) -> MutexGuard<'_, StepState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A reply that names the port of the proxy.
    fn with_own_port<'a>(&self, reply: &'a [u8]) -> Cow<'a, [u8]> {
        let Some([server, own]) = &self.ports else { return Cow::Borrowed(reply) };
        let found = reply.windows(server.len()).position(|part| part == server.as_bytes());
        match found {
            None => Cow::Borrowed(reply),
            Some(place) => {
                let (before, after) = (&reply[..place], &reply[place + server.len()..]);
                Cow::Owned([before, own.as_bytes(), after].concat())
            }
        }
    }

    /// Whether a reply is counted as a step and has not arrived in whole.
    fn is_partial(&self, connection: usize, bytes: &[u8]) -> bool {
        let state = self.state();
        let is_counted =
            state.stop.as_ref().is_some_and(|armed| armed.connection == Some(connection));
        is_counted && self.protocol.complete.is_some_and(|end| !contains(bytes, end))
    }

    /// Passes on what has arrived; false if the connection is closed instead.
    fn pass(&self, connection: usize, bytes: &[u8], is_request: bool, to: &mut impl Write) -> bool {
        let Some((portion, reached)) = self.reach(connection, bytes, is_request) else {
            return to.write_all(bytes).is_ok();
        };
        let (first, rest) = bytes.split_at(portion.of(bytes.len()));
        if to.write_all(first).is_err() {
            return false;
        }
        let mut state = self.state();
        state.stopped = Some(connection);
        reached();
        let is_stopped = |state: &mut StepState| state.stopped == Some(connection);
        drop(self.changed.wait_while(state, is_stopped));
        to.write_all(rest).is_ok()
    }

    /// Counts a request or a reply. Answers how much of it passes, if the connection stops there.
    fn reach(
        &self,
        connection: usize,
        bytes: &[u8],
        is_request: bool,
    ) -> Option<(Portion, Reached)> {
        let mut state = self.state();
        let armed = state.stop.as_mut()?;
        if armed.connection.is_none() && is_request && contains(bytes, armed.point.word) {
            armed.connection = Some(connection);
        }
        if armed.connection != Some(connection) {
            return None;
        }
        if armed.point.step > 0 {
            armed.point.step -= 1;
            return None;
        }
        state.stop.take().map(|armed| (armed.point.portion, armed.reached))
    }
}

fn close((client, server): &(TcpStream, Socket)) {
    let _ = client.shutdown(Shutdown::Both);
    server.shutdown();
}

/// Forwards one connection in both directions, each on a thread of its own.
fn forward(mut client: TcpStream, mut server: Socket, shared: &Arc<SharedSteps>) {
    forward_at_once(&client);
    let mut replies_to = client.try_clone().expect("a socket");
    let mut replies_from = server.try_clone();
    let number = {
        let mut state = shared.state();
        let both = (client.try_clone().expect("a socket"), server.try_clone());
        if state.is_killed {
            return close(&both);
        }
        state.opened += 1;
        let number = state.opened;
        state.connections.insert(number, both);
        number
    };
    let (requests, replies) = (Arc::clone(shared), Arc::clone(shared));
    thread::spawn(move || {
        let (mut bytes, mut exempt) = (vec![0; BUFFER_BYTES], false);
        while let Ok(count @ 1..) = client.read(&mut bytes) {
            exempt |= requests.protocol.exempt.is_some_and(|word| contains(&bytes[..count], word));
            if exempt {
                if server.write_all(&bytes[..count]).is_err() {
                    break;
                }
            } else if !requests.pass(number, &bytes[..count], true, &mut server) {
                break;
            }
        }
        server.shutdown();
    });
    thread::spawn(move || {
        let (mut bytes, mut filled) = (vec![0; BUFFER_BYTES], 0);
        while let Ok(count @ 1..) = replies_from.read(&mut bytes[filled..]) {
            filled += count;
            if replies.is_partial(number, &bytes[..filled]) {
                continue;
            }
            let reply = replies.with_own_port(&bytes[..filled]);
            if !replies.pass(number, &reply, false, &mut replies_to) {
                break;
            }
            filled = 0;
        }
        let _ = replies_to.shutdown(Shutdown::Both);
        replies.state().connections.remove(&number);
    });
}

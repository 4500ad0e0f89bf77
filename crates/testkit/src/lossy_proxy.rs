//! A proxy before a database that can withhold the reply of a request, so that its outcome is unknown to the server.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Where the database listens.
#[derive(Clone, Debug)]
pub enum Target {
    /// A port of this machine.
    Port(u16),
    /// A socket in the file system.
    Socket(PathBuf),
}

/// How requests and replies of a protocol are recognised.
#[derive(Clone, Copy, Debug, Default)]
pub struct Protocol {
    /// A connection on which this was sent is left alone from then on.
    pub exempt: Option<&'static [u8]>,
    /// The reply is complete when this has arrived; without it, when anything has.
    pub complete: Option<&'static [u8]>,
}

/// The next requests that contain this word lose their connection.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    /// The word.
    pub word: &'static [u8],
    /// How many requests.
    pub times: usize,
    /// Whether the database executes them all the same.
    pub executed: bool,
}

/// The proxy.
pub struct LossyProxy {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    loss: Mutex<Option<Loss>>,
    lingers: AtomicBool,
}

impl LossyProxy {
    /// Starts a proxy before this database.
    pub fn new(target: Target, protocol: Protocol) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it has an address");
        let state = Arc::<State>::default();
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for server in listener.incoming().flatten() {
                if let Ok(database) = Socket::connect(&target) {
                    forward(server, database, protocol, &shared);
                }
            }
        });
        LossyProxy { address, state }
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next request that contains this word is executed, and its reply does not arrive.
    pub fn withhold_reply(&self, word: &'static [u8]) {
        self.lose(Loss { word, times: 1, executed: true });
    }

    /// Loses requests or their replies.
    pub fn lose(&self, loss: Loss) {
        *self.state.loss.lock().unwrap_or_else(PoisonError::into_inner) = Some(loss);
    }

    /// From now on the database does not notice that a connection was lost.
    pub fn linger(&self) {
        self.state.lingers.store(true, Ordering::SeqCst);
    }
}

/// Forwards one connection in both directions, each on a thread of its own.
fn forward(server: TcpStream, database: Socket, protocol: Protocol, state: &Arc<State>) {
    let withheld = Arc::new(AtomicBool::new(false));
    let requests = server.try_clone().expect("a socket");
    let replies = database.try_clone();
    let (state, withholds) = (Arc::clone(state), Arc::clone(&withheld));
    thread::spawn(move || {
        let database = forward_requests(requests, database, protocol, &state, &withholds);
        if state.lingers.load(Ordering::SeqCst) {
            std::mem::forget(database);
        } else {
            database.shutdown();
        }
    });
    thread::spawn(move || forward_replies(replies, server, protocol, &withheld));
}

fn forward_requests(
    mut server: TcpStream,
    mut database: Socket,
    protocol: Protocol,
    state: &State,
    withheld: &AtomicBool,
) -> Socket {
    let mut bytes = vec![0; 8192];
    let mut exempt = false;
    while let Ok(count @ 1..) = server.read(&mut bytes) {
        let request = &bytes[..count];
        exempt |= protocol.exempt.is_some_and(|word| contains(request, word));
        if !exempt {
            let mut armed = state.loss.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(loss) = armed.filter(|loss| contains(request, loss.word)) {
                let left = loss.times.saturating_sub(1);
                *armed = (left > 0).then_some(Loss { times: left, ..loss });
                if !loss.executed {
                    break;
                }
                withheld.store(true, Ordering::SeqCst);
            }
        }
        if database.write_all(request).is_err() {
            break;
        }
    }
    database
}

/// Forwards replies until one is withheld: when it arrives, the request was executed.
fn forward_replies(
    mut database: Socket,
    mut server: TcpStream,
    protocol: Protocol,
    withheld: &AtomicBool,
) {
    let (mut bytes, mut kept) = (vec![0; 8192], Vec::new());
    while let Ok(count @ 1..) = database.read(&mut bytes) {
        if withheld.load(Ordering::SeqCst) {
            kept.extend_from_slice(&bytes[..count]);
            if protocol.complete.is_none_or(|word| contains(&kept, word)) {
                break;
            }
        } else if server.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = server.shutdown(Shutdown::Both);
}

fn contains(bytes: &[u8], word: &[u8]) -> bool {
    bytes.windows(word.len()).any(|part| part == word)
}

/// A connection to the database.
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    fn connect(target: &Target) -> std::io::Result<Self> {
        match target {
            Target::Port(port) => TcpStream::connect(("127.0.0.1", *port)).map(Socket::Tcp),
            Target::Socket(path) => UnixStream::connect(path).map(Socket::Unix),
        }
    }

    fn try_clone(&self) -> Self {
        match self {
            Socket::Tcp(stream) => Socket::Tcp(stream.try_clone().expect("a socket")),
            Socket::Unix(stream) => Socket::Unix(stream.try_clone().expect("a socket")),
        }
    }

    fn shutdown(&self) {
        let _ = match self {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl Read for Socket {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read(bytes),
            Socket::Unix(stream) => stream.read(bytes),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write(bytes),
            Socket::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

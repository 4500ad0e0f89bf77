//! A proxy that makes connections fail: it withholds the reply of a request, so that its outcome is unknown, or cuts connections
//! after a random number of bytes, in the middle of a request or a reply.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use fastrand::Rng;
use tokio::sync::watch;

/// Where the server behind the proxy listens.
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
    /// Whether replies name the port of the server, to which clients connect then. A [`StepProxy`](crate::step_proxy::StepProxy) names its own.
    pub shows_port: bool,
}

impl Protocol {
    /// No connection is left alone, and a reply is complete when anything has arrived.
    pub const PLAIN: Protocol = Protocol { exempt: None, complete: None, shows_port: false };
}

/// After how many bytes connections are cut.
#[derive(Clone, Debug)]
pub struct CutRule {
    /// The number of each connection is random. Those of a handshake should be fewer than the least, so that connections work.
    pub bytes: RangeInclusive<usize>,
    /// Whether requests count, so that they are cut as well; replies always do.
    pub counts_requests: bool,
}

impl CutRule {
    /// For connections to a database: the first hundreds of bytes of the replies belong to the handshake.
    pub const REPLIES: CutRule = CutRule { bytes: 500..=6_000, counts_requests: false };
}

/// The next requests that contain this word lose their connection.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    /// The word.
    pub word: &'static [u8],
    /// How many requests.
    pub times: usize,
    /// Whether the server executes them all the same.
    pub executed: bool,
}

/// The proxy.
pub struct FaultyProxy {
    address: SocketAddr,
    state: Arc<ProxyState>,
}

struct ProxyState {
    protocol: Protocol,
    loss: Mutex<Option<Loss>>,
    lingers: AtomicBool,
    rule: CutRule,
    rng: Mutex<Rng>,
    cutting: AtomicBool,
    cuts: watch::Sender<usize>,
}

/// One connection through the proxy.
struct ProxiedConnection {
    /// Whether its next reply is withheld.
    withheld: AtomicBool,
    /// How many bytes pass before it is cut.
    left: AtomicUsize,
    is_cut: AtomicBool,
}

impl FaultyProxy {
    /// A proxy that loses nothing until one of its methods asks for it.
    pub fn new(target: Target, protocol: Protocol) -> Self {
        Self::start(target, protocol, CutRule::REPLIES, Rng::new(), false)
    }

    /// A proxy that cuts all connections.
    pub fn cutting(target: Target, rule: CutRule, seed: u64) -> Self {
        Self::start(target, Protocol::default(), rule, Rng::with_seed(seed), true)
    }

    fn start(target: Target, protocol: Protocol, rule: CutRule, rng: Rng, cutting: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it has an address");
        let state = Arc::new(ProxyState {
            protocol,
            loss: Mutex::default(),
            lingers: AtomicBool::new(false),
            rule,
            rng: Mutex::new(rng),
            cutting: AtomicBool::new(cutting),
            cuts: watch::channel(0).0,
        });
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if let Ok(server) = Socket::connect(&target) {
                    forward(client, server, &shared);
                }
            }
        });
        FaultyProxy { address, state }
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

    /// From now on the server does not notice that a connection was lost.
    pub fn linger(&self) {
        self.state.lingers.store(true, Ordering::SeqCst);
    }

    /// Cuts so many more connections, and none afterwards.
    pub async fn cut(&self, count: usize) {
        let mut cuts = self.state.cuts.subscribe();
        let total = *cuts.borrow() + count;
        self.state.cutting.store(true, Ordering::SeqCst);
        cuts.wait_for(|cuts| *cuts >= total).await.expect("the proxy has the sender");
        self.state.cutting.store(false, Ordering::SeqCst);
    }

    /// How many connections were cut.
    pub fn cuts(&self) -> usize {
        *self.state.cuts.borrow()
    }
}

impl ProxyState {
    /// How many of the next bytes of a connection pass; `Err` if it is cut after them.
    fn admit(&self, connection: &ProxiedConnection, count: usize) -> Result<usize, usize> {
        let less = |left: usize| Some(left.saturating_sub(count));
        let before = connection.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        let before = before.expect("the closure always returns a number");
        if before > count || !self.cutting.load(Ordering::SeqCst) {
            return Ok(count);
        }
        if !connection.is_cut.swap(true, Ordering::SeqCst) {
            self.cuts.send_modify(|cuts| *cuts += 1);
        }
        Err(before)
    }

    /// Whether the connection is closed instead of this request, or its reply withheld.
    fn loses(&self, connection: &ProxiedConnection, request: &[u8]) -> bool {
        let mut armed = self.loss.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(loss) = armed.filter(|loss| contains(request, loss.word)) else { return false };
        let left = loss.times.saturating_sub(1);
        *armed = (left > 0).then_some(Loss { times: left, ..loss });
        connection.withheld.store(loss.executed, Ordering::SeqCst);
        !loss.executed
    }
}

/// Forwards one connection in both directions, each on a thread of its own.
fn forward(client: TcpStream, server: Socket, state: &Arc<ProxyState>) {
    forward_at_once(&client);
    let mut rng = state.rng.lock().unwrap_or_else(PoisonError::into_inner);
    let left = AtomicUsize::new(rng.usize(state.rule.bytes.clone()));
    let (withheld, is_cut) = (AtomicBool::new(false), AtomicBool::new(false));
    let connection = Arc::new(ProxiedConnection { withheld, left, is_cut });
    let (requests, replies) = (client.try_clone().expect("a socket"), server.try_clone());
    let (own_state, own_connection) = (Arc::clone(state), Arc::clone(&connection));
    thread::spawn(move || {
        let server = forward_requests(requests, server, &own_state, &own_connection);
        if own_state.lingers.load(Ordering::SeqCst) {
            std::mem::forget(server);
        } else {
            server.shutdown();
        }
    });
    let state = Arc::clone(state);
    thread::spawn(move || forward_replies(replies, client, &state, &connection));
}

fn forward_requests(
    mut client: TcpStream,
    mut server: Socket,
    state: &ProxyState,
    connection: &ProxiedConnection,
) -> Socket {
    let mut bytes = vec![0; 8192];
    let mut exempt = false;
    while let Ok(count @ 1..) = client.read(&mut bytes) {
        let request = &bytes[..count];
        exempt |= state.protocol.exempt.is_some_and(|word| contains(request, word));
        if !exempt && state.loses(connection, request) {
            break;
        }
        let passed =
            if state.rule.counts_requests { state.admit(connection, count) } else { Ok(count) };
        let (Ok(number) | Err(number)) = passed;
        if server.write_all(&request[..number]).is_err() || passed.is_err() {
            break;
        }
    }
    server
}

/// Forwards replies until one is withheld, which was executed when it arrives, or cut.
fn forward_replies(
    mut server: Socket,
    mut client: TcpStream,
    state: &ProxyState,
    connection: &ProxiedConnection,
) {
    let (mut bytes, mut kept) = (vec![0; 8192], Vec::new());
    while let Ok(count @ 1..) = server.read(&mut bytes) {
        if connection.withheld.load(Ordering::SeqCst) {
            kept.extend_from_slice(&bytes[..count]);
            if state.protocol.complete.is_none_or(|word| contains(&kept, word)) {
                break;
            }
            continue;
        }
        let passed = state.admit(connection, count);
        let (Ok(number) | Err(number)) = passed;
        if client.write_all(&bytes[..number]).is_err() || passed.is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
}

/// Sends small parts without waiting for the receipt of earlier ones, which takes 40 ms.
pub(crate) fn forward_at_once(stream: &TcpStream) {
    stream.set_nodelay(true).expect("a socket");
}

pub(crate) fn contains(bytes: &[u8], word: &[u8]) -> bool {
    bytes.windows(word.len()).any(|part| part == word)
}

/// A connection to the server.
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    pub(crate) fn connect(target: &Target) -> std::io::Result<Self> {
        match target {
            Target::Port(port) => {
                let stream = TcpStream::connect(("127.0.0.1", *port))?;
                forward_at_once(&stream);
                Ok(Socket::Tcp(stream))
            }
            Target::Socket(path) => UnixStream::connect(path).map(Socket::Unix),
        }
    }

    pub(crate) fn try_clone(&self) -> Self {
        match self {
            Socket::Tcp(stream) => Socket::Tcp(stream.try_clone().expect("a socket")),
            Socket::Unix(stream) => Socket::Unix(stream.try_clone().expect("a socket")),
        }
    }

    pub(crate) fn shutdown(&self) {
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

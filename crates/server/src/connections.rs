//! Accepts connections and serves each until it ends.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use axum::extract::ConnectInfo;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use socket2::{SockRef, TcpKeepalive};
use taskyard_wire::Code;
use taskyard_wire::http::ErrorAnswer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::app::SharedApp;
use crate::clock_guard::{UNUSABLE_CLOCK, clock_is_unusable, serve_guarded};
use crate::config::Config;
use crate::guard::ClientConnection;
use crate::head_timer::HeadTimer;
use crate::http::HttpRoutes;
use crate::iproto;
use crate::server_stream::{ServerStream, send_and_close};
use crate::slow_reader::StallTimeoutStream;
use crate::tls_listener::{TlsListener, accept};

/// How long a connection may stay without a request, and the head of a request may take to arrive.
/// Longer than the 90 seconds for which common clients keep a connection, so that they close first.
const IDLE_MAX: Duration = Duration::from_secs(120);
/// How long a rejected connection may take to read the response, and how many are rejected at once.
const REJECT_TIMEOUT: Duration = Duration::from_secs(2);
const REJECTIONS_MAX: usize = 64;
/// The TCP keepalive: idle time, interval and number of probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 3;
/// How long to wait after the system could not accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What all connections are told.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ServerSignal {
    /// Whether the server is stopping.
    closing: bool,
    /// The number of the list of users. Connections over HTTP look for a new list themselves.
    users: u64,
}

/// All open connections.
pub(crate) struct Connections {
    app: SharedApp,
    routes: HttpRoutes,
    open: JoinSet<()>,
    rejections: Arc<Semaphore>,
    signal: watch::Sender<ServerSignal>,
}

impl Connections {
    /// No connections yet.
    pub fn new(app: SharedApp, routes: HttpRoutes) -> Self {
        let rejections = Arc::new(Semaphore::new(REJECTIONS_MAX));
        Connections {
            app,
            routes,
            open: JoinSet::new(),
            rejections,
            signal: watch::Sender::default(),
        }
    }

    /// Accepts connections forever.
    pub async fn accept(&mut self, http: &TcpListener, iproto: Option<&TcpListener>) {
        let iproto_users = self.app.iproto.as_ref().map_or(&self.app.users, |server| &server.users);
        let mut users = iproto_users.changes();
        loop {
            let accepted = tokio::select! {
                accepted = http.accept() => accepted.map(|(stream, _)| self.admit(stream)),
                accepted = next_of(iproto) => accepted.map(|stream| self.admit_iproto(stream)),
                Some(_) = self.open.join_next() => Ok(()),
                Ok(()) = users.changed() => {
                    self.signal.send_modify(|signal| signal.users += 1);
                    Ok(())
                }
            };
            if let Err(error) = accepted {
                pause_after(&error).await;
            }
        }
    }

    fn admit(&mut self, stream: TcpStream) {
        let Ok(permit) = self.app.connection_permits.clone().try_acquire_owned() else {
            return self.reject(stream);
        };
        let routes = self.routes.clone();
        let signal = self.signal.subscribe();
        let app = self.app.clone();
        self.open.spawn(async move {
            serve(stream, routes, signal, app).await;
            drop(permit);
        });
    }

    /// Admits a client of Tarantool's queue.
    fn admit_iproto(&mut self, stream: TcpStream) {
        let Some(server) = self.app.iproto.clone() else { return };
        let Ok(permit) = self.app.connection_permits.clone().try_acquire_owned() else {
            let most = self.app.connections_max;
            self.open.spawn(iproto::refuse_connection(stream, server, most));
            return;
        };
        prepare(&stream);
        let signal = self.signal.subscribe();
        self.open.spawn(async move {
            let open = server.counters.open();
            iproto::serve(stream, server.clone(), signal).await;
            drop((open, permit));
        });
    }

    /// Responds that there are too many connections, and closes.
    fn reject(&mut self, stream: TcpStream) {
        self.app.requests.refused_connections.fetch_add(1, Ordering::Relaxed);
        if let Ok(permit) = self.rejections.clone().try_acquire_owned() {
            let text = too_many_connections();
            let tls = self.app.tls.clone();
            self.open.spawn(async move {
                let sending = async {
                    match accept(tls.as_deref(), stream).await {
                        Some(stream) => send_and_close(stream, text.as_bytes()).await,
                        None => Ok(()),
                    }
                };
                // A client that does not read gets no response.
                let _ = timeout(REJECT_TIMEOUT, sending).await;
                drop(permit);
            });
        }
    }

    /// Lets every connection finish its current request, for at most this long.
    pub async fn finish(&mut self, within: Duration) {
        self.signal.send_modify(|signal| signal.closing = true);
        let finishing = async { while self.open.join_next().await.is_some() {} };
        if timeout(within, finishing).await.is_err() {
            tracing::warn!(
                connections = self.open.len(),
                "closed connections with unfinished requests"
            );
        }
        self.open.shutdown().await;
    }
}

async fn serve(
    stream: TcpStream,
    routes: HttpRoutes,
    mut signal: watch::Receiver<ServerSignal>,
    app: SharedApp,
) {
    prepare(&stream);
    let peer = stream.peer_addr().ok();
    let accepted = tokio::select! {
        accepted = accept(app.tls.as_deref(), stream) => accepted,
        () = wait_for_close(&mut signal) => None,
    };
    let Some(stream) = accepted else { return };
    serve_stream(stream, peer, routes, signal, app).await;
}

/// Serves the requests of a connection until it ends or the server is stopping.
pub(crate) async fn serve_stream(
    stream: ServerStream,
    peer: Option<SocketAddr>,
    routes: HttpRoutes,
    mut signal: watch::Receiver<ServerSignal>,
    app: SharedApp,
) {
    if clock_is_unusable() {
        return refuse_for_clock(stream).await;
    }
    let ip = peer.map_or(Ipv4Addr::UNSPECIFIED.into(), |peer| peer.ip());
    let caller = Arc::new(ClientConnection {
        peer: ip,
        proven_token: AtomicU64::new(0),
        proven: AtomicU64::new(0),
        admitted_host: OnceLock::new(),
        worker: Mutex::default(),
    });
    let (router, direct) = (TowerToHyperService::new(routes.router), &*routes.direct);
    let service = service_fn(|mut request: hyper::Request<Incoming>| {
        let (caller, router, app) = (caller.clone(), &router, &app);
        async move {
            if let Some((route, tube)) = direct.find(&request) {
                return Ok(route.answer(app, request, caller, tube).await);
            }
            let extensions = request.extensions_mut();
            // A hosted service may need the address of the client.
            if let Some(peer) = peer {
                extensions.insert(ConnectInfo(peer));
            }
            extensions.insert(caller);
            router.call(request).await
        }
    });
    let stream = StallTimeoutStream::new(stream, app.answer_stall_max);
    let connection = http1::Builder::new()
        .timer(HeadTimer::default())
        .header_read_timeout(IDLE_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        biased;
        ended = serve_guarded(connection.as_mut()) => ended,
        () = wait_for_close(&mut signal) => {
            connection.as_mut().graceful_shutdown();
            serve_guarded(connection).await
        }
    };
    if let Some(Err(error)) = ended {
        tracing::debug!(%error, "connection ended early");
    }
}

/// The next connection of an optional listener.
async fn next_of(listener: Option<&TcpListener>) -> io::Result<TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}

/// Sets the options of a connection. A client may be silent for days while it waits for a task, but
/// one that is gone holds tasks: TCP keepalive detects that.
pub(crate) fn prepare(stream: &TcpStream) {
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_RETRIES);
    let set = SockRef::from(stream).set_tcp_keepalive(&keepalive);
    // Responses are written at once, so there is nothing for the system to collect.
    if let Err(error) = set.and_then(|()| stream.set_nodelay(true)) {
        tracing::debug!(%error, "cannot set the options of a connection");
    }
}

/// Waits until the server is stopping.
pub(crate) async fn wait_for_close(signal: &mut watch::Receiver<ServerSignal>) {
    // An error means that the server is gone, which is the same.
    let _ = signal.wait_for(|signal| signal.closing).await;
}

/// Waits until the server is stopping, which is false, or has another list of users than that of this number, which is true and
/// updates the number.
pub(crate) async fn wait_for_users(
    signal: &mut watch::Receiver<ServerSignal>,
    users: &mut u64,
) -> bool {
    let is_new = |signal: &ServerSignal| signal.closing || signal.users != *users;
    let found = signal.wait_for(is_new).await.map(|signal| *signal);
    match found {
        Ok(ServerSignal { closing: false, users: number }) => {
            *users = number;
            true
        }
        _ => false,
    }
}

/// Pauses after an error that a retry would repeat; connections that broke before they were
/// accepted need no pause.
pub(crate) async fn pause_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        tracing::error!(%error, "cannot accept a connection");
        sleep(ACCEPT_PAUSE).await;
    }
}

/// Rejects a connection because the wall clock shows a date that HTTP cannot express.
pub(crate) async fn refuse_for_clock(stream: ServerStream) {
    let text = unavailable(Code::Store, UNUSABLE_CLOCK);
    _ = timeout(REJECT_TIMEOUT, send_and_close(stream, text.as_bytes())).await;
}

/// Encrypts HTTP connections as configured. A client that does not speak TLS gets an answer that says so.
pub(crate) fn http_tls(config: &Config) -> Option<Arc<TlsListener>> {
    let tls = config.tls.clone()?;
    let message = "this address speaks TLS only; use https:// in the URL";
    let answer = response("400 Bad Request", Code::Invalid, message);
    Some(Arc::new(TlsListener::new(tls, config.handshake_limits, answer.into())))
}

fn too_many_connections() -> String {
    let message = "too many connections; try again later";
    unavailable(Code::Overloaded, message)
}

fn unavailable(code: Code, message: &str) -> String {
    response("503 Service Unavailable\r\nretry-after: 1", code, message)
}

/// A whole response with this status, which may be followed by further headers.
fn response(status: &str, code: Code, message: &str) -> String {
    let answer = ErrorAnswer::new(code, message);
    let body = serde_json::to_string(&answer).unwrap_or_default();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

//! One connection from the first byte to the last.

use std::io;
use std::net::Ipv4Addr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::ConnectInfo;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use socket2::{SockRef, TcpKeepalive};
use taskyard_wire::Code;
use taskyard_wire::http::ErrorAnswer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::app::Shared;
use crate::guard::Caller;
use crate::iproto;
use crate::slow_reader::Guarded;

/// How long a connection may stay without a request, and a request's head may take to arrive. Longer
/// than the 90 seconds for which the usual clients keep a connection, so that they close first.
const IDLE_MAX: Duration = Duration::from_secs(120);
/// How long and for how many refused connections at once the answer is seen through.
const FAREWELL_MAX: Duration = Duration::from_secs(2);
const FAREWELLS_MAX: usize = 64;
/// After how much silence, how often and how many times a connection is asked whether it is there.
const SILENCE_MAX: Duration = Duration::from_secs(60);
const QUESTION_EVERY: Duration = Duration::from_secs(10);
const QUESTIONS_MAX: u32 = 3;
/// How long to wait when the system has no room for another connection.
const BREATHER: Duration = Duration::from_millis(100);

/// All open connections.
pub(crate) struct Connections {
    app: Shared,
    router: Router,
    open: JoinSet<()>,
    farewells: Arc<Semaphore>,
    closing: watch::Sender<bool>,
}

impl Connections {
    /// None yet.
    pub fn new(app: Shared, router: Router) -> Self {
        let farewells = Arc::new(Semaphore::new(FAREWELLS_MAX));
        Connections {
            app,
            router,
            open: JoinSet::new(),
            farewells,
            closing: watch::Sender::new(false),
        }
    }

    /// Lets connections in, for ever.
    pub async fn accept(&mut self, http: &TcpListener, iproto: Option<&TcpListener>) {
        loop {
            let accepted = tokio::select! {
                accepted = http.accept() => accepted.map(|(stream, _)| self.admit(stream)),
                accepted = next_of(iproto) => accepted.map(|stream| self.admit_iproto(stream)),
                Some(_) = self.open.join_next() => Ok(()),
            };
            if let Err(error) = accepted {
                pause_after(&error).await;
            }
        }
    }

    fn admit(&mut self, stream: TcpStream) {
        let Ok(permit) = self.app.room.clone().try_acquire_owned() else {
            return self.turn_away(stream);
        };
        let router = self.router.clone();
        let closing = self.closing.subscribe();
        let stall_max = self.app.answer_stall_max;
        self.open.spawn(async move {
            serve(stream, router, closing, stall_max).await;
            drop(permit);
        });
    }

    /// Lets a client of Tarantool's queue in.
    fn admit_iproto(&mut self, stream: TcpStream) {
        let Some(face) = self.app.iproto.clone() else { return };
        let Ok(permit) = self.app.room.clone().try_acquire_owned() else {
            let most = self.app.connections_max;
            self.open.spawn(iproto::refuse_connection(stream, face, most));
            return;
        };
        prepare(&stream);
        let closing = self.closing.subscribe();
        self.open.spawn(async move {
            let open = face.counters.open();
            iproto::serve(stream, face.clone(), closing).await;
            drop((open, permit));
        });
    }

    /// Says that there is no room, and closes.
    fn turn_away(&mut self, stream: TcpStream) {
        self.app.requests.refused_connections.fetch_add(1, Ordering::Relaxed);
        if let Ok(permit) = self.farewells.clone().try_acquire_owned() {
            let text = no_room();
            self.open.spawn(async move {
                // A client that does not read gets no answer.
                let _ = timeout(FAREWELL_MAX, say_and_close(stream, text)).await;
                drop(permit);
            });
        }
    }

    /// Lets every connection finish the request it is at, for at most this long.
    pub async fn finish(&mut self, within: Duration) {
        self.closing.send_replace(true);
        let finishing = async { while self.open.join_next().await.is_some() {} };
        if timeout(within, finishing).await.is_err() {
            tracing::warn!(connections = self.open.len(), "closed before they were finished");
        }
        self.open.shutdown().await;
    }
}

async fn serve(
    stream: TcpStream,
    router: Router,
    mut closing: watch::Receiver<bool>,
    stall_max: Duration,
) {
    prepare(&stream);
    if SystemTime::now() < UNIX_EPOCH {
        // The HTTP library panics when it writes such a date.
        let message = "the clock of the server's machine is before 1970; set it";
        _ = timeout(FAREWELL_MAX, say_and_close(stream, refusal(Code::Store, message))).await;
        return;
    }
    let peer = stream.peer_addr().ok();
    let ip = peer.map_or(Ipv4Addr::UNSPECIFIED.into(), |peer| peer.ip());
    let caller =
        Arc::new(Caller { peer: ip, logged_in: AtomicBool::new(false), proven: AtomicU64::new(0) });
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        let extensions = request.extensions_mut();
        // The pool may want to know where a request comes from.
        if let Some(peer) = peer {
            extensions.insert(ConnectInfo(peer));
        }
        extensions.insert(caller.clone());
        router.call(request)
    });
    let stream = Guarded::new(stream, stall_max);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = told(&mut closing) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// The next connection of a listener that need not be there.
async fn next_of(listener: Option<&TcpListener>) -> io::Result<TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}

/// A client may be silent for days while it waits for a task, but one that is gone holds tasks: the
/// system asks now and then whether it is still there.
pub(crate) fn prepare(stream: &TcpStream) {
    let keepalive = TcpKeepalive::new()
        .with_time(SILENCE_MAX)
        .with_interval(QUESTION_EVERY)
        .with_retries(QUESTIONS_MAX);
    let asked = SockRef::from(stream).set_tcp_keepalive(&keepalive);
    // Answers are written in one go, so there is nothing to gather.
    if let Err(error) = asked.and_then(|()| stream.set_nodelay(true)) {
        tracing::debug!(%error, "cannot set the options of a connection");
    }
}

/// Waits until the server is stopping.
pub(crate) async fn told(closing: &mut watch::Receiver<bool>) {
    // An error is a server that is no more, which means the same.
    let _ = closing.wait_for(|closing| *closing).await;
}

/// Connections that broke before they were accepted need no rest; a lack of room does.
pub(crate) async fn pause_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        tracing::error!(%error, "cannot accept a connection");
        sleep(BREATHER).await;
    }
}

async fn say_and_close(mut stream: TcpStream, text: String) -> io::Result<()> {
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await?;
    // Closing with unread bytes would reset the connection and take the answer away.
    let mut unread = [0; 4096];
    while stream.read(&mut unread).await? > 0 {}
    Ok(())
}

fn no_room() -> String {
    let message = "the server has as many connections as it may have; try again a little later";
    refusal(Code::Overloaded, message)
}

fn refusal(code: Code, message: &str) -> String {
    let answer = ErrorAnswer::new(code, message);
    let body = serde_json::to_string(&answer).unwrap_or_default();
    format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

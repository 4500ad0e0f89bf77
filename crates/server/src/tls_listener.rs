//! Makes the TLS handshake of accepted connections, within limits of time and number.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use taskyard_core::limits::TLS_HANDSHAKES_MAX;
use taskyard_tls::ServerTls;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::handshake_limit::HandshakeLimit;
use crate::server_stream::{ServerStream, close_gracefully, send_and_close};

/// How long a handshake may take, by default.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// How long a connection that was refused may take to read why.
const REFUSAL_MAX: Duration = Duration::from_secs(2);
/// The first byte of a client that speaks TLS: the record of a handshake.
const HANDSHAKE_RECORD: u8 = 0x16;

/// The limits of TLS handshakes.
#[derive(Clone, Copy, Debug)]
pub struct HandshakeLimits {
    /// How long one may take.
    pub time_max: Duration,
    /// How many may be in progress.
    pub count_max: usize,
}

impl Default for HandshakeLimits {
    fn default() -> Self {
        HandshakeLimits { time_max: HANDSHAKE_MAX, count_max: TLS_HANDSHAKES_MAX }
    }
}

/// Encrypts the connections of one listener.
#[derive(Debug)]
pub(crate) struct TlsListener {
    tls: ServerTls,
    time_max: Duration,
    limit: Arc<HandshakeLimit>,
    /// What a client that does not speak TLS is sent.
    plain_answer: Vec<u8>,
    /// Handshakes that failed, and connections for which there was no place.
    failures: AtomicU64,
}

impl TlsListener {
    /// Shows this certificate. A client that does not speak TLS is sent `plain_answer`.
    pub fn new(tls: ServerTls, limits: HandshakeLimits, plain_answer: Vec<u8>) -> Self {
        let HandshakeLimits { time_max, count_max } = limits;
        let limit = Arc::new(HandshakeLimit::new(count_max));
        TlsListener { tls, time_max, limit, plain_answer, failures: AtomicU64::new(0) }
    }

    /// The certificate.
    pub fn tls(&self) -> &ServerTls {
        &self.tls
    }

    /// How many connections could not be encrypted so far.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Encrypts a connection; `None` if that failed and the connection is closed.
    pub async fn accept(&self, stream: TcpStream) -> Option<ServerStream> {
        let accepted = match self.limit.begin(Instant::now()) {
            Some(mut slot) => tokio::select! {
                accepted = self.shake_hands(stream) => accepted,
                _ = &mut slot.revoked => Err(other("too many handshakes are in progress")),
            },
            None => Err(other("too many handshakes are in progress")),
        };
        accepted.inspect_err(|error| self.report(error)).ok()
    }

    /// Reports a failure. Clients can cause any number of them, which must not fill the log.
    fn report(&self, error: &io::Error) {
        let so_far = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        match so_far.is_power_of_two() {
            true => tracing::warn!(%error, so_far, "a TLS handshake failed"),
            false => tracing::debug!(%error, so_far, "a TLS handshake failed"),
        }
    }

    async fn shake_hands(&self, stream: TcpStream) -> io::Result<ServerStream> {
        // A client that speaks TLS begins at once. One that waits for the server may be a client without TLS that expects a
        // greeting.
        let mut first = [0];
        match timeout(self.time_max / 2, stream.peek(&mut first)).await {
            Ok(Ok(1)) if first[0] == HANDSHAKE_RECORD => {}
            Ok(Ok(0)) => return Err(other("the client closed the connection")),
            Ok(Err(error)) => return Err(error),
            Ok(Ok(_)) => return Err(self.refuse(stream, "the client does not speak TLS").await),
            Err(_) => return Err(self.refuse(stream, "the client sent nothing").await),
        }
        let accepting = self.tls.acceptor().accept(stream).into_fallible();
        match timeout(self.time_max, accepting).await {
            Ok(Ok(stream)) => Ok(ServerStream::Encrypted(Box::new(stream))),
            Ok(Err((error, mut stream))) => {
                // The reason was sent. It would be lost if the connection were closed with unread bytes.
                _ = timeout(REFUSAL_MAX, close_gracefully(&mut stream)).await;
                Err(error)
            }
            Err(_) => Err(other("the client did not finish in time")),
        }
    }

    /// Answers a client that does not speak TLS.
    async fn refuse(&self, stream: TcpStream, why: &str) -> io::Error {
        // A client that does not read gets no answer.
        _ = timeout(REFUSAL_MAX, send_and_close(stream, &self.plain_answer)).await;
        other(why)
    }
}

/// Encrypts a connection if there is a certificate; `None` if that failed and the connection is closed.
pub(crate) async fn accept(tls: Option<&TlsListener>, stream: TcpStream) -> Option<ServerStream> {
    match tls {
        Some(tls) => tls.accept(stream).await,
        None => Some(ServerStream::Plain(stream)),
    }
}

fn other(text: &str) -> io::Error {
    io::Error::other(text.to_owned())
}

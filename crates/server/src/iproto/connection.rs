//! Moves bytes between one socket and its protocol session.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use taskyard_iproto::Greeting;
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Sleep, sleep, timeout};

use super::goodbye::{GOODBYE_MAX, refuse_connection};
use super::input_buffer::{InputBuffer, ReadOutcome};
use super::protocol_session::{ConnectionSecrets, ProtocolSession};
use super::server::{IprotoServer, LimitShare, SharedLimit};
use crate::connections::{ServerSignal, wait_for_close, wait_for_users};
use crate::server_stream::{ServerStream, close_gracefully};
use crate::tls_listener::accept;

/// How long a client may take to authenticate, if it must.
const AUTHENTICATION_MAX: Duration = Duration::from_secs(60);
/// Sent answers are removed from the buffer when they are at least this many bytes.
const SENT_BYTES_MAX: usize = 1 << 20;

/// Serves one connection from its greeting to its end.
pub(crate) async fn serve(
    stream: TcpStream,
    server: Arc<IprotoServer>,
    mut signal: watch::Receiver<ServerSignal>,
) {
    let mut share = LimitShare::new(server.clone(), SharedLimit::Connections);
    if !share.grow(1) {
        let limit = server.connections_max;
        return refuse_connection(stream, server, limit).await;
    }
    let peer = stream.peer_addr().ok();
    let accepted = tokio::select! {
        accepted = accept(server.tls.as_deref(), stream) => accepted,
        () = wait_for_close(&mut signal) => None,
    };
    if let Some(stream) = accepted {
        serve_stream(stream, peer, server.clone(), signal).await;
    }
}

/// Serves a connection that is encrypted if it must be.
pub(super) async fn serve_stream(
    stream: ServerStream,
    peer: Option<SocketAddr>,
    server: Arc<IprotoServer>,
    mut signal: watch::Receiver<ServerSignal>,
) {
    let mut connection = match Connection::new(stream, peer, server) {
        Ok(connection) => connection,
        Err(error) => return tracing::error!(%error, "cannot read random bytes for the greeting"),
    };
    let mut users = 0;
    let ended = loop {
        tokio::select! {
            // The signal first: a busy connection uses up the budget of its task, and the signal would never be ready after it.
            biased;
            has_new_users = wait_for_users(&mut signal, &mut users) => match has_new_users {
                true => connection.protocol.end_forbidden_takes(),
                false => {
                    connection.stopping = true;
                    break poll_fn(|cx| connection.poll_run(cx)).await;
                }
            },
            ended = poll_fn(|cx| connection.poll_run(cx)) => break ended,
        }
    };
    match ended {
        Ok(()) => {}
        Err(error) => tracing::debug!(%error, "iproto connection ended with an error"),
    }
    let Connection { mut stream, protocol, .. } = connection;
    // A client whose bytes were refused may still be sending, so the connection stays open for a
    // moment; when the server stops, it need not.
    let goodbye = if protocol.is_closing() { GOODBYE_MAX } else { Duration::ZERO };
    protocol.leave().await;
    // A client that does not read gets no answer.
    let _ = timeout(goodbye, close_gracefully(&mut stream)).await;
}

struct Connection {
    stream: ServerStream,
    input: InputBuffer,
    protocol: ProtocolSession,
    /// How many bytes of the answers are sent.
    sent: usize,
    /// Whether written bytes may still be in the buffer of the stream.
    unflushed: bool,
    /// The server stops; nothing more is read.
    stopping: bool,
    /// When the client must be authenticated, if it must be.
    authentication: Option<Pin<Box<Sleep>>>,
}

impl Connection {
    fn new(
        stream: ServerStream,
        peer: Option<SocketAddr>,
        server: Arc<IprotoServer>,
    ) -> io::Result<Self> {
        let mut random = [0; 48];
        server.random.fill(&mut random)?;
        let (salt, session) = random.split_at(32);
        let salt = salt.try_into().map_err(io::Error::other)?;
        let session = session.try_into().map_err(io::Error::other)?;
        let greeting = Greeting::new(server.instance, salt).encode();
        let needs_user = !server.users.guest().permissions().allows_anything();
        Ok(Connection {
            stream,
            input: InputBuffer::new(server.clone()),
            protocol: ProtocolSession::new(
                server,
                peer,
                ConnectionSecrets { salt, session },
                &greeting,
            ),
            sent: 0,
            unflushed: false,
            stopping: false,
            authentication: needs_user.then(|| Box::pin(sleep(AUTHENTICATION_MAX))),
        })
    }

    /// Runs until the connection has ended.
    fn poll_run(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let interrupted = self.protocol.poll_replies(cx);
            if self.protocol.can_resume() {
                self.input.retry(|bytes| self.protocol.feed(bytes));
                continue;
            }
            let all_sent = self.poll_send(cx)?.is_ready();
            if all_sent && (interrupted || self.protocol.can_resume()) {
                continue;
            }
            if all_sent && self.is_done() {
                return Poll::Ready(Ok(()));
            }
            if self.poll_authentication(cx).is_ready() {
                let seconds = AUTHENTICATION_MAX.as_secs();
                let error = format!("authentication timed out after {seconds} s");
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, error)));
            }
            let can_read = self.can_read();
            if self.input.poll_stalled(cx, can_read).is_ready() {
                self.protocol.refuse_input("timed out while reading a large request");
                continue;
            }
            if !can_read {
                return Poll::Pending;
            }
            let read =
                self.input.poll_read(cx, &mut self.stream, |bytes| self.protocol.feed(bytes))?;
            match read {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(ReadOutcome::Bytes) => {}
                Poll::Ready(ReadOutcome::End) => return Poll::Ready(Ok(())),
                Poll::Ready(ReadOutcome::LimitReached) => {
                    let why = "overloaded: the input buffers for large requests are full; try \
                               again later";
                    self.protocol.refuse_input(why);
                }
            }
        }
    }

    /// Whether nothing is left to do.
    fn is_done(&self) -> bool {
        let inflight = &self.protocol.inflight;
        self.protocol.is_closing() && inflight.has_only_waiting()
            || self.stopping && inflight.is_idle()
    }

    fn can_read(&mut self) -> bool {
        !self.stopping && self.protocol.can_accept()
    }

    /// Sends all answers, as many bytes at once as the stream takes.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.protocol.answers.len() {
            let unsent = &self.protocol.answers[self.sent..];
            match Pin::new(&mut self.stream).poll_write(cx, unsent)? {
                Poll::Ready(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(count) => {
                    self.sent += count;
                    self.unflushed = true;
                }
                Poll::Pending => {
                    self.discard_sent();
                    return Poll::Pending;
                }
            }
        }
        self.sent = 0;
        self.protocol.clear_answers();
        if self.unflushed {
            std::task::ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Keeps the buffer from growing when a client always reads a little less than there is. At
    /// most as many bytes are moved as were sent.
    fn discard_sent(&mut self) {
        if self.sent > SENT_BYTES_MAX.max(self.protocol.answers.len() / 2) {
            self.protocol.answers.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Ready when the client did not authenticate in time.
    fn poll_authentication(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.protocol.is_authenticated() {
            self.authentication = None;
        }
        match &mut self.authentication {
            Some(sleep) => sleep.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }
}

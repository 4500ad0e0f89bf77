//! One connection: moves bytes between the socket and the desk.

use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use taskyard_wire::iproto::Greeting;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Sleep, sleep, timeout};

use super::arrival::{Arrival, Brought};
use super::desk::{Desk, Random};
use super::face::{Face, Of, Share};
use super::farewell::{FAREWELL_MAX, say_goodbye, turn_away};
use crate::connections::told;

/// How long somebody who must say who they are may take to do so.
const INTRODUCTION_MAX: Duration = Duration::from_secs(60);
/// Answers that were sent are forgotten at the earliest when they are this many bytes.
const SENT_BYTES_MAX: usize = 1 << 20;

/// Serves one connection from its greeting to its end.
pub(crate) async fn serve(stream: TcpStream, face: Arc<Face>, mut closing: watch::Receiver<bool>) {
    let mut place = Share::new(face.clone(), Of::Connections);
    if !place.grow(1) {
        let most = face.connections_max;
        return turn_away(stream, face, most).await;
    }
    let peer = stream.peer_addr().ok().map(|peer| peer.ip());
    let Some(tls) = &face.tls else { return serve_stream(stream, peer, face, closing).await };
    let accepted = tokio::select! {
        accepted = tls.accept(stream) => accepted,
        () = told(&mut closing) => None,
    };
    if let Some(stream) = accepted {
        serve_stream(stream, peer, face.clone(), closing).await;
    }
}

async fn serve_stream<S>(
    stream: S,
    peer: Option<IpAddr>,
    face: Arc<Face>,
    mut closing: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut connection = match Connection::new(stream, peer, face) {
        Ok(connection) => connection,
        Err(error) => return tracing::error!(%error, "no random bytes for a greeting"),
    };
    let ended = tokio::select! {
        ended = poll_fn(|cx| connection.poll_run(cx)) => ended,
        () = told(&mut closing) => {
            connection.stopping = true;
            poll_fn(|cx| connection.poll_run(cx)).await
        }
    };
    match ended {
        Ok(()) => {}
        Err(error) => tracing::debug!(%error, "an iproto connection ended early"),
    }
    let Connection { mut stream, desk, .. } = connection;
    // A client that was refused for what it sent is still sending; one that is told to go elsewhere
    // need not be waited for.
    let farewell = if desk.is_closing() { FAREWELL_MAX } else { Duration::ZERO };
    desk.leave().await;
    // Whoever does not listen gets no answer; there is nothing else to do about it.
    let _ = timeout(farewell, say_goodbye(&mut stream)).await;
}

struct Connection<S> {
    stream: S,
    arrival: Arrival,
    desk: Desk,
    /// How much of the desk's answers is sent.
    sent: usize,
    /// Whether something was written that may still be in the stream's own buffer.
    unflushed: bool,
    /// Nothing more is read: the server stops.
    stopping: bool,
    /// When somebody who must say who they are has to be done with it.
    introduction: Option<Pin<Box<Sleep>>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    fn new(stream: S, peer: Option<IpAddr>, face: Arc<Face>) -> io::Result<Self> {
        let mut random = [0; 48];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let (salt, session) = random.split_at(32);
        let salt = salt.try_into().map_err(io::Error::other)?;
        let session = session.try_into().map_err(io::Error::other)?;
        let greeting = Greeting::new(face.instance, salt).encode();
        let needs_user = !face.users.guest().sees_something();
        Ok(Connection {
            stream,
            arrival: Arrival::new(face.clone()),
            desk: Desk::new(face, peer, Random { salt, session }, &greeting),
            sent: 0,
            unflushed: false,
            stopping: false,
            introduction: needs_user.then(|| Box::pin(sleep(INTRODUCTION_MAX))),
        })
    }

    /// Goes on until the connection has ended.
    fn poll_run(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let interrupted = self.desk.poll_landings(cx);
            if self.desk.may_go_on() {
                self.arrival.again(|bytes| self.desk.eat(bytes));
                continue;
            }
            let all_sent = self.poll_send(cx)?.is_ready();
            if all_sent && (interrupted || self.desk.may_go_on()) {
                continue;
            }
            if all_sent && self.is_done() {
                return Poll::Ready(Ok(()));
            }
            if self.poll_introduction(cx).is_ready() {
                let error = "authentication timed out";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, error)));
            }
            let may_read = self.may_read();
            if self.arrival.poll_stalled(cx, may_read).is_ready() {
                self.desk.refuse_arrival("the rest of a large request did not come in time");
                continue;
            }
            if !may_read {
                return Poll::Pending;
            }
            let read =
                self.arrival.poll_read(cx, &mut self.stream, |bytes| self.desk.eat(bytes))?;
            match read {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Brought::Bytes) => {}
                Poll::Ready(Brought::End) => return Poll::Ready(Ok(())),
                Poll::Ready(Brought::TooMuch) => {
                    let why = "overloaded: too many bytes of large requests are on their way";
                    self.desk.refuse_arrival(why);
                }
            }
        }
    }

    /// Whether nothing is left to do.
    fn is_done(&self) -> bool {
        let flights = &self.desk.flights;
        self.desk.is_closing() && flights.is_calm() || self.stopping && flights.is_idle()
    }

    fn may_read(&mut self) -> bool {
        !self.stopping && self.desk.may_eat()
    }

    /// Sends the desk's answers, as many at once as there are.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.desk.answers.len() {
            let unsent = &self.desk.answers[self.sent..];
            match Pin::new(&mut self.stream).poll_write(cx, unsent)? {
                Poll::Ready(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(count) => {
                    self.sent += count;
                    self.unflushed = true;
                }
                Poll::Pending => {
                    self.forget_sent();
                    return Poll::Pending;
                }
            }
        }
        self.sent = 0;
        self.desk.forget_answers();
        if self.unflushed {
            std::task::ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// A client that always reads a little less than there is must not make the answers grow. Not more is
    /// moved than was sent.
    fn forget_sent(&mut self) {
        if self.sent > SENT_BYTES_MAX.max(self.desk.answers.len() / 2) {
            self.desk.answers.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Ready when somebody took too long to say who they are.
    fn poll_introduction(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.desk.is_introduced() {
            self.introduction = None;
        }
        match &mut self.introduction {
            Some(sleep) => sleep.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }
}

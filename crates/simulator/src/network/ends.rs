//! The two ends of a connection: a socket for a client over iproto, streams for the server and for clients over HTTP.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use taskyard::IprotoSocket;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::link::{Arrival, Link, LinkEnd, Side};

/// The end of a client over iproto.
#[derive(Debug)]
pub struct ClientEnd {
    link: Arc<Link>,
    timer: Mutex<Timer>,
}

/// An end that is read and written as a stream: that of the server, or that of a client over HTTP.
#[derive(Debug)]
pub struct StreamEnd {
    link: Arc<Link>,
    side: Side,
    timer: Timer,
}

/// Wakes a reader when bytes arrive.
#[derive(Debug, Default)]
struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    fn poll_until(&mut self, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self.0.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if sleep.deadline() != at {
            sleep.as_mut().reset(at);
        }
        sleep.as_mut().poll(cx)
    }
}

/// Ready when a side can read something, or the end.
fn poll_arrival(
    link: &Link,
    timer: &mut Timer,
    side: Side,
    cx: &mut Context<'_>,
) -> Poll<Result<(), LinkEnd>> {
    loop {
        match link.arrival(side, Some(cx.waker())) {
            Arrival::Bytes => return Poll::Ready(Ok(())),
            Arrival::Ended(end) => return Poll::Ready(Err(end)),
            Arrival::Nothing => return Poll::Pending,
            Arrival::Later(at) => std::task::ready!(timer.poll_until(at, cx)),
        }
    }
}

impl ClientEnd {
    pub fn new(link: Arc<Link>) -> Self {
        ClientEnd { link, timer: Mutex::default() }
    }
}

impl Drop for ClientEnd {
    fn drop(&mut self) {
        self.link.close(Side::Client, LinkEnd::Closed);
    }
}

impl IprotoSocket for ClientEnd {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut timer = self.timer.lock().unwrap_or_else(PoisonError::into_inner);
        // The end is what the read returns.
        poll_arrival(&self.link, &mut timer, Side::Client, cx).map(|_| Ok(()))
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.link.poll_writable(Side::Client, cx).map(Ok)
    }

    fn try_read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match self.link.arrival(Side::Client, None) {
            Arrival::Bytes => Ok(self.link.read(Side::Client, bytes)),
            Arrival::Ended(LinkEnd::Closed) => Ok(0),
            Arrival::Ended(LinkEnd::Reset) => Err(io::ErrorKind::ConnectionReset.into()),
            Arrival::Later(_) | Arrival::Nothing => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn try_read_buf(&self, bytes: &mut Vec<u8>) -> io::Result<usize> {
        let mut part = [0; 4096];
        let count = self.try_read(&mut part)?;
        bytes.extend_from_slice(&part[..count]);
        Ok(count)
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.link.write(Side::Client, bytes)
    }
}

impl StreamEnd {
    pub fn new(link: Arc<Link>, side: Side) -> Self {
        StreamEnd { link, side, timer: Timer::default() }
    }
}

impl Drop for StreamEnd {
    fn drop(&mut self) {
        let end = match self.side {
            Side::Client => LinkEnd::Closed,
            Side::Server => LinkEnd::Reset,
        };
        self.link.close(self.side, end);
    }
}

impl AsyncRead for StreamEnd {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let StreamEnd { link, side, timer } = self.get_mut();
        match std::task::ready!(poll_arrival(link, timer, *side, cx)) {
            Ok(()) => {
                let count = link.read(*side, buffer.initialize_unfilled());
                buffer.advance(count);
                Poll::Ready(Ok(()))
            }
            Err(LinkEnd::Closed) => Poll::Ready(Ok(())),
            Err(LinkEnd::Reset) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
        }
    }
}

impl AsyncWrite for StreamEnd {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.link.write(self.side, bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                match self.link.poll_writable(self.side, cx) {
                    Poll::Ready(()) => Poll::Ready(self.link.write(self.side, bytes)),
                    Poll::Pending => Poll::Pending,
                }
            }
            written => Poll::Ready(written),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.link.close(self.side, LinkEnd::Closed);
        Poll::Ready(Ok(()))
    }
}

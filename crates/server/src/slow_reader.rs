//! Closes connections whose client does not read.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// A client must accept this many bytes within the stall time, or everything there is.
const ACCEPTED_BYTES_MIN: usize = 1 << 20;

/// A stream that fails when the client accepts too little for too long.
pub(crate) struct StallTimeoutStream<S> {
    stream: S,
    stall_max: Duration,
    /// When the client must have accepted enough; only while bytes wait to be written.
    deadline: Option<Pin<Box<Sleep>>>,
    /// The bytes accepted since then.
    accepted: usize,
}

impl<S> StallTimeoutStream<S> {
    /// Gives the client `stall_max` for each part.
    pub fn new(stream: S, stall_max: Duration) -> Self {
        StallTimeoutStream { stream, stall_max, deadline: None, accepted: 0 }
    }

    /// Records the result of a write: how many bytes were accepted, or none yet.
    fn note(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(count)) => {
                self.accepted = self.accepted.saturating_add(count);
                if self.accepted >= ACCEPTED_BYTES_MIN {
                    self.deadline = None;
                }
                Poll::Ready(Ok(count))
            }
            Poll::Ready(error) => Poll::Ready(error),
            Poll::Pending => {
                if self.deadline.is_none() {
                    self.deadline = Some(Box::pin(sleep(self.stall_max)));
                    self.accepted = 0;
                }
                self.poll_deadline(cx)
            }
        }
    }

    fn poll_deadline<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let Some(deadline) = &mut self.deadline else { return Poll::Pending };
        ready!(deadline.as_mut().poll(cx));
        let seconds = self.stall_max.as_secs_f64();
        tracing::warn!(seconds, "closed a connection whose client does not read its response");
        deadline.as_mut().reset(Instant::now() + self.stall_max);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallTimeoutStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallTimeoutStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.note(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        match self.note(cx, flushed.map_ok(|()| 0)) {
            Poll::Ready(Ok(_)) => {
                // Everything is written: the client has the full time for the next response.
                self.deadline = None;
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

//! Buffers bytes of frames that are incomplete or cannot be served yet.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::server::{IprotoServer, LimitShare, SharedLimit};

/// How many bytes are read at once.
const READ_BYTES: usize = 64 << 10;
/// What every connection may buffer, independent of the others: the beginning of a frame that is
/// not large, and the bytes of the next read.
const FREE_BYTES: usize = 2 * READ_BYTES;
/// How many more bytes of a large frame must arrive within the stall limit.
const STEP_BYTES: usize = 16 << 10;

thread_local! {
    /// The buffer for reads. It belongs to the thread and not to the connection: most connections
    /// are idle most of the time and need no memory then.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
}

/// The bytes of frames that are incomplete or cannot be served yet.
pub(super) struct InputBuffer {
    rest: Vec<u8>,
    /// Its part of the memory that all connections share.
    share: LimitShare,
    /// When more of a large frame must have arrived.
    deadline: Option<StallDeadline>,
    server: Arc<IprotoServer>,
}

struct StallDeadline {
    over: Pin<Box<Sleep>>,
    bytes: usize,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadOutcome {
    /// Bytes were read.
    Bytes,
    /// The client closed the connection.
    End,
    /// The limit for incomplete frames of all connections is reached.
    LimitReached,
}

impl InputBuffer {
    /// An empty buffer.
    pub fn new(server: Arc<IprotoServer>) -> Self {
        let share = LimitShare::new(server.clone(), SharedLimit::Arriving);
        InputBuffer { rest: Vec::new(), share, deadline: None, server }
    }

    /// Reads once and passes the bytes to `feed`, which returns how many of them it consumed.
    pub fn poll_read<S: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut S,
        feed: impl FnOnce(&[u8]) -> usize,
    ) -> Poll<io::Result<ReadOutcome>> {
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buffer = ReadBuf::new(scratch);
            ready!(Pin::new(stream).poll_read(cx, &mut buffer))?;
            let arrived = buffer.filled();
            if arrived.is_empty() {
                return Poll::Ready(Ok(ReadOutcome::End));
            }
            Poll::Ready(Ok(self.append(arrived, feed)))
        })
    }

    fn append(&mut self, arrived: &[u8], feed: impl FnOnce(&[u8]) -> usize) -> ReadOutcome {
        if self.rest.is_empty() {
            // The usual case: whole frames, which need not be copied.
            let consumed = feed(arrived);
            self.rest.extend_from_slice(&arrived[consumed..]);
            return ReadOutcome::Bytes;
        }
        if !self.reserve(arrived.len()) {
            return ReadOutcome::LimitReached;
        }
        self.rest.extend_from_slice(arrived);
        self.retry(feed);
        ReadOutcome::Bytes
    }

    /// Passes the buffered bytes to `feed` again.
    pub fn retry(&mut self, feed: impl FnOnce(&[u8]) -> usize) {
        let consumed = feed(&self.rest);
        if consumed == 0 {
            return;
        }
        self.deadline = None;
        self.rest.drain(..consumed);
        // A connection that once sent something large must not keep the memory for it.
        if self.rest.capacity() > FREE_BYTES && self.rest.capacity() / 4 > self.rest.len() {
            self.rest.shrink_to(READ_BYTES);
        }
        let counted = self.rest.capacity().saturating_sub(FREE_BYTES);
        self.share.resize(counted);
    }

    /// Reserves memory for this many more bytes; false if the limit is reached. Half as much again
    /// is tried first, so that a large frame is not moved with every read.
    fn reserve(&mut self, more: usize) -> bool {
        let length = self.rest.len();
        let needed = length + more;
        if needed <= self.rest.capacity() {
            return true;
        }
        for wanted in [needed.max(length + length / 2), needed] {
            if self.share.resize(wanted.saturating_sub(FREE_BYTES)) {
                self.rest.reserve_exact(wanted - length);
                return true;
            }
        }
        false
    }

    /// Ready when a large frame makes no progress. `reading` says whether the connection reads at
    /// all.
    pub fn poll_stalled(&mut self, cx: &mut Context<'_>, reading: bool) -> Poll<()> {
        if self.rest.len() <= FREE_BYTES {
            self.deadline = None;
            return Poll::Pending;
        }
        loop {
            let bytes = self.rest.len() + STEP_BYTES;
            let deadline = self.deadline.get_or_insert_with(|| {
                let over = Box::pin(sleep(self.server.stall_max));
                StallDeadline { over, bytes }
            });
            ready!(deadline.over.as_mut().poll(cx));
            if reading && self.rest.len() < deadline.bytes {
                return Poll::Ready(());
            }
            self.deadline = None;
        }
    }
}

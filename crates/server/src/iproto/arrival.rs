//! What has arrived and is not a whole frame yet.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use super::face::{Face, Of, Share};

/// How much is read at once.
const READ_BYTES: usize = 64 << 10;

thread_local! {
    /// Where bytes arrive. One for each thread and not for each connection: most connections are idle
    /// most of the time and need no memory then.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
}

/// The bytes of a frame that is not complete yet.
pub(super) struct Arrival {
    rest: Vec<u8>,
    share: Share,
}

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Brought {
    /// Some bytes.
    Bytes,
    /// The other side is gone.
    End,
    /// All connections together wait for more bytes than there may be.
    TooMuch,
}

impl Arrival {
    /// Nothing yet.
    pub fn new(face: Arc<Face>) -> Self {
        Arrival { rest: Vec::new(), share: Share::new(face, Of::Arriving) }
    }

    /// Reads once and hands what is there to `eat`, which answers how much of it was whole frames.
    pub fn poll_read<S: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut S,
        eat: impl FnOnce(&[u8]) -> usize,
    ) -> Poll<io::Result<Brought>> {
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buffer = ReadBuf::new(scratch);
            ready!(Pin::new(stream).poll_read(cx, &mut buffer))?;
            let arrived = buffer.filled();
            if arrived.is_empty() {
                return Poll::Ready(Ok(Brought::End));
            }
            if self.rest.is_empty() {
                // The usual case: whole frames, which need not be copied.
                let eaten = eat(arrived);
                self.rest.extend_from_slice(&arrived[eaten..]);
            } else {
                self.rest.extend_from_slice(arrived);
                let eaten = eat(&self.rest);
                self.drop_eaten(eaten);
            }
            let within = self.settle();
            Poll::Ready(Ok(if within { Brought::Bytes } else { Brought::TooMuch }))
        })
    }

    /// Hands what was left over to `eat` again.
    pub fn again(&mut self, eat: impl FnOnce(&[u8]) -> usize) {
        if !self.rest.is_empty() {
            let eaten = eat(&self.rest);
            self.drop_eaten(eaten);
            self.settle();
        }
    }

    fn drop_eaten(&mut self, eaten: usize) {
        self.rest.drain(..eaten);
        if self.rest.is_empty() && self.rest.capacity() > READ_BYTES {
            self.rest = Vec::new();
        }
    }

    /// Counts what is left over; false when that is too much.
    fn settle(&mut self) -> bool {
        if self.rest.is_empty() {
            self.share.clear();
            return true;
        }
        let more = self.rest.len().saturating_sub(self.share.amount());
        more == 0 || self.share.grow(more)
    }
}

//! What has arrived and is not served yet.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::face::{Face, Of, Share};

/// How much is read at once.
const READ_BYTES: usize = 64 << 10;
/// What every connection may keep, whatever the others do: the beginning of a frame that is not large, and
/// what comes with the next read.
const FREE_BYTES: usize = 2 * READ_BYTES;
/// How much more of a large frame must come in the time that is given for it.
const STEP_BYTES: usize = 16 << 10;

thread_local! {
    /// Where bytes arrive. One for each thread and not for each connection: most connections are idle
    /// most of the time and need no memory then.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
}

/// The bytes of a frame that is not complete yet, or that has to wait.
pub(super) struct Arrival {
    rest: Vec<u8>,
    /// What it has of the memory that all connections share.
    share: Share,
    /// When more of a large frame must be there.
    deadline: Option<Deadline>,
    face: Arc<Face>,
}

struct Deadline {
    over: Pin<Box<Sleep>>,
    bytes: usize,
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
        let share = Share::new(face.clone(), Of::Arriving);
        Arrival { rest: Vec::new(), share, deadline: None, face }
    }

    /// Reads once and hands what is there to `eat`, which answers how much of it was served.
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
            Poll::Ready(Ok(self.take_in(arrived, eat)))
        })
    }

    fn take_in(&mut self, arrived: &[u8], eat: impl FnOnce(&[u8]) -> usize) -> Brought {
        if self.rest.is_empty() {
            // The usual case: whole frames, which need not be copied.
            let eaten = eat(arrived);
            self.rest.extend_from_slice(&arrived[eaten..]);
            return Brought::Bytes;
        }
        if !self.make_room(arrived.len()) {
            return Brought::TooMuch;
        }
        self.rest.extend_from_slice(arrived);
        self.again(eat);
        Brought::Bytes
    }

    /// Hands what was left over to `eat` again.
    pub fn again(&mut self, eat: impl FnOnce(&[u8]) -> usize) {
        let eaten = eat(&self.rest);
        if eaten == 0 {
            return;
        }
        self.deadline = None;
        self.rest.drain(..eaten);
        // A connection that once sent something large must not keep the memory for it.
        if self.rest.capacity() > FREE_BYTES && self.rest.capacity() / 4 > self.rest.len() {
            self.rest.shrink_to(READ_BYTES);
        }
        let counted = self.rest.capacity().saturating_sub(FREE_BYTES);
        self.share.resize(counted);
    }

    /// Makes room for this many more bytes; false when there is none. Half as much again is asked for
    /// first, so that a large frame is not moved with every read.
    fn make_room(&mut self, more: usize) -> bool {
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

    /// Ready when a large frame does not come on, though it could: `reading` says that it is waited for.
    pub fn poll_stalled(&mut self, cx: &mut Context<'_>, reading: bool) -> Poll<()> {
        if self.rest.len() <= FREE_BYTES {
            self.deadline = None;
            return Poll::Pending;
        }
        loop {
            let bytes = self.rest.len() + STEP_BYTES;
            let deadline = self.deadline.get_or_insert_with(|| {
                let over = Box::pin(sleep(self.face.stall_max));
                Deadline { over, bytes }
            });
            ready!(deadline.over.as_mut().poll(cx));
            if reading && self.rest.len() < deadline.bytes {
                return Poll::Ready(());
            }
            self.deadline = None;
        }
    }
}

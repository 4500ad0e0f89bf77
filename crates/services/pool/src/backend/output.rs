//! What a program writes: gathered for a moment, counted, and sent in pieces.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::Instant;

use crate::protocol::{Outgoing, Stream};

/// How long output is gathered before it is sent.
const GATHER: Duration = Duration::from_millis(20);
/// How much output is gathered at most, in bytes.
const PIECE: usize = 16 << 10;

/// One output of a program.
#[derive(Debug)]
pub(super) struct Output<R> {
    reader: Option<R>,
    stream: Stream,
    gathered: Vec<u8>,
    /// When what is gathered has to go.
    due: Option<Instant>,
    left: usize,
    exceeded: bool,
}

impl<R: AsyncRead + Unpin> Output<R> {
    pub fn new(reader: Option<R>, stream: Stream, bytes_max: usize) -> Self {
        Output { reader, stream, gathered: Vec::new(), due: None, left: bytes_max, exceeded: false }
    }

    /// Whether more was written than allowed.
    pub fn exceeded(&self) -> bool {
        self.exceeded
    }

    /// Whether nothing more can come.
    pub fn is_closed(&self) -> bool {
        self.reader.is_none()
    }

    /// Reads some more. Beyond the limit the pipe is closed, which ends most programs that go on.
    pub async fn read(&mut self) {
        let Some(reader) = &mut self.reader else { return std::future::pending().await };
        let mut piece = [0; PIECE];
        match reader.read(&mut piece).await {
            Ok(0) | Err(_) => self.reader = None,
            Ok(size) => {
                let kept = size.min(self.left);
                self.left -= kept;
                self.gathered.extend_from_slice(&piece[..kept]);
                self.due.get_or_insert_with(|| Instant::now() + GATHER);
                if kept < size {
                    self.exceeded = true;
                    self.reader = None;
                }
            }
        }
    }

    /// When what is gathered has to go; nothing while nothing is.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// What is gathered, as a frame, if that is as much as one should have. A timer would be late: it counts in
    /// milliseconds, and a program writes a lot meanwhile.
    pub fn take_full(&mut self) -> Option<Outgoing> {
        if self.gathered.len() >= PIECE { self.take() } else { None }
    }

    /// What is gathered, as a frame, if it has to go.
    pub fn take_due(&mut self, now: Instant) -> Option<Outgoing> {
        if self.due.is_some_and(|due| due <= now) { self.take() } else { None }
    }

    /// What is gathered so far, as a frame.
    pub fn take(&mut self) -> Option<Outgoing> {
        self.due = None;
        if self.gathered.is_empty() {
            return None;
        }
        Some(Outgoing::Output(self.stream, std::mem::take(&mut self.gathered)))
    }
}

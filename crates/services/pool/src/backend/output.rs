//! Reads an output stream of a program, buffers it briefly, limits it and splits it into frames.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::Instant;

use crate::protocol::{OutgoingFrame, Stream};

/// How long output is buffered before it is sent.
const FLUSH_AFTER: Duration = Duration::from_millis(20);
/// Most bytes in a frame.
const FRAME_BYTES: usize = 16 << 10;

/// One output stream of a program.
#[derive(Debug)]
pub(super) struct OutputReader<R> {
    reader: Option<R>,
    stream: Stream,
    buffer: Vec<u8>,
    /// When the buffer has to be sent.
    due: Option<Instant>,
    left: usize,
    exceeded: bool,
}

impl<R: AsyncRead + Unpin> OutputReader<R> {
    pub fn new(reader: Option<R>, stream: Stream, bytes_max: usize) -> Self {
        OutputReader {
            reader,
            stream,
            buffer: Vec::new(),
            due: None,
            left: bytes_max,
            exceeded: false,
        }
    }

    /// Whether the program wrote more than allowed.
    pub fn exceeded(&self) -> bool {
        self.exceeded
    }

    /// Whether the stream is closed.
    pub fn is_closed(&self) -> bool {
        self.reader.is_none()
    }

    /// Reads more. Beyond the limit the pipe is closed, which ends most programs that continue to write.
    pub async fn read(&mut self) {
        let Some(reader) = &mut self.reader else { return std::future::pending().await };
        let mut piece = [0; FRAME_BYTES];
        match reader.read(&mut piece).await {
            Ok(0) | Err(_) => self.reader = None,
            Ok(size) => {
                let accepted = size.min(self.left);
                self.left -= accepted;
                self.buffer.extend_from_slice(&piece[..accepted]);
                self.due.get_or_insert_with(|| Instant::now() + FLUSH_AFTER);
                if accepted < size {
                    self.exceeded = true;
                    self.reader = None;
                }
            }
        }
    }

    /// When the buffer has to be sent; `None` while it is empty.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The buffer as a frame, if it is full. A timer would be late: it has millisecond resolution, and a program
    /// writes a lot meanwhile.
    pub fn take_full(&mut self) -> Option<OutgoingFrame> {
        if self.buffer.len() >= FRAME_BYTES { self.take() } else { None }
    }

    /// The buffer as a frame, if it is due.
    pub fn take_due(&mut self, now: Instant) -> Option<OutgoingFrame> {
        if self.due.is_some_and(|due| due <= now) { self.take() } else { None }
    }

    /// The buffer as a frame.
    pub fn take(&mut self) -> Option<OutgoingFrame> {
        self.due = None;
        if self.buffer.is_empty() {
            return None;
        }
        Some(OutgoingFrame::Output(self.stream, std::mem::take(&mut self.buffer)))
    }
}

//! Buffers standard input that a program has not accepted yet.

use std::collections::VecDeque;

use tokio::sync::mpsc::{OwnedPermit, Sender};

use super::socket::{SessionEnd, rejected};
use crate::units::size;

/// Input for the program, in order. While it waits, messages of the client are still read, so that a disconnect is
/// noticed even if the program never reads.
pub(super) struct StdinQueue {
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
    bytes_max: usize,
}

impl StdinQueue {
    pub fn new(bytes_max: usize) -> Self {
        StdinQueue { waiting: VecDeque::new(), bytes: 0, bytes_max }
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds input until the program accepts it. Exceeding the limit is an error: silently dropping a piece would
    /// change the meaning of the next one.
    pub fn push(&mut self, bytes: Vec<u8>) -> Result<(), SessionEnd> {
        self.bytes += bytes.len().max(1);
        if self.bytes > self.bytes_max {
            let most = size(self.bytes_max as u64);
            return Err(rejected(format!(
                "the program does not read its standard input: more than {most} are buffered"
            )));
        }
        self.waiting.push_back(bytes);
        Ok(())
    }

    /// Sends the first piece; a program without standard input discards it.
    pub fn send_next(&mut self, permit: Option<OwnedPermit<Vec<u8>>>) {
        let Some(bytes) = self.waiting.pop_front() else { return };
        self.bytes -= bytes.len().max(1);
        if let Some(permit) = permit {
            permit.send(bytes);
        }
    }
}

/// Waits for capacity for one piece, if input is buffered and the program runs.
pub(super) async fn stdin_permit(
    input: Option<Sender<Vec<u8>>>,
    is_empty: bool,
) -> Option<OwnedPermit<Vec<u8>>> {
    match input {
        Some(input) if !is_empty => input.reserve_owned().await.ok(),
        _ => std::future::pending().await,
    }
}

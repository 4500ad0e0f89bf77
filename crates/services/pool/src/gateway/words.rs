//! What a client says to a program that has not taken it yet.

use std::collections::VecDeque;

use tokio::sync::mpsc::{OwnedPermit, Sender};

use super::socket::{Gone, wrong};
use crate::units::size;

/// Words for the standard input, in order. The client goes on being heard meanwhile, so that its leaving is
/// noticed also when the program never reads.
pub(super) struct Words {
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
    bytes_max: usize,
}

impl Words {
    pub fn new(bytes_max: usize) -> Self {
        Words { waiting: VecDeque::new(), bytes: 0, bytes_max }
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Keeps them until the program takes them. A client that sends more than may wait is told so: a word that is
    /// dropped silently would change what the next one means.
    pub fn add(&mut self, bytes: Vec<u8>) -> Result<(), Gone> {
        self.bytes += bytes.len().max(1);
        if self.bytes > self.bytes_max {
            let most = size(self.bytes_max as u64);
            return Err(wrong(format!(
                "the program does not read its input, and more than {most} wait for it"
            )));
        }
        self.waiting.push_back(bytes);
        Ok(())
    }

    /// Passes the first ones on; a program without standard input takes nothing.
    pub fn pass(&mut self, permit: Option<OwnedPermit<Vec<u8>>>) {
        let Some(bytes) = self.waiting.pop_front() else { return };
        self.bytes -= bytes.len().max(1);
        if let Some(permit) = permit {
            permit.send(bytes);
        }
    }
}

/// Room for one piece of the standard input, when something waits and the program runs.
pub(super) async fn room(
    input: Option<Sender<Vec<u8>>>,
    nothing_waits: bool,
) -> Option<OwnedPermit<Vec<u8>>> {
    match input {
        Some(input) if !nothing_waits => input.reserve_owned().await.ok(),
        _ => std::future::pending().await,
    }
}

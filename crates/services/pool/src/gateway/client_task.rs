//! Follows one task of one client from submission to its last frame. Dropping it releases everything.

use taskyard_core::Span;
use tokio::sync::mpsc;

use super::handle::{TaskHandle, Unavailable};
use super::shared::Gateway;
use crate::backend::TaskSpec;
use crate::protocol::OutgoingFrame;

/// A submitted task.
#[derive(Debug)]
pub struct ClientTask {
    handle: Box<dyn TaskHandle>,
    ended: bool,
}

/// The next frame, or the end.
#[derive(Debug)]
pub enum NextFrame {
    /// A frame for the client.
    Frame(OutgoingFrame),
    /// Nothing more.
    End,
}

impl ClientTask {
    /// Submits a task to the pool.
    pub async fn submit(gateway: &Gateway, spec: TaskSpec) -> Result<Self, Unavailable> {
        let handle = gateway.0.pool.submit(spec).await?;
        Ok(ClientTask { handle, ended: false })
    }

    /// The next frame for the client. Cancel-safe.
    pub async fn next_frame(&mut self) -> NextFrame {
        if self.ended {
            return NextFrame::End;
        }
        let frame = self.handle.next_frame().await;
        self.ended = frame.is_last();
        NextFrame::Frame(frame)
    }

    /// Lowers the time limit; the error says why that is refused.
    pub async fn lower(&mut self, requested: Span) -> Result<(), String> {
        self.handle.lower(requested).await
    }

    /// The standard input of the program; none before it runs.
    pub fn input(&self) -> Option<mpsc::Sender<Vec<u8>>> {
        self.handle.input()
    }
}

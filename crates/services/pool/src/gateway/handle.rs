//! Defines what a gateway needs of the rest of a pool, in the same process or on other machines.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

use serde_json::Value;
use taskyard_core::Span;
use tokio::sync::mpsc;

use crate::backend::TaskSpec;
use crate::protocol::OutgoingFrame;

/// A boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Why the pool accepts no task, as a message for the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(pub String);

/// The scheduler and the backends as a gateway sees them.
pub trait PoolHandle: Debug + Send + Sync {
    /// Submits a task.
    fn submit(&self, spec: TaskSpec) -> BoxFuture<'_, Result<Box<dyn TaskHandle>, Unavailable>>;

    /// The status of the pool as JSON.
    fn status(&self) -> BoxFuture<'_, Result<Value, Unavailable>>;
}

/// One task in the pool. Dropping it withdraws the task and releases everything.
pub trait TaskHandle: Debug + Send {
    /// The next frame for the client; exactly one of them is the last. Cancel-safe.
    fn next_frame(&mut self) -> BoxFuture<'_, OutgoingFrame>;

    /// Lowers the time limit; the error says why that is refused.
    fn lower(&mut self, requested: Span) -> BoxFuture<'_, Result<(), String>>;

    /// The standard input of the program; none before it runs.
    fn input(&self) -> Option<mpsc::Sender<Vec<u8>>>;
}

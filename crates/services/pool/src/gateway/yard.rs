//! What a gateway needs of the rest of a pool, wherever that runs.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

use serde_json::Value;
use taskyard_core::Span;
use tokio::sync::mpsc;

use crate::backend::Plan;
use crate::protocol::Outgoing;

/// Something that comes later.
pub type Soon<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Why the pool takes no task, in words for the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Away(pub String);

/// The scheduler and the backends as a gateway sees them: in its own process, or on many machines.
pub trait Yard: Debug + Send + Sync {
    /// A task arrives.
    fn arrive(&self, plan: Plan) -> Soon<'_, Result<Box<dyn Stay>, Away>>;

    /// How the pool is, as its status shows it.
    fn status(&self) -> Soon<'_, Result<Value, Away>>;
}

/// One task in the pool. It leaves, and everything is free, when this is dropped.
pub trait Stay: Debug + Send {
    /// The next thing to tell the client; exactly one of them is the last. It may be dropped and asked again without
    /// losing anything.
    fn next(&mut self) -> Soon<'_, Outgoing>;

    /// The client wants less time; what is wrong with that is the answer.
    fn lower(&mut self, wish: Span) -> Soon<'_, Result<(), String>>;

    /// The way to the program's standard input; nothing before it runs.
    fn input(&self) -> Option<mpsc::Sender<Vec<u8>>>;
}

//! The trait of everything that runs commands, in this process or on another machine.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;

use crate::command::{Command, Reply};
use crate::error::Result;

/// Runs batches of commands. Implemented by the engine in this process and by the network client,
/// so that workers, the command line and the test suite need neither engine nor store.
pub trait Execute: Send + Sync {
    /// Runs the commands in order and returns the replies in that order. The batch is not one
    /// transaction: each command is atomic by itself.
    fn execute(&self, commands: Vec<Command>) -> impl Future<Output = Vec<Result<Reply>>> + Send;

    /// Whether the reply to a command may be lost although it was executed. Clients give their puts
    /// random keys then, so that they can repeat them.
    fn may_lose_replies(&self) -> bool {
        false
    }
}

/// A boxed future of the replies to a batch.
pub type BoxedReplies<'a> = Pin<Box<dyn Future<Output = Vec<Result<Reply>>> + Send + 'a>>;

/// A dyn-compatible form of [`Execute`], which everything that executes commands has. It can be downcast to what it is.
pub trait DynExecute: Any + Send + Sync {
    /// [`Execute::execute`], in a box.
    fn execute_boxed(&self, commands: Vec<Command>) -> BoxedReplies<'_>;

    /// [`Execute::may_lose_replies`].
    fn replies_can_be_lost(&self) -> bool;
}

impl<E: Execute + 'static> DynExecute for E {
    fn execute_boxed(&self, commands: Vec<Command>) -> BoxedReplies<'_> {
        Box::pin(self.execute(commands))
    }

    fn replies_can_be_lost(&self) -> bool {
        self.may_lose_replies()
    }
}

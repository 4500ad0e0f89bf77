//! Decides how long a task waits after a failed delivery whose caller chose no delay.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use taskyard_core::{AfterFailure, Command, Execute, Reply, Span, TubeName};

/// By the retry policy of the tube, with a random number, if it has one; otherwise the given delay.
///
/// The policy is read by a command of its own: if it is removed before the failed delivery arrives,
/// the task is buried.
pub async fn after_failure(queue: &impl Execute, tube: &TubeName, otherwise: Span) -> AfterFailure {
    let show = Command::Tubes { tube: Some(tube.clone()) };
    // The command that follows reports errors.
    match queue.execute(vec![show]).await.pop() {
        Some(Ok(Reply::Tubes(tubes))) if tubes.iter().any(|info| info.options.retry.is_some()) => {
            AfterFailure::Policy(random())
        }
        _ => AfterFailure::Retry(otherwise),
    }
}

/// A random number. It protects nothing, so the seeds of hash tables are random enough.
fn random() -> u32 {
    RandomState::new().build_hasher().finish() as u32
}

//! Draws the random numbers of failed deliveries that follow the retry policies of their tubes.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use taskyard_core::failure::stored_error;
use taskyard_core::{AfterFailure, Command, Fail, Finish, Span};

/// A failed delivery that follows the retry policy of its tube; without a policy the task is ready after this delay.
pub fn fail_by_policy(error: &str, default_delay: Span) -> Finish {
    let then = AfterFailure::Policy { seed: random(), default_delay };
    Finish::Fail(Box::new(Fail { error: stored_error(error), then }))
}

/// Draws the random numbers of a command whose caller sent none.
pub fn draw_seeds(command: &mut Command) {
    let Command::Finish { items, .. } = command else { return };
    for item in items {
        if let Finish::Fail(fail) = &mut item.finish
            && let AfterFailure::Policy { seed, .. } = &mut fail.then
        {
            *seed = random();
        }
    }
}

/// A random number. It protects nothing, so the seeds of hash tables are random enough.
fn random() -> u32 {
    RandomState::new().build_hasher().finish() as u32
}

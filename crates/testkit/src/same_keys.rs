//! Batches of tasks with the same thousand keys in random order, for clients that put them at the same time.

use fastrand::Rng;
use taskyard_core::{Body, Key, KeyRequest, NewTask};

/// The most tasks of a batch.
const BATCH_MAX: usize = 100;

/// The batches of one client: each round has every key once.
pub struct SameKeys {
    rng: Rng,
    rounds: usize,
    /// The rest of this round.
    rest: Vec<usize>,
}

impl SameKeys {
    /// How many keys there are.
    pub const KEYS: usize = 1_000;

    /// How many rounds each of `TASKYARD_RUNS` has: a storm with five runs has a hundred.
    pub const ROUNDS_OF_A_RUN: usize = 20;

    /// The batches of so many rounds.
    pub fn new(seed: u64, rounds: usize) -> Self {
        SameKeys { rng: Rng::with_seed(seed), rounds, rest: Vec::new() }
    }
}

impl Iterator for SameKeys {
    type Item = Vec<NewTask>;

    fn next(&mut self) -> Option<Vec<NewTask>> {
        if self.rest.is_empty() {
            self.rounds = self.rounds.checked_sub(1)?;
            self.rest = (0..Self::KEYS).collect();
            self.rng.shuffle(&mut self.rest);
        }
        let count = self.rng.usize(1..=BATCH_MAX).min(self.rest.len());
        let task = |key: usize| {
            let key = Key::new(&format!("key {key}")).expect("a good key");
            NewTask {
                key: Some(Box::new(KeyRequest::new(key))),
                ..NewTask::new(Body::new(&[0xc0]))
            }
        };
        Some(self.rest.drain(..count).map(task).collect())
    }
}

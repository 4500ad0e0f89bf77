//! Remembers which worker holds which task, within a fixed memory.
//!
//! Deliveries that end without a finish (leases that expire, truncated tubes, finishes on other
//! servers) leave their entry behind. So there are two generations: when the young one is full, it
//! replaces the old one, and what was left in that is forgotten.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use taskyard_core::{TaskId, TubeName};

use super::registry::WorkerNumber;

/// The number of deliveries in one generation.
pub(super) const HALF_MAX: usize = 1 << 17;

/// Identifies a task of a tube. Two tasks have the same key so rarely that the counts do not suffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TaskKey(u64);

/// A number for the name of a tube.
#[derive(Clone, Copy, Debug)]
pub(super) struct TubeHash(u64);

impl TubeHash {
    /// The number of this tube (FNV-1a).
    pub fn of(tube: &TubeName) -> Self {
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        TubeHash(tube.as_str().as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, step))
    }

    /// The key of a task of this tube.
    pub fn key(self, id: TaskId) -> TaskKey {
        let mixed = (self.0 ^ id.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        TaskKey(mixed ^ (mixed >> 32))
    }
}

impl std::hash::Hash for TaskKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0);
    }
}

/// Passes a key on, which is a hash already.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

type Generation = HashMap<TaskKey, WorkerNumber, BuildHasherDefault<KeyHasher>>;

/// The workers that hold tasks.
#[derive(Debug, Default)]
pub(super) struct Holders {
    young: Generation,
    old: Generation,
}

impl Holders {
    /// Whether no task is held by a known worker.
    pub fn is_empty(&self) -> bool {
        self.young.is_empty() && self.old.is_empty()
    }

    /// Remembers that a worker holds a task.
    pub fn begin(&mut self, task: TaskKey, worker: WorkerNumber) {
        if self.young.len() >= HALF_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(task, worker);
    }

    /// The worker that holds a task.
    pub fn get(&self, task: TaskKey) -> Option<WorkerNumber> {
        self.young.get(&task).or_else(|| self.old.get(&task)).copied()
    }

    /// Forgets the delivery of a task. Returns the worker that held it.
    pub fn end(&mut self, task: TaskKey) -> Option<WorkerNumber> {
        self.young.remove(&task).or_else(|| self.old.remove(&task))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(tube: &str) -> impl Fn(usize) -> TaskKey {
        let tube = TubeHash::of(&TubeName::new(tube).unwrap());
        move |id| tube.key(TaskId(id as u64))
    }

    #[test]
    fn a_delivery_ends_once() {
        let (mut holders, mail, jobs) = (Holders::default(), keys("mail"), keys("jobs"));
        let [first, second] = [0, 1].map(WorkerNumber::of_slot);
        holders.begin(mail(7), first);
        holders.begin(jobs(7), second);
        assert_eq!(holders.get(mail(7)), Some(first));
        assert_eq!(holders.end(mail(7)), Some(first));
        assert_eq!(holders.end(mail(7)), None);
        assert_eq!(holders.end(jobs(7)), Some(second));
        assert!(holders.is_empty());
    }

    #[test]
    fn the_oldest_deliveries_are_forgotten() {
        let (mut holders, mail) = (Holders::default(), keys("mail"));
        let worker = WorkerNumber::of_slot(3);
        (0..=HALF_MAX).for_each(|id| holders.begin(mail(id), worker));
        assert_eq!(holders.get(mail(0)), Some(worker), "in the old generation");
        (HALF_MAX..=2 * HALF_MAX).for_each(|id| holders.begin(mail(id), worker));
        assert_eq!((holders.get(mail(0)), holders.get(mail(HALF_MAX))), (None, Some(worker)));
        assert!(holders.young.len() + holders.old.len() <= super::super::WORKER_DELIVERIES_MAX);
    }
}

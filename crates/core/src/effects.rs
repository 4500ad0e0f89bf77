//! What a batch of commands changed that others may be waiting for.

use crate::time::Timestamp;
use crate::tube::TubeName;

/// What others may be waiting for. Consumers and producers are woken from this alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Tubes in which tasks became takeable, and how many are takeable now.
    pub ready: Vec<(TubeName, u64)>,
    /// Full tubes that have room again, and how much.
    pub room: Vec<(TubeName, u64)>,
    /// Events of semaphores became due: those who wait for events may fetch them.
    pub events: bool,
    /// When time alone next changes something; a tick is wanted then.
    pub next_wakeup: Option<Timestamp>,
}

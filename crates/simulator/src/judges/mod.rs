//! Compares the history of a run with the promises of the queue. Each judge has its own file.

mod attempts;
mod capacity;
mod damage;
mod daylight;
mod done;
mod drained;
mod dropped;
mod early;
mod ended;
mod estimates;
mod fencing;
mod held;
mod identity;
mod keys;
mod leader;
mod listed;
mod liveness;
mod lost;
mod order;
mod outcome;
mod overlap;
mod paused;
mod payload;
mod rate;
mod runs;
mod schedules;
#[cfg(test)]
mod script;
mod semaphore;
mod sessions;
mod stopped;
mod subqueue;

use std::fmt;

use crate::evidence::Evidence;

pub use daylight::DAILY;
pub use estimates::{HeldEstimates, count as count_estimates};

/// A promise that a run broke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The judge.
    pub judge: &'static str,
    /// What happened.
    pub sentence: String,
}

impl Violation {
    /// A violation of one promise.
    pub fn new(judge: &'static str, sentence: String) -> Self {
        Violation { judge, sentence }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.judge, self.sentence)
    }
}

/// Finds what is wrong with a run, in one sentence.
type Judge = fn(&Evidence<'_>) -> Option<String>;

/// All judges, by name. What did not end is looked at last: it is often the consequence of something else.
const JUDGES: [(&str, Judge); 30] = [
    ("damage", damage::judge),
    ("payload", payload::judge),
    ("leader", leader::judge),
    ("identity", identity::judge),
    ("overlap", overlap::judge),
    ("subqueue", subqueue::judge),
    ("semaphore", semaphore::judge),
    ("fencing", fencing::judge),
    ("ended", ended::judge),
    ("held", held::judge),
    ("sessions", sessions::judge),
    ("early", early::judge),
    ("attempts", attempts::judge),
    ("keys", keys::judge),
    ("rate", rate::judge),
    ("order", order::judge),
    ("paused", paused::judge),
    ("capacity", capacity::judge),
    ("done", done::judge),
    ("listed", listed::judge),
    ("dropped", dropped::judge),
    ("daylight", daylight::judge),
    ("schedules", schedules::judge),
    ("estimates", estimates::judge),
    ("runs", runs::judge),
    ("outcome", outcome::judge),
    ("stopped", stopped::judge),
    ("drained", drained::judge),
    ("liveness", liveness::judge),
    ("lost", lost::judge),
];

/// The first violation that a judge finds.
pub fn judge(evidence: &Evidence<'_>) -> Option<Violation> {
    JUDGES.iter().find_map(|(name, judge)| Some(Violation::new(name, judge(evidence)?)))
}

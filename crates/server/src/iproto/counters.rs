//! Counts the requests and connections of iproto clients.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Every verb that is counted, and one for all others.
const VERBS: [&str; 38] = [
    "call",
    "put",
    "put_many",
    "take",
    "take_many",
    "ack",
    "ack_many",
    "release",
    "touch",
    "bury",
    "fail",
    "kick",
    "peek",
    "list",
    "delete",
    "truncate",
    "release_all",
    "drop",
    "statistics",
    "identify",
    "worker",
    "state",
    "info",
    "cfg",
    "create_tube",
    "tube",
    "execute",
    "run_schedule",
    "semaphore",
    "eval",
    "ping",
    "id",
    "auth",
    "select",
    "watch",
    "unwatch",
    "frame",
    "other",
];

/// The numbers of requests and connections of iproto clients.
pub(crate) struct Counters {
    connections: Arc<AtomicUsize>,
    /// Connections that were refused because of the limit.
    pub refused_connections: AtomicU64,
    /// Answered requests, by the index of the verb.
    answered: [AtomicU64; VERBS.len()],
    /// Refused requests, by verb and code of the fault. There are few of both.
    refused: Mutex<BTreeMap<(CountedVerb, u32), u64>>,
}

/// An open connection; it is counted until this is dropped.
pub(crate) struct OpenConnection(Arc<AtomicUsize>);

/// The index of a verb in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CountedVerb(u8);

impl CountedVerb {
    /// The verb of this name.
    pub fn of(name: &str) -> Self {
        let place = VERBS.iter().position(|verb| *verb == name);
        CountedVerb(place.unwrap_or(VERBS.len() - 1) as u8)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        VERBS[usize::from(self.0)]
    }
}

impl Default for Counters {
    fn default() -> Self {
        Counters {
            connections: Arc::default(),
            refused_connections: AtomicU64::new(0),
            answered: std::array::from_fn(|_| AtomicU64::new(0)),
            refused: Mutex::default(),
        }
    }
}

impl Counters {
    /// Counts a connection.
    pub fn open(&self) -> OpenConnection {
        self.connections.fetch_add(1, Ordering::Relaxed);
        OpenConnection(self.connections.clone())
    }

    /// How many connections are open.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Counts a request that was answered.
    pub fn answered(&self, verb: CountedVerb) {
        self.answered[usize::from(verb.0)].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that was refused.
    pub fn refused(&self, verb: CountedVerb, code: u32) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        *refused.entry((verb, code)).or_default() += 1;
    }

    /// Every count that is not zero: the verb, the code of the fault or 0, how often.
    pub fn counts(&self) -> Vec<(&'static str, u32, u64)> {
        let answered = self.answered.iter().zip(VERBS);
        let answered = answered.map(|(count, verb)| (verb, 0, count.load(Ordering::Relaxed)));
        let mut counts: Vec<_> = answered.filter(|count| count.2 > 0).collect();
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        counts.extend(refused.iter().map(|((verb, code), count)| (verb.name(), *code, *count)));
        counts
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answered_and_refused_requests_are_counted_separately() {
        let counters = Counters::default();
        counters.answered(CountedVerb::of("put"));
        counters.answered(CountedVerb::of("put"));
        counters.refused(CountedVerb::of("take"), 33);
        counters.answered(CountedVerb::of("something else"));
        let expected = [("put", 0, 2), ("other", 0, 1), ("take", 33, 1)];
        assert_eq!(counters.counts(), expected);
    }
}

//! Decides when the depths of which tubes are read from the store: only of tubes that may have
//! changed, at the end of a second, and rarely if the store is a database.

use std::collections::BTreeSet;

use taskyard_core::{Command, Span, Timestamp};

use super::registry::{SeriesRegistry, TubeNumber};

/// How often the depths are read from a database that servers share.
const SHARED_PERIOD: Span = Span::from_secs(5);
/// How long the depths in a shared database are read after the latest request for a series: the
/// changes that other servers make are not known here.
const OBSERVED_FOR: Span = Span::from_secs(60);
/// From this number of changed tubes on, all tubes may be read at once.
const LIST_MIN: usize = 8;
/// All tubes are read at most once in a second for every so many of them.
const LISTED_PER_SECOND: u64 = 1_000;

/// Which depths are to be read, and when.
#[derive(Debug)]
pub(super) struct Sampling {
    is_shared: bool,
    changed: BTreeSet<TubeNumber>,
    /// Any tube may have changed.
    any_changed: bool,
    due: Option<Timestamp>,
    /// Not before this moment.
    not_before: Timestamp,
    observed_until: Timestamp,
}

impl Sampling {
    /// Nothing is to be read.
    pub fn new(is_shared: bool, now: Timestamp) -> Self {
        Sampling {
            is_shared,
            changed: BTreeSet::new(),
            any_changed: false,
            due: None,
            not_before: now,
            observed_until: now,
        }
    }

    /// A tube may have changed.
    pub fn note_changed(&mut self, number: TubeNumber) {
        if !self.any_changed {
            self.changed.insert(number);
        }
    }

    /// Any tube may have changed.
    pub fn note_any_changed(&mut self) {
        self.any_changed = true;
    }

    /// A caller looks at a series.
    pub fn note_observed(&mut self, now: Timestamp) {
        if self.is_shared {
            self.observed_until = now + OBSERVED_FOR;
        }
    }

    /// Sets the moment of the next reading: the end of this second, if anything changed.
    pub fn schedule(&mut self, now: Timestamp, second_ends: Timestamp) {
        self.any_changed |= now < self.observed_until;
        if self.due.is_none() && (self.any_changed || !self.changed.is_empty()) {
            self.due = Some(second_ends.max(self.not_before));
        }
    }

    /// The moment of the next reading.
    pub fn next(&self) -> Option<Timestamp> {
        self.due
    }

    /// The commands that read the depths, if that is due.
    pub fn commands(&mut self, now: Timestamp, registry: &SeriesRegistry) -> Vec<Command> {
        if self.due.is_none_or(|due| now < due) {
            return Vec::new();
        }
        self.due = None;
        let changed = std::mem::take(&mut self.changed);
        let most = changed.len() >= LIST_MIN && changed.len() * 2 >= registry.len();
        let all = std::mem::take(&mut self.any_changed) || most;
        let tubes = Span::from_secs(registry.len() as u64 / LISTED_PER_SECOND);
        let pause = if self.is_shared { SHARED_PERIOD } else { Span::ZERO };
        self.not_before = now + if all { pause.max(tubes) } else { pause };
        if all {
            return vec![Command::Tubes { tube: None }];
        }
        let names = changed.into_iter().filter_map(|number| registry.name(number));
        names.map(|name| Command::Tubes { tube: Some(name.clone()) }).collect()
    }
}

//! Schedules that are due and that this engine leaves alone for a while, because it cannot fire them.

use std::collections::HashMap;

use taskyard_core::limits::SCHEDULES_MAX;
use taskyard_core::{ScheduleName, Timestamp};

/// The schedules that are left alone, by name.
#[derive(Default)]
pub(crate) struct HeldSchedules(HashMap<ScheduleName, SchedulePause>);

/// For how long a schedule is left alone: until a moment of the engine's time, or until another of
/// its times is next.
struct SchedulePause {
    expected: Timestamp,
    until: Timestamp,
}

impl HeldSchedules {
    /// Leaves a schedule alone while `expected` is its next time, at most until `until`.
    pub fn hold(&mut self, name: ScheduleName, expected: Timestamp, until: Timestamp) {
        if self.0.len() >= SCHEDULES_MAX {
            self.0.clear();
        }
        self.0.insert(name, SchedulePause { expected, until });
    }

    /// Whether a schedule with this next time is left alone.
    pub fn has(&self, name: &ScheduleName, expected: Timestamp, now: Timestamp) -> bool {
        self.0.get(name).is_some_and(|pause| pause.expected == expected && pause.until > now)
    }

    /// Ends the pause of a schedule.
    pub fn remove(&mut self, name: &ScheduleName) {
        self.0.remove(name);
    }

    /// Whether no schedule is left alone.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets the schedules whose pause is over. Returns when the next pause ends.
    pub fn expire(&mut self, now: Timestamp) -> Option<Timestamp> {
        self.0.retain(|_, pause| pause.until > now);
        self.0.values().map(|pause| pause.until).min()
    }
}

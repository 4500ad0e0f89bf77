//! The effects of a batch that its replies do not show.

use std::collections::BTreeSet;

use crate::semaphore::SemaphoreKey;
use crate::time::Timestamp;
use crate::tube::TubeName;

/// The effects of a batch. Waiting commands are woken from this alone, and failures are counted that no caller reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Tubes in which tasks became takeable, and how many are takeable now.
    pub ready: Vec<(TubeName, u64)>,
    /// Full tubes that have free capacity again, and how much.
    pub room: Vec<(TubeName, u64)>,
    /// Tubes in which deliveries failed without a command for them, because a lease expired or a
    /// session ended, and how many.
    pub failed: Vec<(TubeName, u64)>,
    /// Semaphores with new due events, for callers that wait for events.
    pub events: NewEvents,
    /// When the next change is due; a tick is needed then.
    pub next_wakeup: Option<Timestamp>,
    /// When the next schedule is due; it must be fired then.
    pub next_schedule: Option<Timestamp>,
    /// How many keys of ended tasks are free before their time, because their tubes had too many.
    pub keys_freed_early: u64,
}

/// The semaphores that may have new events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NewEvents {
    /// None.
    #[default]
    Nothing,
    /// These semaphores.
    Of(BTreeSet<SemaphoreKey>),
    /// Possibly any semaphore.
    All,
}

impl NewEvents {
    /// One semaphore.
    pub fn of(key: SemaphoreKey) -> NewEvents {
        NewEvents::Of(BTreeSet::from([key]))
    }

    /// Adds one semaphore.
    pub fn add_key(&mut self, key: &SemaphoreKey) {
        match self {
            NewEvents::Nothing => *self = NewEvents::of(key.clone()),
            NewEvents::Of(keys) if !keys.contains(key) => _ = keys.insert(key.clone()),
            NewEvents::Of(_) | NewEvents::All => {}
        }
    }

    /// Whether there may be any.
    pub fn any(&self) -> bool {
        *self != NewEvents::Nothing
    }

    /// Whether a caller that waits for events of this semaphore, or of any, may find some.
    pub fn may_concern(&self, wanted: Option<&SemaphoreKey>) -> bool {
        match (self, wanted) {
            (NewEvents::Nothing, _) => false,
            (NewEvents::Of(keys), Some(wanted)) => keys.contains(wanted),
            (NewEvents::Of(_), None) | (NewEvents::All, _) => true,
        }
    }

    /// Merges `more`.
    pub fn add(&mut self, more: NewEvents) {
        match (&mut *self, more) {
            (_, NewEvents::Nothing) | (NewEvents::All, _) => {}
            (NewEvents::Of(keys), NewEvents::Of(more)) => keys.extend(more),
            (_, more) => *self = more,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_events_are_merged() {
        let key = |text: &str| SemaphoreKey::new(text).unwrap();
        let mut new_events = NewEvents::default();
        assert!(!new_events.any() && !new_events.may_concern(None));
        new_events.add(NewEvents::of(key("a")));
        new_events.add(NewEvents::Nothing);
        assert!(new_events.may_concern(Some(&key("a"))) && new_events.may_concern(None));
        assert!(!new_events.may_concern(Some(&key("b"))));
        new_events.add(NewEvents::of(key("b")));
        assert!(new_events.may_concern(Some(&key("a"))) && new_events.may_concern(Some(&key("b"))));
        new_events.add(NewEvents::All);
        new_events.add(NewEvents::of(key("c")));
        assert_eq!(new_events, NewEvents::All);
    }
}

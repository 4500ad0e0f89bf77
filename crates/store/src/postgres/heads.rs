//! Where each tube's ready tasks begin.
//!
//! A transaction that stays open for long keeps PostgreSQL from removing what others have deleted
//! meanwhile, so every take would pass over all that was taken since. A server therefore remembers where its
//! last take ended and lets the next one begin there. That is a hint about order alone: a take that
//! does not find enough behind it looks at everything, whatever brings tasks back before it forgets it, and
//! once a second it is not used. So what another server or an open transaction puts before it is passed over
//! for a second at most, and only while there is other work.

use std::collections::{HashMap, HashSet};

use taskyard_core::TubeName;

/// How long the beginning is not looked at, in microseconds.
const SWEEP: i64 = 1_000_000;

/// What is known of the tubes.
#[derive(Debug, Default)]
pub(super) struct Heads {
    heads: HashMap<TubeName, Head>,
    /// The priority that tasks got whose put named none.
    usual: HashMap<TubeName, i64>,
}

/// Nothing ready is known before this place.
#[derive(Clone, Copy, Debug)]
struct Head {
    pri: i64,
    id: i64,
    /// When a take last began at the beginning.
    swept: i64,
}

impl Heads {
    /// Where a take at the moment `now` may begin.
    pub fn of(&self, tube: &TubeName, now: i64) -> Option<(i64, i64)> {
        let head = self.heads.get(tube)?;
        (now.saturating_sub(head.swept) < SWEEP).then_some((head.pri, head.id))
    }

    /// A take that began at the hint, or at the beginning, ended with this task.
    pub fn took(&mut self, tube: &TubeName, hinted: bool, (pri, id): (i64, i64), now: i64) {
        match self.heads.get_mut(tube).filter(|_| hinted) {
            Some(head) => (head.pri, head.id) = (pri, id + 1),
            None => _ = self.heads.insert(tube.clone(), Head { pri, id: id + 1, swept: now }),
        }
    }

    /// Tasks were put, the best of them with this priority; `usual` when none of them named one.
    pub fn put(&mut self, tube: &TubeName, pri: i64, usual: bool) {
        if usual {
            self.usual.insert(tube.clone(), pri);
        }
        if self.heads.get(tube).is_some_and(|head| pri < head.pri) {
            self.heads.remove(tube);
        }
    }

    /// Whether a put that names no priorities cannot come before the hint.
    pub fn put_is_behind(&self, tube: &TubeName) -> bool {
        match (self.heads.get(tube), self.usual.get(tube)) {
            (Some(head), Some(usual)) => *usual >= head.pri,
            _ => false,
        }
    }

    /// Tasks may have come back to this tube, or its options changed.
    pub fn forget(&mut self, tube: &TubeName) {
        self.heads.remove(tube);
        self.usual.remove(tube);
    }

    /// Anything may have happened.
    pub fn forget_all(&mut self) {
        self.heads.clear();
        self.usual.clear();
    }
}

/// Which hints are still good within a batch that is being planned.
#[derive(Debug, Default)]
pub(super) struct Touched {
    tubes: HashSet<TubeName>,
    all: bool,
}

impl Touched {
    /// A command before may have brought tasks back to this tube.
    pub fn tube(&mut self, tube: &TubeName) {
        self.tubes.insert(tube.clone());
    }

    /// Or to any tube.
    pub fn all(&mut self) {
        self.all = true;
    }

    /// Whether one did.
    pub fn has(&self, tube: &TubeName) -> bool {
        self.all || self.tubes.contains(tube)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_good_for_a_second() {
        let tube = TubeName::new("mail").unwrap();
        let mut heads = Heads::default();
        heads.took(&tube, false, (5, 7), 100);
        assert_eq!(heads.of(&tube, 100 + SWEEP - 1), Some((5, 8)));
        heads.took(&tube, true, (5, 9), 100 + SWEEP - 1);
        assert_eq!(heads.of(&tube, 100 + SWEEP), None, "using it does not make it younger");
        heads.took(&tube, false, (5, 20), 100 + SWEEP);
        assert_eq!(heads.of(&tube, 100 + SWEEP), Some((5, 21)));
    }

    #[test]
    fn a_better_task_ends_it() {
        let tube = TubeName::new("mail").unwrap();
        let mut heads = Heads::default();
        heads.took(&tube, false, (5, 7), 0);
        assert!(!heads.put_is_behind(&tube), "nothing is known yet");
        heads.put(&tube, 5, true);
        assert!(heads.put_is_behind(&tube));
        heads.put(&tube, 4, false);
        assert_eq!(heads.of(&tube, 0), None);
    }
}

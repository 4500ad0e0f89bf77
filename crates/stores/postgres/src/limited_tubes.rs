//! Remembers the tubes in which a take of this server has reached the rate limit, so that waiting takes are woken when the next
//! delivery is allowed.

use std::collections::HashMap;

use taskyard_core::TubeName;

/// When each tube allows its next delivery, by the clock of the tasks.
#[derive(Debug, Default)]
pub(super) struct LimitedTubes {
    next: HashMap<TubeName, i64>,
}

impl LimitedTubes {
    /// Notes that a take found tasks that the limit allows to deliver at this moment.
    pub fn note(&mut self, tube: &TubeName, next: i64) {
        self.next.insert(tube.clone(), next);
    }

    /// Removes the tubes that allow a delivery by now.
    pub fn refilled(&mut self, now: i64) -> Vec<TubeName> {
        let due = self.next.iter().filter(|(_, next)| **next <= now);
        let due: Vec<TubeName> = due.map(|(tube, _)| tube.clone()).collect();
        for tube in &due {
            self.next.remove(tube);
        }
        due
    }

    /// When the first tube allows a delivery.
    pub fn first(&self) -> Option<i64> {
        self.next.values().copied().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tubes_are_woken_once() {
        let mut limited = LimitedTubes::default();
        let [a, b] = ["a", "b"].map(|name| TubeName::new(name).unwrap());
        limited.note(&a, 30);
        limited.note(&b, 20);
        assert_eq!((limited.first(), limited.refilled(19)), (Some(20), vec![]));
        assert_eq!(limited.refilled(20), [b]);
        limited.note(&a, 40);
        assert_eq!((limited.refilled(30), limited.first()), (vec![], Some(40)));
        assert_eq!((limited.refilled(50), limited.first()), (vec![a], None));
    }
}

//! Remembers where the ready tasks of each tube begin, as a hint for the next take.
//!
//! A transaction that stays open for long keeps PostgreSQL from removing rows that were deleted since, so every take
//! would read all tasks that were taken since. A server therefore remembers where its last take ended and begins the next
//! one there. That is a hint about order only: a take that does not find enough tasks behind it searches the whole tube,
//! the hint is dropped when tasks return before it, and once a second it is not used. So a task that another server or an
//! open transaction puts before it is missed for a second at most, and only while there are other tasks.
//!
//! The database reports how long a search of the whole tube takes. If that is long, such a transaction is open: then the
//! whole tube is searched for a twentieth of the time at most, and otherwise only when this server knows that tasks
//! returned and it finds no others.

use std::collections::{HashMap, HashSet};

use taskyard_core::TubeName;

/// The time between two searches of the whole tube, in microseconds.
const SWEEP: i64 = 1_000_000;
/// A search of the whole tube that takes longer than this, in microseconds, is made less often,
const COSTLY: i64 = 50_000;
/// so that one part in this many of the time is spent on it,
const SHARE: i64 = 20;
/// but at least this often.
const SWEEP_MAX: i64 = 30_000_000;

/// The hints of all tubes.
#[derive(Debug, Default)]
pub(super) struct HeadHints {
    head_hints: HashMap<TubeName, HeadHint>,
    /// The priority of tasks whose put names none.
    usual: HashMap<TubeName, i64>,
}

/// No ready task is known before this place.
#[derive(Clone, Copy, Debug)]
struct HeadHint {
    pri: i64,
    id: i64,
    /// When the whole tube was last searched, and how long that took.
    swept: i64,
    cost: i64,
    /// Whether tasks returned since, perhaps before this place.
    back: bool,
}

/// Where a take begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TakeStart {
    /// The place; `None` is the beginning.
    pub from: Option<(i64, i64)>,
    /// Whether to search the whole tube when there are not enough tasks behind it.
    pub may_sweep: bool,
}

/// What a take found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TakeResult {
    /// The place of its last task.
    pub last: Option<(i64, i64)>,
    /// Whether it got as many as it asked for.
    pub enough: bool,
    /// If it searched the whole tube: how long that took, in microseconds, and the place of the next put.
    pub sweep: Option<(i64, (i64, i64))>,
}

impl HeadHints {
    /// Where a take at the moment `now` begins.
    pub fn of(&self, tube: &TubeName, now: i64) -> TakeStart {
        let beginning = TakeStart { from: None, may_sweep: true };
        let Some(head) = self.head_hints.get(tube) else { return beginning };
        if now.saturating_sub(head.swept) >= head.pause() {
            return beginning;
        }
        TakeStart { from: Some((head.pri, head.id)), may_sweep: head.back || !head.is_costly() }
    }

    /// Notes what a take found that began there.
    pub fn took(&mut self, tube: &TubeName, start: TakeStart, found: TakeResult, now: i64) {
        let next = |(pri, id): (i64, i64)| (pri, id + 1);
        let known = self.head_hints.get(tube).filter(|_| start.from.is_some()).copied();
        let TakeResult { last, enough, sweep } = found;
        let place = match (known, sweep) {
            // Some of these tasks are before the known place, and there may be more.
            (Some(_), Some(_)) if enough => {
                self.head_hints.remove(tube);
                return;
            }
            (Some(known), _) => last.map(next).into_iter().chain([(known.pri, known.id)]).max(),
            (None, Some((_, end))) if !enough => Some(last.map_or(end, next)),
            (None, _) => last.map(next),
        };
        let Some((pri, id)) = place else { return };
        let before = known.unwrap_or(HeadHint { pri, id, swept: now, cost: 0, back: false });
        let head = match sweep {
            Some((cost, _)) => HeadHint { pri, id, swept: now, cost, back: false },
            None => HeadHint { pri, id, ..before },
        };
        self.head_hints.insert(tube.clone(), head);
    }

    /// Notes that tasks were put, the best of them with this priority; `usual` when none of them named one.
    pub fn put(&mut self, tube: &TubeName, pri: i64, usual: bool) {
        if usual {
            self.usual.insert(tube.clone(), pri);
        }
        if let Some(head) = self.head_hints.get_mut(tube).filter(|head| pri < head.pri) {
            (head.pri, head.id) = (pri, 0);
        }
    }

    /// Whether a put that names no priorities is behind the hint.
    pub fn put_is_behind(&self, tube: &TubeName) -> bool {
        match (self.head_hints.get(tube), self.usual.get(tube)) {
            (Some(head), Some(usual)) => *usual >= head.pri,
            _ => false,
        }
    }

    /// Whether a search of the whole tube takes long.
    pub fn is_costly(&self, tube: &TubeName) -> bool {
        self.head_hints.get(tube).is_some_and(HeadHint::is_costly)
    }

    /// Notes that tasks returned to this tube.
    pub fn back(&mut self, tube: &TubeName) {
        self.forget(tube);
        if let Some(head) = self.head_hints.get_mut(tube) {
            head.back = true;
        }
    }

    /// Notes that another server may have put tasks into this tube.
    pub fn forget(&mut self, tube: &TubeName) {
        if !self.is_costly(tube) {
            self.remove(tube);
        }
    }

    /// Notes that this is another tube, or that its options changed.
    pub fn remove(&mut self, tube: &TubeName) {
        self.head_hints.remove(tube);
        self.usual.remove(tube);
    }

    /// Drops all hints.
    pub fn forget_all(&mut self) {
        self.head_hints.clear();
        self.usual.clear();
    }
}

impl HeadHint {
    fn is_costly(&self) -> bool {
        self.cost > COSTLY
    }

    /// The time until the next search of the whole tube.
    fn pause(&self) -> i64 {
        if self.is_costly() { (self.cost * SHARE).clamp(SWEEP, SWEEP_MAX) } else { SWEEP }
    }
}

/// Where the search for due timers may begin, for the same reason.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TimerHint {
    /// No timer is set to an earlier moment, as far as this server knows.
    from: Option<i64>,
    swept: i64,
    cost: i64,
}

impl TimerHint {
    /// Where a tick at the moment `now` begins.
    pub fn begin(&self, now: i64) -> Option<i64> {
        let pause = (self.cost * SHARE).min(SWEEP_MAX);
        let rests = self.cost > COSTLY && now.saturating_sub(self.swept) < pause;
        self.from.filter(|_| rests)
    }

    /// Notes that a tick that began there took this long and that no timer is set to a moment before `next`.
    pub fn ticked(&mut self, begun: Option<i64>, cost: i64, next: i64, now: i64) {
        if begun.is_none() {
            (self.swept, self.cost) = (now, cost);
        }
        self.from = Some(next);
    }

    /// Notes that a timer is set to this moment.
    pub fn set(&mut self, moment: Option<i64>) {
        self.from = self.from.map(|from| from.min(moment.unwrap_or(i64::MAX)));
    }
}

/// The tubes whose hints are void within a batch that is being planned.
#[derive(Debug, Default)]
pub(super) struct TouchedTubes {
    tubes: HashSet<TubeName>,
    all: bool,
}

impl TouchedTubes {
    /// Notes that an earlier command may have returned tasks to this tube.
    pub fn tube(&mut self, tube: &TubeName) {
        self.tubes.insert(tube.clone());
    }

    /// The same for all tubes.
    pub fn all(&mut self) {
        self.all = true;
    }

    /// Whether the hint of this tube is void.
    pub fn has(&self, tube: &TubeName) -> bool {
        self.all || self.tubes.contains(tube)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mail() -> TubeName {
        TubeName::new("mail").unwrap()
    }

    fn found(last: Option<(i64, i64)>, enough: bool, cost: Option<i64>) -> TakeResult {
        TakeResult { last, enough, sweep: cost.map(|cost| (cost, (0, 100))) }
    }

    const BEGINNING: TakeStart = TakeStart { from: None, may_sweep: true };

    #[test]
    fn a_hint_is_used_for_a_second() {
        let (tube, mut head_hints) = (mail(), HeadHints::default());
        head_hints.took(&tube, BEGINNING, found(Some((5, 7)), true, Some(10)), 100);
        let start = head_hints.of(&tube, 100 + SWEEP - 1);
        assert_eq!(start, TakeStart { from: Some((5, 8)), may_sweep: true });
        head_hints.took(&tube, start, found(Some((5, 9)), true, None), 100 + SWEEP - 1);
        assert_eq!(head_hints.of(&tube, 100 + SWEEP), BEGINNING, "its use does not prolong it");
        head_hints.took(&tube, BEGINNING, found(Some((5, 20)), true, Some(10)), 100 + SWEEP);
        assert_eq!(head_hints.of(&tube, 100 + SWEEP).from, Some((5, 21)));
    }

    #[test]
    fn a_put_with_a_better_priority_moves_the_hint() {
        let (tube, mut head_hints) = (mail(), HeadHints::default());
        head_hints.took(&tube, BEGINNING, found(Some((5, 7)), true, Some(10)), 0);
        assert!(!head_hints.put_is_behind(&tube), "nothing is known yet");
        head_hints.put(&tube, 5, true);
        assert!(head_hints.put_is_behind(&tube));
        head_hints.put(&tube, 4, false);
        assert_eq!(head_hints.of(&tube, 0).from, Some((4, 0)));
    }

    #[test]
    fn a_costly_search_takes_a_twentieth_of_the_time() {
        let (tube, mut head_hints) = (mail(), HeadHints::default());
        head_hints.took(&tube, BEGINNING, found(None, false, Some(250_000)), 0);
        let start = head_hints.of(&tube, 4_999_999);
        assert_eq!(start, TakeStart { from: Some((0, 100)), may_sweep: false });
        head_hints.forget(&tube);
        assert_eq!(
            head_hints.of(&tube, 4_999_999),
            start,
            "an unspecific change does not cause a search"
        );
        head_hints.back(&tube);
        assert!(head_hints.of(&tube, 4_999_999).may_sweep, "returned tasks do");
        assert_eq!(head_hints.of(&tube, 5_000_000), BEGINNING);
    }

    #[test]
    fn more_tasks_may_be_before_the_hint() {
        let (tube, mut head_hints) = (mail(), HeadHints::default());
        head_hints.took(&tube, BEGINNING, found(Some((0, 50)), true, Some(10)), 0);
        let start = head_hints.of(&tube, 1);
        head_hints.took(&tube, start, found(Some((0, 3)), false, Some(10)), 1);
        assert_eq!(head_hints.of(&tube, 2).from, Some((0, 51)), "there were no others");
        head_hints.took(&tube, head_hints.of(&tube, 2), found(Some((0, 3)), true, Some(10)), 2);
        assert_eq!(head_hints.of(&tube, 3), BEGINNING);
    }

    #[test]
    fn ticks_skip_the_past_where_its_search_is_costly() {
        let mut timers = TimerHint::default();
        timers.ticked(None, 10, 70, 0);
        assert_eq!(timers.begin(1), None, "the search is cheap");
        timers.ticked(None, 100_000, 70, 0);
        assert_eq!(timers.begin(1_999_999), Some(70));
        timers.set(Some(60));
        assert_eq!(timers.begin(1_999_999), Some(60));
        assert_eq!(timers.begin(2_000_000), None);
    }
}

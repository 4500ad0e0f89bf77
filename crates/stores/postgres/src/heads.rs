//! Where each tube's ready tasks begin.
//!
//! A transaction that stays open for long keeps PostgreSQL from removing what others have deleted
//! meanwhile, so every take would pass over all that was taken since. A server therefore remembers where its
//! last take ended and lets the next one begin there. That is a hint about order alone: a take that
//! does not find enough behind it looks at everything, whatever brings tasks back before it forgets it, and
//! once a second it is not used. So what another server or an open transaction puts before it is passed over
//! for a second at most, and only while there is other work.
//!
//! The database says how long a look at everything takes. Where that is long, there is somebody with such a
//! transaction: then everything is looked at for a twentieth of the time at most, and else only when this
//! server knows that tasks came back and it has nothing else to do.

use std::collections::{HashMap, HashSet};

use taskyard_core::TubeName;

/// How long the beginning is not looked at, in microseconds.
const SWEEP: i64 = 1_000_000;
/// A look at everything that takes longer than this, in microseconds, is made less often,
const COSTLY: i64 = 50_000;
/// so that this part of the time is spent with it,
const SHARE: i64 = 20;
/// but at least this often.
const SWEEP_MAX: i64 = 30_000_000;

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
    /// When everything was last looked at, and how long that took.
    swept: i64,
    cost: i64,
    /// Whether tasks came back since, perhaps before this place.
    back: bool,
}

/// Where a take begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Start {
    /// The place, or nothing for the beginning.
    pub from: Option<(i64, i64)>,
    /// Whether to look at everything when there is not enough behind it.
    pub may_sweep: bool,
}

/// What a take found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Found {
    /// The place of its last task.
    pub last: Option<(i64, i64)>,
    /// Whether it got as many as it asked for.
    pub enough: bool,
    /// If it looked at everything: how long that took, in microseconds, and the place where the next put
    /// will be.
    pub sweep: Option<(i64, (i64, i64))>,
}

impl Heads {
    /// Where a take at the moment `now` begins.
    pub fn of(&self, tube: &TubeName, now: i64) -> Start {
        let beginning = Start { from: None, may_sweep: true };
        let Some(head) = self.heads.get(tube) else { return beginning };
        if now.saturating_sub(head.swept) >= head.pause() {
            return beginning;
        }
        Start { from: Some((head.pri, head.id)), may_sweep: head.back || !head.is_costly() }
    }

    /// A take that began there has found this.
    pub fn took(&mut self, tube: &TubeName, start: Start, found: Found, now: i64) {
        let next = |(pri, id): (i64, i64)| (pri, id + 1);
        let known = self.heads.get(tube).filter(|_| start.from.is_some()).copied();
        let Found { last, enough, sweep } = found;
        let place = match (known, sweep) {
            // Some of these lie before the place that was known, and more of them may.
            (Some(_), Some(_)) if enough => {
                self.heads.remove(tube);
                return;
            }
            (Some(known), _) => last.map(next).into_iter().chain([(known.pri, known.id)]).max(),
            (None, Some((_, end))) if !enough => Some(last.map_or(end, next)),
            (None, _) => last.map(next),
        };
        let Some((pri, id)) = place else { return };
        let before = known.unwrap_or(Head { pri, id, swept: now, cost: 0, back: false });
        let head = match sweep {
            Some((cost, _)) => Head { pri, id, swept: now, cost, back: false },
            None => Head { pri, id, ..before },
        };
        self.heads.insert(tube.clone(), head);
    }

    /// Tasks were put, the best of them with this priority; `usual` when none of them named one.
    pub fn put(&mut self, tube: &TubeName, pri: i64, usual: bool) {
        if usual {
            self.usual.insert(tube.clone(), pri);
        }
        if let Some(head) = self.heads.get_mut(tube).filter(|head| pri < head.pri) {
            (head.pri, head.id) = (pri, 0);
        }
    }

    /// Whether a put that names no priorities cannot come before the hint.
    pub fn put_is_behind(&self, tube: &TubeName) -> bool {
        match (self.heads.get(tube), self.usual.get(tube)) {
            (Some(head), Some(usual)) => *usual >= head.pri,
            _ => false,
        }
    }

    /// Whether a look at everything takes long.
    pub fn is_costly(&self, tube: &TubeName) -> bool {
        self.heads.get(tube).is_some_and(Head::is_costly)
    }

    /// Tasks came back to this tube.
    pub fn back(&mut self, tube: &TubeName) {
        self.forget(tube);
        if let Some(head) = self.heads.get_mut(tube) {
            head.back = true;
        }
    }

    /// Tasks may have come to this tube somewhere else.
    pub fn forget(&mut self, tube: &TubeName) {
        if !self.is_costly(tube) {
            self.remove(tube);
        }
    }

    /// The tube is another one, or its options are.
    pub fn remove(&mut self, tube: &TubeName) {
        self.heads.remove(tube);
        self.usual.remove(tube);
    }

    /// Anything may have happened.
    pub fn forget_all(&mut self) {
        self.heads.clear();
        self.usual.clear();
    }
}

impl Head {
    fn is_costly(&self) -> bool {
        self.cost > COSTLY
    }

    /// How long everything is not looked at.
    fn pause(&self) -> i64 {
        if self.is_costly() { (self.cost * SHARE).clamp(SWEEP, SWEEP_MAX) } else { SWEEP }
    }
}

/// When the search for what is due may pass over moments that are long gone, for the same reason.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timers {
    /// Nothing waits for an earlier moment, as far as this server knows.
    from: Option<i64>,
    swept: i64,
    cost: i64,
}

impl Timers {
    /// Where a tick at the moment `now` begins.
    pub fn begin(&self, now: i64) -> Option<i64> {
        let pause = (self.cost * SHARE).min(SWEEP_MAX);
        let rests = self.cost > COSTLY && now.saturating_sub(self.swept) < pause;
        self.from.filter(|_| rests)
    }

    /// A tick that began there took this long; nothing waits for a moment before `next`.
    pub fn ticked(&mut self, begun: Option<i64>, cost: i64, next: i64, now: i64) {
        if begun.is_none() {
            (self.swept, self.cost) = (now, cost);
        }
        self.from = Some(next);
    }

    /// Something waits for this moment.
    pub fn set(&mut self, moment: Option<i64>) {
        self.from = self.from.map(|from| from.min(moment.unwrap_or(i64::MAX)));
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

    fn mail() -> TubeName {
        TubeName::new("mail").unwrap()
    }

    fn found(last: Option<(i64, i64)>, enough: bool, cost: Option<i64>) -> Found {
        Found { last, enough, sweep: cost.map(|cost| (cost, (0, 100))) }
    }

    const BEGINNING: Start = Start { from: None, may_sweep: true };

    #[test]
    fn a_hint_is_good_for_a_second() {
        let (tube, mut heads) = (mail(), Heads::default());
        heads.took(&tube, BEGINNING, found(Some((5, 7)), true, Some(10)), 100);
        let start = heads.of(&tube, 100 + SWEEP - 1);
        assert_eq!(start, Start { from: Some((5, 8)), may_sweep: true });
        heads.took(&tube, start, found(Some((5, 9)), true, None), 100 + SWEEP - 1);
        assert_eq!(heads.of(&tube, 100 + SWEEP), BEGINNING, "using it does not make it younger");
        heads.took(&tube, BEGINNING, found(Some((5, 20)), true, Some(10)), 100 + SWEEP);
        assert_eq!(heads.of(&tube, 100 + SWEEP).from, Some((5, 21)));
    }

    #[test]
    fn a_better_task_moves_it() {
        let (tube, mut heads) = (mail(), Heads::default());
        heads.took(&tube, BEGINNING, found(Some((5, 7)), true, Some(10)), 0);
        assert!(!heads.put_is_behind(&tube), "nothing is known yet");
        heads.put(&tube, 5, true);
        assert!(heads.put_is_behind(&tube));
        heads.put(&tube, 4, false);
        assert_eq!(heads.of(&tube, 0).from, Some((4, 0)));
    }

    #[test]
    fn a_costly_look_is_made_a_twentieth_of_the_time() {
        let (tube, mut heads) = (mail(), Heads::default());
        heads.took(&tube, BEGINNING, found(None, false, Some(250_000)), 0);
        let start = heads.of(&tube, 4_999_999);
        assert_eq!(start, Start { from: Some((0, 100)), may_sweep: false });
        heads.forget(&tube);
        assert_eq!(heads.of(&tube, 4_999_999), start, "a rumour is not worth a look");
        heads.back(&tube);
        assert!(heads.of(&tube, 4_999_999).may_sweep, "what came back is");
        assert_eq!(heads.of(&tube, 5_000_000), BEGINNING);
    }

    #[test]
    fn what_lay_before_the_hint_may_not_have_been_all() {
        let (tube, mut heads) = (mail(), Heads::default());
        heads.took(&tube, BEGINNING, found(Some((0, 50)), true, Some(10)), 0);
        let start = heads.of(&tube, 1);
        heads.took(&tube, start, found(Some((0, 3)), false, Some(10)), 1);
        assert_eq!(heads.of(&tube, 2).from, Some((0, 51)), "there was nothing else");
        heads.took(&tube, heads.of(&tube, 2), found(Some((0, 3)), true, Some(10)), 2);
        assert_eq!(heads.of(&tube, 3), BEGINNING);
    }

    #[test]
    fn ticks_pass_over_the_past_where_it_is_long() {
        let mut timers = Timers::default();
        timers.ticked(None, 10, 70, 0);
        assert_eq!(timers.begin(1), None, "it takes no time to look");
        timers.ticked(None, 100_000, 70, 0);
        assert_eq!(timers.begin(1_999_999), Some(70));
        timers.set(Some(60));
        assert_eq!(timers.begin(1_999_999), Some(60));
        assert_eq!(timers.begin(2_000_000), None);
    }
}

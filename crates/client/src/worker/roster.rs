//! Who goes where next: round robin over the queues, or what a plan says. Pure: `now` is an argument.

use std::collections::BTreeMap;

use taskyard_core::{Span, Timestamp};

/// How long an empty queue is passed over while others have work.
const EMPTY_FOR: Span = Span::from_micros(50_000);
/// The first pause after a take that failed; each one is twice as long as the one before.
const FAILED_FIRST_MICROS: i64 = 100_000;
/// The longest such pause.
const FAILED_MAX_MICROS: i64 = 10_000_000;
/// The same with what chance adds to it.
const FAILED_MAX: Span = Span::from_micros(FAILED_MAX_MICROS + FAILED_MAX_MICROS / 5);
/// A queue of the plan that nobody has looked at for so long is visited before all others.
const NEGLECTED: Span = Span::from_secs(5);

/// How many processors to give to which queue, by the queues' numbers. Queues that are not named get none. A
/// processor that finds nothing to do where it was planned helps at another queue of the plan, also at one with 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Of two plans the one with the larger number holds.
    pub version: u64,
    /// Processors by queue.
    pub share: BTreeMap<u32, usize>,
}

/// The queues of a worker and what is known of them.
#[derive(Debug)]
pub(super) struct Roster {
    queues: Vec<Seat>,
    /// The queue that was granted last.
    cursor: usize,
    plan: Option<Plan>,
}

#[derive(Debug)]
struct Seat {
    num: u32,
    standing: Standing,
    failures: u32,
    /// Processors that work on it now.
    busy: usize,
    /// Whether somebody waits at the queue for its next task.
    scouted: bool,
    /// Whether somebody asks again after it could not be asked: one is enough to find out.
    retried: bool,
    /// Since when nobody has looked at it.
    unseen: Option<Timestamp>,
}

#[derive(Debug, PartialEq)]
enum Standing {
    Open,
    /// Nothing was there.
    Empty(Timestamp),
    /// It could not be asked.
    Failed(Timestamp),
}

impl Roster {
    pub fn new(nums: impl Iterator<Item = u32>) -> Self {
        let queues = nums.map(|num| Seat {
            num,
            standing: Standing::Open,
            failures: 0,
            busy: 0,
            scouted: false,
            retried: false,
            unseen: None,
        });
        let queues: Vec<_> = queues.collect();
        Roster { cursor: queues.len().saturating_sub(1), queues, plan: None }
    }

    /// The queue to visit now; it counts as busy until [`Roster::left`].
    pub fn next(&mut self, now: Timestamp) -> Option<usize> {
        for seat in &mut self.queues {
            // A clock that was set back begins anew.
            let unseen = seat.unseen.filter(|unseen| *unseen <= now);
            seat.unseen = Some(unseen.unwrap_or(now));
        }
        let neglected = |roster: &Self, queue: usize| {
            let seat = &roster.queues[queue];
            let unseen = seat.unseen.is_some_and(|unseen| now.since(unseen) >= NEGLECTED);
            unseen && roster.plan.is_some() && roster.may_help(queue)
        };
        let next = self
            .find(now, neglected)
            .or_else(|| self.find(now, |roster, queue| roster.is_planned(queue)))
            .or_else(|| self.find(now, |roster, queue| roster.may_help(queue)))?;
        let seat = &mut self.queues[next];
        seat.retried = matches!(seat.standing, Standing::Failed(_));
        seat.unseen = Some(now);
        seat.busy += 1;
        self.cursor = next;
        Some(next)
    }

    /// The first queue after the last one that may have something and is wanted.
    fn find(&self, now: Timestamp, wanted: impl Fn(&Self, usize) -> bool) -> Option<usize> {
        let count = self.queues.len();
        let mut places = (1..=count).map(|step| (self.cursor + step) % count);
        places.find(|queue| {
            let seat = &self.queues[*queue];
            let open = match seat.standing {
                Standing::Open => true,
                Standing::Empty(until) => !seat.scouted && is_over(until, now, EMPTY_FOR),
                Standing::Failed(until) => !seat.retried && is_over(until, now, FAILED_MAX),
            };
            open && wanted(self, *queue)
        })
    }

    /// A batch of this queue arrived by itself at this time: the same as a visit.
    pub fn granted(&mut self, queue: usize, now: Timestamp) {
        self.cursor = queue;
        self.queues[queue].unseen = Some(now);
        self.queues[queue].busy += 1;
    }

    /// A processor no longer works on it.
    pub fn left(&mut self, queue: usize) {
        self.queues[queue].busy -= 1;
    }

    /// Nothing was there.
    pub fn empty(&mut self, queue: usize, now: Timestamp) {
        self.answered(queue, Standing::Empty(now + EMPTY_FOR));
    }

    /// Whether nothing was there when somebody last looked.
    pub fn is_empty(&self, queue: usize) -> bool {
        matches!(self.queues[queue].standing, Standing::Empty(_))
    }

    /// Something was there, and perhaps more is. Answers whether the queue could not be asked before, so that
    /// others may want to know.
    pub fn open(&mut self, queue: usize) -> bool {
        matches!(self.answered(queue, Standing::Open), Standing::Failed(_))
    }

    /// How it stood before.
    fn answered(&mut self, queue: usize, standing: Standing) -> Standing {
        let seat = &mut self.queues[queue];
        seat.failures = 0;
        seat.retried = false;
        std::mem::replace(&mut seat.standing, standing)
    }

    /// It could not be asked: it is left alone for a while, up to a fifth longer by chance. Several who asked at
    /// once and failed together are one failure.
    pub fn failed(&mut self, queue: usize, now: Timestamp, chance: f64) -> Timestamp {
        let seat = &mut self.queues[queue];
        match seat.standing {
            Standing::Failed(until) if !seat.retried && !is_over(until, now, FAILED_MAX) => {
                return until;
            }
            _ => {}
        }
        seat.retried = false;
        let pause = FAILED_FIRST_MICROS.saturating_mul(1 << seat.failures.min(20));
        let pause = pause.min(FAILED_MAX_MICROS);
        seat.failures = seat.failures.saturating_add(1);
        let until = now + Span::from_micros(pause + (pause as f64 * chance / 5.0) as i64);
        seat.standing = Standing::Failed(until);
        until
    }

    /// When a queue that could not be asked may be asked again.
    pub fn next_retry(&self) -> Option<Timestamp> {
        let failed = self.queues.iter().filter_map(|seat| match seat.standing {
            Standing::Failed(until) if !seat.retried => Some(until),
            _ => None,
        });
        failed.min()
    }

    /// Empty queues where nobody waits yet and somebody should; they count as waited at from now on.
    pub fn scouts_wanted(&mut self) -> Vec<usize> {
        let wanted = (0..self.queues.len()).filter(|queue| {
            let seat = &self.queues[*queue];
            !seat.scouted && matches!(seat.standing, Standing::Empty(_)) && self.may_help(*queue)
        });
        let wanted: Vec<_> = wanted.collect();
        for queue in &wanted {
            self.queues[*queue].scouted = true;
        }
        wanted
    }

    /// Nobody waits at the queue any more.
    pub fn scout_left(&mut self, queue: usize) {
        self.queues[queue].scouted = false;
    }

    /// Whether one more processor is to work on it. Without a plan it always is.
    fn is_planned(&self, queue: usize) -> bool {
        let seat = &self.queues[queue];
        let Some(plan) = &self.plan else { return true };
        plan.share.get(&seat.num).is_some_and(|share| seat.busy < *share)
    }

    /// Whether one more processor may work on it when it has nothing better to do: a plan says where processors go
    /// first, but tasks of a queue that it names do not wait beside one that is idle.
    pub fn may_help(&self, queue: usize) -> bool {
        let Some(plan) = &self.plan else { return true };
        let busy: usize = self.queues.iter().map(|seat| seat.busy).sum();
        let planned: usize = plan.share.values().sum();
        busy < planned && plan.share.contains_key(&self.queues[queue].num)
    }

    /// Follows a plan from now on; one that is not newer is ignored.
    pub fn follow(&mut self, plan: Plan) -> bool {
        let newer = self.plan.as_ref().is_none_or(|known| known.version < plan.version);
        if newer {
            self.plan = Some(plan);
        }
        newer
    }

    /// The version of the plan it follows; 0 is none.
    pub fn plan_version(&self) -> u64 {
        self.plan.as_ref().map_or(0, |plan| plan.version)
    }

    /// Processors that work on each queue now.
    pub fn busy(&self) -> impl Iterator<Item = (u32, usize)> {
        self.queues.iter().map(|seat| (seat.num, seat.busy))
    }
}

/// Whether a pause is over. One that ends later than the longest possible was begun before the clock was set back.
fn is_over(until: Timestamp, now: Timestamp, longest: Span) -> bool {
    until <= now || until > now + longest
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_000_000);

    fn roster(queues: u32) -> Roster {
        Roster::new(1..=queues)
    }

    fn visit(roster: &mut Roster, now: Timestamp) -> Option<usize> {
        let queue = roster.next(now)?;
        roster.left(queue);
        Some(queue)
    }

    /// Upstream pinned each processor to one queue when their numbers fitted, and dropped offers moved the
    /// cursor: here only a granted visit moves it.
    #[test]
    fn visits_of_two_queues_differ_by_one_at_most() {
        for queues in 1..6 {
            let mut roster = roster(queues);
            let mut visits = vec![0usize; queues as usize];
            for _ in 0..100 {
                visits[roster.next(NOW).unwrap()] += 1;
                let (least, most) = (visits.iter().min(), visits.iter().max());
                assert!(most.unwrap() - least.unwrap() <= 1, "{visits:?}");
            }
        }
    }

    #[test]
    fn an_empty_queue_is_passed_over_for_a_while() {
        let mut roster = roster(2);
        assert_eq!(visit(&mut roster, NOW), Some(0));
        roster.empty(0, NOW);
        assert_eq!([visit(&mut roster, NOW), visit(&mut roster, NOW)], [Some(1); 2]);
        assert_eq!(visit(&mut roster, NOW + EMPTY_FOR), Some(0));
    }

    #[test]
    fn who_waits_at_a_queue_spares_the_visits() {
        let mut roster = roster(1);
        roster.empty(0, NOW);
        assert_eq!(roster.scouts_wanted(), [0]);
        assert!(roster.scouts_wanted().is_empty());
        assert_eq!(visit(&mut roster, Timestamp::NEVER), None);
        roster.scout_left(0);
        assert_eq!(visit(&mut roster, Timestamp::NEVER), Some(0));
    }

    #[test]
    fn a_queue_that_fails_is_asked_later_and_later() {
        let mut roster = roster(2);
        let mut now = NOW;
        let pauses: Vec<_> = (0..9)
            .map(|_| {
                let until = roster.failed(0, now, 0.0);
                let pause = until.since(now).as_micros() / 100_000;
                now = until;
                pause
            })
            .collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 100, 100]);
        let before = Timestamp::from_micros(now.as_micros() - 1);
        assert_eq!([visit(&mut roster, before), visit(&mut roster, before)], [Some(1); 2]);
        assert_eq!(roster.next_retry(), Some(now));
        assert_eq!(visit(&mut roster, now), Some(0));
        assert!(roster.open(0));
        assert_eq!(roster.failed(0, NOW, 1.0), NOW + Span::from_micros(120_000));
    }

    #[test]
    fn a_plan_limits_each_queue() {
        let mut roster = roster(3);
        let plan = |version, share: &[(u32, usize)]| Plan {
            version,
            share: share.iter().copied().collect(),
        };
        assert!(roster.follow(plan(2, &[(1, 2), (3, 1)])));
        let granted: Vec<_> = std::iter::from_fn(|| roster.next(NOW)).collect();
        assert_eq!(granted, [0, 2, 0]);
        assert!(!roster.follow(plan(2, &[(2, 9)])), "an older plan is ignored");
        roster.left(2);
        assert_eq!(roster.next(NOW), Some(2));
        assert!(roster.follow(plan(3, &[])));
        roster.left(0);
        assert_eq!(roster.next(NOW), None, "an empty plan means idle");
    }

    /// Eight processors whose takes failed together had the queue left alone for ten seconds, and all eight came
    /// back at the same moment.
    #[test]
    fn many_who_fail_together_are_one_failure() {
        let mut roster = roster(1);
        let granted: Vec<_> = (0..8).filter_map(|_| roster.next(NOW)).collect();
        assert_eq!(granted.len(), 8);
        let first = NOW + Span::from_micros(FAILED_FIRST_MICROS);
        for _ in 0..8 {
            assert_eq!(roster.failed(0, NOW, 0.0), first);
            roster.left(0);
        }
        assert_eq!(roster.next(first), Some(0));
        assert_eq!(roster.next(first), None, "one is enough to find out");
        assert_eq!(roster.next_retry(), None);
        let second = roster.failed(0, first, 0.0);
        assert_eq!(second.since(first).as_micros(), 2 * FAILED_FIRST_MICROS);
        assert_eq!((roster.next(first), roster.next_retry()), (None, Some(second)));
    }

    /// The pauses are by the wall clock: set back by an hour, it had queues left alone for that long.
    #[test]
    fn a_clock_that_is_set_back_ends_every_pause() {
        let hour = Span::from_secs(3600);
        let late = NOW + hour;
        let mut roster = roster(2);
        roster.failed(0, late, 1.0);
        roster.empty(1, late);
        assert_eq!(roster.next(late), None);
        assert_eq!([visit(&mut roster, NOW), visit(&mut roster, NOW)], [Some(0), Some(1)]);
    }

    /// One processor, two queues: the one with share 0 was neither visited nor waited at, so its tasks lay beside an
    /// idle processor until the next plan.
    #[test]
    fn who_has_nothing_to_do_helps_where_the_plan_has_nobody() {
        let mut roster = roster(3);
        let share = BTreeMap::from([(1, 1), (2, 0)]);
        assert!(roster.follow(Plan { version: 1, share }));
        assert_eq!([visit(&mut roster, NOW), visit(&mut roster, NOW)], [Some(0); 2]);
        roster.empty(0, NOW);
        assert_eq!(visit(&mut roster, NOW), Some(1));
        roster.empty(1, NOW);
        assert_eq!(visit(&mut roster, NOW), None, "the third is not in the plan");
        assert_eq!(roster.scouts_wanted(), [0, 1]);
        roster.granted(1, NOW);
        assert!(!roster.may_help(0), "nobody beyond the processors of the plan");
    }

    /// A processor that the plan counts on may be in a handler for an hour: the others go there now and then.
    #[test]
    fn no_queue_of_the_plan_is_neglected() {
        let mut roster = roster(2);
        let share = BTreeMap::from([(1, 2), (2, 0)]);
        assert!(roster.follow(Plan { version: 1, share }));
        let mut visits = [0; 2];
        let mut now = NOW;
        for _ in 0..20 {
            visits[visit(&mut roster, now).unwrap()] += 1;
            now = now + Span::from_secs(1);
        }
        assert_eq!(visits, [17, 3]);
    }
}

//! Who goes where next: round robin over the queues, or what a plan says. Pure: `now` is an argument.

use std::collections::BTreeMap;

use taskyard_core::{Span, Timestamp};

/// How long an empty queue is passed over while others have work.
const EMPTY_FOR: Span = Span::from_micros(50_000);
/// The first pause after a take that failed; each one is twice as long as the one before.
const FAILED_FIRST_MICROS: i64 = 100_000;
/// The longest such pause.
const FAILED_MAX_MICROS: i64 = 10_000_000;

/// How many processors to give to which queue, by the queues' numbers. The others get none.
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
        });
        let queues: Vec<_> = queues.collect();
        Roster { cursor: queues.len().saturating_sub(1), queues, plan: None }
    }

    /// The queue to visit now; it counts as busy until [`Roster::left`].
    pub fn next(&mut self, now: Timestamp) -> Option<usize> {
        let count = self.queues.len();
        let next = (1..=count).map(|step| (self.cursor + step) % count).find(|queue| {
            let seat = &self.queues[*queue];
            let open = match seat.standing {
                Standing::Open => true,
                Standing::Empty(until) => !seat.scouted && until <= now,
                Standing::Failed(until) => until <= now,
            };
            open && self.has_room(*queue)
        })?;
        self.cursor = next;
        self.queues[next].busy += 1;
        Some(next)
    }

    /// A batch of this queue arrived by itself: the same as a visit.
    pub fn granted(&mut self, queue: usize) {
        self.cursor = queue;
        self.queues[queue].busy += 1;
    }

    /// A processor no longer works on it.
    pub fn left(&mut self, queue: usize) {
        self.queues[queue].busy -= 1;
    }

    /// Nothing was there.
    pub fn empty(&mut self, queue: usize, now: Timestamp) {
        self.queues[queue].failures = 0;
        self.queues[queue].standing = Standing::Empty(now + EMPTY_FOR);
    }

    /// Whether nothing was there when somebody last looked.
    pub fn is_empty(&self, queue: usize) -> bool {
        matches!(self.queues[queue].standing, Standing::Empty(_))
    }

    /// Something was there, and perhaps more is.
    pub fn open(&mut self, queue: usize) {
        self.queues[queue].failures = 0;
        self.queues[queue].standing = Standing::Open;
    }

    /// It could not be asked: it is left alone for a while, up to a fifth longer by chance.
    pub fn failed(&mut self, queue: usize, now: Timestamp, chance: f64) -> Timestamp {
        let seat = &mut self.queues[queue];
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
            Standing::Failed(until) => Some(until),
            _ => None,
        });
        failed.min()
    }

    /// Empty queues where nobody waits yet and somebody should; they count as waited at from now on.
    pub fn scouts_wanted(&mut self) -> Vec<usize> {
        let wanted = (0..self.queues.len()).filter(|queue| {
            let seat = &self.queues[*queue];
            !seat.scouted && matches!(seat.standing, Standing::Empty(_)) && self.has_room(*queue)
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

    /// Whether one more processor may work on it.
    pub fn has_room(&self, queue: usize) -> bool {
        let seat = &self.queues[queue];
        let Some(plan) = &self.plan else { return true };
        plan.share.get(&seat.num).is_some_and(|share| seat.busy < *share)
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
        let pauses: Vec<_> =
            (0..9).map(|_| roster.failed(0, NOW, 0.0).since(NOW).as_micros() / 100_000).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 100, 100]);
        assert_eq!(visit(&mut roster, NOW), Some(1), "the other goes on");
        let until = roster.next_retry().unwrap();
        assert_eq!(visit(&mut roster, until), Some(0));
        roster.open(0);
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
}

//! Chooses the queue that a processor takes from next: round robin, or as a plan says. Pure: `now` is an argument.

use std::collections::BTreeMap;

use taskyard_core::{Span, Timestamp};

/// How long an empty queue is skipped while others have work.
const EMPTY_PAUSE: Span = Span::from_micros(50_000);
/// The pause after the first failed take; each further one is twice as long.
const FAILED_PAUSE_MIN_MICROS: i64 = 100_000;
/// The longest pause after failed takes, without jitter.
const FAILED_PAUSE_MAX_MICROS: i64 = 10_000_000;
/// The longest pause after failed takes, with jitter.
const FAILED_PAUSE_MAX: Span =
    Span::from_micros(FAILED_PAUSE_MAX_MICROS + FAILED_PAUSE_MAX_MICROS / 5);
/// A queue of the plan that was not served for this long comes before all others.
const UNSERVED_MAX: Span = Span::from_secs(5);

/// How many processors work on which queue, by queue number. Queues that are not named get none. A
/// processor that finds no task in its planned queue helps at another queue of the plan, also at one with 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Of two plans the one with the larger version is valid.
    pub version: u64,
    /// The number of processors of each queue.
    pub share: BTreeMap<u32, usize>,
}

/// The queues of a worker, their status, and the plan.
#[derive(Debug)]
pub(crate) struct QueueSelector {
    queues: Vec<QueueStatus>,
    /// The queue that was chosen last.
    cursor: usize,
    plan: Option<Plan>,
}

/// The status of one queue.
#[derive(Debug)]
struct QueueStatus {
    num: u32,
    availability: Availability,
    /// Failed takes in a row.
    failures: u32,
    /// Processors that work on it now.
    busy: usize,
    /// Whether a take waits at the queue for its next task.
    has_idle_take: bool,
    /// Whether a processor retries a failed queue: one is enough to find out.
    retrying: bool,
    /// Since when no processor was given the queue.
    unserved_since: Option<Timestamp>,
}

#[derive(Debug, PartialEq)]
enum Availability {
    Available,
    /// The last take found no task; the queue is skipped until then.
    Empty(Timestamp),
    /// The last take failed; the queue is paused until then.
    Failed(Timestamp),
}

impl QueueSelector {
    pub fn new(nums: impl Iterator<Item = u32>) -> Self {
        let queues = nums.map(|num| QueueStatus {
            num,
            availability: Availability::Available,
            failures: 0,
            busy: 0,
            has_idle_take: false,
            retrying: false,
            unserved_since: None,
        });
        let queues: Vec<_> = queues.collect();
        QueueSelector { cursor: queues.len().saturating_sub(1), queues, plan: None }
    }

    /// The queue to take from now; it counts as busy until [`QueueSelector::batch_ended`].
    pub fn next(&mut self, now: Timestamp) -> Option<usize> {
        for status in &mut self.queues {
            // A clock that was set back restarts the measurement.
            let unserved_since = status.unserved_since.filter(|since| *since <= now);
            status.unserved_since = Some(unserved_since.unwrap_or(now));
        }
        let unserved = |selector: &Self, queue: usize| {
            let status = &selector.queues[queue];
            let unserved =
                status.unserved_since.is_some_and(|since| now.since(since) >= UNSERVED_MAX);
            unserved && selector.plan.is_some() && selector.may_help(queue)
        };
        let next = self
            .find(now, unserved)
            .or_else(|| self.find(now, |selector, queue| selector.is_planned(queue)))
            .or_else(|| self.find(now, |selector, queue| selector.may_help(queue)))?;
        let status = &mut self.queues[next];
        status.retrying = matches!(status.availability, Availability::Failed(_));
        status.unserved_since = Some(now);
        status.busy += 1;
        self.cursor = next;
        Some(next)
    }

    /// The first queue after the cursor that is available and fulfils the condition.
    fn find(&self, now: Timestamp, wanted: impl Fn(&Self, usize) -> bool) -> Option<usize> {
        let count = self.queues.len();
        let mut candidates = (1..=count).map(|step| (self.cursor + step) % count);
        candidates.find(|queue| {
            let status = &self.queues[*queue];
            let available = match status.availability {
                Availability::Available => true,
                Availability::Empty(until) => {
                    !status.has_idle_take && is_over(until, now, EMPTY_PAUSE)
                }
                Availability::Failed(until) => {
                    !status.retrying && is_over(until, now, FAILED_PAUSE_MAX)
                }
            };
            available && wanted(self, *queue)
        })
    }

    /// Counts a batch of this queue that a waiting take brought, as [`QueueSelector::next`] does.
    pub fn batch_granted(&mut self, queue: usize, now: Timestamp) {
        self.cursor = queue;
        self.queues[queue].unserved_since = Some(now);
        self.queues[queue].busy += 1;
    }

    /// A processor no longer works on the queue.
    pub fn batch_ended(&mut self, queue: usize) {
        self.queues[queue].busy -= 1;
    }

    /// The queue had no task.
    pub fn mark_empty(&mut self, queue: usize, now: Timestamp) {
        self.set_availability(queue, Availability::Empty(now + EMPTY_PAUSE));
    }

    /// Whether the last take found no task.
    pub fn is_empty(&self, queue: usize) -> bool {
        matches!(self.queues[queue].availability, Availability::Empty(_))
    }

    /// The queue had tasks and may have more. Returns whether its last take had failed, so that other processors
    /// must be woken.
    pub fn mark_available(&mut self, queue: usize) -> bool {
        matches!(self.set_availability(queue, Availability::Available), Availability::Failed(_))
    }

    /// Replaces the availability after a take that succeeded; returns the previous one.
    fn set_availability(&mut self, queue: usize, availability: Availability) -> Availability {
        let status = &mut self.queues[queue];
        status.failures = 0;
        status.retrying = false;
        std::mem::replace(&mut status.availability, availability)
    }

    /// A take failed: the queue is paused, up to a fifth longer by jitter. Several takes that failed at the same time
    /// count as one failure. Returns the end of the pause.
    pub fn mark_failed(&mut self, queue: usize, now: Timestamp, jitter: f64) -> Timestamp {
        let status = &mut self.queues[queue];
        match status.availability {
            Availability::Failed(until)
                if !status.retrying && !is_over(until, now, FAILED_PAUSE_MAX) =>
            {
                return until;
            }
            _ => {}
        }
        status.retrying = false;
        let pause = FAILED_PAUSE_MIN_MICROS.saturating_mul(1 << status.failures.min(20));
        let pause = pause.min(FAILED_PAUSE_MAX_MICROS);
        status.failures = status.failures.saturating_add(1);
        let until = now + Span::from_micros(pause + (pause as f64 * jitter / 5.0) as i64);
        status.availability = Availability::Failed(until);
        until
    }

    /// The take for which [`QueueSelector::next`] chose the queue was not sent: another processor may retry the queue.
    pub fn take_not_sent(&mut self, queue: usize) {
        self.queues[queue].retrying = false;
    }

    /// When the next failed queue may be retried.
    pub fn next_retry(&self) -> Option<Timestamp> {
        let failed = self.queues.iter().filter_map(|status| match status.availability {
            Availability::Failed(until) if !status.retrying => Some(until),
            _ => None,
        });
        failed.min()
    }

    /// The empty queues that need a waiting take; they count as having one from now on.
    pub fn claim_idle_takes(&mut self) -> Vec<usize> {
        let claimed = (0..self.queues.len()).filter(|queue| {
            let status = &self.queues[*queue];
            !status.has_idle_take
                && matches!(status.availability, Availability::Empty(_))
                && self.may_help(*queue)
        });
        let claimed: Vec<_> = claimed.collect();
        for queue in &claimed {
            self.queues[*queue].has_idle_take = true;
        }
        claimed
    }

    /// No take waits at the queue any more.
    pub fn idle_take_ended(&mut self, queue: usize) {
        self.queues[queue].has_idle_take = false;
    }

    /// Whether the plan assigns one more processor to the queue. Without a plan this is always true.
    fn is_planned(&self, queue: usize) -> bool {
        let status = &self.queues[queue];
        let Some(plan) = &self.plan else { return true };
        plan.share.get(&status.num).is_some_and(|share| status.busy < *share)
    }

    /// Whether an idle processor may work on the queue: a plan says where processors go first, but no task of a
    /// queue in the plan waits while a processor is idle.
    pub fn may_help(&self, queue: usize) -> bool {
        let Some(plan) = &self.plan else { return true };
        let busy: usize = self.queues.iter().map(|status| status.busy).sum();
        let planned: usize = plan.share.values().sum();
        busy < planned && plan.share.contains_key(&self.queues[queue].num)
    }

    /// Applies a plan if it is newer than the current one; returns whether it was.
    pub fn apply_plan(&mut self, plan: Plan) -> bool {
        let newer = self.plan.as_ref().is_none_or(|known| known.version < plan.version);
        if newer {
            self.plan = Some(plan);
        }
        newer
    }

    /// The version of the current plan; 0 without one.
    pub fn plan_version(&self) -> u64 {
        self.plan.as_ref().map_or(0, |plan| plan.version)
    }

    /// How many processors work on each queue now.
    pub fn busy(&self) -> impl Iterator<Item = (u32, usize)> {
        self.queues.iter().map(|status| (status.num, status.busy))
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

    fn selector(queues: u32) -> QueueSelector {
        QueueSelector::new(1..=queues)
    }

    fn serve(selector: &mut QueueSelector, now: Timestamp) -> Option<usize> {
        let queue = selector.next(now)?;
        selector.batch_ended(queue);
        Some(queue)
    }

    /// Upstream pinned each processor to one queue when the number of processors was a multiple of the number of queues,
    /// and a dropped offer moved the cursor: here only a granted queue moves it.
    #[test]
    fn queues_are_served_equally_often() {
        for queues in 1..6 {
            let mut selector = selector(queues);
            let mut served = vec![0usize; queues as usize];
            for _ in 0..100 {
                served[selector.next(NOW).unwrap()] += 1;
                let (least, most) = (served.iter().min(), served.iter().max());
                assert!(most.unwrap() - least.unwrap() <= 1, "{served:?}");
            }
        }
    }

    #[test]
    fn an_empty_queue_is_skipped_for_a_while() {
        let mut selector = selector(2);
        assert_eq!(serve(&mut selector, NOW), Some(0));
        selector.mark_empty(0, NOW);
        assert_eq!([serve(&mut selector, NOW), serve(&mut selector, NOW)], [Some(1); 2]);
        assert_eq!(serve(&mut selector, NOW + EMPTY_PAUSE), Some(0));
    }

    #[test]
    fn a_queue_with_a_waiting_take_is_skipped() {
        let mut selector = selector(1);
        selector.mark_empty(0, NOW);
        assert_eq!(selector.claim_idle_takes(), [0]);
        assert!(selector.claim_idle_takes().is_empty());
        assert_eq!(serve(&mut selector, Timestamp::NEVER), None);
        selector.idle_take_ended(0);
        assert_eq!(serve(&mut selector, Timestamp::NEVER), Some(0));
    }

    #[test]
    fn failed_takes_are_retried_with_growing_pauses() {
        let mut selector = selector(2);
        let mut now = NOW;
        let pauses: Vec<_> = (0..9)
            .map(|_| {
                let until = selector.mark_failed(0, now, 0.0);
                let pause = until.since(now).as_micros() / 100_000;
                now = until;
                pause
            })
            .collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 100, 100]);
        let before = Timestamp::from_micros(now.as_micros() - 1);
        assert_eq!([serve(&mut selector, before), serve(&mut selector, before)], [Some(1); 2]);
        assert_eq!(selector.next_retry(), Some(now));
        assert_eq!(serve(&mut selector, now), Some(0));
        assert!(selector.mark_available(0));
        assert_eq!(selector.mark_failed(0, NOW, 1.0), NOW + Span::from_micros(120_000));
    }

    #[test]
    fn a_plan_limits_each_queue() {
        let mut selector = selector(3);
        let plan = |version, share: &[(u32, usize)]| Plan {
            version,
            share: share.iter().copied().collect(),
        };
        assert!(selector.apply_plan(plan(2, &[(1, 2), (3, 1)])));
        let granted: Vec<_> = std::iter::from_fn(|| selector.next(NOW)).collect();
        assert_eq!(granted, [0, 2, 0]);
        assert!(!selector.apply_plan(plan(2, &[(2, 9)])), "an older plan is ignored");
        selector.batch_ended(2);
        assert_eq!(selector.next(NOW), Some(2));
        assert!(selector.apply_plan(plan(3, &[])));
        selector.batch_ended(0);
        assert_eq!(selector.next(NOW), None, "with an empty plan all processors are idle");
    }

    /// Eight processors whose takes failed together paused the queue for ten seconds, and all eight retried at the same
    /// moment.
    #[test]
    fn takes_that_fail_together_count_as_one_failure() {
        let mut selector = selector(1);
        let granted: Vec<_> = (0..8).filter_map(|_| selector.next(NOW)).collect();
        assert_eq!(granted.len(), 8);
        let first = NOW + Span::from_micros(FAILED_PAUSE_MIN_MICROS);
        for _ in 0..8 {
            assert_eq!(selector.mark_failed(0, NOW, 0.0), first);
            selector.batch_ended(0);
        }
        assert_eq!(selector.next(first), Some(0));
        assert_eq!(selector.next(first), None, "one retry is enough");
        assert_eq!(selector.next_retry(), None);
        let second = selector.mark_failed(0, first, 0.0);
        assert_eq!(second.since(first).as_micros(), 2 * FAILED_PAUSE_MIN_MICROS);
        assert_eq!((selector.next(first), selector.next_retry()), (None, Some(second)));
    }

    /// A processor that should retry a failed queue found no free slot. The queue counted as being retried from then on, and
    /// the worker took no more tasks, for ever.
    #[test]
    fn a_retry_that_was_not_sent_is_made_later() {
        let mut selector = selector(1);
        let until = selector.mark_failed(0, NOW, 0.0);
        assert_eq!(serve(&mut selector, until), Some(0));
        assert_eq!((serve(&mut selector, until), selector.next_retry()), (None, None));
        selector.take_not_sent(0);
        assert_eq!(selector.next_retry(), Some(until));
        assert_eq!(serve(&mut selector, until), Some(0));
    }

    /// The pauses follow the wall clock: when it was set back by an hour, queues were paused for that long.
    #[test]
    fn a_clock_that_is_set_back_ends_every_pause() {
        let hour = Span::from_secs(3600);
        let late = NOW + hour;
        let mut selector = selector(2);
        selector.mark_failed(0, late, 1.0);
        selector.mark_empty(1, late);
        assert_eq!(selector.next(late), None);
        assert_eq!([serve(&mut selector, NOW), serve(&mut selector, NOW)], [Some(0), Some(1)]);
    }

    /// One processor, two queues: the queue with share 0 was neither taken from nor waited at, so its tasks stayed until
    /// the next plan although the processor was idle.
    #[test]
    fn an_idle_processor_helps_at_a_queue_with_share_0() {
        let mut selector = selector(3);
        let share = BTreeMap::from([(1, 1), (2, 0)]);
        assert!(selector.apply_plan(Plan { version: 1, share }));
        assert_eq!([serve(&mut selector, NOW), serve(&mut selector, NOW)], [Some(0); 2]);
        selector.mark_empty(0, NOW);
        assert_eq!(serve(&mut selector, NOW), Some(1));
        selector.mark_empty(1, NOW);
        assert_eq!(serve(&mut selector, NOW), None, "the third queue is not in the plan");
        assert_eq!(selector.claim_idle_takes(), [0, 1]);
        selector.batch_granted(1, NOW);
        assert!(!selector.may_help(0), "not more processors than the plan has");
    }

    /// A processor of the plan may be in a handler for an hour: the others serve its queue from time to time.
    #[test]
    fn every_queue_of_the_plan_is_served() {
        let mut selector = selector(2);
        let share = BTreeMap::from([(1, 2), (2, 0)]);
        assert!(selector.apply_plan(Plan { version: 1, share }));
        let mut served = [0; 2];
        let mut now = NOW;
        for _ in 0..20 {
            served[serve(&mut selector, now).unwrap()] += 1;
            now = now + Span::from_secs(1);
        }
        assert_eq!(served, [17, 3]);
    }
}

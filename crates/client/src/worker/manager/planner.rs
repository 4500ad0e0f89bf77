//! How many processors each queue gets. Pure: what is known goes in, a plan comes out.

use std::collections::BTreeMap;

/// How often the same change must be wanted before it is made, so that plans do not flap.
const PATIENCE: u32 = 3;

/// What is known of a queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// Tasks that could be taken now.
    pub ready: u64,
    /// What one of them costs; `None` when nobody knows yet.
    pub seconds_per_task: Option<f64>,
    /// How soon a task that is ready should be done, in seconds.
    pub target_latency: f64,
}

/// Plans again and again, and changes its mind slowly.
#[derive(Debug, Default)]
pub struct Planner {
    /// The plan that holds.
    current: Option<BTreeMap<u32, usize>>,
    /// How often in a row another one was wanted.
    wanted: u32,
    /// Where the next round begins when there are more queues than processors.
    turn: usize,
}

impl Planner {
    /// Looks at the queues once more; answers the new plan if it is time for one.
    pub fn evaluate(
        &mut self,
        queues: &BTreeMap<u32, Demand>,
        processors: usize,
    ) -> Option<BTreeMap<u32, usize>> {
        let (share, crowded) = share(queues, processors, self.turn);
        if crowded {
            // Somebody goes without: everybody's turn comes, so this is no flapping.
            self.turn = self.turn.wrapping_add(processors);
        }
        match &self.current {
            Some(current) if *current == share => {
                self.wanted = 0;
                return None;
            }
            Some(current) if !crowded && fits(current, queues, processors) => {
                self.wanted += 1;
                if self.wanted < PATIENCE {
                    return None;
                }
            }
            _ => {}
        }
        self.wanted = 0;
        self.current = Some(share.clone());
        Some(share)
    }

    /// The plan that holds.
    pub(super) fn current(&self) -> Option<&BTreeMap<u32, usize>> {
        self.current.as_ref()
    }
}

/// Whether a plan can wait to be changed: it gives work to exactly the processors there are, and no queue with
/// work is without one.
fn fits(plan: &BTreeMap<u32, usize>, queues: &BTreeMap<u32, Demand>, processors: usize) -> bool {
    let served = |num| plan.get(num).is_some_and(|count| *count > 0);
    plan.values().sum::<usize>() == processors
        && queues.iter().all(|(num, demand)| demand.ready == 0 || served(num))
}

/// One processor for each queue with work while they last, the rest by demand, largest remainders first.
/// Also says whether a queue with work got none.
fn share(
    queues: &BTreeMap<u32, Demand>,
    processors: usize,
    turn: usize,
) -> (BTreeMap<u32, usize>, bool) {
    let mut share: BTreeMap<u32, usize> = queues.keys().map(|num| (*num, 0)).collect();
    let busy: Vec<_> = queues.iter().filter(|(_, demand)| demand.ready > 0).collect();
    if busy.is_empty() || processors == 0 {
        // Nothing to choose by: an equal part for each, so that whatever comes first is met at once.
        let count = share.len().max(1);
        for (place, part) in share.values_mut().enumerate() {
            *part = processors / count + usize::from(place < processors % count);
        }
        return (share, false);
    }
    if processors < busy.len() {
        for step in 0..processors {
            let (num, _) = busy[(turn + step) % busy.len()];
            share.insert(*num, 1);
        }
        return (share, true);
    }
    let total: f64 = busy.iter().map(|(_, demand)| demand.weight()).sum();
    let rest = processors - busy.len();
    let mut given = 0;
    let mut remainders = Vec::new();
    for (num, demand) in &busy {
        let exact = demand.weight() / total * rest as f64;
        let whole = exact.floor() as usize;
        given += whole;
        share.insert(**num, 1 + whole);
        remainders.push((exact - exact.floor(), **num));
    }
    // The largest remainder first; of equal ones the smaller number.
    remainders.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    for (_, num) in remainders.into_iter().take(rest.saturating_sub(given)) {
        *share.entry(num).or_default() += 1;
    }
    (share, false)
}

impl Demand {
    /// How many processors would do the work in time; never nothing.
    fn weight(&self) -> f64 {
        // What reports say can be anything: no number, or an endless one.
        let sane = |value: f64, least: f64| {
            if value.is_nan() { least } else { value.clamp(least, 1e9) }
        };
        let seconds = sane(self.seconds_per_task.unwrap_or(0.001), 1e-9);
        self.ready as f64 * seconds / sane(self.target_latency, 1e-3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(ready: &[u64]) -> BTreeMap<u32, Demand> {
        let demand = |ready| Demand { ready, seconds_per_task: Some(0.1), target_latency: 1.0 };
        (1..).zip(ready.iter().map(|ready| demand(*ready))).collect()
    }

    fn shares(ready: &[u64], processors: usize) -> Vec<usize> {
        share(&queues(ready), processors, 0).0.into_values().collect()
    }

    #[test]
    fn processors_follow_the_work() {
        for (ready, processors, wanted) in [
            (&[100, 0, 0][..], 4, &[4, 0, 0][..]),
            (&[100, 100], 4, &[2, 2]),
            (&[900, 100], 12, &[10, 2]),
            (&[1, 1, 1], 4, &[2, 1, 1]),
            (&[0, 0], 3, &[2, 1]),
            (&[5, 5, 5], 2, &[1, 1, 0]),
            (&[1_000_000, 1], 2, &[1, 1]),
            (&[7], 0, &[0]),
        ] {
            assert_eq!(shares(ready, processors), wanted, "{ready:?} with {processors}");
        }
        let mut slow = queues(&[10, 10]);
        slow.get_mut(&1).unwrap().seconds_per_task = Some(0.9);
        slow.get_mut(&2).unwrap().target_latency = 1.0;
        assert_eq!(share(&slow, 12, 0).0, BTreeMap::from([(1, 10), (2, 2)]));
    }

    #[test]
    fn shares_never_exceed_the_processors_and_nobody_with_work_starves() {
        let mut seed = 7_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..2000 {
            let ready: Vec<_> = (0..1 + random(6)).map(|_| random(3) * random(1000)).collect();
            let processors = random(10) as usize;
            let got = shares(&ready, processors);
            assert!(got.iter().sum::<usize>() <= processors, "{ready:?} {processors}: {got:?}");
            let busy = ready.iter().filter(|ready| **ready > 0).count();
            if busy <= processors {
                let fed = ready.iter().zip(&got).all(|(ready, got)| *ready == 0 || *got > 0);
                assert!(fed, "{ready:?} {processors}: {got:?}");
            }
        }
    }

    #[test]
    fn a_change_must_be_wanted_three_times_in_a_row() {
        let mut planner = Planner::default();
        assert!(planner.evaluate(&queues(&[10, 10]), 4).is_some(), "the first plan holds at once");
        let (even, uneven) = (queues(&[10, 10]), queues(&[1000, 10]));
        assert_eq!(planner.evaluate(&uneven, 4), None);
        assert_eq!(planner.evaluate(&uneven, 4), None);
        assert_eq!(planner.evaluate(&even, 4), None, "not in a row");
        assert_eq!(planner.evaluate(&uneven, 4), None);
        assert_eq!(planner.evaluate(&uneven, 4), None);
        assert_eq!(planner.evaluate(&uneven, 4), Some(BTreeMap::from([(1, 3), (2, 1)])));
        assert!(planner.evaluate(&uneven, 2).is_some(), "too many is corrected at once");
        assert!(planner.evaluate(&uneven, 5).is_some(), "nobody idles");
    }

    /// A queue that was empty for a while waited three evaluations for its first processor.
    #[test]
    fn a_queue_with_work_and_nobody_is_served_at_once() {
        let mut planner = Planner::default();
        let share = |a, b| Some(BTreeMap::from([(1, a), (2, b)]));
        assert_eq!(planner.evaluate(&queues(&[10, 0]), 4), share(4, 0));
        assert_eq!(planner.evaluate(&queues(&[10, 1]), 4), share(3, 1));
        assert_eq!(planner.evaluate(&queues(&[10, 0]), 4), None, "but it is not left at once");
    }

    #[test]
    fn numbers_that_are_none_do_not_stop_the_planning() {
        for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0] {
            let mut queues = queues(&[10, 10]);
            queues.get_mut(&1).unwrap().seconds_per_task = Some(odd);
            queues.get_mut(&2).unwrap().target_latency = odd;
            let (share, _) = share(&queues, 7, 0);
            assert_eq!(share.values().sum::<usize>(), 7, "{odd}: {share:?}");
        }
    }

    #[test]
    fn more_queues_than_processors_take_turns() {
        let mut planner = Planner::default();
        let mut visits = [0; 5];
        for _ in 0..10 {
            for (num, count) in planner.evaluate(&queues(&[9; 5]), 2).unwrap() {
                visits[num as usize - 1] += count;
            }
        }
        assert_eq!(visits, [4; 5]);
    }
}

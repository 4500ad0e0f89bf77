//! Computes how many processors each queue gets. Pure: the demand is an argument, the plan is the result.

use std::collections::BTreeMap;

/// How many evaluations in a row must want a change before it is made, so that plans do not flap.
const EVALUATIONS_MIN: u32 = 3;

/// The demand of a queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueDemand {
    /// The number of ready tasks.
    pub ready: u64,
    /// The time per task; `None` before it was measured.
    pub seconds_per_task: Option<f64>,
    /// How soon a ready task should be done, in seconds.
    pub target_latency: f64,
}

/// Plans repeatedly and damps changes.
#[derive(Debug, Default)]
pub struct Planner {
    /// The current plan.
    current: Option<BTreeMap<u32, usize>>,
    /// How many evaluations in a row wanted another plan.
    wanted: u32,
    /// The first queue of the next round when there are more queues than processors.
    turn: usize,
}

impl Planner {
    /// Evaluates the demand; returns the new plan if it changes.
    pub fn evaluate(
        &mut self,
        queues: &BTreeMap<u32, QueueDemand>,
        processors: usize,
    ) -> Option<BTreeMap<u32, usize>> {
        let (share, crowded) = share(queues, processors, self.turn);
        if crowded {
            // Some queue gets no processor: the queues take turns, which is not flapping.
            self.turn = self.turn.wrapping_add(processors);
        }
        match &self.current {
            Some(current) if *current == share => {
                self.wanted = 0;
                return None;
            }
            Some(current) if !crowded && fits(current, queues, processors) => {
                self.wanted += 1;
                if self.wanted < EVALUATIONS_MIN {
                    return None;
                }
            }
            _ => {}
        }
        self.wanted = 0;
        self.current = Some(share.clone());
        Some(share)
    }

    /// The current plan.
    pub(super) fn current(&self) -> Option<&BTreeMap<u32, usize>> {
        self.current.as_ref()
    }
}

/// Whether a plan may stay for now: it assigns all processors, and every queue with tasks has one.
fn fits(
    plan: &BTreeMap<u32, usize>,
    queues: &BTreeMap<u32, QueueDemand>,
    processors: usize,
) -> bool {
    let served = |num| plan.get(num).is_some_and(|count| *count > 0);
    plan.values().sum::<usize>() == processors
        && queues.iter().all(|(num, demand)| demand.ready == 0 || served(num))
}

/// Assigns one processor to each queue with tasks while they last, the rest by demand, largest remainders first.
/// Also returns whether a queue with tasks got none.
fn share(
    queues: &BTreeMap<u32, QueueDemand>,
    processors: usize,
    turn: usize,
) -> (BTreeMap<u32, usize>, bool) {
    let mut share: BTreeMap<u32, usize> = queues.keys().map(|num| (*num, 0)).collect();
    let busy: Vec<_> = queues.iter().filter(|(_, demand)| demand.ready > 0).collect();
    if busy.is_empty() || processors == 0 {
        // Without demand all queues get an equal part, so that the first task of any queue starts at once.
        let count = share.len().max(1);
        for (index, part) in share.values_mut().enumerate() {
            *part = processors / count + usize::from(index < processors % count);
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
    // The largest remainder first; of equal ones the smaller queue number.
    remainders.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    for (_, num) in remainders.into_iter().take(rest.saturating_sub(given)) {
        *share.entry(num).or_default() += 1;
    }
    (share, false)
}

impl QueueDemand {
    /// How many processors would do the work in time; always positive.
    fn weight(&self) -> f64 {
        // Reports may contain any value, also NaN and infinity.
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

    fn queues(ready: &[u64]) -> BTreeMap<u32, QueueDemand> {
        let demand =
            |ready| QueueDemand { ready, seconds_per_task: Some(0.1), target_latency: 1.0 };
        (1..).zip(ready.iter().map(|ready| demand(*ready))).collect()
    }

    fn shares(ready: &[u64], processors: usize) -> Vec<usize> {
        share(&queues(ready), processors, 0).0.into_values().collect()
    }

    #[test]
    fn processors_are_shared_by_demand() {
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
    fn shares_fit_the_processors_and_no_queue_with_tasks_starves() {
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
                let served = ready.iter().zip(&got).all(|(ready, got)| *ready == 0 || *got > 0);
                assert!(served, "{ready:?} {processors}: {got:?}");
            }
        }
    }

    #[test]
    fn a_change_must_be_wanted_three_times_in_a_row() {
        let mut planner = Planner::default();
        assert!(
            planner.evaluate(&queues(&[10, 10]), 4).is_some(),
            "the first plan is valid at once"
        );
        let (even, uneven) = (queues(&[10, 10]), queues(&[1000, 10]));
        assert_eq!(planner.evaluate(&uneven, 4), None);
        assert_eq!(planner.evaluate(&uneven, 4), None);
        assert_eq!(planner.evaluate(&even, 4), None, "not in a row");
        assert_eq!(planner.evaluate(&uneven, 4), None);
        assert_eq!(planner.evaluate(&uneven, 4), None);
        assert_eq!(planner.evaluate(&uneven, 4), Some(BTreeMap::from([(1, 3), (2, 1)])));
        assert!(
            planner.evaluate(&uneven, 2).is_some(),
            "too many processors are corrected at once"
        );
        assert!(planner.evaluate(&uneven, 5).is_some(), "no processor is idle");
    }

    /// A queue that was empty for a while waited three evaluations for its first processor.
    #[test]
    fn a_queue_with_tasks_and_no_processor_is_served_at_once() {
        let mut planner = Planner::default();
        let share = |a, b| Some(BTreeMap::from([(1, a), (2, b)]));
        assert_eq!(planner.evaluate(&queues(&[10, 0]), 4), share(4, 0));
        assert_eq!(planner.evaluate(&queues(&[10, 1]), 4), share(3, 1));
        assert_eq!(
            planner.evaluate(&queues(&[10, 0]), 4),
            None,
            "its processor is not removed at once"
        );
    }

    #[test]
    fn nan_and_infinity_do_not_stop_the_planning() {
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
        let mut served = [0; 5];
        for _ in 0..10 {
            for (num, count) in planner.evaluate(&queues(&[9; 5]), 2).unwrap() {
                served[num as usize - 1] += count;
            }
        }
        assert_eq!(served, [4; 5]);
    }
}

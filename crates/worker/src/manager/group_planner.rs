//! Plans for many workers: those with the same queues form a group and share a plan. Pure, as the planner is.

use std::collections::BTreeMap;

use taskyard_wire::http::Shares;

use super::planner::{Planner, QueueDemand};

/// A worker to plan for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlannedWorker {
    pub id: String,
    pub processors: usize,
    /// The numbers of its queues.
    pub queues: Vec<u32>,
}

/// One planner for each distinct set of queues. A queue in two sets is planned in each as if the other set did not
/// exist, so that no queue starves because a worker of another group could have served it.
#[derive(Debug, Default)]
pub(super) struct GroupPlanner {
    planners: BTreeMap<Vec<u32>, Planner>,
}

impl GroupPlanner {
    /// Evaluates the demand; returns the plan of each worker.
    pub fn plan(
        &mut self,
        workers: impl IntoIterator<Item = PlannedWorker>,
        demands: &BTreeMap<u32, QueueDemand>,
    ) -> BTreeMap<String, Shares> {
        let mut groups: BTreeMap<Vec<u32>, Vec<PlannedWorker>> = BTreeMap::new();
        for mut worker in workers {
            worker.queues.sort_unstable();
            worker.queues.dedup();
            groups.entry(worker.queues.clone()).or_default().push(worker);
        }
        self.planners.retain(|queues, _| groups.contains_key(queues));
        let mut plan = BTreeMap::new();
        for (queues, workers) in groups {
            let planner = self.planners.entry(queues.clone()).or_default();
            let known = queues.iter().filter_map(|num| Some((*num, *demands.get(num)?)));
            let processors = workers.iter().map(|worker| worker.processors).sum();
            planner.evaluate(&known.collect(), processors);
            let mut share = planner.current().cloned().unwrap_or_default();
            for worker in workers {
                let assigned = assign(&worker, &mut share);
                plan.insert(worker.id, assigned);
            }
        }
        plan
    }
}

/// Assigns to one worker as much of the remaining share as it has processors.
fn assign(worker: &PlannedWorker, share: &mut BTreeMap<u32, usize>) -> Shares {
    let mut left = worker.processors;
    let mut assigned = Shares::new();
    for num in &worker.queues {
        let Some(wanted) = share.get_mut(num) else { continue };
        let count = left.min(*wanted);
        *wanted -= count;
        left -= count;
        assigned.insert(*num, u32::try_from(count).unwrap_or(u32::MAX));
    }
    assigned
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(id: &str, processors: usize, queues: &[u32]) -> PlannedWorker {
        PlannedWorker { id: id.into(), processors, queues: queues.into() }
    }

    fn demands(ready: &[u64]) -> BTreeMap<u32, QueueDemand> {
        let demand =
            |ready| QueueDemand { ready, seconds_per_task: Some(0.1), target_latency: 1.0 };
        (1..).zip(ready.iter().map(|ready| demand(*ready))).collect()
    }

    fn shares(plan: &BTreeMap<String, Shares>, id: &str) -> Vec<(u32, u32)> {
        plan[id].iter().map(|(num, count)| (*num, *count)).collect()
    }

    #[test]
    fn workers_with_the_same_queues_share_one_plan() {
        let mut planner = GroupPlanner::default();
        let workers = [worker("a", 2, &[1, 2]), worker("b", 2, &[2, 1])];
        let plan = planner.plan(workers, &demands(&[300, 100]));
        assert_eq!(shares(&plan, "a"), [(1, 2), (2, 0)]);
        assert_eq!(shares(&plan, "b"), [(1, 1), (2, 1)]);
    }

    /// With one share for all workers, the first worker got the shared queue, and the queue that it alone has got no
    /// processor.
    #[test]
    fn a_queue_that_one_worker_alone_has_does_not_starve() {
        let mut planner = GroupPlanner::default();
        let workers = [worker("a", 2, &[1, 2]), worker("b", 1, &[1]), worker("c", 1, &[3])];
        let plan = planner.plan(workers, &demands(&[1000, 1, 1]));
        assert_eq!(shares(&plan, "a"), [(1, 1), (2, 1)]);
        assert_eq!(shares(&plan, "b"), [(1, 1)]);
        assert_eq!(shares(&plan, "c"), [(3, 1)]);
    }

    #[test]
    fn workers_that_join_and_leave_are_planned_for_at_once() {
        let mut planner = GroupPlanner::default();
        let demands = demands(&[10, 10]);
        let (a, b, c) = (worker("a", 2, &[1, 2]), worker("b", 2, &[1, 2]), worker("c", 2, &[1, 2]));
        let sum = |plan: &BTreeMap<String, Shares>| -> u32 {
            plan.values().flat_map(|shares| shares.values()).sum()
        };
        assert_eq!(sum(&planner.plan([a.clone()], &demands)), 2);
        let plan = planner.plan([a.clone(), b], &demands);
        assert_eq!((plan.len(), sum(&plan)), (2, 4), "no processor is idle");
        let plan = planner.plan([a, c], &demands);
        assert_eq!((plan.contains_key("c"), sum(&plan)), (true, 4), "one worker replaces another");
        assert!(planner.plan([], &demands).is_empty());
    }
}

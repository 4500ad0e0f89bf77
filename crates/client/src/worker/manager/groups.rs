//! Plans for many workers. Those with the same queues are planned for together. Pure, as the planner is.

use std::collections::BTreeMap;

use taskyard_wire::http::Shares;

use super::planner::{Demand, Planner};

/// A worker as planning sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub id: String,
    pub processors: usize,
    /// Its queues, by number.
    pub queues: Vec<u32>,
}

/// One planner for each set of queues that somebody works on. What two sets have in common is planned for in
/// both as if the other were not there, so that a queue never starves because others could have helped.
#[derive(Debug, Default)]
pub(super) struct Groups {
    planners: BTreeMap<Vec<u32>, Planner>,
}

impl Groups {
    /// Looks once more; what each worker is to do.
    pub fn plan(
        &mut self,
        members: impl IntoIterator<Item = Member>,
        demands: &BTreeMap<u32, Demand>,
    ) -> BTreeMap<String, Shares> {
        let mut groups: BTreeMap<Vec<u32>, Vec<Member>> = BTreeMap::new();
        for mut member in members {
            member.queues.sort_unstable();
            member.queues.dedup();
            groups.entry(member.queues.clone()).or_default().push(member);
        }
        self.planners.retain(|queues, _| groups.contains_key(queues));
        let mut plan = BTreeMap::new();
        for (queues, members) in groups {
            let planner = self.planners.entry(queues.clone()).or_default();
            let known = queues.iter().filter_map(|num| Some((*num, *demands.get(num)?)));
            let processors = members.iter().map(|member| member.processors).sum();
            planner.evaluate(&known.collect(), processors);
            let mut share = planner.current().cloned().unwrap_or_default();
            for member in members {
                let part = part_of(&member, &mut share);
                plan.insert(member.id, part);
            }
        }
        plan
    }
}

/// Takes what fits into one worker out of what is to be given.
fn part_of(member: &Member, share: &mut BTreeMap<u32, usize>) -> Shares {
    let mut left = member.processors;
    let mut part = Shares::new();
    for num in &member.queues {
        let Some(wanted) = share.get_mut(num) else { continue };
        let given = left.min(*wanted);
        *wanted -= given;
        left -= given;
        part.insert(*num, u32::try_from(given).unwrap_or(u32::MAX));
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: &str, processors: usize, queues: &[u32]) -> Member {
        Member { id: id.into(), processors, queues: queues.into() }
    }

    fn demands(ready: &[u64]) -> BTreeMap<u32, Demand> {
        let demand = |ready| Demand { ready, seconds_per_task: Some(0.1), target_latency: 1.0 };
        (1..).zip(ready.iter().map(|ready| demand(*ready))).collect()
    }

    fn shares(plan: &BTreeMap<String, Shares>, id: &str) -> Vec<(u32, u32)> {
        plan[id].iter().map(|(num, count)| (*num, *count)).collect()
    }

    #[test]
    fn workers_with_the_same_queues_share_one_plan() {
        let mut groups = Groups::default();
        let members = [member("a", 2, &[1, 2]), member("b", 2, &[2, 1])];
        let plan = groups.plan(members, &demands(&[300, 100]));
        assert_eq!(shares(&plan, "a"), [(1, 2), (2, 0)]);
        assert_eq!(shares(&plan, "b"), [(1, 1), (2, 1)]);
    }

    /// One share for all: what the first worker could do was given to it, and the queue that only it has got
    /// nobody.
    #[test]
    fn a_queue_that_one_worker_alone_has_does_not_starve() {
        let mut groups = Groups::default();
        let members = [member("a", 2, &[1, 2]), member("b", 1, &[1]), member("c", 1, &[3])];
        let plan = groups.plan(members, &demands(&[1000, 1, 1]));
        assert_eq!(shares(&plan, "a"), [(1, 1), (2, 1)]);
        assert_eq!(shares(&plan, "b"), [(1, 1)]);
        assert_eq!(shares(&plan, "c"), [(3, 1)]);
    }

    #[test]
    fn who_comes_and_who_goes_is_planned_for_at_once() {
        let mut groups = Groups::default();
        let demands = demands(&[10, 10]);
        let (a, b, c) = (member("a", 2, &[1, 2]), member("b", 2, &[1, 2]), member("c", 2, &[1, 2]));
        let sum = |plan: &BTreeMap<String, Shares>| -> u32 {
            plan.values().flat_map(|shares| shares.values()).sum()
        };
        assert_eq!(sum(&groups.plan([a.clone()], &demands)), 2);
        let plan = groups.plan([a.clone(), b], &demands);
        assert_eq!((plan.len(), sum(&plan)), (2, 4), "nobody idles");
        let plan = groups.plan([a, c], &demands);
        assert_eq!((plan.contains_key("c"), sum(&plan)), (true, 4), "one in place of another");
        assert!(groups.plan([], &demands).is_empty());
    }
}

//! Judges lists of buried tasks: a buried task is listed, a kicked one is not.

use std::collections::{BTreeSet, HashSet};

use taskyard_core::{
    AfterFailure, Command, Finish, ListOrder, Reply, State, StateSet, TaskId, TubeName,
};

use crate::client_admin::LISTED_MAX;
use crate::evidence::{Evidence, PutTask, TaskChange, TaskKey};
use crate::history::{Moment, RecordedCall};
use crate::tubes::TubeRole;

/// A list of the buried tasks of a tube.
struct BuriedList<'a> {
    tube: &'a TubeName,
    begin: Moment,
    end: Moment,
    ids: HashSet<TaskId>,
}

/// Finds a list that lacks a task, or has one too many.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    let lists: Vec<_> = evidence.history.calls.iter().filter_map(read_list).collect();
    if lists.is_empty() {
        return None;
    }
    let stays = staying_tasks(evidence);
    lists.iter().find_map(|list| {
        let of_tube = |(tube, id): (&TubeName, TaskId)| (tube == list.tube).then_some(id);
        let kicked = evidence.kicked.keys().copied().filter_map(of_tube);
        let changed = evidence.changes.keys().copied().filter_map(of_tube);
        let ids: BTreeSet<TaskId> = kicked.chain(changed).collect();
        ids.into_iter().filter(|id| stays.contains(&(list.tube, *id))).find_map(|id| {
            let name = || format!("task {id} of '{}'", list.tube);
            if is_surely_buried(evidence, list, id) && !list.ids.contains(&id) {
                return Some(format!("{} is buried, and not in the list of buried tasks", name()));
            }
            (is_surely_kicked(evidence, list, id) && list.ids.contains(&id))
                .then(|| format!("{} was kicked, and is in the list of buried tasks", name()))
        })
    })
}

/// The tasks without a time to live. If the outcome of its put is unknown, a task is known by the payload of a delivery; one that was
/// never delivered is not known.
fn staying_tasks<'a>(evidence: &Evidence<'a>) -> HashSet<TaskKey<'a>> {
    let placed = evidence.puts.values().filter_map(|put| Some((put, put.placed?.id)));
    let delivered = evidence.deliveries.iter();
    let delivered =
        delivered.filter_map(|delivery| Some((evidence.put_of(delivery)?, delivery.id)));
    let drained = evidence.facts.drained.iter();
    let drained = drained.filter_map(|task| Some((evidence.puts.get(&task.payload?)?, task.id)));
    let stays =
        |(put, id): (&PutTask<'a>, TaskId)| put.task.ttl.is_none().then_some((put.tube, id));
    placed.chain(delivered).chain(drained).filter_map(stays).collect()
}

fn read_list(call: &RecordedCall) -> Option<BuriedList<'_>> {
    let Command::List(list) = &call.command else { return None };
    let Some((Reply::Listed(tasks), end)) = call.replied() else { return None };
    let buried = StateSet::EMPTY.with(State::Buried);
    let is_buried = list.order == ListOrder::Id { states: buried, after: None };
    let ids = tasks.iter().map(|task| task.id).collect();
    // A put may replace a keyed task.
    let is_judged = is_buried && tasks.len() < LISTED_MAX && !TubeRole::Keyed.is(&list.tube);
    is_judged.then_some(BuriedList { tube: &list.tube, begin: call.begin, end, ids })
}

fn is_bury(change: &TaskChange<'_>) -> bool {
    match change.finish {
        Some(Finish::Bury) => true,
        Some(Finish::Fail(fail)) => fail.then == AfterFailure::Bury,
        _ => false,
    }
}

/// Whether a bury ended before the list, and nothing that may have been executed since then changed it.
fn is_surely_buried(evidence: &Evidence<'_>, list: &BuriedList<'_>, id: TaskId) -> bool {
    let changes = || evidence.changes.get(&(list.tube, id)).into_iter().flatten();
    let is_before = |change: &&TaskChange<'_>| change.call.end.is_some_and(|end| end < list.begin);
    let buries = changes().filter(|change| is_bury(change) && change.is_done());
    let Some(bury) = buries.filter(is_before).max_by_key(|change| change.call.begin) else {
        return false;
    };
    let may_follow =
        |call: &RecordedCall| call.begin < list.end && call.may_run_after(bury.call.begin);
    let mut others = changes().filter(|change| !std::ptr::eq(change.call, bury.call));
    let mut of_tube = evidence.tube_changes.get(list.tube).into_iter().flatten();
    !others.any(|change| change.may_have_run() && may_follow(change.call))
        && !of_tube.any(|call| may_follow(call))
}

/// Whether a kick ended before the list, and nothing that may have been executed since then buried it.
fn is_surely_kicked(evidence: &Evidence<'_>, list: &BuriedList<'_>, id: TaskId) -> bool {
    let kicks = evidence.kicked.get(&(list.tube, id)).into_iter().flatten();
    let done =
        kicks.filter(|(_, outcome)| matches!(outcome, Some(taskyard_core::Outcome::Done(_))));
    let before = done.filter(|(call, _)| call.end.is_some_and(|end| end < list.begin));
    let Some((kick, _)) = before.max_by_key(|(call, _)| call.begin) else { return false };
    let changes = evidence.changes.get(&(list.tube, id)).into_iter().flatten();
    let mut buries = changes.filter(|change| is_bury(change) && change.may_have_run());
    // A task without attempts left is buried when its delivery ends.
    !TubeRole::Retried.is(list.tube)
        && !buries
            .any(|change| change.call.begin < list.end && change.call.may_run_after(kick.begin))
}

#[cfg(test)]
mod tests {
    use taskyard_core::{
        Command, Finish, List, ListOrder, ListedTask, Outcome, Reply, Span, State, StateSet,
        TaskId, TubeName,
    };

    use crate::judges::script::Script;

    fn script() -> Script {
        let mut script = Script::new();
        script.put("plain", 0, |_| {});
        script.take("plain", 0, 1, 10);
        script.finish("plain", 0, 1, Finish::Bury, true);
        script
    }

    fn list(script: &mut Script, ids: &[u64]) {
        let tube = TubeName::new("plain").unwrap();
        let states = StateSet::EMPTY.with(State::Buried);
        let order = ListOrder::Id { states, after: None };
        let list = List { tube, order, limit: super::LISTED_MAX, key: None };
        let tasks = ids.iter().map(|id| ListedTask { id: TaskId(*id), pri: 0 }).collect();
        script.call(Command::List(list), Reply::Listed(tasks));
    }

    #[test]
    fn buried_tasks_are_listed_and_kicked_ones_are_not() {
        let mut script = script();
        list(&mut script, &[0]);
        let (tube, ids) = (TubeName::new("plain").unwrap(), vec![TaskId(0)]);
        let kick = Command::KickTasks { tube, ids, reset_attempts: false };
        script.call(kick, Reply::Finished(vec![Outcome::Done(None)]));
        list(&mut script, &[]);
        assert_eq!(script.judge(super::judge), None);
        list(&mut script, &[0]);
        assert!(script.judge(super::judge).unwrap().contains("was kicked"));
    }

    #[test]
    fn a_task_of_an_unknown_put_is_known_by_its_delivery() {
        for (has_ttl, is_found) in [(false, true), (true, false)] {
            let mut script = Script::new();
            script.put("plain", 0, |task| task.ttl = has_ttl.then_some(Span::from_secs(60)));
            script.lose_reply();
            list(&mut script, &[]);
            assert_eq!(script.judge(super::judge), None);
            script.take("plain", 0, 1, 10);
            script.finish("plain", 0, 1, Finish::Bury, true);
            list(&mut script, &[]);
            assert_eq!(script.judge(super::judge).is_some(), is_found);
        }
    }

    #[test]
    fn a_buried_task_that_is_missing_is_found() {
        let mut script = script();
        list(&mut script, &[]);
        assert!(script.judge(super::judge).unwrap().contains("task 0 of 'plain' is buried"));
    }
}

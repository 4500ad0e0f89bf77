//! Checks what is left after a storm against the recorded calls of its clients.

use std::collections::{HashMap, HashSet};

use taskyard_conformance::audit::{Call, Operation, Unrecorded};
use taskyard_core::limits::LIST_TASKS_MAX;
use taskyard_core::{
    Command, Execute, List, ListOrder, Reply, State, StateSet, Task, TaskId, Timestamp, TubeName,
};

use super::load::{CAPACITY, Payload, ROOM, StormLoad, TUBES, TaskKey};

/// Of the calls with a reply at least one in so many puts a task.
const CALLS_PER_TASK_MAX: usize = 5;

/// All tasks that are left, in all tubes.
async fn left_tasks(queue: &impl Execute) -> Vec<(TubeName, Task)> {
    let reply = queue.execute(vec![Command::Tubes { tube: None }]).await.remove(0);
    let Ok(Reply::Tubes(tubes)) = reply else { panic!("tubes are shown, not {reply:?}") };
    let mut left = Vec::new();
    for tube in tubes.into_iter().map(|tube| tube.name) {
        for ids in task_ids(queue, &tube).await.chunks(LIST_TASKS_MAX) {
            let peek = Command::Peek { tube: tube.clone(), ids: ids.to_vec() };
            let reply = queue.execute(vec![peek]).await.remove(0);
            let Ok(Reply::Tasks(tasks)) = reply else { panic!("tasks are shown, not {reply:?}") };
            left.extend(tasks.into_iter().map(|task| (tube.clone(), task)));
        }
    }
    left
}

/// The ids of all tasks of a tube, whatever their state.
pub async fn task_ids(queue: &impl Execute, tube: &TubeName) -> Vec<TaskId> {
    let (mut ids, mut after) = (Vec::new(), None);
    loop {
        let order = ListOrder::Id { states: StateSet::ALL, after };
        let list = List { tube: tube.clone(), order, limit: LIST_TASKS_MAX, key: None };
        let reply = queue.execute(vec![Command::List(list)]).await.remove(0);
        let Ok(Reply::Listed(page)) = reply else { panic!("tasks are listed, not {reply:?}") };
        let Some(last) = page.last() else { return ids };
        after = Some(last.id);
        ids.extend(page.iter().map(|task| task.id));
    }
}

/// Waits until no session holds a task. The queue must show who holds tasks, which HTTP does not.
pub async fn wait_for_returns(queue: &impl Execute) {
    while left_tasks(queue).await.iter().any(|(_, task)| task.session.is_some()) {}
}

/// Panics unless the recorded calls are possible and no task is lost, leaked, or there twice. The storm ended at this moment of the
/// clock of the database. The queue must show who holds tasks, which HTTP does not.
pub async fn judge(
    queue: &impl Execute,
    load: &StormLoad,
    ended: Timestamp,
    leases_increase: bool,
) {
    let left = left_tasks(queue).await;
    let received = load.received.lock().expect("no client failed");
    for (tube, task) in &left {
        if let Some(lease) = task.session.and(task.lease) {
            let name = format!("{} of '{tube}'", task.id);
            assert!(received.contains(&lease), "a session holds {name}, and no client received it");
        }
    }
    let is_loaded = |(tube, _): &(TubeName, Task)| TUBES.contains(&tube.as_str());
    let left: HashMap<TaskKey, Task> =
        left.into_iter().filter(is_loaded).map(|(tube, task)| ((tube, task.id), task)).collect();
    let mut payloads = load.payloads.lock().expect("no client failed").clone();
    payloads.extend(left.iter().map(|(key, task)| (key.clone(), payload(task))));
    let acknowledged = load.acknowledged.lock().expect("no client failed");
    let unacknowledged = load.unacknowledged.lock().expect("no client failed");
    check_payloads(&acknowledged, &unacknowledged, &payloads);
    check_history(load, &acknowledged, &left, ended, leases_increase);
    let room = left.keys().filter(|(tube, _)| tube.as_str() == ROOM).count() as u64;
    assert!(room <= CAPACITY, "{room} tasks in a tube of capacity {CAPACITY}");
    let (put, calls) = (acknowledged.len(), load.replies());
    assert!(put > calls / CALLS_PER_TASK_MAX, "{calls} calls put only {put} tasks");
    println!("{put} tasks were put, {} are left", left.len());
}

fn payload(task: &Task) -> Payload {
    task.body.as_ref().expect("a task has a payload").payload().to_vec()
}

/// Panics unless some order of the recorded calls is possible and ends with the tasks that are left.
fn check_history(
    load: &StormLoad,
    acknowledged: &HashMap<TaskKey, Payload>,
    left: &HashMap<TaskKey, Task>,
    ended: Timestamp,
    leases_increase: bool,
) {
    let mut history = load.recorder.history();
    for ((tube, id), task) in left {
        history.record_final_state(tube, *id, task.state);
    }
    let all: Vec<TaskKey> = history.tasks().map(|(tube, id)| (tube.clone(), id)).collect();
    for key in all {
        let state = left.get(&key).map(|task| task.state);
        if !acknowledged.contains_key(&key) {
            // The reply that would have said whether it waits for a semaphore was lost.
            let waits = state == Some(State::Delayed);
            let operation = Operation::Put(if waits { State::Delayed } else { State::Ready });
            history.record(&key.0, key.1, Call { begin: 0, end: None, operation });
        }
        if state.is_none() {
            history.record_final_state(&key.0, key.1, State::Done);
        }
    }
    let violations = history.check(Unrecorded { lost_takes: true, ..Unrecorded::until(ended) });
    assert!(violations.is_empty(), "{}", violations[0]);
    if leases_increase {
        let disorder = history.check_lease_order();
        assert!(disorder.is_empty(), "{}", disorder[0]);
    }
}

/// Panics unless each task has the payload of its put: that of the put with its id if that had a reply, otherwise that of a
/// put without a reply, which no other task has.
fn check_payloads(
    acknowledged: &HashMap<TaskKey, Payload>,
    unacknowledged: &HashSet<(TubeName, Payload)>,
    payloads: &HashMap<TaskKey, Payload>,
) {
    let mut claimed = HashSet::new();
    for (key, payload) in payloads {
        if let Some(put) = acknowledged.get(key) {
            assert_eq!(put, payload, "{key:?} has the payload of another put");
            continue;
        }
        let origin = (key.0.clone(), payload.clone());
        assert!(unacknowledged.contains(&origin), "{key:?} exists and no put can have added it");
        assert!(claimed.insert(origin), "{key:?} exists twice");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storm::load::{PLAIN, tube};

    fn task(id: u64, payload: u8) -> (TaskKey, Payload) {
        ((tube(PLAIN), TaskId(id)), vec![payload])
    }

    fn check(acknowledged: &[(TaskKey, Payload)], payloads: &[(TaskKey, Payload)]) {
        let unacknowledged = [(tube(PLAIN), vec![7])].into();
        let [acknowledged, payloads] =
            [acknowledged, payloads].map(|tasks| tasks.iter().cloned().collect());
        check_payloads(&acknowledged, &unacknowledged, &payloads);
    }

    #[test]
    fn put_tasks_can_exist() {
        check(&[task(0, 1)], &[task(0, 1), task(1, 7)]);
    }

    // A put that the server repeated added its task twice, and every storm passed: for each unknown task the judge
    // assumed a put.
    #[test]
    #[should_panic(expected = "no put can have added it")]
    fn a_put_with_reply_does_not_exist_twice() {
        check(&[task(0, 1)], &[task(0, 1), task(1, 1)]);
    }

    #[test]
    #[should_panic(expected = "exists twice")]
    fn a_put_without_reply_does_not_exist_twice() {
        check(&[], &[task(0, 7), task(1, 7)]);
    }

    #[test]
    #[should_panic(expected = "payload of another put")]
    fn payloads_are_not_mixed_up() {
        check(&[task(0, 1)], &[task(0, 7)]);
    }
}

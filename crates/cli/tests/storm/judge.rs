//! Checks the recorded calls and the remaining tasks after a storm.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{SystemTime, UNIX_EPOCH};

use taskyard_conformance::audit::{Call, Operation, Unrecorded};
use taskyard_core::{Command, Execute, Reply, State, Task, TaskId, Timestamp, TubeName};

use crate::fixture::{CAPACITY, LANES, PLAIN, ROOM, StormServer, tube};
use crate::load::{Payload, StormLoad, TaskKey};

/// Ids at most this far from an acknowledged one can belong to interrupted puts. Each start of Redis skips a million ids.
const NEAR: u64 = 500;

/// All remaining tasks.
async fn tasks(server: &StormServer, load: &StormLoad) -> Vec<(TubeName, Task)> {
    let acknowledged: Vec<TaskKey> =
        load.acknowledged.lock().expect("no client failed").keys().cloned().collect();
    let mut found = Vec::new();
    for name in [PLAIN, LANES, ROOM].map(tube) {
        let ids = acknowledged.iter().filter(|key| key.0 == name).map(|key| key.1.0).chain([0]);
        let near = ids.flat_map(|id| id.saturating_sub(NEAR)..id + NEAR);
        let ids: Vec<TaskId> = near.collect::<BTreeSet<_>>().into_iter().map(TaskId).collect();
        for ids in ids.chunks(5000) {
            let peek = Command::Peek { tube: name.clone(), ids: ids.to_vec() };
            // Over iproto, because HTTP does not show the holders.
            let reply = server.iproto().execute(vec![peek]).await.remove(0);
            let Ok(Reply::Tasks(tasks)) = reply else {
                panic!("a peek shows tasks, not {reply:?}")
            };
            found.extend(tasks.into_iter().map(|task| (name.clone(), task)));
        }
    }
    found
}

/// Waits until no ended session holds a task.
pub async fn wait_for_returns(server: &StormServer, load: &StormLoad) {
    let held = |tasks: Vec<(TubeName, Task)>| tasks.iter().any(|(_, task)| task.session.is_some());
    while held(tasks(server, load).await) {}
}

/// Panics unless the recorded calls are possible and no task is lost or leaked.
pub async fn judge(server: &StormServer, load: &StormLoad) {
    let mut history = load.recorder.history();
    let mut left = HashSet::new();
    let mut payloads = load.payloads.lock().expect("no client failed").clone();
    let received = load.received.lock().expect("no client failed").clone();
    for (name, task) in tasks(server, load).await {
        if let (Some(_), Some(lease)) = (task.session, task.lease) {
            assert!(
                received.contains(&lease),
                "a session holds lease {lease} that no client received"
            );
        }
        history.record_final_state(&name, task.id, task.state);
        let payload = task.body.as_ref().map(|body| body.payload().to_vec());
        payloads.insert((name.clone(), task.id), payload.expect("a task has a payload"));
        left.insert((name, task.id));
    }
    let acknowledged = load.acknowledged.lock().expect("no client failed");
    let unacknowledged = load.unacknowledged.lock().expect("no client failed");
    check_payloads(&acknowledged, &unacknowledged, &payloads);
    let all: Vec<_> = history.tasks().map(|(tube, id)| (tube.clone(), id)).collect();
    for key in all {
        if !acknowledged.contains_key(&key) {
            let operation = Operation::Put(State::Ready);
            history.record(&key.0, key.1, Call { begin: 0, end: None, operation });
        }
        if !left.contains(&key) {
            history.record_final_state(&key.0, key.1, State::Done);
        }
    }
    // The database of the tests is on this machine and uses its clock.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later").as_micros();
    let ended = Timestamp::from_micros(i64::try_from(now).expect("it is not that late"));
    let violations = history.check(Unrecorded { lost_takes: true, ..Unrecorded::until(ended) });
    assert!(violations.is_empty(), "{}", violations[0]);
    let room = left.iter().filter(|(tube, _)| tube.as_str() == ROOM).count() as u64;
    assert!(room <= CAPACITY, "{room} tasks in a tube of capacity {CAPACITY}");
    println!("{} tasks were put, {} are left", acknowledged.len(), left.len());
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

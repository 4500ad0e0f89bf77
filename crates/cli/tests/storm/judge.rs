//! What must be so when a storm is over.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{SystemTime, UNIX_EPOCH};

use taskyard_conformance::audit::{Call, Operation, Unrecorded};
use taskyard_core::{Command, Execute, Reply, State, Task, TaskId, Timestamp, TubeName};

use crate::load::{Load, Payload};
use crate::yard::{CAPACITY, LANES, PLAIN, ROOM, Server, tube};

/// A task, and where it is.
type Key = (TubeName, TaskId);

/// Ids this near to one that is known may have been used by puts that were cut off. With each start of Redis a million are left out.
const NEAR: u64 = 500;

/// Every task that is there.
async fn tasks(server: &Server, load: &Load) -> Vec<(TubeName, Task)> {
    let known: Vec<Key> = load.known.lock().expect("no client failed").keys().cloned().collect();
    let mut found = Vec::new();
    for name in [PLAIN, LANES, ROOM].map(tube) {
        let ids = known.iter().filter(|key| key.0 == name).map(|key| key.1.0).chain([0]);
        let near = ids.flat_map(|id| id.saturating_sub(NEAR)..id + NEAR);
        let ids: Vec<TaskId> = near.collect::<BTreeSet<_>>().into_iter().map(TaskId).collect();
        for ids in ids.chunks(5000) {
            let peek = Command::Peek { tube: name.clone(), ids: ids.to_vec() };
            // By iproto: over HTTP one does not see who holds what.
            let reply = server.iproto().execute(vec![peek]).await.remove(0);
            let Ok(Reply::Tasks(tasks)) = reply else {
                panic!("a peek shows tasks, not {reply:?}")
            };
            found.extend(tasks.into_iter().map(|task| (name.clone(), task)));
        }
    }
    found
}

/// Waits until nobody who is gone holds anything.
pub async fn wait_for_returns(server: &Server, load: &Load) {
    let held = |tasks: Vec<(TubeName, Task)>| tasks.iter().any(|(_, task)| task.session.is_some());
    while held(tasks(server, load).await) {}
}

/// Panics unless all that clients saw can have happened and nothing is lost or leaked.
pub async fn judge(server: &Server, load: &Load) {
    let mut history = load.recorder.history();
    let mut left = HashSet::new();
    let mut carried = load.carried.lock().expect("no client failed").clone();
    let told = load.told.lock().expect("no client failed").clone();
    for (name, task) in tasks(server, load).await {
        if let (Some(_), Some(lease)) = (task.session, task.lease) {
            assert!(told.contains(&lease), "a session holds lease {lease} and nobody knows");
        }
        history.record_final_state(&name, task.id, task.state);
        let payload = task.body.as_ref().map(|body| body.payload().to_vec());
        carried.insert((name.clone(), task.id), payload.expect("a task has a payload"));
        left.insert((name, task.id));
    }
    let known = load.known.lock().expect("no client failed");
    let unsure = load.unsure.lock().expect("no client failed");
    check_origins(&known, &unsure, &carried);
    let all: Vec<_> = history.tasks().map(|(tube, id)| (tube.clone(), id)).collect();
    for key in all {
        if !known.contains_key(&key) {
            let operation = Operation::Put(State::Ready);
            history.record(&key.0, key.1, Call { begin: 0, end: None, operation });
        }
        if !left.contains(&key) {
            history.record_final_state(&key.0, key.1, State::Done);
        }
    }
    // The database of the tests is on this machine and has its clock.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later").as_micros();
    let ended = Timestamp::from_micros(i64::try_from(now).expect("it is not that late"));
    let violations = history.check(Unrecorded { lost_takes: true, ..Unrecorded::until(ended) });
    assert!(violations.is_empty(), "{}", violations[0]);
    let room = left.iter().filter(|(tube, _)| tube.as_str() == ROOM).count() as u64;
    assert!(room <= CAPACITY, "{room} tasks where {CAPACITY} have room");
    println!("{} tasks were put, {} are left", known.len(), left.len());
}

/// Panics unless each task is what was put: one whose put was answered carries what that operation, and any other
/// what a put carried that was not answered, and is the only one that does.
fn check_origins(
    known: &HashMap<Key, Payload>,
    unsure: &HashSet<(TubeName, Payload)>,
    carried: &HashMap<Key, Payload>,
) {
    let mut claimed = HashSet::new();
    for (key, payload) in carried {
        if let Some(put) = known.get(key) {
            assert_eq!(put, payload, "{key:?} carries what another was put with");
            continue;
        }
        let origin = (key.0.clone(), payload.clone());
        assert!(unsure.contains(&origin), "{key:?} is there and nobody can have put it");
        assert!(claimed.insert(origin), "{key:?} is there twice");
    }
}

//! Reads the remaining tasks after a storm through a server, and checks them.

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use taskyard_core::{Command, Execute, Reply, Task, TaskId, Timestamp, TubeName};

use crate::fixture::{LANES, PLAIN, ROOM, StormServer, tube};
use crate::load::{StormLoad, TaskKey};
use crate::storm_check::{LeftTask, check_storm};

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
    let left = |(tube, task): (TubeName, Task)| LeftTask {
        tube,
        id: task.id,
        state: task.state,
        payload: task.body.as_ref().expect("a task has a payload").payload().to_vec(),
        held: task.session.and(task.lease),
    };
    let tasks = tasks(server, load).await.into_iter().map(left).collect();
    // The database of the tests is on this machine and uses its clock.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later").as_micros();
    let ended = Timestamp::from_micros(i64::try_from(now).expect("it is not that late"));
    check_storm(load, tasks, ended);
}

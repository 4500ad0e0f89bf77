//! Servers are killed, or cut off from their database, while clients put tasks with keys and repeat each put until it has a reply:
//! each key has one task.
//!
//! All clients put the same keys at about the same time. Another one takes and acks tasks, whose keys stay held; the tube keeps done
//! tasks, so that all are there at the end.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use taskyard::{
    Client, Finish, FinishItem, HeldKey, Holder, Key, KeyRequest, Kind, NewTask, OnConflict,
    Placed, Span, Task, TaskId, TubeName, TubeOptions, new_task,
};
use taskyard_conformance::random::runs;
use taskyard_core::{Command, Execute, Reply};
use tokio::task::JoinSet;

use super::faulty_servers::{FaultyServers, all_tasks};

/// The tube of the storm.
pub const TUBE: &str = "keyed";
/// How many clients put tasks.
const CLIENTS: u64 = 8;
/// Clients put so many keys in an order of their own, then the next ones.
const BLOCK: usize = 20;
/// The most tasks of a put.
const BATCH_MAX: usize = 4;
/// How many faults there are, and how many replies arrive before each.
const FAULTS: usize = 5;
const REPLIES_MAX: usize = 200;
/// Longer than any storm.
const HELD: Span = Span::from_secs(3600);
/// More than a storm has.
const TASKS_MAX: u64 = 1_000_000;

/// What the clients of a storm know.
#[derive(Default)]
struct KeyLoad {
    /// The task of each key that was put with a reply.
    holders: Mutex<HashMap<String, TaskId>>,
    /// The keys whose task was new, and the client that added it.
    added: Mutex<HashMap<String, u64>>,
    stop: AtomicBool,
}

/// Runs the storm on these servers, and checks keys and tasks at its end.
pub async fn add_each_key_once(mut servers: impl FaultyServers) {
    let (live, rng) = servers.parts();
    let live = live.clone();
    let client = Client::new(live.clone());
    let options = TubeOptions {
        keep_done: Some(HELD),
        keep_done_max: TASKS_MAX,
        ..TubeOptions::new(Kind::FifoTtl)
    };
    client.create(TUBE, options).await.expect("the tube is created");
    let load = Arc::new(KeyLoad::default());
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(put_until_stopped(client.clone(), load.clone(), number, rng.fork()));
    }
    clients.spawn(ack_until_stopped(client.clone(), load.clone()));
    for _ in 0..FAULTS * runs() {
        let replies = servers.parts().1.usize(1..=REPLIES_MAX);
        live.wait_for_more(replies).await;
        servers.fail().await;
    }
    live.wait_for_more(REPLIES_MAX).await;
    load.stop.store(true, Ordering::Relaxed);
    clients.join_all().await;
    let tasks = all_tasks(&client, TUBE).await;
    load.check(&tasks.iter().map(KeyedTask::new).collect::<Vec<_>>());
}

/// A task that exists after a storm.
struct KeyedTask {
    key: String,
    id: TaskId,
    /// The client whose put added it.
    client: u64,
}

impl KeyedTask {
    fn new(task: &Task) -> Self {
        let key = task.task.key.as_ref().expect("every task has a key").as_str().to_owned();
        let client = task.data().expect("the payload is the number of a client");
        KeyedTask { key, id: task.id(), client }
    }
}

/// Puts all keys, block by block.
async fn put_until_stopped(client: Client, load: Arc<KeyLoad>, number: u64, mut rng: Rng) {
    for block in 0.. {
        let mut keys: Vec<usize> = (block * BLOCK..(block + 1) * BLOCK).collect();
        rng.shuffle(&mut keys);
        while !keys.is_empty() {
            if load.stop.load(Ordering::Relaxed) {
                return;
            }
            let count = rng.usize(1..=BATCH_MAX).min(keys.len());
            let keys: Vec<String> = keys.drain(..count).map(|key| format!("key {key}")).collect();
            let tasks = keys.iter().map(|key| task(key, number)).collect();
            let tube = TubeName::new(TUBE).expect("a name");
            let put = Command::Put { tube, tasks, wait: Span::ZERO };
            match client.execute(vec![put]).await.remove(0) {
                Ok(Reply::Put(placed)) => load.record(number, keys, &placed),
                other => panic!("unexpected reply to a put: {other:?}"),
            }
        }
    }
}

/// The task of a key, as this client puts it.
fn task(key: &str, client: u64) -> NewTask {
    let held = HeldKey { key: Key::new(key).expect("a good key"), unique_for: HELD };
    let request = KeyRequest { held, on_conflict: OnConflict::Keep };
    NewTask { key: Some(Box::new(request)), ..new_task(&client).expect("a number is a payload") }
}

/// Takes and acks tasks. Some stay taken, because the reply to a take can be lost.
async fn ack_until_stopped(client: Client, load: Arc<KeyLoad>) {
    while !load.stop.load(Ordering::Relaxed) {
        let tasks = client.take_many(TUBE, 10, Duration::from_millis(100)).await;
        let ack = |task: &Task| {
            let holder = Holder::Lease(task.task.lease.expect("a taken task has a lease"));
            FinishItem { id: task.id(), holder, finish: Finish::Ack }
        };
        let items = tasks.expect("the tube can be used").iter().map(ack).collect();
        // The lease may have ended with the server.
        client.finish(TUBE, items).await.expect("the tube can be used");
    }
}

impl KeyLoad {
    /// Records the reply to a put: every reply names the same task for a key, and one at most says that it is new.
    fn record(&self, client: u64, keys: Vec<String>, placed: &[Placed]) {
        assert_eq!(keys.len(), placed.len());
        let mut holders = self.holders.lock().expect("no client failed");
        let mut added = self.added.lock().expect("no client failed");
        for (key, placed) in keys.into_iter().zip(placed) {
            let holder = *holders.entry(key.clone()).or_insert(placed.id);
            assert_eq!(holder, placed.id, "'{key}' has two tasks");
            if !placed.existing
                && let Some(other) = added.insert(key.clone(), client)
            {
                panic!("'{key}' was added by clients {other} and {client}");
            }
        }
    }

    /// Panics unless each key that was put has one task, which is the one of the replies.
    fn check(&self, tasks: &[KeyedTask]) {
        let holders = self.holders.lock().expect("no client failed");
        let added = self.added.lock().expect("no client failed");
        let mut found = HashSet::new();
        for KeyedTask { key, id, client } in tasks {
            assert!(found.insert(key), "'{key}' is present twice");
            // Every put was repeated until it had a reply.
            assert_eq!(holders.get(key), Some(id), "the task of '{key}'");
            // The reply that said that it was new may be lost.
            assert_eq!(added.get(key).unwrap_or(client), client, "the client that added '{key}'");
        }
        assert_eq!(found.len(), holders.len(), "keys that were put and are missing");
        println!("{} keys were put; {} replies were new", holders.len(), added.len());
    }
}

#[cfg(test)]
mod tests {
    use taskyard::State;

    use super::*;

    /// Client 1 added task 7, which client 2 met.
    fn load() -> KeyLoad {
        let load = KeyLoad::default();
        for (client, existing) in [(1, false), (2, true)] {
            load.record(client, vec!["a".into()], &[placed(7, existing)]);
        }
        load
    }

    fn placed(id: u64, existing: bool) -> Placed {
        Placed { id: TaskId(id), state: State::Ready, existing }
    }

    fn task(id: u64, client: u64) -> KeyedTask {
        KeyedTask { key: "a".into(), id: TaskId(id), client }
    }

    #[test]
    fn a_key_has_one_task() {
        load().check(&[task(7, 1)]);
    }

    #[test]
    #[should_panic(expected = "present twice")]
    fn a_key_with_two_tasks_is_found() {
        load().check(&[task(7, 1), task(8, 1)]);
    }

    #[test]
    #[should_panic(expected = "missing")]
    fn a_lost_task_is_found() {
        load().check(&[]);
    }

    #[test]
    #[should_panic(expected = "the client that added")]
    fn the_task_of_another_put_is_found() {
        load().check(&[task(7, 2)]);
    }

    #[test]
    #[should_panic(expected = "added by clients 1 and 3")]
    fn a_key_that_was_new_twice_is_found() {
        load().record(3, vec!["a".into()], &[placed(7, false)]);
    }
}

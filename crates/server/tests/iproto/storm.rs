//! Many clients at once, some of which disconnect in the middle of their work.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use fastrand::Rng;
use serde_json::json;
use taskyard_iproto::{Operation, Shape, parse_reply};
use taskyard_testkit::random::new_seed;
use tokio::sync::watch;
use tokio::task::{JoinSet, yield_now};

use crate::fixture::{RawClient, TestServer, unpacked};

const PRODUCERS: u64 = 3;
const CONSUMERS: u64 = 6;
const TASKS: u64 = 300;

/// How often each task was acknowledged.
type Acked = Arc<Mutex<BTreeMap<u64, usize>>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_task_is_acknowledged_once_despite_disconnects() {
    let seed = new_seed();
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifottl").await;
    let acked = Acked::default();
    let mut clients = JoinSet::new();
    for number in 0..PRODUCERS {
        clients.spawn(produce(server.address, Rng::with_seed(seed ^ number)));
    }
    for number in 0..CONSUMERS {
        let rng = Rng::with_seed(seed ^ (100 + number));
        clients.spawn(consume(server.address, rng, acked.clone()));
    }
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    let acked = acked.lock().unwrap().clone();
    assert_eq!(acked.len() as u64, PRODUCERS * TASKS);
    assert!(acked.values().all(|times| *times == 1), "{acked:?}");
    server.connections(1).await;
    let tasks = client.done("queue.statistics", json!(["mail"])).await[0]["tasks"].clone();
    assert_eq!((&tasks["total"], &tasks["done"]), (&json!(0), &json!(PRODUCERS * TASKS)));
}

/// Puts tasks in bursts of any size.
async fn produce(address: SocketAddr, mut rng: Rng) {
    let mut client = RawClient::new(address).await;
    let mut left = TASKS;
    while left > 0 {
        let burst = rng.u64(1..=left.min(50));
        let mut bytes = Vec::new();
        for _ in 0..burst {
            let args = json!(["x".repeat(rng.usize(..2_000)), { "pri": rng.u8(..3) }]);
            bytes.extend(client.call_bytes("queue.tube.mail:put", &args, Shape::Call).1);
        }
        client.send(&bytes).await;
        for _ in 0..burst {
            client.next().await.unwrap().1.unwrap();
        }
        left -= burst;
    }
}

/// Takes several tasks at once and acknowledges them, or disconnects while it holds them.
async fn consume(address: SocketAddr, mut rng: Rng, acked: Acked) {
    let all = (PRODUCERS * TASKS) as usize;
    let mut client = RawClient::new(address).await;
    while acked.lock().unwrap().len() < all {
        let mut bytes = Vec::new();
        let count = rng.usize(1..20);
        for _ in 0..count {
            bytes.extend(client.call_bytes("queue.tube.mail:take", &json!([0]), Shape::Call).1);
        }
        client.send(&bytes).await;
        if rng.u8(..10) == 0 {
            // The answers are not read.
            client = RawClient::new(address).await;
            continue;
        }
        let mut taken = Vec::new();
        for _ in 0..count {
            taken.extend(client.next().await.unwrap().1.unwrap()[0][0].as_u64());
        }
        if rng.u8(..10) == 0 {
            client = RawClient::new(address).await;
            continue;
        }
        for id in &taken {
            let done = client.done("queue.tube.mail:ack", json!([id])).await;
            assert_eq!(done[0][1], "-");
            *acked.lock().unwrap().entry(*id).or_default() += 1;
        }
        if taken.is_empty() {
            yield_now().await;
        }
    }
}

// Tasks are delivered to waiting takes at the moment when their connection breaks or changes its
// session; the tasks of such a session stay there until its time is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_task_is_acknowledged_once_when_takes_wait() {
    let seed = new_seed();
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifottl").await;
    client.done("queue.cfg", json!([{ "ttr": 10 }])).await;
    let acked = Acked::default();
    let (done, over) = watch::channel(false);
    let mut clients = JoinSet::new();
    for number in 0..PRODUCERS {
        clients.spawn(produce(server.address, Rng::with_seed(seed ^ number)));
    }
    for number in 0..CONSUMERS {
        let rng = Rng::with_seed(seed ^ (100 + number));
        let mut over = over.clone();
        let consuming = consume_waiting(server.address, rng, acked.clone());
        clients.spawn(async move {
            tokio::select! {
                () = consuming => {}
                _ = over.wait_for(|over| *over) => {}
            }
        });
    }
    while (acked.lock().unwrap().len() as u64) < PRODUCERS * TASKS {
        // Sessions of disconnected clients end after some time.
        server.advance(1);
        client.ping().await;
        if let Some(ended) = clients.try_join_next() {
            ended.unwrap();
        }
    }
    done.send_replace(true);
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    assert!(acked.lock().unwrap().values().all(|times| *times == 1));
    server.connections(1).await;
    server.consumers("mail", 0).await;
    let tasks = client.done("queue.statistics", json!(["mail"])).await[0]["tasks"].clone();
    assert_eq!((&tasks["total"], &tasks["done"]), (&json!(0), &json!(PRODUCERS * TASKS)));
}

/// Waits for several tasks at once, acknowledges some of them over another connection of the
/// session, and disconnects with the rest; then it connects again with a new session.
async fn consume_waiting(address: SocketAddr, mut rng: Rng, acked: Acked) {
    loop {
        let (mut client, mut mate) = (RawClient::new(address).await, RawClient::new(address).await);
        let session = mate.identity().await;
        let count = rng.usize(1..10);
        let mut bytes = Vec::new();
        for _ in 0..count {
            let args = json!([rng.u64(1..100)]);
            bytes.extend(client.call_bytes("queue.tube.mail:take", &args, Shape::Call).1);
        }
        let identify = identify(&mut client, &session);
        // The takes already wait in the session, or are moved to it.
        let bytes = if rng.bool() { [identify, bytes] } else { [bytes, identify] }.concat();
        client.send(&bytes).await;
        let mut identified = false;
        for _ in 0..rng.usize(..=count + 1) {
            let frame = client.next_bytes().await.unwrap();
            if frame.ends_with(&session) {
                identified = true;
            } else if let Some(id) = taken(&frame).filter(|_| identified) {
                // Earlier tasks belong to the session that was left.
                mate.done("queue.tube.mail:ack", json!([id])).await;
                *acked.lock().unwrap().entry(id).or_default() += 1;
            }
        }
    }
}

/// The bytes of a request to join this session.
fn identify(client: &mut RawClient, session: &[u8; 16]) -> Vec<u8> {
    let args = [&[0x91, 0xb0][..], session].concat();
    let (name, shape) = ("queue.identify", Shape::Call);
    client.request(&Operation::Call { name, args: &args, shape }).1
}

/// The task in an answer to a take, if there is one.
fn taken(frame: &[u8]) -> Option<u64> {
    let reply = parse_reply(frame).unwrap();
    assert_eq!(reply.fault(), None);
    unpacked(reply.data.unwrap())[0][0].as_u64()
}

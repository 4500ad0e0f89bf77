//! Many clients that connect, disconnect and time out at random; nothing is left afterwards.

use std::sync::Arc;

use fastrand::Rng;
use taskyard_testkit::random::{first_seed, runs};
use tokio::sync::Semaphore;

use crate::fixture::{Client, TestPool, until_gone};

/// Number of clients; `TASKYARD_RUNS` multiplies it.
const CLIENTS: u64 = 250;
/// Concurrent clients, so that most of them wait.
const AT_ONCE: usize = 100;

const CONFIG: &str = "
classes:
  - {name: fast, seconds: 0.05, limit: 100%}
  - {name: medium, seconds: 0.1, limit: 50%}
  - {name: slow, seconds: 0.2, limit: 25%}
limits: {kill_after_seconds: 0.1, output_bytes_max: 100000}
";

/// A client with random behaviour.
async fn run_client(site: Arc<TestPool>, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let script = match rng.u8(..6) {
        0 => "exec sleep 1000",
        1 => "exec yes",
        2 => "kill -9 $$",
        3 => "exit 1",
        _ => "echo x > result.txt",
    };
    let mut client: Client = match rng.u8(..12) {
        0 => {
            site.run(script).await;
            return;
        }
        1 => site.connect("/pool/run/sh/interactive").await,
        _ => site.client().await,
    };
    if rng.u8(..20) == 0 {
        return;
    }
    if rng.bool() {
        let duration = [0.01, 0.05, 0.1, 0.2][rng.usize(..4)];
        client.send(&format!("options {{\"duration\": {duration}}}")).await;
    }
    client.file("a.sh", script).await;
    if rng.u8(..20) == 0 {
        return;
    }
    client.send("start {}").await;
    // Some wait to the end, the rest disconnect after a few frames.
    let patience = if rng.bool() { usize::MAX } else { rng.usize(..4) };
    for _ in 0..patience {
        if rng.u8(..10) == 0 {
            client.send_late(r#"options {"duration": 0}"#).await;
        }
        match client.next_frame().await {
            Some(received) if received.verb != "complete" && received.verb != "deny" => {}
            _ => return,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_after_many_clients() {
    let site = Arc::new(TestPool::new(6, CONFIG).await);
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let mut clients = Vec::new();
    let clients_max = CLIENTS * runs() as u64;
    let first = first_seed();
    for seed in 0..clients_max {
        let permit = permits.clone().acquire_owned().await.unwrap();
        let pool_of_client = site.clone();
        clients.push(tokio::spawn(async move {
            run_client(pool_of_client, first.wrapping_add(seed)).await;
            drop(permit);
        }));
        if seed % 100 == 50 {
            let backend = (seed / 100) as usize % 6;
            site.pool.backends().fail_backend(backend).await.unwrap();
            site.pool.backends().restore_backend(backend).await.unwrap();
        }
    }
    for client in clients {
        client.await.unwrap();
    }
    site.until_empty().await;
    let status = site.status().await;
    println!("{}", serde_json::to_string_pretty(&status).unwrap());
    assert_eq!(status.backends, 6);
    let counts = &status.counts;
    assert!(
        counts.arrived > clients_max / 2 && counts.left > 0 && counts.requeued > 0,
        "{counts:?}"
    );
    // The pool still works.
    assert!(site.run("echo x > result.txt").await["ok"].is_object());
    // No other test uses these users, so all their processes are leftovers.
    site.until_empty().await;
    site.stop().await;
    if let Some(first) = site.pool.backends().isolation().first_uid() {
        until_gone(first..first + 12).await;
    }
}

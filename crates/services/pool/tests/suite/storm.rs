//! A thousand clients that connect, vanish, abort and time out at random; then nothing is left.

use std::sync::Arc;

use fastrand::Rng;
use tokio::sync::Semaphore;

use crate::rig::{Client, Site, until_gone};

const CLIENTS: u64 = 1_000;
/// Clients at once, so that most of them wait for others.
const AT_ONCE: usize = 100;

const CONFIG: &str = "
classes:
  - {name: fast, seconds: 0.05, limit: 100%}
  - {name: medium, seconds: 0.1, limit: 50%}
  - {name: slow, seconds: 0.2, limit: 25%}
limits: {kill_after_seconds: 0.1, output_bytes_max: 100000}
";

/// One client with a mind of its own.
async fn visit(site: Arc<Site>, seed: u64) {
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
        client.say(&format!("options {{\"duration\": {duration}}}")).await;
    }
    client.file("a.sh", script).await;
    if rng.u8(..20) == 0 {
        return;
    }
    client.say("start {}").await;
    // Some wait to the end, the rest vanish after a few frames.
    let patience = if rng.bool() { usize::MAX } else { rng.usize(..4) };
    for _ in 0..patience {
        if rng.u8(..10) == 0 {
            client.say_late(r#"options {"duration": 0}"#).await;
        }
        match client.hear().await {
            Some(heard) if heard.verb != "complete" && heard.verb != "deny" => {}
            _ => return,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_after_a_thousand_clients() {
    let site = Arc::new(Site::new(6, CONFIG).await);
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let mut visits = Vec::new();
    for seed in 0..CLIENTS {
        let permit = room.clone().acquire_owned().await.unwrap();
        let visited = site.clone();
        visits.push(tokio::spawn(async move {
            visit(visited, seed).await;
            drop(permit);
        }));
        if seed % 100 == 50 {
            let backend = (seed / 100) as usize % 6;
            site.pool.backends().lose(backend).await.unwrap();
            site.pool.backends().revive(backend).await.unwrap();
        }
    }
    for visit in visits {
        visit.await.unwrap();
    }
    site.until_empty().await;
    let status = site.status().await;
    println!("{}", serde_json::to_string_pretty(&status).unwrap());
    assert_eq!(status.backends, 6);
    let counts = &status.counts;
    assert!(counts.arrived > CLIENTS / 2 && counts.left > 0 && counts.put_back > 0, "{counts:?}");
    // The pool still works.
    assert!(site.run("echo x > result.txt").await["ok"].is_object());
    // Nobody else has these users meanwhile, so whatever they run is what was left.
    site.until_empty().await;
    site.stop().await;
    if let Some(first) = site.pool.backends().isolation().first_uid() {
        until_gone(first..first + 12).await;
    }
}

//! Parts that end between any two calls to Redis, and once more, and once more.

use std::time::Duration;

use super::yard::{Part, Yard};

const SHORT: &str = "leases: {task_seconds: 2, backend_seconds: 0.5, leader_seconds: 0.2}\n";
/// How often a part ends, and how many tasks are under way.
const ROUNDS: usize = 30;
const TASKS: usize = 4;

/// How many functions Redis has run.
fn calls(yard: &Yard) -> u64 {
    let text = yard.redis().talk(&["INFO", "commandstats"]);
    let line = text.lines().find_map(|line| line.strip_prefix("cmdstat_fcall:calls="));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or_default()
}

/// Each round a scheduler or a backend is gone after some more calls than in the round before; the call under way is made,
/// and its answer reaches nobody. In the end everybody has been told one end, and nothing is held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_may_end_after_any_call() {
    let Some(yard) = Yard::new(2, SHORT) else { return };
    let takes = Duration::from_millis(1);
    let mut parts: [Part; 2] = [yard.scheduler("first"), yard.stubs(takes).await];
    let steady = yard.stubs(takes).await;
    let gateway = yard.gateway().await;
    yard.until(|status| status["backends"] == 4 && status["paused"] == false).await;
    for round in 0..ROUNDS {
        let mut clients = Vec::new();
        let (before, most) = (calls(&yard), round as u64);
        for _ in 0..TASKS {
            clients.push(gateway.start("{}", "").await);
        }
        while calls(&yard) < before + most {
            tokio::task::yield_now().await;
        }
        match round % 2 {
            0 => parts[0] = yard.scheduler("next"),
            _ => parts[1] = yard.stubs(takes).await,
        }
        for client in &mut clients {
            let heard = client.rest().await;
            let ends = heard.iter().filter(|one| one.verb == "complete").count();
            assert_eq!(ends, 1, "round {round}: {heard:?}");
        }
    }
    yard.until_empty().await;
    steady.stop().await;
}

//! Measures what the random keys of idempotent puts cost: time of puts and acks, and memory for keys of ended tasks.
//!
//! `cargo run --release -p taskyard --features embedded --example put_cost [TASKS]`

use std::time::{Duration, Instant};

use taskyard::{Client, Kind, TubeOptions, bytes_task};
use taskyard_core::limits::BATCH_TASKS_MAX;
use taskyard_store::{MemoryStore, OpenOptions, Store};
use taskyard_testkit::server::{TestServer, clock, config};
use tokio::task::JoinSet;

/// Concurrent clients.
const CLIENTS: usize = 16;
/// Rounds of each measurement, with and without keys in turns; the best of each counts.
const ROUNDS: usize = 5;
const TUBE: &str = "bench";

/// Tasks a second.
#[derive(Clone, Copy, Default)]
struct Rates {
    put: f64,
    ack: f64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tasks = std::env::args().nth(1).map_or(Ok(50_000), |text| text.parse())?;
    for on_disk in [false, true] {
        for batch in [1, 100] {
            measure("HTTP", on_disk, tasks, batch, TestServer::client).await?;
            measure("iproto", on_disk, tasks, batch, |test_server| {
                Client::new(test_server.connect())
            })
            .await?;
        }
    }
    ended_keys(10 * tasks).await
}

async fn measure(
    transport: &str,
    on_disk: bool,
    tasks: usize,
    batch: usize,
    connect: impl Fn(&TestServer) -> Client,
) -> Result<(), Box<dyn std::error::Error>> {
    let tasks = if batch == 1 { tasks } else { 4 * tasks };
    let mut best = [Rates::default(); 2];
    for _ in 0..ROUNDS {
        for (best, idempotent) in best.iter_mut().zip([false, true]) {
            let folder = tempfile::tempdir()?;
            let test_server =
                TestServer::start(store(on_disk, folder.path())?, clock(), config()).await;
            let client = connect(&test_server).idempotent(idempotent);
            let rates = put_and_ack(&client, tasks, batch).await?;
            best.put = best.put.max(rates.put);
            best.ack = best.ack.max(rates.ack);
            test_server.stop().await;
        }
    }
    let [without, with] = best;
    println!(
        "{transport}, {}, batches of {batch}: put {:.0} -> {:.0} a second ({:.2}), take and ack {:.0} -> {:.0} ({:.2})",
        if on_disk { "SQLite" } else { "memory" },
        without.put,
        with.put,
        with.put / without.put,
        without.ack,
        with.ack,
        with.ack / without.ack,
    );
    Ok(())
}

fn store(on_disk: bool, folder: &std::path::Path) -> Result<Box<dyn Store>, taskyard::OpenError> {
    match on_disk {
        false => Ok(Box::new(MemoryStore::default())),
        true => {
            taskyard_stores::open(&format!("sqlite:{}", folder.display()), &OpenOptions::default())
        }
    }
}

async fn put_and_ack(
    client: &Client,
    tasks: usize,
    batch: usize,
) -> Result<Rates, Box<dyn std::error::Error>> {
    client.create(TUBE, TubeOptions::new(Kind::FifoTtl)).await?;
    let calls = tasks / CLIENTS / batch;
    let begin = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..CLIENTS {
        let client = client.clone();
        running.spawn(async move {
            for _ in 0..calls {
                let tasks = vec![bytes_task(&[0x5a; 100])?; batch];
                client.put_tasks(TUBE, tasks, Duration::ZERO).await?;
            }
            Ok::<_, taskyard::Error>(())
        });
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    let put = (calls * CLIENTS * batch) as f64 / begin.elapsed().as_secs_f64();
    let begin = Instant::now();
    for _ in 0..CLIENTS {
        let client = client.clone();
        running.spawn(async move {
            for _ in 0..calls {
                let tasks = client.take_many(TUBE, batch, Duration::ZERO).await?;
                client.ack_many(&tasks).await?;
            }
            Ok(())
        });
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    let ack = (calls * CLIENTS * batch) as f64 / begin.elapsed().as_secs_f64();
    Ok(Rates { put, ack })
}

/// The memory of a server after tasks with random keys have ended.
async fn ended_keys(tasks: usize) -> Result<(), Box<dyn std::error::Error>> {
    let test_server = TestServer::in_memory().await;
    let client = Client::new(test_server.connect());
    client.create(TUBE, TubeOptions::new(Kind::FifoTtl)).await?;
    let before = resident()?;
    let mut put = 0;
    while put < tasks {
        let batch = vec![bytes_task(&[0x5a; 100])?; BATCH_TASKS_MAX];
        client.put_tasks(TUBE, batch, Duration::ZERO).await?;
        let taken = client.take_many(TUBE, BATCH_TASKS_MAX, Duration::ZERO).await?;
        client.ack_many(&taken).await?;
        put += taken.len();
    }
    let bytes = (resident()? - before) / put as f64;
    println!("{bytes:.0} bytes of memory for each of {put} keys of ended tasks");
    test_server.stop().await;
    Ok(())
}

/// The resident memory of this process, in bytes.
fn resident() -> Result<f64, Box<dyn std::error::Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes: f64 = line.unwrap_or_default().trim().trim_end_matches(" kB").parse()?;
    Ok(1024.0 * kilobytes)
}

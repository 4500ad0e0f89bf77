//! Several servers on one database: what all of them put and drain together, and what limits them.
//!
//! Each server is a process of its own; the clients are in the benchmark's process and speak HTTP. The processor time of all three shows
//! whether the machine is used up, in which case more servers cannot add anything.

use std::num::NonZero;
use std::path::Path;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use taskyard::Client;
use tokio::task::JoinSet;

use super::super::load::{self, Load, TUBE};
use super::super::processor_time::{seconds_used, seconds_used_by_tree};
use super::super::queue_figures::{CLIENTS, warm_up};
use super::super::report::{Report, Row};
use super::super::server_process::ServerProcess;
use super::cluster::Cluster;

/// How many servers share the database.
const SERVERS: [usize; 3] = [1, 2, 4];
/// Tasks in one call where they come in batches.
const BATCH: usize = 100;

/// How many tasks pass through the servers together.
#[derive(Clone, Copy)]
pub struct ServersAmounts {
    pub single: usize,
    pub batched: usize,
}

/// What one load has used.
struct ServersMeasured {
    tasks: usize,
    seconds: f64,
    used: UsedTimes,
}

/// Seconds of processor time.
#[derive(Clone, Copy)]
struct UsedTimes {
    database: f64,
    servers: f64,
    clients: f64,
}

/// The servers of one round.
struct ServerGroup<'a> {
    cluster: &'a Cluster,
    servers: Vec<ServerProcess>,
    clients: Vec<Client>,
}

/// Measures the same load with one server and with more.
pub async fn measure(
    report: &mut Report,
    cluster: &Cluster,
    folder: &Path,
    amounts: ServersAmounts,
) -> Result<()> {
    let mut alone = Vec::new();
    for count in SERVERS {
        let group = ServerGroup::start(cluster, folder, count).await?;
        let loads = [(1, amounts.single), (BATCH, amounts.batched)];
        let mut rates = Vec::new();
        for (batch, tasks) in loads {
            for verb in ["put", "drain"] {
                let load = Load { clients: CLIENTS, batch, tasks };
                let measured = group.run(verb, load).await.context(verb)?;
                let rate = measured.tasks as f64 / measured.seconds;
                let first = alone.get(rates.len()).copied().unwrap_or(rate);
                rates.push(rate);
                let how =
                    if batch == 1 { "one by one".into() } else { format!("batches of {batch}") };
                let what = format!("PostgreSQL, servers: {count}, {verb}, {how}");
                report.add(Row {
                    what,
                    figure: rate,
                    unit: "tasks/s",
                    target: None,
                    note: format!("{:.2} times one server; {}", rate / first, measured.note()?),
                });
            }
        }
        if alone.is_empty() {
            alone = rates;
        }
    }
    Ok(())
}

impl ServersMeasured {
    /// The processor time of each part for a task, and how much of the machine that is.
    fn note(&self) -> Result<String> {
        let UsedTimes { database, servers, clients } = self.used;
        let micros = |seconds: f64| seconds * 1e6 / self.tasks as f64;
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let share = (database + servers + clients) / (self.seconds * cores as f64) * 100.0;
        Ok(format!(
            "processor time for a task: database {:.1} µs, servers {:.1} µs, clients {:.1} µs, together {share:.0} % of {cores} cores",
            micros(database),
            micros(servers),
            micros(clients),
        ))
    }
}

impl<'a> ServerGroup<'a> {
    /// Starts this many servers on a new database.
    async fn start(cluster: &'a Cluster, folder: &Path, count: usize) -> Result<Self> {
        let name = format!("servers_{count}");
        cluster.sql(&format!("CREATE DATABASE {name}"))?;
        let (program, url) = (crate::product()?, cluster.url_of(&name));
        let (mut servers, mut clients) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let server =
                ServerProcess::start(&program, folder, ["--store", &url, "--iproto", "off"])?;
            clients.push(load::open(server.url()?).await?);
            servers.push(server);
        }
        // Each server prepares its calls, one after the other.
        for client in &clients {
            warm_up(client, BATCH).await?;
        }
        Ok(ServerGroup { cluster, servers, clients })
    }

    /// Runs a load that is spread over all servers.
    async fn run(&self, verb: &str, load: Load) -> Result<ServersMeasured> {
        let (begin, before) = (Instant::now(), self.used()?);
        if verb == "put" {
            let count = self.clients.len();
            let share = Load { clients: load.clients / count, tasks: load.tasks / count, ..load };
            let mut puts = JoinSet::new();
            for client in &self.clients {
                let client = client.clone();
                puts.spawn(async move { load::put_uncounted(&client, share, load::task).await });
            }
            while let Some(ended) = puts.join_next().await {
                ended.context("a client of the benchmark failed")??;
            }
        } else {
            self.drain(load).await?;
        }
        let (seconds, after) = (begin.elapsed().as_secs_f64(), self.used()?);
        let used = UsedTimes {
            database: after.database - before.database,
            servers: after.servers - before.servers,
            clients: after.clients - before.clients,
        };
        Ok(ServersMeasured { tasks: load.tasks, seconds, used })
    }

    /// Takes and acks until all tasks are gone. A take may find fewer than it asks for while other servers hold the rest.
    async fn drain(&self, load: Load) -> Result<()> {
        let left = Arc::new(AtomicUsize::new(load.tasks));
        let mut workers = JoinSet::new();
        for place in 0..load.clients {
            let client = self.clients[place % self.clients.len()].clone();
            let left = Arc::clone(&left);
            workers.spawn(async move {
                while left.load(Ordering::Relaxed) > 0 {
                    let tasks =
                        client.take_many(TUBE, load.batch, Duration::from_millis(100)).await?;
                    if !tasks.is_empty() {
                        client.ack_many(&tasks).await?;
                        left.fetch_sub(tasks.len(), Ordering::Relaxed);
                    }
                }
                Ok::<(), anyhow::Error>(())
            });
        }
        while let Some(ended) = workers.join_next().await {
            ended.context("a client of the benchmark failed")??;
        }
        Ok(())
    }

    fn used(&self) -> Result<UsedTimes> {
        let servers = self.servers.iter().map(|server| seconds_used(server.id()));
        Ok(UsedTimes {
            database: seconds_used_by_tree(self.cluster.id())?,
            servers: servers.sum::<Result<f64>>()?,
            clients: seconds_used(process::id())?,
        })
    }
}

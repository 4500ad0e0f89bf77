//! Taskyard on a Redis Cluster with one master and with three, all on this machine.
//!
//! A tube is on one node, so the tasks are in several tubes. The figures say how much of the processors each side
//! used: on a machine with few cores these are the limit, and not the number of masters.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use taskyard::Client;

use super::server::{RedisServer, SETTINGS_NOTE};
use super::{BATCH, RedisAmounts};
use crate::load::{self, Load, Measured};
use crate::processor_time::seconds_used;
use crate::queue_figures::CLIENTS;
use crate::report::{Report, Row};

/// The numbers of masters.
const MASTERS: [usize; 2] = [1, 3];
/// Tubes that clients use in turn.
const TUBES: usize = 12;
/// Hash slots of a cluster.
const SLOTS: usize = 16_384;
/// How long a cluster may take to form.
const FORMING_MAX: Duration = Duration::from_secs(30);

/// Masters without replicas.
struct RedisCluster {
    nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts the nodes and waits until each knows all slots.
    fn start(program: &Path, folder: &Path, masters: usize) -> Result<Self> {
        let start = |index: usize| {
            RedisServer::start_node(program, &folder.join(format!("redis-{masters}-{index}")))
        };
        let nodes: Vec<_> = (0..masters).map(start).collect::<Result<_>>()?;
        for (index, node) in nodes.iter().enumerate() {
            let (first, last) = (SLOTS * index / masters, SLOTS * (index + 1) / masters - 1);
            node.talk(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()])?;
            node.talk(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()])?;
            node.meet(&nodes[0])?;
        }
        let cluster = RedisCluster { nodes };
        let begin = Instant::now();
        while !cluster.is_whole()? {
            ensure!(
                begin.elapsed() < FORMING_MAX,
                "the cluster of {masters} masters does not form"
            );
            sleep(Duration::from_millis(50));
        }
        Ok(cluster)
    }

    /// Whether every node knows a master for every slot.
    fn is_whole(&self) -> Result<bool> {
        for node in &self.nodes {
            let info = node.talk(&["CLUSTER", "INFO"])?;
            let size = format!("cluster_size:{}", self.nodes.len());
            let has = |line: &str| info.lines().any(|found| found.trim_end() == line);
            if !has("cluster_state:ok") || !has(&size) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn url(&self) -> String {
        format!("redis+cluster://127.0.0.1:{}", self.nodes[0].port())
    }

    /// Seconds of processor time of each node.
    fn used(&self) -> Result<Vec<f64>> {
        self.nodes.iter().map(|node| seconds_used(node.id())).collect()
    }
}

/// Measures both sizes.
pub async fn measure(
    report: &mut Report,
    program: &Path,
    folder: &Path,
    amounts: RedisAmounts,
) -> Result<()> {
    for masters in MASTERS {
        let cluster = RedisCluster::start(program, folder, masters)?;
        let client = load::open(&cluster.url()).await?;
        let run = ClusterRun { cluster: &cluster, client: &client };
        run.warm_up().await?;
        let tasks = amounts.ours.single - amounts.ours.single % TUBES;
        run.measure(report, Load { clients: CLIENTS, batch: 1, tasks }).await?;
        let tasks = amounts.ours.batched - amounts.ours.batched % (TUBES * BATCH);
        run.measure(report, Load { clients: CLIENTS, batch: BATCH, tasks }).await?;
        client.close().await?;
    }
    Ok(())
}

/// One embedded engine on a cluster.
struct ClusterRun<'a> {
    cluster: &'a RedisCluster,
    client: &'a Client,
}

/// Seconds of a measurement, and seconds of processor time in it.
struct ClusterTimes {
    seconds: f64,
    own: f64,
    nodes: Vec<f64>,
}

impl ClusterTimes {
    /// Who used the processors, and how much for a task.
    fn note(&self, tasks: usize) -> String {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let part = |used: f64| used / self.seconds;
        let micros = |used: f64| used * 1e6 / tasks as f64;
        let masters: f64 = self.nodes.iter().sum();
        let each: Vec<_> = self.nodes.iter().map(|used| format!("{:.2}", part(*used))).collect();
        format!(
            "of {cores} cores Taskyard used {:.2}, the masters {}; {:.1} and {:.1} µs of a task",
            part(self.own),
            each.join(" + "),
            micros(self.own),
            micros(masters)
        )
    }
}

#[derive(Clone, Copy)]
enum Verb {
    Put,
    Drain,
}

impl ClusterRun<'_> {
    /// Creates the tubes and prepares the calls, which is not measured.
    async fn warm_up(&self) -> Result<()> {
        for verb in [Verb::Put, Verb::Drain] {
            run(self.client, verb, Load { clients: 1, batch: 1, tasks: TUBES }).await?;
        }
        Ok(())
    }

    /// Puts and drains.
    async fn measure(&self, report: &mut Report, load: Load) -> Result<()> {
        for (what, verb, left) in [("put", Verb::Put, load.tasks as u64), ("drain", Verb::Drain, 0)]
        {
            let before = (seconds_used(std::process::id())?, self.cluster.used()?, Instant::now());
            let measured = run(self.client, verb, load).await.context(what)?;
            let seconds = before.2.elapsed().as_secs_f64();
            let own = seconds_used(std::process::id())? - before.0;
            let nodes = self.cluster.used()?;
            let nodes = nodes.iter().zip(&before.1).map(|(after, before)| after - before).collect();
            self.check(left).await?;
            self.add_row(report, (what, load), &measured, &ClusterTimes { seconds, own, nodes });
        }
        Ok(())
    }

    /// Compares the tasks in all tubes.
    async fn check(&self, expected: u64) -> Result<()> {
        let mut found = 0;
        for index in 0..TUBES {
            found += self.client.stats(&tube(index)).await?.tasks.total();
        }
        ensure!(found == expected, "the tubes have {found} tasks instead of {expected}");
        Ok(())
    }

    fn add_row(
        &self,
        report: &mut Report,
        (what, load): (&str, Load),
        measured: &Measured,
        times: &ClusterTimes,
    ) {
        let how = match load.batch {
            1 => format!("{CLIENTS} clients one by one"),
            batch => format!("{CLIENTS} clients, batches of {batch}"),
        };
        report.add(Row {
            what: format!("Redis Cluster of {}, {what}, {how}", self.cluster.nodes.len()),
            figure: measured.rate(),
            unit: "tasks/s",
            target: None,
            note: format!(
                "{TUBES} tubes; {}; {}; {SETTINGS_NOTE}",
                times.note(load.tasks),
                measured.note()
            ),
        });
    }
}

fn tube(index: usize) -> String {
    format!("bench-{index}")
}

/// Runs one verb; clients use the tubes in turn.
async fn run(client: &Client, verb: Verb, load: Load) -> Result<Measured> {
    let (client, calls) = (client.clone(), Arc::new(AtomicUsize::new(0)));
    load::run(load, move |count| {
        let (client, tube) = (client.clone(), tube(calls.fetch_add(1, Ordering::Relaxed) % TUBES));
        async move {
            match verb {
                Verb::Put => {
                    let tasks = (0..count).map(|_| load::task()).collect::<Result<_>>()?;
                    Ok(client.put_tasks(&tube, tasks, Duration::ZERO).await?.len())
                }
                Verb::Drain => {
                    let tasks = client.take_many(&tube, count, Duration::ZERO).await?;
                    client.ack_many(&tasks).await?;
                    Ok(tasks.len())
                }
            }
        }
    })
    .await
}

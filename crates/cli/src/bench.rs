//! `bench`: measures the rate and the latency of a running server.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use serde::Serialize;
use taskyard::{Http, new_task};
use taskyard_core::limits::BATCH_TASKS_MAX;
use taskyard_core::{
    Command, Finish, FinishItem, Holder, Kind, NewTask, Outcome, Reply, Span, Take, TubeName,
    TubeOptions,
};
use taskyard_wire::Exit;

use crate::connect::{ConnectArgs, unexpected_reply};
use crate::failure::UsageError;
use crate::output;
use crate::table::Table;

/// The most tasks that one run puts.
const TASKS_MAX: usize = 100_000_000;
/// The maximum number of concurrent requests.
const CLIENTS_MAX: usize = 10_000;
/// Longer than any run: a taken task must not become ready again.
const LEASE: Span = Span::from_secs(3600);

/// The arguments of `bench`.
#[derive(Debug, Args)]
#[command(after_help = "\
Puts tasks into a new tube of a running server, then takes and acks them, over HTTP, and removes
the tube. The figures include this program and the network. Compare only figures from the same
machine at the same time.

Examples:
  taskyard bench                             10,000 tasks, 16 clients, one task per request
  taskyard bench --clients 1                 the latency of a single client
  taskyard bench --tasks 1000000 --batch 1000")]
pub struct BenchArgs {
    /// Number of tasks.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    tasks: usize,
    /// Number of concurrent clients.
    #[arg(long, value_name = "N", default_value_t = 16)]
    clients: usize,
    /// Number of tasks per request.
    #[arg(long, value_name = "N", default_value_t = 1)]
    batch: usize,
    /// Payload of each task, in bytes.
    #[arg(long, value_name = "N", default_value_t = 100)]
    payload: usize,
    /// The tube to create, use and remove; it must not exist.
    #[arg(long, value_name = "NAME", default_value = "bench")]
    tube: String,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// One line of the result.
#[derive(Serialize)]
struct Step {
    step: &'static str,
    tasks_per_second: f64,
    /// Of one request.
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
}

/// The parameters of a run.
#[derive(Clone)]
struct Load {
    http: Http,
    tube: TubeName,
    batch: usize,
    task: NewTask,
}

/// Measures and prints the result.
pub fn run(args: BenchArgs) -> anyhow::Result<Exit> {
    for (option, value, most) in [
        ("--tasks", args.tasks, TASKS_MAX),
        ("--clients", args.clients, CLIENTS_MAX),
        ("--batch", args.batch, BATCH_TASKS_MAX),
    ] {
        if !(1..=most).contains(&value) {
            return Err(UsageError(format!("{option} must be from 1 to {most}")).into());
        }
    }
    let load = Load {
        http: args.connect.http()?,
        tube: TubeName::new(&args.tube)?,
        batch: args.batch,
        task: new_task(&"x".repeat(args.payload))?,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let steps = runtime.block_on(async {
        load.create().await?;
        let measured = tokio::select! {
            measured = measure(&load, args.tasks, args.clients) => measured,
            _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
        };
        let dropped = load.drop_tube().await;
        let steps = measured?;
        dropped.map(|()| steps)
    })?;
    if args.json {
        output::json(&steps)?;
    } else {
        output::line(table(&steps))?;
    }
    Ok(Exit::Ok)
}

async fn measure(load: &Load, tasks: usize, clients: usize) -> anyhow::Result<Vec<Step>> {
    let put = drive("put", tasks, clients, load, Load::put).await?;
    let drain = drive("take + ack", tasks, clients, load, Load::take_and_ack).await?;
    Ok(vec![put, drain])
}

/// Lets the clients send requests until all tasks are done.
async fn drive<F, R>(
    step: &'static str,
    tasks: usize,
    clients: usize,
    load: &Load,
    request: F,
) -> anyhow::Result<Step>
where
    F: Fn(Load, usize) -> R + Copy + Send + 'static,
    R: Future<Output = anyhow::Result<usize>> + Send,
{
    let next = Arc::new(AtomicUsize::new(0));
    let begin = Instant::now();
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..clients {
        let (load, next) = (load.clone(), next.clone());
        running.spawn(async move {
            let (mut times, mut done) = (Vec::new(), 0);
            loop {
                let first = next.fetch_add(load.batch, Ordering::Relaxed);
                if first >= tasks {
                    return anyhow::Ok((times, done));
                }
                let sent = Instant::now();
                done += request(load.clone(), load.batch.min(tasks - first)).await?;
                times.push(sent.elapsed());
            }
        });
    }
    let (mut times, mut done) = (Vec::new(), 0);
    while let Some(client) = running.join_next().await {
        let (of_client, tasks) = client.context("a client failed")??;
        times.extend(of_client);
        done += tasks;
    }
    let took = begin.elapsed();
    ensure!(done == tasks, "{step}: {done} of {tasks} tasks; does another program use the tube?");
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1000.0;
    let tasks_per_second = tasks as f64 / took.max(Duration::from_nanos(1)).as_secs_f64();
    Ok(Step { step, tasks_per_second, p50_ms: at(0.5), p99_ms: at(0.99), max_ms: at(1.0) })
}

impl Load {
    async fn create(&self) -> anyhow::Result<()> {
        let (tube, options) = (self.tube.clone(), TubeOptions::new(Kind::FifoTtl));
        self.http.execute_one(Command::CreateTube { tube, options, if_not_exists: false }).await?;
        Ok(())
    }

    async fn drop_tube(&self) -> anyhow::Result<()> {
        // A tube with taken tasks cannot be removed.
        self.http.execute_one(Command::Truncate { tube: self.tube.clone() }).await?;
        self.http.execute_one(Command::DropTube { tube: self.tube.clone() }).await?;
        Ok(())
    }

    async fn put(self, count: usize) -> anyhow::Result<usize> {
        let tasks = vec![self.task; count];
        let put = Command::Put { tube: self.tube, tasks, wait: Span::ZERO };
        match self.http.execute_one(put).await? {
            Reply::Put(placed) => Ok(placed.len()),
            _ => Err(unexpected_reply("put")),
        }
    }

    async fn take_and_ack(self, count: usize) -> anyhow::Result<usize> {
        let take = Take {
            tube: self.tube.clone(),
            count,
            session: None,
            lease: Some(LEASE),
            worker: None,
            wait: Span::ZERO,
        };
        let Reply::Taken(tasks) = self.http.execute_one(Command::Take(take)).await? else {
            return Err(unexpected_reply("take"));
        };
        let items = tasks.iter().filter_map(|task| {
            let holder = Holder::Lease(task.lease?);
            Some(FinishItem { id: task.id, holder, finish: Finish::Ack })
        });
        let ack = Command::Finish { tube: self.tube, items: items.collect(), show: false };
        let Reply::Finished(outcomes) = self.http.execute_one(ack).await? else {
            return Err(unexpected_reply("ack"));
        };
        Ok(outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Done(_))).count())
    }
}

fn table(steps: &[Step]) -> Table {
    let mut table = output::table(&["STEP", "TASKS/S", "P50 MS", "P99 MS", "MAX MS"]);
    for step in steps {
        let mut row = vec![step.step.to_owned(), format!("{:.0}", step.tasks_per_second)];
        row.extend([step.p50_ms, step.p99_ms, step.max_ms].map(|ms| format!("{ms:.2}")));
        table.add_row(row);
    }
    table.align_right_from(1);
    table
}

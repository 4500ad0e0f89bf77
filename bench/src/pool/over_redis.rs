//! The pool over Redis: its parts are separate processes, only the gateway is in this one.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use taskyard_pool::backend::TaskSpec;
use taskyard_pool::gateway::{ClientTask, Gateway, NextFrame};
use taskyard_pool::protocol::{Options, OutgoingFrame, StartHead};
use taskyard_pool::redis::{
    PoolAddress, RedisClient, RedisGateway, enqueue_unattended, read_status,
};
use taskyard_pool::{Config, Program};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::super::redis::server::{RedisServer, SETTINGS_NOTE, program};
use super::super::report::{Report, Row, Target};

/// Programs that are started, one after the other.
const STARTS: usize = 200;
/// Concurrent clients, and for how long.
const CLIENTS: usize = 32;
const ASKED: Duration = Duration::from_secs(10);
/// Simulated backends.
const STUBS: u32 = 16;
/// Tasks that wait for a scheduler that starts.
const WAITING: usize = 100_000;
/// The timeout of every wait.
const PATIENCE: Duration = Duration::from_secs(120);

pub async fn measure(report: &mut Report, folder: &Path) -> Result<()> {
    let Some(redis) = program() else {
        eprintln!("  the pool over Redis is skipped: redis-server is not installed");
        return Ok(());
    };
    starts(report, Far::new(&redis, folder)?).await?;
    rate(report, Far::new(&redis, folder)?).await?;
    takeover(report, Far::new(&redis, folder)?).await?;
    rebuilt(report, Far::new(&redis, folder)?).await
}

/// A Redis, and the configuration of its pool.
struct Far {
    file: PathBuf,
    url: String,
    redis: RedisClient,
    _server: RedisServer,
}

/// A part of the pool; it ends with this.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

impl Far {
    fn new(redis: &Path, folder: &Path) -> Result<Self> {
        let server = RedisServer::start(redis, &folder.join("pool-redis"))?;
        let url = server.url();
        let redis = RedisClient::open(&PoolAddress::parse(&url, "bench")?);
        Ok(Far { file: folder.join("pool.yaml"), url, redis, _server: server })
    }

    /// Writes the file that all parts read, and starts a gateway here.
    fn start_gateway(&self, text: &str) -> Result<(RedisGateway, Arc<Program>)> {
        std::fs::write(&self.file, text)?;
        let config = Config::parse(text)?;
        let program = config.programs.get("none").cloned().context("the program is there")?;
        let gateway = RedisGateway::start(&config, &PoolAddress::parse(&self.url, "gateway")?)?;
        Ok((gateway, Arc::new(program)))
    }

    fn start(&self, role: &str, more: &[&str]) -> Result<Process> {
        let mut command = Command::new(crate::product()?);
        command.args(["pool", role]).arg(&self.file).args(["--redis", &self.url]).args(more);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Process(child))
    }

    /// Polls until the pool has the expected status, and returns it.
    async fn until(&self, what: impl Fn(&Value) -> bool) -> Result<Value> {
        let begin = Instant::now();
        loop {
            let status = read_status(&self.redis).await.unwrap_or_default();
            if what(&status) {
                return Ok(status);
            }
            ensure!(begin.elapsed() < PATIENCE, "the pool is not ready: {status}");
            sleep(Duration::from_millis(2)).await;
        }
    }

    async fn ready(&self, backends: u32) -> Result<()> {
        let ready = |status: &Value| status["backends"] == backends && status["paused"] == false;
        self.until(ready).await.map(drop)
    }
}

fn plan(program: &Arc<Program>) -> Result<TaskSpec> {
    let (options, start) = (Options::default(), StartHead::default());
    Ok(TaskSpec::new(program.clone(), Vec::new(), &options, &start, false)?)
}

/// Runs a task to its end; answers how long it took to begin.
async fn run(gateway: &Gateway, program: &Arc<Program>) -> Result<Duration> {
    let begin = Instant::now();
    let mut task = ClientTask::submit(gateway, plan(program)?).await?;
    let mut took = None;
    loop {
        match task.next_frame().await {
            NextFrame::Frame(OutgoingFrame::Output(..)) => _ = took.get_or_insert(begin.elapsed()),
            NextFrame::Frame(OutgoingFrame::Complete(None)) => {
                return took.context("it did not begin");
            }
            NextFrame::Frame(OutgoingFrame::Queue(_)) => {}
            other => bail!("the task ended as {other:?}"),
        }
    }
}

async fn starts(report: &mut Report, far: Far) -> Result<()> {
    let (redis_gateway, program) =
        far.start_gateway("backends: 2\nprograms: {none: {command: [/bin/true]}}")?;
    let _parts = [far.start("scheduler", &[])?, far.start("backend", &[])?];
    far.ready(2).await?;
    let mut took = Vec::new();
    for _ in 0..STARTS {
        took.push(run(redis_gateway.gateway(), &program).await?);
    }
    took.sort_unstable();
    report.add(Row {
        what: "pool over Redis: arrival to start of the process, p50".into(),
        figure: took[STARTS / 2].as_secs_f64() * 1e3,
        unit: "ms",
        target: Some(Target::AtMost(15.0)),
        note: format!(
            "p99 {:.1} ms; scheduler and backend are separate processes; {SETTINGS_NOTE}",
            took[STARTS * 99 / 100].as_secs_f64() * 1e3
        ),
    });
    Ok(())
}

async fn rate(report: &mut Report, far: Far) -> Result<()> {
    let text = format!("backends: {STUBS}\nprograms: {{none: {{command: [/bin/true]}}}}");
    let (redis_gateway, program) = far.start_gateway(&text)?;
    let _parts = [far.start("scheduler", &[])?, far.start("backend", &["--stub", "0s"])?];
    far.ready(STUBS).await?;
    let (done, mut clients) = (Arc::new(AtomicUsize::new(0)), JoinSet::new());
    let begin = Instant::now();
    for _ in 0..CLIENTS {
        let (gateway, program, done) =
            (redis_gateway.gateway().clone(), program.clone(), done.clone());
        clients.spawn(async move {
            while begin.elapsed() < ASKED {
                run(&gateway, &program).await?;
                done.fetch_add(1, Ordering::Relaxed);
            }
            anyhow::Ok(())
        });
    }
    while let Some(client) = clients.join_next().await {
        client??;
    }
    report.add(Row {
        what: "pool over Redis: tasks through one scheduler".into(),
        figure: done.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64(),
        unit: "tasks/s",
        target: Some(Target::AtLeast(500.0)),
        note: format!("{CLIENTS} clients, {STUBS} simulated backends; {SETTINGS_NOTE}"),
    });
    Ok(())
}

async fn takeover(report: &mut Report, far: Far) -> Result<()> {
    let (_gateway, _) =
        far.start_gateway("backends: 1\nprograms: {none: {command: [/bin/true]}}")?;
    let _backend = far.start("backend", &["--stub", "0s"])?;
    let first = far.start("scheduler", &[])?;
    far.ready(1).await?;
    let number = |status: &Value| status["leader"]["number"].clone();
    let led = number(&read_status(&far.redis).await?);
    let _second = far.start("scheduler", &[])?;
    // It has requested the lead, which the first one has.
    sleep(Duration::from_secs(2)).await;
    let begin = Instant::now();
    drop(first);
    let led_anew = |status: &Value| number(status).is_string() && number(status) != led;
    far.until(led_anew).await?;
    report.add(Row {
        what: "pool over Redis: takeover after the death of the leader".into(),
        figure: begin.elapsed().as_secs_f64(),
        unit: "s",
        target: Some(Target::AtMost(5.0)),
        note: "SIGKILL to the next one leading; a lease of 3 s".into(),
    });
    Ok(())
}

async fn rebuilt(report: &mut Report, far: Far) -> Result<()> {
    let text =
        "queue_max: 200000\nleases: {task_seconds: 600}\nprograms: {none: {command: [/bin/true]}}";
    let (_gateway, _) = far.start_gateway(text)?;
    enqueue_unattended(&far.redis, WAITING, "none").await?;
    let first = far.start("scheduler", &[])?;
    let waits = |status: &Value| status["queued"] == WAITING;
    far.until(waits).await?;
    drop(first);
    far.until(|status| status["leader"].is_null() && status["queued"].is_null()).await?;
    let begin = Instant::now();
    let _second = far.start("scheduler", &[])?;
    far.until(waits).await?;
    report.add(Row {
        what: format!("pool over Redis: {WAITING} waiting tasks known to a scheduler that starts"),
        figure: begin.elapsed().as_secs_f64(),
        unit: "s",
        target: Some(Target::AtMost(2.0)),
        note: "from the start of the process to its first status".into(),
    });
    Ok(())
}

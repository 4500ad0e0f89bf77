//! `pool scheduler` and `pool backend`: the parts of a pool over Redis without clients.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use taskyard_core::Span;
use taskyard_pool::backend::{LocalRunner, Runner, StubRunner};
use taskyard_pool::redis::{
    BackendHost, BackendHostOptions, Identity, PoolAddress, RedisScheduler,
};
use taskyard_wire::Exit;

use super::read;
use crate::failure::UsageError;
use crate::log;
use crate::serve::{StopSignals, runtime, stop_at_first};
use crate::{output, units};

/// The pool.
#[derive(Debug, Args)]
struct PartArgs {
    /// The YAML file with the programs and limits; all parts of a pool use the same.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// URL of the Redis of the pool: redis://HOST, rediss:// (encrypted), redis+cluster://; ?prefix=NAME for several pools.
    #[arg(long, value_name = "URL", env = "TASKYARD_POOL_REDIS", hide_env_values = true)]
    redis: String,
}

/// Options of `pool scheduler`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard pool scheduler examples/asymptote.yaml --redis redis://db
  taskyard pool scheduler pool.yaml --redis redis+cluster://db1,db2,db3

Run two or more: one is active, and another takes over within seconds if it fails.")]
pub struct SchedulerArgs {
    #[command(flatten)]
    part: PartArgs,
}

/// Options of `pool backend`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard pool backend examples/asymptote.yaml --redis redis://db --listen 10.0.0.7:7071
  taskyard pool backend pool.yaml --redis redis://db --listen 0.0.0.0:7071 \\
    --advertise box7.example:7071 --tls-cert box7.crt --tls-key box7.key

The second one accepts encrypted connections only: its gateways may use --backend-ca. It runs up to `backends` programs at once. On SIGTERM they get the time of --grace to end.")]
pub struct BackendArgs {
    #[command(flatten)]
    part: PartArgs,
    /// Address to listen on for gateways, which connect with one-time tokens; port 0 chooses a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Address of this machine for gateways, if it differs from --listen.
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Encrypt connections of gateways with the certificate in this PEM file, issued for the advertised name.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, a PEM file.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// How long running programs may continue after SIGTERM; then they are stopped.
    #[arg(long, value_name = "TIME", value_parser = units::span, default_value = "5s")]
    grace: Span,
    /// Simulate tasks of this duration instead of running programs. For benchmarks.
    #[arg(long, value_name = "TIME", value_parser = units::span, hide = true)]
    stub: Option<Span>,
}

/// Leads, or waits for the lead, until it is stopped.
pub fn scheduler(args: &SchedulerArgs) -> anyhow::Result<Exit> {
    log::start();
    let config = read(&args.part.file)?;
    runtime()?.block_on(async {
        let scheduler =
            RedisScheduler::new(config, &args.part.address("scheduler")?, &process_name())?;
        let stop = stop_at_first(StopSignals::new()?, StopSignals::new()?);
        output::line(format!("scheduler {}: leads if no other scheduler does", process_name()))?;
        scheduler.run(stop).await;
        Ok(Exit::Ok)
    })
}

/// Runs tasks until it is stopped.
pub fn backend(args: BackendArgs) -> anyhow::Result<Exit> {
    log::start();
    let config = read(&args.part.file)?;
    let unreachable = args.listen.ip().is_unspecified() && args.advertise.is_none();
    if unreachable {
        let why = "--listen is not an address that gateways can use; set --advertise HOST:PORT";
        return Err(UsageError(why.into()).into());
    }
    let identity = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => {
            let read = Identity::read(certificate, key);
            Some(read.map_err(|error| UsageError(error.to_string()))?)
        }
        _ => None,
    };
    let encrypted = if identity.is_some() { ", encrypted" } else { "" };
    runtime()?.block_on(async {
        let runner: Arc<dyn Runner> = match args.stub {
            Some(takes) => Arc::new(StubRunner { takes: takes.into() }),
            None => Arc::new(LocalRunner::start(&config).await?),
        };
        let count = config.backends;
        let (gaps, accounting) = (runner.gaps(), runner.memory_accounting());
        let grace: Duration = args.grace.into();
        let (listen, advertise) = (args.listen, args.advertise);
        let options = BackendHostOptions { listen, advertise, identity, grace };
        let host =
            BackendHost::open(config, &args.part.address("backend")?, runner, options).await?;
        let stop = stop_at_first(StopSignals::new()?, StopSignals::new()?);
        let listens = host.address();
        output::line(format!(
            "backend {}: up to {count} programs, listening on {listens}{encrypted}",
            process_name()
        ))?;
        if let Some(accounting) = accounting {
            output::line(format!("  {accounting}"))?;
        }
        for gap in gaps {
            output::line(format!("  not isolated: {gap}"))?;
        }
        host.run(stop).await;
        Ok(Exit::Ok)
    })
}

impl PartArgs {
    fn address(&self, role: &str) -> anyhow::Result<PoolAddress> {
        Ok(PoolAddress::parse(&self.redis, role).map_err(|error| UsageError(error.to_string()))?)
    }
}

/// Host name and process id.
fn process_name() -> String {
    format!("{}:{}", taskyard::host_name(), std::process::id())
}

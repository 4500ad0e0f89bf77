//! `pool scheduler` and `pool backend`: the parts of a pool over Redis that no client sees.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use taskyard_core::Span;
use taskyard_pool::backend::{Runner, Stub, Workshop};
use taskyard_pool::redis::{Bay, BayOptions, Identity, Leader, Site};
use taskyard_wire::Exit;

use super::read;
use crate::failure::Wrong;
use crate::log;
use crate::serve::{Stop, runtime, stop_at_first};
use crate::{output, units};

/// Which pool.
#[derive(Debug, Args)]
struct PartArgs {
    /// The YAML file with the programs and limits; all parts of a pool have the same.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The Redis of the pool: redis://HOST, rediss:// encrypted, redis+cluster://; ?prefix=NAME for several pools.
    #[arg(long, value_name = "URL", env = "TASKYARD_POOL_REDIS", hide_env_values = true)]
    redis: String,
}

/// How to run a scheduler.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard pool scheduler examples/asymptote.yaml --redis redis://db
  taskyard pool scheduler pool.yaml --redis redis+cluster://db1,db2,db3

Run two or more: one leads, and another takes over within seconds when that one is gone.")]
pub struct SchedulerArgs {
    #[command(flatten)]
    part: PartArgs,
}

/// How to run backends.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard pool backend examples/asymptote.yaml --redis redis://db --listen 10.0.0.7:7071
  taskyard pool backend pool.yaml --redis redis://db --listen 0.0.0.0:7071 --advertise box7.example:7071 \\
    --tls-cert box7.crt --tls-key box7.key                    gateways need --backend-ca then

It runs as many programs at once as `backends` in the file says. SIGTERM lets them end.")]
pub struct BackendArgs {
    #[command(flatten)]
    part: PartArgs,
    /// Where gateways come for their tasks, each with a token that is good once; port 0 is any free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// What gateways are told, where they see this machine under another name.
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Encrypt the connections of gateways, with the certificate in this PEM file; its name is the advertised one.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key, a PEM file.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// How long programs may go on when it is stopped; then they are ended with a word.
    #[arg(long, value_name = "TIME", value_parser = units::span, default_value = "5s")]
    grace: Span,
    /// Run nothing: each task only pretends to, for so long. For measurements.
    #[arg(long, value_name = "TIME", value_parser = units::span, hide = true)]
    stub: Option<Span>,
}

/// Leads, or waits to lead, until told to stop.
pub fn scheduler(args: &SchedulerArgs) -> anyhow::Result<Exit> {
    log::start();
    let config = read(&args.part.file)?;
    runtime()?.block_on(async {
        let leader = Leader::new(config, &args.part.site("scheduler")?, &place())?;
        let stop = stop_at_first(Stop::new()?, Stop::new()?);
        output::line(format!("scheduler {}: leads when no other does", place()))?;
        leader.run(stop).await;
        Ok(Exit::Ok)
    })
}

/// Takes tasks until told to stop.
pub fn backend(args: BackendArgs) -> anyhow::Result<Exit> {
    log::start();
    let config = read(&args.part.file)?;
    let lost = args.listen.ip().is_unspecified() && args.advertise.is_none();
    if lost {
        let why = "--listen names no machine; say with --advertise where gateways find this one";
        return Err(Wrong(why.into()).into());
    }
    let identity = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => {
            let read = Identity::read(certificate, key);
            Some(read.map_err(|error| Wrong(error.to_string()))?)
        }
        _ => None,
    };
    let encrypted = if identity.is_some() { ", encrypted" } else { "" };
    runtime()?.block_on(async {
        let runner: Arc<dyn Runner> = match args.stub {
            Some(takes) => Arc::new(Stub { takes: takes.into() }),
            None => Arc::new(Workshop::start(&config).await?),
        };
        let count = config.backends;
        let gaps = runner.gaps();
        let grace: Duration = args.grace.into();
        let (listen, advertise) = (args.listen, args.advertise);
        let options = BayOptions { listen, advertise, identity, grace };
        let bay = Bay::open(config, &args.part.site("backend")?, runner, options).await?;
        let stop = stop_at_first(Stop::new()?, Stop::new()?);
        let address = bay.address();
        output::line(format!("backend {}: {count} at once, on {address}{encrypted}", place()))?;
        for gap in gaps {
            output::line(format!("  not isolated: {gap}"))?;
        }
        bay.run(stop).await;
        Ok(Exit::Ok)
    })
}

impl PartArgs {
    fn site(&self, role: &str) -> anyhow::Result<Site> {
        Ok(Site::parse(&self.redis, role).map_err(|error| Wrong(error.to_string()))?)
    }
}

/// This process, for people.
fn place() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}:{}", host.trim(), std::process::id())
}

//! `pool`: runs programs for clients by duration class, and shows the status of a pool.

mod parts;
mod status;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Parser, Subcommand};
use taskyard_core::service::Service;
use taskyard_pool::gateway::{Gateway, is_page, router};
use taskyard_pool::redis::{BackendTrust, PoolAddress, RedisGateway};
use taskyard_pool::{Config, Pool};
use taskyard_server::ExtraRoutes;
use taskyard_wire::Exit;

use crate::access::AccessArgs;
use crate::args::{Cli, Verb};
use crate::failure::UsageError;
use crate::serve;
use parts::{BackendArgs, SchedulerArgs};
use status::PoolStatusArgs;

/// Run programs for clients by duration class.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard pool serve examples/asymptote.yaml
  taskyard pool status

On several machines, over one Redis and with one file:
  taskyard pool scheduler examples/asymptote.yaml --redis redis://db     run two: one is active
  taskyard pool backend examples/asymptote.yaml --redis redis://db --listen 10.0.0.7:7071
  taskyard pool gateway examples/asymptote.yaml --redis redis://db --http 10.0.0.5:7070 \\
    --token-file token --tls-cert box5.pem --tls-key box5.key
  taskyard pool status --redis redis://db")]
pub struct PoolArgs {
    #[command(subcommand)]
    verb: PoolCommand,
}

#[derive(Debug, Subcommand)]
enum PoolCommand {
    /// Run a complete pool: gateway, scheduler and backends in one process.
    Serve(PoolServeArgs),
    /// Run a gateway of a pool over Redis: it serves clients.
    Gateway(GatewayArgs),
    /// Run a scheduler of a pool over Redis: one of several is active.
    Scheduler(SchedulerArgs),
    /// Run backends of a pool over Redis: they run the programs.
    Backend(BackendArgs),
    /// Show the status of a pool: classes, waiting tasks, accuracy of estimates.
    Status(PoolStatusArgs),
}

/// Options of `pool serve`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard pool serve examples/asymptote.yaml
  taskyard pool serve pool.yaml --http 0.0.0.0:7070 --users users.toml \\
    --tls-cert box7.pem --tls-key box7.key
  taskyard serve --pool examples/asymptote.yaml      beside a queue, in one process

The last form accepts every option of `serve`.")]
struct PoolServeArgs {
    #[command(flatten)]
    serve: ListenArgs,
}

/// Options of `pool gateway`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard pool gateway pool.yaml --redis rediss://db --http 10.0.0.5:7070 --token-file token \\
    --tls-cert box5.pem --tls-key box5.key
  taskyard serve --pool pool.yaml --pool-redis redis://db     beside a queue, in one process")]
struct GatewayArgs {
    #[command(flatten)]
    serve: ListenArgs,
    /// The Redis of the pool.
    #[arg(long, value_name = "URL", env = "TASKYARD_POOL_REDIS", hide_env_values = true)]
    redis: String,
    /// Connect only to encrypted backends with a certificate signed by the authority in this PEM file.
    #[arg(long, value_name = "FILE")]
    backend_ca: Option<PathBuf>,
}

/// Options of a process that serves clients.
#[derive(Debug, Args)]
struct ListenArgs {
    /// The YAML file with the programs and limits.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    access: AccessArgs,
}

/// Runs the subcommand.
pub fn run(args: PoolArgs) -> anyhow::Result<Exit> {
    match args.verb {
        PoolCommand::Serve(args) => serve(args.serve, None, None),
        PoolCommand::Gateway(args) => serve(args.serve, Some(args.redis), args.backend_ca),
        PoolCommand::Scheduler(args) => parts::scheduler(&args),
        PoolCommand::Backend(args) => parts::backend(args),
        PoolCommand::Status(args) => status::run(&args),
    }
}

/// Runs a pool as a server whose queue is not used.
fn serve(
    args: ListenArgs,
    redis: Option<String>,
    backend_ca: Option<PathBuf>,
) -> anyhow::Result<Exit> {
    let mut command = vec!["taskyard".into(), "serve".into()];
    command.extend(["--store", "memory:", "--iproto", "off"].map(OsString::from));
    command.extend(["--pool".into(), args.file.into_os_string()]);
    if let Some(url) = redis {
        command.extend(["--pool-redis".into(), url.into()]);
    }
    if let Some(file) = backend_ca {
        command.extend(["--pool-backend-ca".into(), file.into_os_string()]);
    }
    match Cli::try_parse_from(command)?.verb {
        Verb::Serve(mut serve) => {
            serve.access = args.access;
            // The variable is for `serve`.
            serve.config = None;
            serve::run(*serve)
        }
        _ => Err(anyhow::anyhow!("`serve` did not parse as `serve`")),
    }
}

/// A pool, or the gateway of one, that a server hosts.
pub struct HostedPool {
    gateway: Gateway,
    /// The service for the server.
    pub service: Arc<dyn Service>,
    gaps: Vec<String>,
    /// How the memory of tasks is limited, if programs run in this process.
    memory_accounting: Option<String>,
}

impl HostedPool {
    /// Starts the pool that the file describes; with a Redis only its gateway, which may require an authority of backends.
    pub async fn start(
        file: &Path,
        redis: Option<&str>,
        backend_ca: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let config = read(file)?;
        if let Some(url) = redis {
            let address = PoolAddress::parse(url, "gateway")
                .map_err(|error| UsageError(error.to_string()))?;
            let trust = backend_ca.map(BackendTrust::read).transpose();
            let trust = trust.map_err(|error| UsageError(error.to_string()))?.unwrap_or_default();
            let redis_gateway = RedisGateway::with_trust(&config, &address, trust)?;
            let gateway = redis_gateway.gateway().clone();
            let service = Arc::new(redis_gateway);
            return Ok(HostedPool { gateway, service, gaps: Vec::new(), memory_accounting: None });
        }
        let pool = Pool::start(config).await?;
        let (gateway, isolation) = (pool.gateway().clone(), pool.backends().isolation());
        let (gaps, memory_accounting) = (isolation.gaps(), Some(isolation.memory_accounting()));
        Ok(HostedPool { gateway, service: Arc::new(pool), gaps, memory_accounting })
    }

    /// The pool's routes, for the server that hosts it.
    pub fn extra_routes(&self) -> ExtraRoutes {
        ExtraRoutes { router: router(self.gateway.clone()), is_open: is_page }
    }

    /// The startup lines about the pool: its address, and which isolation is missing.
    pub fn screen(&self, url: &str) -> String {
        let programs: Vec<&str> = self.gateway.programs().collect();
        let mut text = format!("  pool   {url}/pool (programs: {})\n", programs.join(", "));
        if let Some(accounting) = &self.memory_accounting {
            text.push_str(&format!("         {accounting}\n"));
        }
        for gap in &self.gaps {
            text.push_str(&format!("         not isolated: {gap}\n"));
        }
        text
    }
}

/// Example commands for a pool without a queue.
pub fn to_paste(program: &str, url: &str, flags: &str) -> String {
    format!("  {program} pool status{flags}\nor open {url}/pool\n")
}

/// Reads the file that describes a pool.
pub fn read(file: &Path) -> anyhow::Result<Config> {
    let wrong = |why: String| UsageError(format!("{}: {why}", file.display()));
    let text = fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    Ok(Config::parse(&text).map_err(|error| wrong(error.to_string()))?)
}

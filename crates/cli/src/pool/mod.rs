//! `pool`: run programs for clients, and see how that goes.

mod parts;
mod status;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Parser, Subcommand};
use taskyard_core::service::Service;
use taskyard_pool::gateway::{Gate, is_page, router};
use taskyard_pool::redis::{RedisGateway, Site, Trust};
use taskyard_pool::{Config, Pool};
use taskyard_server::Guests;
use taskyard_wire::Exit;

use crate::args::{Cli, Verb};
use crate::failure::Wrong;
use crate::serve;
use parts::{BackendArgs, SchedulerArgs};
use status::StatusArgs;

/// What to do with a pool.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard pool serve examples/asymptote.yaml
  taskyard pool status

On many machines, over one Redis and with one file:
  taskyard pool scheduler examples/asymptote.yaml --redis redis://db     two of them: one leads
  taskyard pool backend examples/asymptote.yaml --redis redis://db --listen 10.0.0.7:7071
  taskyard pool gateway examples/asymptote.yaml --redis redis://db --http 10.0.0.5:7070
  taskyard pool status --redis redis://db")]
pub struct PoolArgs {
    #[command(subcommand)]
    verb: PoolVerb,
}

#[derive(Debug, Subcommand)]
enum PoolVerb {
    /// Run a pool by itself: gateway, scheduler and backends in one process.
    Serve(PoolServeArgs),
    /// Run a gateway of a pool over Redis: clients come to it.
    Gateway(GatewayArgs),
    /// Run a scheduler of a pool over Redis: of several one leads.
    Scheduler(SchedulerArgs),
    /// Run backends of a pool over Redis: they run the programs.
    Backend(BackendArgs),
    /// Show how a pool is: its classes, who waits, and whether estimates were kept.
    Status(StatusArgs),
}

/// How to run a pool by itself.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard pool serve examples/asymptote.yaml
  taskyard serve --pool examples/asymptote.yaml      beside a queue, in one process

The second one has every option of `serve`.")]
struct PoolServeArgs {
    #[command(flatten)]
    serve: FaceArgs,
}

/// How to run a gateway.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard pool gateway examples/asymptote.yaml --redis redis://db --http 10.0.0.5:7070 --token-file token
  taskyard serve --pool examples/asymptote.yaml --pool-redis redis://db     beside a queue, in one process")]
struct GatewayArgs {
    #[command(flatten)]
    serve: FaceArgs,
    /// The Redis of the pool.
    #[arg(long, value_name = "URL", env = "TASKYARD_POOL_REDIS", hide_env_values = true)]
    redis: String,
    /// Go only to backends that encrypt, and that the authority in this PEM file vouches for.
    #[arg(long, value_name = "FILE")]
    backend_ca: Option<PathBuf>,
}

/// Where clients come to.
#[derive(Debug, Args)]
struct FaceArgs {
    /// The YAML file with the programs and limits.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Where to listen for HTTP; port 0 is any free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7070")]
    http: SocketAddr,
    /// Read the token from this file.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Listen outside this machine although there is no token.
    #[arg(long)]
    insecure: bool,
}

/// Does what is asked.
pub fn run(args: PoolArgs) -> anyhow::Result<Exit> {
    match args.verb {
        PoolVerb::Serve(args) => serve(args.serve, None, None),
        PoolVerb::Gateway(args) => serve(args.serve, Some(args.redis), args.backend_ca),
        PoolVerb::Scheduler(args) => parts::scheduler(&args),
        PoolVerb::Backend(args) => parts::backend(args),
        PoolVerb::Status(args) => status::run(&args),
    }
}

/// A pool by itself is a server whose queue nobody uses.
fn serve(
    args: FaceArgs,
    redis: Option<String>,
    backend_ca: Option<PathBuf>,
) -> anyhow::Result<Exit> {
    let mut words = vec!["taskyard".into(), "serve".into()];
    for word in ["--store", "memory:", "--iproto", "off", "--http"] {
        words.push(word.into());
    }
    words.push(args.http.to_string().into());
    words.extend(["--pool".into(), args.file.into_os_string()]);
    if let Some(file) = args.token_file {
        words.extend(["--token-file".into(), file.into_os_string()]);
    }
    if args.insecure {
        words.push("--insecure".into());
    }
    if let Some(url) = redis {
        words.extend(["--pool-redis".into(), url.into()]);
    }
    if let Some(file) = backend_ca {
        words.extend(["--pool-backend-ca".into(), file.into_os_string()]);
    }
    match Cli::try_parse_from(words)?.verb {
        Verb::Serve(args) => serve::run(args),
        _ => Err(anyhow::anyhow!("`serve` is not what it was")),
    }
}

/// A pool that a server hosts, or the gateway of one.
pub struct Hosted {
    gate: Gate,
    /// What the server looks after.
    pub service: Arc<dyn Service>,
    gaps: Vec<String>,
}

impl Hosted {
    /// Starts the pool that the file describes; with a Redis only its gateway, which may know who vouches for backends.
    pub async fn start(
        file: &Path,
        redis: Option<&str>,
        backend_ca: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let config = read(file)?;
        if let Some(url) = redis {
            let site = Site::parse(url, "gateway").map_err(|error| Wrong(error.to_string()))?;
            let trust = backend_ca.map(Trust::read).transpose();
            let trust = trust.map_err(|error| Wrong(error.to_string()))?.unwrap_or_default();
            let gateway = RedisGateway::trusting(&config, &site, trust)?;
            let gate = gateway.gate().clone();
            return Ok(Hosted { gate, service: Arc::new(gateway), gaps: Vec::new() });
        }
        let pool = Pool::start(config).await?;
        let (gate, gaps) = (pool.gate().clone(), pool.backends().isolation().gaps());
        Ok(Hosted { gate, service: Arc::new(pool), gaps })
    }

    /// The pool's addresses, for the server that hosts it.
    pub fn guests(&self) -> Guests {
        Guests { router: router(self.gate.clone()), is_open: is_page }
    }

    /// What a newcomer sees of the pool: where it is, and what is not kept apart.
    pub fn screen(&self, url: &str) -> String {
        let programs: Vec<&str> = self.gate.programs().collect();
        let mut text = format!("  pool   {url}/pool (programs: {})\n", programs.join(", "));
        for gap in &self.gaps {
            text.push_str(&format!("         not isolated: {gap}\n"));
        }
        text
    }
}

/// What a newcomer can do with a pool by itself.
pub fn to_paste(program: &str, url: &str, needs_token: bool) -> String {
    let token = if needs_token { " --token TOKEN" } else { "" };
    format!("  {program} pool status --url {url}{token}\nor open {url}/pool\n")
}

/// Reads the file that describes a pool.
fn read(file: &Path) -> anyhow::Result<Config> {
    let wrong = |why: String| Wrong(format!("{}: {why}", file.display()));
    let text = fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    Ok(Config::parse(&text).map_err(|error| wrong(error.to_string()))?)
}

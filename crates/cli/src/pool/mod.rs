//! `pool`: run programs for clients, and see how that goes.

mod status;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand};
use taskyard_pool::gateway::{is_page, router};
use taskyard_pool::{Config, Pool};
use taskyard_server::Guests;
use taskyard_wire::Exit;

use crate::args::{Cli, Verb};
use crate::failure::Wrong;
use crate::serve;
use status::StatusArgs;

/// What to do with a pool.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard pool serve examples/asymptote.yaml
  taskyard pool status")]
pub struct PoolArgs {
    #[command(subcommand)]
    verb: PoolVerb,
}

#[derive(Debug, Subcommand)]
enum PoolVerb {
    /// Run a pool by itself: gateway, scheduler and backends in one process.
    Serve(PoolServeArgs),
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
        PoolVerb::Serve(args) => serve(args),
        PoolVerb::Status(args) => status::run(&args),
    }
}

/// A pool by itself is a server whose queue nobody uses.
fn serve(args: PoolServeArgs) -> anyhow::Result<Exit> {
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
    match Cli::try_parse_from(words)?.verb {
        Verb::Serve(args) => serve::run(args),
        _ => Err(anyhow::anyhow!("`serve` is not what it was")),
    }
}

/// Starts the pool that the file describes.
pub async fn start(file: &Path) -> anyhow::Result<Pool> {
    let wrong = |why: String| Wrong(format!("{}: {why}", file.display()));
    let text = fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    let config = Config::parse(&text).map_err(|error| wrong(error.to_string()))?;
    Ok(Pool::start(config).await?)
}

/// The pool's addresses, for the server that hosts it.
pub fn guests(pool: &Pool) -> Guests {
    Guests { router: router(pool.gate().clone()), is_open: is_page }
}

/// What a newcomer sees of the pool: where it is, and what is not kept apart.
pub fn screen(pool: &Pool, url: &str) -> String {
    let programs: Vec<&str> = pool.programs().collect();
    let mut text = format!("  pool   {url}/pool (programs: {})\n", programs.join(", "));
    for gap in pool.backends().isolation().gaps() {
        text.push_str(&format!("         not isolated: {gap}\n"));
    }
    text
}

//! `serve`: run the server.

use std::io::Read;
use std::net::SocketAddr;
use std::num::NonZero;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fs, io, process};

use anyhow::Context;
use clap::Args;
use taskyard_core::command::TubeInfo;
use taskyard_core::limits::{
    METRICS_TUBES_MAX, PAYLOAD_BYTES_DEFAULT, PAYLOAD_BYTES_MAX, TUBES_PER_USER_MAX,
};
use taskyard_core::service::Service;
use taskyard_core::{Command, Execute, Reply, TubeName};
use taskyard_engine::{Engine, Settings, SystemClock};
use taskyard_server::{BindError, Config, Listeners, Server, Token, TokenError};
use taskyard_sql::Source;
use taskyard_store::{OpenOptions, Store};
use taskyard_wire::Exit;
use taskyard_worker::ManagerService;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::connect::{URL_DEFAULT, misfit};
use crate::failure::Wrong;
use crate::iproto::IprotoArgs;
use crate::migrate::shown;
use crate::opening::{self, STORE_WAIT};
use crate::output::{note, quoted};
use crate::units::Size;
use crate::{iproto, log, output, pool, reach, sql, units};

/// How to serve.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard serve                                   tasks in ./taskyard-data, on 127.0.0.1:7070
  taskyard serve --data /var/lib/taskyard
  taskyard serve --http 0.0.0.0:7070 --token-file secret.txt
  taskyard serve --store memory:                   nothing is kept
  taskyard serve --sql tasks.json --database postgres://db/postgres

Ctrl-C or SIGTERM stops it; what was acknowledged is on disk. TASKYARD_LOG=debug tells more.")]
pub struct ServeArgs {
    /// The folder with the tasks; the same as --store sqlite:DIR.
    #[arg(long, value_name = "DIR", default_value = "taskyard-data", conflicts_with = "store")]
    data: PathBuf,
    /// Where tasks live: memory:, sqlite:DIR, postgres://USER@HOST/DATABASE, redis://HOST or
    /// tarantool://USER@HOST:PORT.
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Where to listen for HTTP; port 0 is any free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7070")]
    http: SocketAddr,
    /// What callers must show. Others on this machine can see it here: better the two below.
    #[arg(long, value_name = "TOKEN", env = "TASKYARD_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Read the token from this file, which other users of the machine must not be able to read.
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    token_file: Option<PathBuf>,
    /// Listen outside this machine although there is no token.
    #[arg(long)]
    insecure: bool,
    /// A name under which this server may be called without a token; may be repeated.
    #[arg(long, value_name = "NAME")]
    host_name: Vec<String>,
    /// Refuse a put into a tube that does not exist instead of making it.
    #[arg(long)]
    strict_tubes: bool,
    /// Most tubes that one user may create; all HTTP clients are one user. 10000 is no limit.
    #[arg(long, value_name = "N", default_value_t = TUBES_PER_USER_MAX as u16)]
    tubes_per_user: u16,
    /// How many tubes have rows of their own in /metrics; the others share one row.
    #[arg(long, value_name = "N", default_value_t = METRICS_TUBES_MAX as u16)]
    metrics_tubes: u16,
    /// Put events of semaphores into this tube as they come.
    #[arg(long, value_name = "TUBE")]
    events_tube: Option<String>,
    /// How much of what tasks carry is kept in memory; the rest stays on disk.
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    #[arg(default_value_t = Size(OpenOptions::default().memory_bytes))]
    memory: Size,
    /// The largest payload of a task, up to 64MB.
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    #[arg(default_value_t = Size(PAYLOAD_BYTES_DEFAULT))]
    payload_max: Size,
    /// Open a damaged folder with what is left of it.
    #[arg(long)]
    accept_loss: bool,
    /// Run SQL tasks too, of the tables that this file lists; see taskyard sql --help.
    #[arg(long, value_name = "FILE", requires = "database")]
    sql: Option<PathBuf>,
    /// How to connect to the database of SQL tasks.
    #[arg(long, value_name = "URL", env = "TASKYARD_DATABASE", hide_env_values = true)]
    database: Option<String>,
    /// Host a pool beside the queue: the programs and limits in this YAML file.
    #[arg(long, value_name = "FILE")]
    pool: Option<PathBuf>,
    /// Host only the gateway of that pool; its schedulers and backends are found over this Redis.
    #[arg(long, value_name = "URL", requires = "pool")]
    pool_redis: Option<String>,
    /// Go only to backends of that pool that encrypt, and that the authority in this PEM file vouches for.
    #[arg(long, value_name = "FILE", requires = "pool_redis")]
    pool_backend_ca: Option<PathBuf>,
    /// Leave planning for typed workers to other servers of the store.
    #[arg(long)]
    no_manager: bool,
    #[command(flatten)]
    iproto: IprotoArgs,
}

/// What to do for a server that shall have no token.
const WITHOUT_TOKEN: &str = "to go without one, leave out --token and --token-file and unset \
                             TASKYARD_TOKEN";

/// What was found in the store.
struct Found {
    url: String,
    durable: bool,
    /// What a database that the store is in says about that.
    durability: Option<String>,
    /// What the store does not have.
    lacks: &'static [&'static str],
    tubes: Vec<TubeInfo>,
    opening: Duration,
}

/// Serves until told to stop.
pub fn run(args: ServeArgs) -> anyhow::Result<Exit> {
    log::start();
    // Ten thousand connections need as many open files, and the usual limit is lower.
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
    let config = args.config()?;
    let runtime = runtime()?;
    // Before anything is made on disk. From here on clients are told that the server is starting.
    let mut listeners = runtime.block_on(listen(config, &args.iproto))?;
    tracing::info!(http = %listeners.address(), "listening; opening the store");
    let pool = match &args.pool {
        Some(file) => {
            let redis = args.pool_redis.as_deref();
            let ca = args.pool_backend_ca.as_deref();
            Some(runtime.block_on(pool::HostedPool::start(file, redis, ca))?)
        }
        None => None,
    };
    listeners.config.guests = pool.as_ref().map(pool::HostedPool::guests);
    let started = Instant::now();
    let (url, store) = args.open()?;
    let durable = store.capabilities().durable;
    let (durability, lacks) = (store.durability(), store.unsupported());
    runtime.block_on(async {
        let settings = Settings { payload_bytes_max: args.payload_max.0 };
        let engine = Engine::start(store, Arc::new(SystemClock::new()), settings);
        let tubes = tubes(&engine).await?;
        let found = Found { url, durable, durability, lacks, tubes, opening: started.elapsed() };
        let (stop, again) = (Stop::new()?, Stop::new()?);
        let services = &mut listeners.config.services;
        services.extend(args.sql_tasks()?);
        services.extend(pool.as_ref().map(|pool| pool.service.clone()));
        let manager = (!args.no_manager).then(|| args.manager(&engine));
        services.extend(manager.clone());
        let server = match listeners.serve(engine.clone()).await {
            Ok(server) => server,
            Err(refusal) => {
                engine.stop().await?;
                return Err(refusal.into());
            }
        };
        // A person who closes the terminal's pipe still wants the server.
        let hosted = pool.as_ref().map(|pool| pool.screen(&server.url()));
        let screen = first_screen(&server, &found, &args, &hosted.unwrap_or_default());
        let _ = output::bytes(screen.as_bytes());
        let stopping = async {
            stop_at_first(stop, again).await;
            // While the queue still answers, so that another server can lead at once.
            if let Some(manager) = &manager {
                manager.stop().await;
            }
        };
        server.run(stopping).await.context("cannot stop properly")?;
        let said = if is_pool_alone(&args) { "stopped".into() } else { goodbye(&found) };
        let _ = output::line(said);
        Ok(Exit::Ok)
    })
}

/// The threads for connections. One core is left to the engine, which has a thread of its own: on two cores
/// sixteen connections get a seventh more than with a thread for each core.
pub fn runtime() -> io::Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(2, NonZero::get);
    let workers = cores.saturating_sub(1).max(1);
    tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build()
}

impl ServeArgs {
    fn config(&self) -> anyhow::Result<Config> {
        if self.payload_max.0 > PAYLOAD_BYTES_MAX {
            let most = Size(PAYLOAD_BYTES_MAX);
            return Err(
                Wrong(format!("--payload-max is more than {most}, the most there is")).into()
            );
        }
        let token = match &self.token_file {
            Some(path) => Some(read_token(path)?),
            None => self.token.clone(),
        };
        // An empty one is most often a secret that did not arrive, so it must not open the server.
        let token =
            token.map(|text| Token::new(&text)).transpose().map_err(|error| match error {
                TokenError::Empty => Wrong(format!("{error}; {WITHOUT_TOKEN}")),
                other => Wrong(other.to_string()),
            })?;
        let http = Some(self.http).filter(|http| token.is_none() && !http.ip().is_loopback());
        let open = [(http, "a token"), (self.iproto.open_address(), "a user")];
        for (address, what) in open.into_iter().filter(|_| self.insecure) {
            let Some(address) = address else { continue };
            note(format!(
                "warning: --insecure: {address} can be reached from other machines without {what}; every client \
                 there can read, change and delete all tasks"
            ));
        }
        if token.is_none() && self.iproto.has_users() {
            note(
                "users guard iproto alone; HTTP is open to everybody on this machine without a token",
            );
        }
        Ok(Config {
            token,
            insecure: self.insecure,
            host_names: self.host_name.clone(),
            program: program(),
            strict_tubes: self.strict_tubes,
            events_tube: self.events_tube.as_deref().map(TubeName::new).transpose()?,
            tubes_per_user_max: self.tubes_per_user.into(),
            metrics_tubes_max: self.metrics_tubes.into(),
            iproto: self.iproto.config()?,
            ..Config::new(self.http)
        })
    }

    /// Starts the SQL tasks, if there are to be any.
    fn sql_tasks(&self) -> anyhow::Result<Option<Arc<dyn Service>>> {
        let (Some(file), Some(database)) = (&self.sql, &self.database) else { return Ok(None) };
        let tasks = sql::start(database, Source::File(file.clone()), sql::PATIENCE)?;
        Ok(Some(Arc::new(tasks)))
    }

    /// Starts planning for workers, which begins when the first one reports.
    fn manager(&self, engine: &Engine) -> Arc<dyn Service> {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let name = format!("{} on {}, process {}", self.http, host.trim(), process::id());
        Arc::new(ManagerService::start(engine.clone(), &name))
    }

    /// Opens the store.
    fn open(&self) -> anyhow::Result<(String, Box<dyn Store>)> {
        let url = match &self.store {
            Some(url) => url.clone(),
            None => format!("sqlite:{}", self.data.display()),
        };
        let options = OpenOptions {
            memory_bytes: self.memory.0,
            accept_loss: self.accept_loss,
            wait: STORE_WAIT,
            read_only: false,
        };
        let store = opening::open(&url, &options)?;
        Ok((shown(&url), store))
    }
}

/// The token in a file that other users of the machine can neither read nor change.
fn read_token(path: &Path) -> anyhow::Result<String> {
    let shown = path.display();
    let failed = |error: io::Error| Wrong(format!("cannot read the token from {shown}: {error}"));
    let mut file = fs::File::open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    // A pipe has no name by which others could read it.
    if about.is_file() && about.permissions().mode() & 0o007 != 0 {
        let text = format!(
            "every user of this machine can open {shown}, which has the token; allow it to its owner alone: \
             chmod 600 {}",
            quoted(&shown.to_string())
        );
        return Err(Wrong(text).into());
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// Listens, if need be without clients of Tarantool's queue.
async fn listen(config: Config, iproto: &IprotoArgs) -> Result<Listeners, BindError> {
    match Listeners::bind(config.clone()).await {
        Err(refusal) => Listeners::bind(iproto.without(config, refusal)?).await,
        bound => bound,
    }
}

async fn tubes(engine: &Engine) -> anyhow::Result<Vec<TubeInfo>> {
    match engine.execute(vec![Command::Tubes { tube: None }]).await.pop() {
        Some(Ok(Reply::Tubes(tubes))) => Ok(tubes),
        Some(Err(error)) => Err(error.into()),
        _ => Err(misfit("tubes")),
    }
}

/// What a newcomer sees: what runs where, and lines to paste.
fn first_screen(server: &Server, found: &Found, args: &ServeArgs, hosted: &str) -> String {
    let durable = match &found.durability {
        Some(durability) => durability,
        None if found.durable => "durable: what is acknowledged is on disk",
        None => "not durable: gone when the server stops",
    };
    let durable = match &args.store {
        Some(url) if url.contains("pooler=transaction") => {
            format!("{durable}; behind a pooler, so what other servers do is seen within a second")
        }
        _ => durable.to_owned(),
    };
    let lacks = match found.lacks {
        [] => String::new(),
        lacks => format!("\x20 without {}\n", lacks.join(", ")),
    };
    let tasks: u64 = found.tubes.iter().map(|tube| tube.stats.tasks.total()).sum();
    let tubes = match found.tubes.len() {
        1 => "1 tube".into(),
        count => format!("{count} tubes"),
    };
    let opening = found.opening.as_secs_f64();
    let token = if server.needs_token() { "token needed" } else { "no token needed" };
    format!(
        "taskyard {}\n\
         \x20 store  {} ({durable})\n\
         {lacks}\x20 tasks  {tasks} in {tubes}, opened in {opening:.2} s\n\
         \x20 http   {} ({token})\n\
         \x20 iproto {}\n{hosted}\n\
         Try in another terminal:\n{}\n\
         Ctrl-C stops it.\n",
        env!("CARGO_PKG_VERSION"),
        found.url,
        reach::line(server),
        iproto::line(server, &args.iproto),
        match is_pool_alone(args) {
            true => pool::to_paste(&program(), server.url().as_str(), server.needs_token()),
            false => to_paste(server, &free_name(&found.tubes), args.strict_tubes),
        },
    )
}

/// Whether this is a pool by itself, whose queue nobody uses.
fn is_pool_alone(args: &ServeArgs) -> bool {
    args.pool.is_some() && args.store.as_deref() == Some("memory:")
}

/// A put, a take and an ack that work as they are; where a put makes no tube, it is made first.
fn to_paste(server: &Server, tube: &str, strict: bool) -> String {
    let program = program();
    let mut flags = String::new();
    if server.url() != URL_DEFAULT {
        flags = format!(" --url {}", server.url());
    }
    if server.needs_token() {
        flags.push_str(" --token TOKEN");
    }
    let create = strict.then(|| format!("tube create {tube}"));
    let verbs = [
        format!("put {tube} '{{\"to\": \"ann\"}}'"),
        format!("take {tube}"),
        format!("ack {tube} 0"),
    ];
    create.iter().chain(&verbs).map(|verb| format!("  {program} {verb}{flags}\n")).collect()
}

fn goodbye(found: &Found) -> String {
    if found.durable || found.durability.is_some() {
        format!("stopped; everything is in {}", found.url)
    } else {
        "stopped; the tasks were in memory only and are gone".into()
    }
}

/// A tube that is not there yet, so that its first task has the id 0.
fn free_name(tubes: &[TubeInfo]) -> String {
    let names = (1..).map(|n| if n == 1 { "mail".into() } else { format!("mail{n}") });
    let mut free = names.filter(|name: &String| tubes.iter().all(|t| t.name.as_str() != *name));
    free.next().unwrap_or_default()
}

/// Where this program is.
fn program() -> String {
    let path = env::current_exe().ok().and_then(|path| path.to_str().map(quoted));
    path.unwrap_or_else(|| "taskyard".into())
}

/// The two ways to ask a program to stop.
pub struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    /// Listens for both.
    pub fn new() -> io::Result<Self> {
        Ok(Stop {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Ready at the first signal. The second ends the process at once: what was acknowledged is safe.
pub async fn stop_at_first(mut stop: Stop, mut again: Stop) {
    stop.asked().await;
    output::note("stopping; once more to stop at once");
    tokio::spawn(async move {
        // It has seen the first signal too.
        again.asked().await;
        again.asked().await;
        process::exit(130);
    });
}

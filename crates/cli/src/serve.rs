//! `serve`: runs the server.

mod check;

use std::io::IsTerminal;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, process};

use anyhow::Context;
use clap::Args;
use taskyard::host_name;
use taskyard_core::command::TubeInfo;
use taskyard_core::limits::{
    METRICS_TUBES_MAX, PAGE_SESSION_SECS_MAX, PAYLOAD_BYTES_DEFAULT, PAYLOAD_BYTES_MAX,
    SERIES_TUBES_MAX, TRACE_BYTES_DEFAULT, TUBES_PER_USER_MAX,
};
use taskyard_core::service::Service;
use taskyard_core::{Command, Execute, Reply, Span, TubeName};
use taskyard_engine::{Engine, Settings, SystemClock};
use taskyard_server::{
    AuditFile, BindError, Config, ExtraRoutes, Listeners, PageSessionConfig, Server, UsersHandle,
};
use taskyard_sql::Source;
use taskyard_store::{OpenOptions, Store};
use taskyard_trace::{CreateError, Recorder, TraceFile};
use taskyard_wire::Exit;
use taskyard_worker::ManagerService;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::access::AccessArgs;
use crate::connect::{program_anywhere, unexpected_reply};
use crate::contract_check::ContractCheck;
use crate::document_routes::document_routes;
use crate::failure::UsageError;
use crate::iproto::IprotoArgs;
use crate::migrate::without_password;
use crate::open_store::{self, STORE_WAIT};
use crate::output::note;
use crate::peers::PeerArgs;
use crate::settings::warn_of_unknown_variables;
use crate::tls::keep_current;
use crate::units::Size;
use crate::users_file::UsersFile;
use crate::{iproto, listen_addresses, log, output, pool, service_manager, sql, units};

/// The arguments of `serve`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard serve                                   in ./taskyard-data, on 127.0.0.1:7070
  taskyard serve --data /var/lib/taskyard
  taskyard serve --http 0.0.0.0:7070 --token-file secret.txt
  taskyard serve --tls-cert box7.pem --tls-key box7.key --http 0.0.0.0:7070 --token-file secret.txt
  taskyard serve --store memory:                   keep tasks in memory only
  taskyard serve --sql tasks.json --database postgres://db/postgres
  taskyard serve --contract queues.yaml            refuse puts that its workers cannot decode
  taskyard serve --record monday.trace             for: taskyard simulate monday.trace
  taskyard serve --config taskyard.yaml            settings in a file; see taskyard config --help

Each option can also be set by a variable, TASKYARD_ and its name in capitals (TASKYARD_HTTP,
TASKYARD_TLS_CERT), or in the file of --config. An option on the command line replaces a variable,
and a variable replaces the file.

Clients read TASKYARD_TOKEN_FILE, TASKYARD_POOL_REDIS and TASKYARD_USERS; the variables of a server
are TASKYARD_SERVER_TOKEN_FILE, TASKYARD_SERVER_POOL_REDIS and TASKYARD_SERVER_USERS. Options that
cannot be combined are refused wherever they are set; only --data and --store replace those of the
file. --accept-loss, --record and --record-max are for the command line only.

Ctrl-C or SIGTERM stops the server; everything that was acknowledged is on disk.
TASKYARD_LOG=debug logs more.")]
pub struct ServeArgs {
    /// Read settings from this YAML file, whose keys are the names of these options; to write one: taskyard config show.
    #[arg(long, value_name = "FILE", env = "TASKYARD_CONFIG")]
    pub config: Option<PathBuf>,
    /// The folder in which tasks are stored; the same as --store sqlite:DIR.
    #[arg(long, value_name = "DIR", default_value = "taskyard-data", conflicts_with = "store")]
    data: PathBuf,
    /// The store: memory:, sqlite:DIR, postgres://USER@HOST/DATABASE, redis://HOST or
    /// tarantool://USER@HOST:PORT. A URL with a password belongs into the variable, because other users see the arguments of processes.
    #[arg(long, value_name = "URL", env = "TASKYARD_STORE", hide_env_values = true)]
    store: Option<String>,
    #[command(flatten)]
    pub access: AccessArgs,
    /// How long a user who signed in on the dashboard stays signed in without using it: 1m to 12h.
    #[arg(long, value_name = "TIME", value_parser = session_idle, default_value = "30m")]
    session_idle: Span,
    /// A host name that requests without a token may use; may be repeated.
    #[arg(long, value_name = "NAME")]
    host_name: Vec<String>,
    /// Offer no actions on the dashboard; the API still accepts them.
    #[arg(long)]
    read_only_dashboard: bool,
    /// Refuse a put into a tube that does not exist instead of creating the tube.
    #[arg(long)]
    strict_tubes: bool,
    /// Maximum number of tubes that one user may create; all HTTP clients with the same token count as one user. 10000 is no limit.
    #[arg(long, value_name = "N", default_value_t = TUBES_PER_USER_MAX as u16)]
    tubes_per_user: u16,
    /// Number of tubes with their own rows in /metrics; the others share one row.
    #[arg(long, value_name = "N", default_value_t = METRICS_TUBES_MAX as u16)]
    metrics_tubes: u16,
    /// Number of tubes with time series; 0 turns them off.
    #[arg(long, value_name = "N", default_value_t = SERIES_TUBES_MAX as u16)]
    series_tubes: u16,
    /// Also put events of semaphores into this tube.
    #[arg(long, value_name = "TUBE")]
    events_tube: Option<String>,
    /// Memory for payloads; further payloads stay on disk.
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    #[arg(default_value_t = Size(OpenOptions::default().memory_bytes))]
    memory: Size,
    /// Maximum payload of a task, up to 64MB.
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    #[arg(default_value_t = Size(PAYLOAD_BYTES_DEFAULT))]
    payload_max: Size,
    /// Open a damaged folder and recover what is readable; the rest is lost.
    #[arg(long)]
    accept_loss: bool,
    /// Also run the SQL tasks of the tables in this file; see taskyard sql --help.
    #[arg(long, value_name = "FILE", requires = "database")]
    sql: Option<PathBuf>,
    /// Connection URL of the database of SQL tasks.
    #[arg(long, value_name = "URL", env = "TASKYARD_DATABASE", hide_env_values = true)]
    database: Option<String>,
    /// Also run a pool with the programs and limits in this YAML file.
    #[arg(long, value_name = "FILE")]
    pool: Option<PathBuf>,
    /// Run only the gateway of the pool; it finds schedulers and backends through this Redis.
    #[arg(long, value_name = "URL", requires = "pool", hide_env_values = true)]
    pool_redis: Option<String>,
    /// Connect only to backends of the pool with TLS and a certificate of the authority in this PEM file.
    #[arg(long, value_name = "FILE", requires = "pool_redis")]
    pool_backend_ca: Option<PathBuf>,
    /// Refuse puts that do not match this contract of typed queues, a YAML file; may be repeated.
    #[arg(long, value_name = "FILE")]
    contract: Vec<PathBuf>,
    /// Record puts, takes and finishes with times and sizes, without payloads, into this new file; see taskyard simulate.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Maximum size of that file; then the recording ends and the server continues.
    #[arg(long, value_name = "SIZE", value_parser = units::size, requires = "record")]
    #[arg(default_value_t = Size(TRACE_BYTES_DEFAULT as usize))]
    record_max: Size,
    /// Run no manager of typed workers; other servers of the store do.
    #[arg(long)]
    no_manager: bool,
    #[command(flatten)]
    peers: PeerArgs,
    #[command(flatten)]
    iproto: IprotoArgs,
}

/// Shortest time without use after which a session may end: the page itself must be able to use it.
const SESSION_IDLE_SECS_MIN: u64 = 60;

/// The time after which a session without use ends.
fn session_idle(text: &str) -> Result<Span, String> {
    let (least, most) =
        (Span::from_secs(SESSION_IDLE_SECS_MIN), Span::from_secs(PAGE_SESSION_SECS_MAX));
    let span = units::span(text)?;
    match (least..=most).contains(&span) {
        true => Ok(span),
        false => Err(format!("{text} is not between 1m and {}h", PAGE_SESSION_SECS_MAX / 3600)),
    }
}

/// The opened store, for the start message.
struct OpenedStore {
    url: String,
    durable: bool,
    /// The durability that the settings of a database determine.
    durability: Option<String>,
    /// The features that the store does not support.
    unsupported: &'static [&'static str],
    tubes: Vec<TubeInfo>,
    opened_in: Duration,
}

/// The routes of the hosted pool and of the documents.
fn extra_routes(pool: Option<&pool::HostedPool>) -> Vec<ExtraRoutes> {
    pool.map(pool::HostedPool::extra_routes).into_iter().chain([document_routes()]).collect()
}

/// Serves until a signal stops the server.
pub fn run(args: ServeArgs) -> anyhow::Result<Exit> {
    log::start();
    // Ten thousand connections need as many open files, and the default limit is lower.
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        tracing::warn!(%error, "cannot raise the limit on open files");
    }
    let runtime = runtime()?;
    let hangups = hangups(&runtime)?;
    // A terminal that was closed is none any more.
    let in_terminal = io::stdin().is_terminal();
    let (config, users_file) = args.config()?;
    let audit_file = config.audit.clone();
    let contracts = ContractCheck::read(&args.contract)?;
    // Before anything is created on disk. From here on clients get the reply that the server is starting.
    let mut listeners = runtime.block_on(listen(config, &args.iproto))?;
    tracing::info!(http = %listeners.address(), "listening; opening the store");
    let pool = runtime.block_on(args.start_pool())?;
    listeners.config.extra_routes = extra_routes(pool.as_ref());
    let started = Instant::now();
    let (url, store) = args.open()?;
    let durable = store.capabilities().durable;
    let (durability, unsupported) = (store.durability(), store.unsupported());
    runtime.block_on(async {
        let (engine, trace) = args.engine(store, contracts)?;
        let (tubes, opened_in) = (tubes(&engine).await?, started.elapsed());
        let opened = OpenedStore { url, durable, durability, unsupported, tubes, opened_in };
        let (stop, again) = (StopSignals::new()?, StopSignals::new()?);
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
        let has_certificates = server.certificates().next().is_some();
        let has_files =
            users_file.is_some() || audit_file.is_some() || args.sql.is_some() || has_certificates;
        let users = match args.iproto.has_users() {
            true => server.iproto_users(),
            false => Some(server.users()),
        };
        watch_files(&server, users_file.zip(users), audit_file)?;
        // A closed standard output does not stop the server.
        let hosted = pool.as_ref().map(|pool| pool.screen(&server.url()));
        let message = start_message(&server, &opened, &args, &hosted.unwrap_or_default());
        let _ = output::bytes(message.as_bytes());
        service_manager::ready();
        let stopping = async {
            tokio::select! {
                () = stop_at_first(stop, again) => {}
                () = end_of_terminal(hangups, has_files, in_terminal) => {}
            }
            service_manager::stopping();
            // While the queue still answers, so that the manager of another server can take over at once.
            if let Some(manager) = &manager {
                manager.stop().await;
            }
        };
        server.run(stopping).await.context("cannot stop the server")?;
        trace.into_iter().for_each(TraceFile::join);
        let text = if is_pool_alone(&args) { "stopped".into() } else { stop_message(&opened) };
        let _ = output::line(text);
        Ok(Exit::Ok)
    })
}

/// Catches SIGHUP from now on: a reload that is asked for while the server starts must not end it. What is read again later is read
/// during the start anyway.
fn hangups(runtime: &Runtime) -> io::Result<Signal> {
    let _runtime = runtime.enter();
    signal(SignalKind::hangup())
}

/// Ready when the terminal in which the server runs is closed, unless it has files that SIGHUP reads again. A server without a
/// terminal, as a service manager starts it, has nothing to do at SIGHUP then.
async fn end_of_terminal(mut hangups: Signal, has_files: bool, in_terminal: bool) {
    while hangups.recv().await.is_some() {
        if !has_files && in_terminal {
            return;
        }
        if !has_files {
            tracing::info!("SIGHUP received; there are no files to read again");
        }
    }
    std::future::pending().await
}

/// The threads for connections. One core is left to the engine, which has its own thread: on two cores this is a seventh
/// faster for sixteen connections than a thread for each core.
pub fn runtime() -> io::Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(2, NonZero::get);
    let workers = cores.saturating_sub(1).max(1);
    tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build()
}

impl ServeArgs {
    fn config(&self) -> anyhow::Result<(Config, Option<UsersFile>)> {
        warn_of_unknown_variables();
        self.check_limits()?;
        self.config_with(self.access.config()?)
    }

    /// Refuses what no other check sees before the server starts.
    fn check_limits(&self) -> anyhow::Result<()> {
        if self.payload_max.0 > PAYLOAD_BYTES_MAX {
            let most = Size(PAYLOAD_BYTES_MAX);
            return Err(
                UsageError(format!("--payload-max is more than the maximum of {most}")).into()
            );
        }
        match self.record.as_ref().filter(|file| file.exists()) {
            Some(file) => Err(CreateError::Exists(file.clone()).into()),
            None => Ok(()),
        }
    }

    /// The configuration with these options for access.
    fn config_with(
        &self,
        (access, users_file): (Config, Option<UsersFile>),
    ) -> anyhow::Result<(Config, Option<UsersFile>)> {
        if let Some(address) = self.iproto.open_address().filter(|_| access.users.is_empty()) {
            self.access.warn_open(address, "a user");
        }
        if access.token.is_none() && self.iproto.has_users() {
            note(
                "--iproto-users applies to iproto only; without a token every user of this machine can use HTTP",
            );
        }
        // There is one file of users at most.
        let (iproto, iproto_users) = self.iproto.config(&self.access.tls)?;
        let config = Config {
            page_sessions: PageSessionConfig {
                idle_max: self.session_idle.into(),
                ..PageSessionConfig::default()
            },
            host_names: self.host_name.clone(),
            program: program_anywhere(),
            read_only_dashboard: self.read_only_dashboard,
            strict_tubes: self.strict_tubes,
            events_tube: self.events_tube.as_deref().map(TubeName::new).transpose()?,
            tubes_per_user_max: self.tubes_per_user.into(),
            metrics_tubes_max: self.metrics_tubes.into(),
            iproto,
            peers: self.peers.servers(self.is_shared())?,
            ..access
        };
        Ok((config, users_file.or(iproto_users)))
    }

    /// Whether other servers may use the same store.
    fn is_shared(&self) -> bool {
        let own = ["memory:", "sqlite:"];
        self.store.as_ref().is_some_and(|url| !own.iter().any(|scheme| url.starts_with(scheme)))
    }

    /// Starts the pool, if one is configured.
    async fn start_pool(&self) -> anyhow::Result<Option<pool::HostedPool>> {
        let Some(file) = &self.pool else { return Ok(None) };
        let (redis, ca) = (self.pool_redis.as_deref(), self.pool_backend_ca.as_deref());
        Ok(Some(pool::HostedPool::start(file, redis, ca).await?))
    }

    /// Starts the engine, which refuses puts that do not match a contract, and the trace, if one is recorded.
    fn engine(
        &self,
        store: Box<dyn Store>,
        contracts: ContractCheck,
    ) -> Result<(Engine, Option<TraceFile>), CreateError> {
        let (trace, recorder) = self.start_record()?.unzip();
        let settings = Settings {
            payload_bytes_max: self.payload_max.0,
            series_tubes_max: self.series_tubes.into(),
            ..Settings::default()
        };
        let clock = Arc::new(SystemClock::new());
        let engine = Engine::start_recorded(store, clock, settings, recorder);
        if self.contract.is_empty() {
            return Ok((engine, trace));
        }
        let check = Arc::new(move |tube: &_, tasks: &_| contracts.check(tube, tasks));
        Ok((engine.with_put_check(check), trace))
    }

    /// Creates the trace, if one is recorded.
    fn start_record(&self) -> Result<Option<(TraceFile, Recorder)>, CreateError> {
        let Some(file) = &self.record else { return Ok(None) };
        let bytes_max = u64::try_from(self.record_max.0).unwrap_or(u64::MAX);
        TraceFile::create(file, bytes_max).map(Some)
    }

    /// Starts SQL tasks, if they are configured.
    fn sql_tasks(&self) -> anyhow::Result<Option<Arc<dyn Service>>> {
        let (Some(file), Some(database)) = (&self.sql, &self.database) else { return Ok(None) };
        let tasks = sql::start(database, Source::File(file.clone()), sql::PATIENCE)?;
        Ok(Some(Arc::new(tasks)))
    }

    /// Starts the manager, which makes plans once the first worker has reported.
    fn manager(&self, engine: &Engine) -> Arc<dyn Service> {
        let name = format!("{} on {}, process {}", self.access.http, host_name(), process::id());
        Arc::new(ManagerService::start(engine.clone(), &name))
    }

    fn store_url(&self) -> String {
        match &self.store {
            Some(url) => url.clone(),
            None => format!("sqlite:{}", self.data.display()),
        }
    }

    /// Opens the store.
    fn open(&self) -> anyhow::Result<(String, Box<dyn Store>)> {
        let url = self.store_url();
        let options = OpenOptions {
            memory_bytes: self.memory.0,
            accept_loss: self.accept_loss,
            wait: STORE_WAIT,
            read_only: false,
        };
        let store = open_store::open(&url, &options)?;
        Ok((without_password(&url), store))
    }
}

/// Listens on all addresses, without the default one for clients of Tarantool's queue if that is in use.
async fn listen(config: Config, iproto: &IprotoArgs) -> Result<Listeners, BindError> {
    match Listeners::bind(config.clone()).await {
        Err(refusal) => Listeners::bind(iproto.without(config, refusal)?).await,
        bound => bound,
    }
}

/// Reads certificates and users again when their files change, and all files on SIGHUP.
fn watch_files(
    server: &Server,
    users: Option<(UsersFile, UsersHandle)>,
    audit: Option<AuditFile>,
) -> io::Result<()> {
    let certificates: Vec<_> = server.certificates().cloned().collect();
    if !certificates.is_empty() {
        tokio::spawn(keep_current(certificates, signal(SignalKind::hangup())?));
    }
    if let Some((file, users)) = users {
        file.watch(users, server.audit())?;
    }
    if let Some(file) = audit {
        // It may have been moved while the store was being opened.
        file.reopen();
        tokio::spawn(reopen(file, signal(SignalKind::hangup())?));
    }
    Ok(())
}

/// Opens the audit file again at each signal: its rotation has moved it.
async fn reopen(file: AuditFile, mut hangups: Signal) {
    while hangups.recv().await.is_some() {
        file.reopen();
    }
}

/// All tubes but the internal ones.
async fn tubes(engine: &Engine) -> anyhow::Result<Vec<TubeInfo>> {
    match engine.execute(vec![Command::Tubes { tube: None }]).await.pop() {
        Some(Ok(Reply::Tubes(mut tubes))) => {
            tubes.retain(|tube| !tube.name.is_internal());
            Ok(tubes)
        }
        Some(Err(error)) => Err(error.into()),
        _ => Err(unexpected_reply("tubes")),
    }
}

/// The start message: the store, the addresses, and commands to try.
fn start_message(server: &Server, opened: &OpenedStore, args: &ServeArgs, hosted: &str) -> String {
    let durable = match &opened.durability {
        Some(durability) => durability,
        None if opened.durable => "durable: what is acknowledged is on disk",
        None => "not durable: tasks are lost when the server stops",
    };
    let durable = match &args.store {
        Some(url) if url.contains("pooler=transaction") => {
            format!(
                "{durable}; behind a pooler: changes by other servers are visible within a second"
            )
        }
        _ => durable.to_owned(),
    };
    let unsupported = match opened.unsupported {
        [] => String::new(),
        unsupported => format!("\x20 without {}\n", unsupported.join(", ")),
    };
    let tasks: u64 = opened.tubes.iter().map(|tube| tube.stats.tasks.total()).sum();
    let tubes = match opened.tubes.len() {
        1 => "1 tube".into(),
        count => format!("{count} tubes"),
    };
    let opened_in = opened.opened_in.as_secs_f64();
    let token = if server.needs_token() { "token needed" } else { "no token needed" };
    let record = args
        .record
        .as_ref()
        .map(|file| format!("\x20 record {} (at most {})\n", file.display(), args.record_max));
    let config = args.config.as_ref();
    let config = config.map(|file| format!("\x20 config {}\n", file.display()));
    format!(
        "taskyard {}\n\
         {}\x20 store  {} ({durable})\n\
         {unsupported}\x20 tasks  {tasks} in {tubes}, opened in {opened_in:.2} s\n\
         \x20 http   {} ({token})\n\
         \x20 iproto {}\n{}{hosted}\n\
         Try in another terminal:\n{}\n\
         Ctrl-C stops it.\n",
        env!("CARGO_PKG_VERSION"),
        config.unwrap_or_default(),
        opened.url,
        listen_addresses::line(server),
        iproto::line(server, &args.iproto),
        record.unwrap_or_default(),
        match is_pool_alone(args) {
            true => pool::to_paste(
                &program_anywhere(),
                &server.url(),
                &args.access.client_flags(server)
            ),
            false => to_paste(server, &free_name(&opened.tubes), args),
        },
    )
}

/// Whether only the pool is used: its queue is in memory.
fn is_pool_alone(args: &ServeArgs) -> bool {
    args.pool.is_some() && args.store.as_deref() == Some("memory:")
}

/// Commands that put, take and ack a task; where a put does not create the tube, a command that does.
fn to_paste(server: &Server, tube: &str, args: &ServeArgs) -> String {
    let (program, flags) = (program_anywhere(), args.access.client_flags(server));
    let create = args.strict_tubes.then(|| format!("tube create {tube}"));
    let verbs = [
        format!("put {tube} '{{\"to\": \"ann\"}}'"),
        format!("take {tube} --lease 1h"),
        format!("ack {tube} 0"),
    ];
    create.iter().chain(&verbs).map(|verb| format!("  {program} {verb}{flags}\n")).collect()
}

fn stop_message(opened: &OpenedStore) -> String {
    if opened.durable || opened.durability.is_some() {
        format!("stopped; all tasks are in {}", opened.url)
    } else {
        "stopped; the tasks were in memory only and are lost".into()
    }
}

/// The name of a tube that does not exist, so that its first task has the id 0.
fn free_name(tubes: &[TubeInfo]) -> String {
    let names = (1..).map(|n| if n == 1 { "mail".into() } else { format!("mail{n}") });
    let mut free = names.filter(|name: &String| tubes.iter().all(|t| t.name.as_str() != *name));
    free.next().unwrap_or_default()
}

/// The signals that ask the program to stop: SIGINT and SIGTERM.
pub struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    /// Listens for both signals.
    pub fn new() -> io::Result<Self> {
        Ok(StopSignals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn received(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Ready at the first signal. The second one ends the process at once: what was acknowledged is on disk.
pub async fn stop_at_first(mut stop: StopSignals, mut again: StopSignals) {
    stop.received().await;
    output::note("stopping; press Ctrl-C again to stop at once");
    tokio::spawn(async move {
        // It has received the first signal too.
        again.received().await;
        again.received().await;
        process::exit(130);
    });
}

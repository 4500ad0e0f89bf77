//! Measures the speed of Taskyard on this machine, compared with its disk and with other queues.
//!
//! Every part uses the public client and counts the tasks afterwards. Run it with `cargo xtask bench`, which builds it and
//! installs the other queues. Start reading at `Part`, then `load` (the clients) and `report` (the output).

mod backlog;
mod clients;
mod copy;
mod cost;
mod disk;
mod durable;
mod estimates;
mod http;
mod iproto;
mod keep_done;
mod keys;
mod load;
mod memory;
mod page;
mod peers;
mod pool;
mod positions;
mod postgres;
mod processor_time;
mod progress;
mod queue_figures;
mod records;
mod redis;
mod report;
mod resident;
mod schedules;
mod semaphores;
mod served;
mod server_process;
mod simulate;
mod sql;
mod tarantool;
mod workers;

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};

use postgres::Database;
use report::Report;

/// What to measure, and where.
#[derive(Parser, Debug)]
#[command(
    name = "cargo xtask bench",
    after_help = "\
Examples:
  cargo xtask bench --quick                 a look, in about half a minute
  cargo xtask bench                         the record, in several minutes
  cargo xtask bench --only disk,durable     just these parts
  cargo xtask bench --only snapshot         two million tasks while a snapshot of PostgreSQL is held
  cargo xtask bench --only sql --postgres postgres://db/test
  cargo xtask bench --only served --store postgres   processor time of a server and its database
  cargo xtask bench --compare --help        two builds in turns, with a confidence interval

Every figure is of this machine and this minute: compare figures of one run only."
)]
struct Args {
    /// Measure less: a short run for orientation.
    #[arg(long)]
    quick: bool,
    /// Only these parts.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PARTS")]
    only: Vec<Part>,
    /// The folder for the files of the run; its disk is measured.
    #[arg(long, value_name = "DIR", default_value = "taskyard-bench")]
    data: PathBuf,
    /// Print each figure as a JSON object on a line of its own instead of a table.
    #[arg(long)]
    json: bool,
    /// A running Tarantool with its queue module as the global `queue`, to be measured beside Taskyard.
    #[arg(long, value_name = "HOST:PORT")]
    tarantool: Option<String>,
    /// Where SQL tasks and semaphores are measured, instead of on a PostgreSQL that is started for it. The
    /// semaphores stay there.
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,
    #[command(flatten)]
    served: served::ServedArgs,
    /// What a child process of the benchmark does.
    #[arg(long, hide = true)]
    child: Option<resident::Child>,
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// The disk alone.
    Disk,
    /// Durable puts, takes and acks in this process.
    Durable,
    /// The same without a disk.
    Memory,
    /// What a take costs as the tube grows.
    Cost,
    /// A backlog larger than memory.
    Backlog,
    /// Takes and acks where done tasks are kept, compared with those without.
    KeepDone,
    /// Pages of tasks and searches.
    Records,
    /// Puts with unique keys, on each store.
    Keys,
    /// Estimates of starts, compared with the starts in a simulation.
    Estimates,
    /// The replay of a trace.
    Simulate,
    /// Idle schedules, and many that are due together.
    Schedules,
    /// Puts over HTTP.
    Http,
    /// Processor time of a server and its database for plain puts, takes and acks; only when it is named.
    Served,
    /// The dashboard in Chromium, with many tubes and tasks.
    Page,
    /// Clients of Tarantool's queue.
    Iproto,
    /// Priority semaphores.
    Semaphores,
    /// Typed workers and the codec of their tasks.
    Workers,
    /// Duration classes: decisions, starts of programs, many waiting clients.
    Pool,
    /// The same over Redis, on several processes.
    PoolRedis,
    /// Memory with many tasks, and opening them again.
    Resident,
    /// Tasks on PostgreSQL, compared with other queues on it.
    Postgres,
    /// The same while a snapshot is open: takes minutes, so only when it is named.
    Snapshot,
    /// One, two and four servers on one PostgreSQL.
    Servers,
    /// Tasks on Redis, compared with other queues on it.
    Redis,
    /// Workers in Python, compared with other queues.
    Clients,
    /// SQL tasks.
    Sql,
    /// Copying tasks from a folder to PostgreSQL.
    Copy,
    /// Tasks on Tarantool.
    Tarantool,
}

/// How much to do.
#[derive(Clone, Copy)]
struct Size {
    tasks: usize,
    seconds: Duration,
    resident: &'static [usize],
}

impl Size {
    /// Whether this is a short run.
    fn is_quick(self) -> bool {
        self.tasks < FULL.tasks
    }
}

const FULL: Size =
    Size { tasks: 1_000_000, seconds: Duration::from_secs(4), resident: &[1_000_000, 10_000_000] };
const QUICK: Size = Size { tasks: 200_000, seconds: Duration::from_secs(1), resident: &[200_000] };

/// The same allocator as in the product.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // A pool in this process starts its sandboxes from this executable.
    if let Some(end) = taskyard_pool::backend::run_as_sandbox_init() {
        return end;
    }
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the benchmark.
fn run(args: &Args) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    if let Some(child) = &args.child {
        return runtime.block_on(resident::run_child(child, &args.data));
    }
    let folder = &args.data;
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot create {}", folder.display()))?;
    let report = runtime.block_on(measure(args, folder));
    _ = std::fs::remove_dir_all(folder);
    let report = report?;
    let text = if args.json { report.json_lines() } else { format!("{}\n", report.table()) };
    print!("{text}");
    Ok(())
}

impl Part {
    /// Parts that take long or compare builds are measured only when they are named.
    fn is_wanted(self, only: &[Part]) -> bool {
        let is_default = !matches!(self, Part::Snapshot | Part::Served);
        only.contains(&self) || (only.is_empty() && is_default)
    }

    /// Its name in the command line.
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Measures it.
    async fn measure(
        self,
        report: &mut Report,
        args: &Args,
        folder: &Path,
        size: Size,
    ) -> Result<()> {
        match self {
            Part::Disk => disk::measure(report, folder, size.seconds)?,
            Part::Durable => durable::measure(report, folder, size).await?,
            Part::Memory => memory::measure(report, size).await?,
            Part::Cost => cost::measure(report, size).await?,
            Part::Backlog => backlog::measure(report, folder, size).await?,
            Part::KeepDone => keep_done::measure(report, folder, size, &args.served.store).await?,
            Part::Records => records::measure(report, folder, size).await?,
            Part::Keys => keys::measure(report, folder, size).await?,
            Part::Estimates => estimates::measure(report, size),
            Part::Simulate => simulate::measure(report, size)?,
            Part::Schedules => schedules::measure(report, folder, size).await?,
            Part::Http => http::measure(report, folder, size).await?,
            Part::Served => served::measure(report, folder, size, &args.served).await?,
            Part::Page => page::measure(report, folder, size).await?,
            Part::Iproto => iproto::measure(report, folder, size, args.tarantool.as_deref())?,
            Part::Workers => workers::measure(report, folder, size).await?,
            Part::Pool => pool::measure(report).await?,
            Part::PoolRedis => pool::over_redis::measure(report, folder).await?,
            Part::Resident => resident::measure(report, folder, size)?,
            Part::Postgres => postgres::measure(report, folder, size).await?,
            Part::Servers => postgres::measure_servers(report, folder, size).await?,
            Part::Snapshot => postgres::measure_held(report, folder, size).await?,
            Part::Redis => redis::measure(report, folder, size).await?,
            Part::Clients => clients::measure(report, folder, size)?,
            Part::Tarantool => tarantool::measure(report, folder, size).await?,
            Part::Semaphores | Part::Sql | Part::Copy => {
                self.measure_on_database(report, args, folder, size).await?;
            }
        }
        Ok(())
    }

    /// Measures a part that needs a PostgreSQL, which the user may give.
    async fn measure_on_database(
        self,
        report: &mut Report,
        args: &Args,
        folder: &Path,
        size: Size,
    ) -> Result<()> {
        // A copy goes into a new database: one given by the user may have such a tube.
        let given = args.postgres.as_deref().filter(|_| self != Part::Copy);
        let database = postgres::database(folder, given)?;
        let url = database.as_ref().map(Database::url);
        match (self, url) {
            (Part::Sql, Some(url)) => sql::measure(report, &url, args.quick).await,
            (Part::Copy, Some(url)) => copy::measure(report, folder, size, &url).await,
            (Part::Semaphores, url) => {
                semaphores::measure(report, folder, size, url.as_deref()).await
            }
            _ => Ok(()),
        }
    }
}

async fn measure(args: &Args, folder: &Path) -> Result<Report> {
    let size = if args.quick { QUICK } else { FULL };
    let mut report = Report::default();
    for part in Part::value_variants().iter().copied().filter(|part| part.is_wanted(&args.only)) {
        report.begin(&part.name());
        // A durable store is compared with its disk.
        if part == Part::Durable && !Part::Disk.is_wanted(&args.only) {
            disk::measure(&mut report, folder, size.seconds)?;
        }
        part.measure(&mut report, args, folder, size).await?;
    }
    Ok(report)
}

/// The URL of a new durable store of this run.
fn store_in(folder: &Path, name: &str) -> String {
    let place = folder.join(name);
    _ = std::fs::remove_dir_all(&place);
    format!("sqlite:{}", place.display())
}

/// The product's binary, which is built next to this one.
fn product() -> Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name("taskyard");
    ensure!(
        program.exists(),
        "{} is missing: run cargo xtask bench, which builds it",
        program.display()
    );
    Ok(program)
}

/// The runtime that `taskyard serve` uses.
fn server_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    let cores = std::thread::available_parallelism().map_or(2, NonZero::get);
    let workers = cores.saturating_sub(1).max(1);
    tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build()
}

//! `sql`: run SQL tasks, and look after them.

mod look;
mod tell;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use taskyard_core::Span;
use taskyard_core::service::Service;
use taskyard_sql::table::Names;
use taskyard_sql::{Config, Conninfo, Desk, Source, SqlTasks, Which};
use taskyard_wire::Exit;
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Wrong;
use crate::log;
use crate::output::{self, printable};
use crate::serve::{Stop, stop_at_first};
use crate::units;

/// How long running tasks may go on when all is stopped.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// What to do with SQL tasks.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard sql --database postgres://db/shop                  the table public.task of shop
  taskyard sql --database postgres://db/shop --config tasks.json
  psql postgres://db/shop -c \"INSERT INTO task (input) VALUES ('SELECT now()')\"
  taskyard sql check tasks.json                               what the file means
  export TASKYARD_DATABASE=postgres://db/shop
  taskyard sql list --state done                              the newest tasks
  taskyard sql show 5                                         everything about one
  taskyard sql run 5                                          now; one that has ended, again
  taskyard sql stop 5                                         also where 5 has ended and repeats
  taskyard sql stop --group reports                           the task of this group that repeats
  taskyard sql next                                           the coming twenty runs

The file is an array such as [{\"data\": \"shop\", \"user\": \"shop\", \"schema\": \"public\", \"table\": \"task\",
\"sleep\": 1000, \"reset\": \"1 hour\"}]; what is left out is filled in. It is read again when it changes and on
SIGHUP. Ctrl-C or SIGTERM lets running tasks end. TASKYARD_LOG=info tells more.")]
pub struct SqlArgs {
    #[command(subcommand)]
    verb: Option<SqlVerb>,
    #[command(flatten)]
    at: AtArgs,
    /// The tables, as a file; without it the table public.task of the database.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The same, as text.
    #[arg(long, value_name = "JSON", conflicts_with = "config")]
    rows: Option<String>,
    /// How long running tasks may go on when it is stopped; then they are given back.
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    #[arg(default_value = "10s")]
    patience: Span,
}

/// Which database.
#[derive(Debug, Args)]
struct AtArgs {
    /// How to connect: postgres://USER@HOST/DATABASE, or pairs such as host=db dbname=shop.
    #[arg(long, value_name = "URL", env = "TASKYARD_DATABASE", hide_env_values = true)]
    #[arg(global = true)]
    database: Option<String>,
}

/// Which table of it.
#[derive(Debug, Args)]
struct TableArgs {
    /// The schema.
    #[arg(long, value_name = "NAME", default_value = "public")]
    schema: String,
    /// The table.
    #[arg(long, value_name = "NAME", default_value = "task")]
    table: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What to do with SQL tasks.
#[derive(Debug, Subcommand)]
enum SqlVerb {
    /// Say whether a file of tables can be used, what is missing in it is filled with, and, with a database, which
    /// rights are missing there.
    #[command(after_help = "Examples:
  taskyard sql check tasks.json
  taskyard sql check tasks.json --database postgres://db/shop
  taskyard sql check --database postgres://db/shop")]
    Check {
        /// The file; without it the table public.task of the database.
        file: Option<PathBuf>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show the newest tasks, and why they do not run now.
    #[command(after_help = "Examples:
  taskyard sql list --database postgres://db/shop
  taskyard sql list --database postgres://db/shop --state plan --count 5
  taskyard sql list --database postgres://db/shop --schema jobs --table task --json")]
    List {
        #[command(flatten)]
        table: TableArgs,
        /// Only those in this state; FAIL and GONE are of the profile `extended`.
        #[arg(long, ignore_case = true)]
        #[arg(value_parser = ["PLAN", "TAKE", "WORK", "DONE", "STOP", "FAIL", "GONE"])]
        state: Option<String>,
        /// At most how many.
        #[arg(long, value_name = "N", default_value_t = 20)]
        count: usize,
    },
    /// Show everything about a task.
    #[command(after_help = "Examples:
  taskyard sql show 5 --database postgres://db/shop
  taskyard sql show --group reports --database postgres://db/shop")]
    Show(OneArgs),
    /// Let a task run now; one that has ended runs again as another.
    #[command(after_help = "Examples:
  taskyard sql run 5 --database postgres://db/shop
  taskyard sql run --group reports --database postgres://db/shop")]
    Run(OneArgs),
    /// Stop a task: one that runs is cancelled, one that is planned never begins.
    #[command(after_help = "Examples:
  taskyard sql stop 5 --database postgres://db/shop
  taskyard sql stop --group reports --database postgres://db/shop")]
    Stop(OneArgs),
    /// Show the coming runs, of all tasks or of one.
    #[command(after_help = "Examples:
  taskyard sql next --database postgres://db/shop
  taskyard sql next 5 --count 3 --database postgres://db/shop
  taskyard sql next --group reports --database postgres://db/shop")]
    Next {
        /// The task, or the first of its repetitions.
        id: Option<i64>,
        /// Instead of an id: the task of this group that repeats.
        #[arg(long, value_name = "NAME", conflicts_with = "id")]
        group: Option<String>,
        #[command(flatten)]
        table: TableArgs,
        /// At most how many.
        #[arg(long, value_name = "N", default_value_t = 20)]
        count: usize,
    },
}

/// Which task.
#[derive(Debug, Args)]
struct OneArgs {
    /// The task, or the first of its repetitions.
    #[arg(required_unless_present = "group")]
    id: Option<i64>,
    /// Instead of an id: the task of this group that repeats.
    #[arg(long, value_name = "NAME", conflicts_with = "id")]
    group: Option<String>,
    #[command(flatten)]
    table: TableArgs,
}

impl OneArgs {
    /// The task that is meant.
    fn which(&self) -> Which {
        // One of the two is there: the parser has seen to it.
        which(self.id, self.group.as_deref()).unwrap_or(Which::Id(0))
    }
}

fn which(id: Option<i64>, group: Option<&str>) -> Option<Which> {
    id.map(Which::Id).or_else(|| group.map(|group| Which::Group(group.to_owned())))
}

/// A task as a person named it.
fn named(which: &Which) -> String {
    match which {
        Which::Id(id) => format!("no task {id}"),
        Which::Group(group) => format!("no task that repeats in the group {}", printable(group)),
    }
}

/// Runs the scheduler or one of the other commands.
pub fn run(args: SqlArgs) -> anyhow::Result<Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let at = &args.at;
        match &args.verb {
            None => schedule(&args).await,
            Some(SqlVerb::Check { file, json }) => {
                let database = at.database.as_ref().map(|_| at.conninfo()).transpose()?;
                look::check(file.as_deref(), database.as_ref(), *json).await
            }
            Some(SqlVerb::List { table, state, count }) => {
                // Accepted in either case, and kept as it was written.
                let state = state.as_deref().map(str::to_uppercase);
                look::list(&mut at.desk(table).await?, state.as_deref(), *count, table.json).await
            }
            Some(SqlVerb::Show(one)) => look::show(&mut at.desk(&one.table).await?, one).await,
            Some(SqlVerb::Run(one)) => tell::run(&mut at.desk(&one.table).await?, one).await,
            Some(SqlVerb::Stop(one)) => tell::stop(&mut at.desk(&one.table).await?, one).await,
            Some(SqlVerb::Next { id, group, table, count }) => {
                let which = which(*id, group.as_deref());
                look::next(&mut at.desk(table).await?, which, *count, table.json).await
            }
        }
    })
}

impl AtArgs {
    fn conninfo(&self) -> anyhow::Result<Conninfo> {
        let wanted = "say which database: --database or TASKYARD_DATABASE";
        let text = self.database.as_deref().ok_or_else(|| Wrong(wanted.into()))?;
        conninfo(text)
    }

    async fn desk(&self, table: &TableArgs) -> anyhow::Result<Desk> {
        let names = Names { schema: table.schema.clone(), table: table.table.clone() };
        Ok(Desk::open(&self.conninfo()?, names).await?)
    }
}

fn conninfo(text: &str) -> anyhow::Result<Conninfo> {
    let read = Conninfo::parse(text).and_then(|mut conninfo| {
        let look = |name: &str| std::env::var(name).ok();
        conninfo.fill(look)?;
        conninfo.password = conninfo.password.or_else(|| look("PGPASSWORD"));
        conninfo.passfile = conninfo
            .passfile
            .or_else(|| look("PGPASSFILE"))
            .or_else(|| Some(format!("{}/.pgpass", look("HOME")?)));
        Ok(conninfo)
    });
    Ok(read.map_err(|error| Wrong(format!("--database: {error}")))?)
}

/// Starts SQL tasks on the runtime this is called on; SIGHUP reads the configuration anew.
pub fn start(database: &str, source: Source, patience: Duration) -> anyhow::Result<SqlTasks> {
    let tasks = SqlTasks::start(conninfo(database)?, source, patience)
        .map_err(|error| Wrong(error.to_string()))?;
    let (mut hangup, reloading) = (signal(SignalKind::hangup())?, tasks.clone());
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            reloading.reload();
        }
    });
    Ok(tasks)
}

/// Schedules until told to stop.
async fn schedule(args: &SqlArgs) -> anyhow::Result<Exit> {
    log::start();
    let source = match (&args.config, &args.rows) {
        (Some(file), _) => Source::File(file.clone()),
        (None, Some(text)) => {
            Source::Given(Config::parse(text).map_err(|error| Wrong(error.to_string()))?)
        }
        (None, None) => Source::Given(Config::alone(&args.at.conninfo()?)),
    };
    let database = args.at.database.as_deref().unwrap_or_default();
    args.at.conninfo()?;
    let (stop, again) = (Stop::new()?, Stop::new()?);
    let tasks = start(database, source, args.patience.into())?;
    let mut screen = format!("taskyard {} runs SQL tasks\n", env!("CARGO_PKG_VERSION"));
    for (row, _) in tasks.statuses() {
        screen.push_str(&format!("  {} in {} as {}\n", row.names.quoted(), row.data, row.user));
    }
    if let Some((row, _)) = tasks.statuses().first() {
        let (schema, table) = (&row.names.schema, &row.names.table);
        screen.push_str(&format!(
            "Try it in psql: INSERT INTO {} (input) VALUES ('SELECT now()');\n\
             and look with: taskyard sql list --database URL --schema {schema} --table {table}; Ctrl-C stops it.\n",
            row.names.quoted()
        ));
    }
    // A person who closes the terminal's pipe still wants the scheduler.
    let _ = output::bytes(screen.as_bytes());
    stop_at_first(stop, again).await;
    tasks.stop().await;
    output::line("stopped").context("cannot say goodbye")?;
    Ok(Exit::Ok)
}

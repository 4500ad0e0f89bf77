//! `sql`: runs SQL tasks, and shows, runs and stops them.

mod control;
mod inspect;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use taskyard_core::Span;
use taskyard_core::service::Service;
use taskyard_sql::table::TableName;
use taskyard_sql::{Config, Conninfo, Source, SqlTasks, TaskAdmin, TaskSelector};
use taskyard_wire::Exit;
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::UsageError;
use crate::log;
use crate::output::{self, printable};
use crate::serve::{StopSignals, stop_at_first};
use crate::units;

/// How long running tasks may continue when the service stops.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The arguments of `sql`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard sql --database postgres://db/shop                  run the tasks of public.task in shop
  taskyard sql --database postgres://db/shop --config tasks.json
  psql postgres://db/shop -c \"INSERT INTO task (input) VALUES ('SELECT now()')\"
  taskyard sql check tasks.json                               validate the file
  export TASKYARD_DATABASE=postgres://db/shop
  taskyard sql list --state done                              the newest tasks
  taskyard sql show 5                                         all columns of task 5
  taskyard sql run 5                                          run it now, or again
  taskyard sql stop 5                                         stop it, or its next run if it repeats
  taskyard sql stop --group reports                           stop the repeating task of this group
  taskyard sql next                                           the next twenty runs

The file is a JSON array such as [{\"data\": \"shop\", \"user\": \"shop\", \"schema\": \"public\", \"table\":
\"task\", \"sleep\": 1000, \"reset\": \"1 hour\"}]; keys that are left out have defaults. It is read again
when it changes and on SIGHUP. Ctrl-C or SIGTERM stops the scheduler after its running tasks.
TASKYARD_LOG=info logs more.")]
pub struct SqlArgs {
    #[command(subcommand)]
    verb: Option<SqlVerb>,
    #[command(flatten)]
    database: DatabaseArgs,
    /// Read the tables to run from this JSON file; without it, the table public.task of the database.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The tables to run, as JSON on the command line.
    #[arg(long, value_name = "JSON", conflicts_with = "config")]
    rows: Option<String>,
    /// How long running tasks may continue when the scheduler stops; after that they return to the state PLAN.
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    #[arg(default_value = "10s")]
    patience: Span,
}

/// The database.
#[derive(Debug, Args)]
struct DatabaseArgs {
    /// Connection URL: postgres://USER@HOST/DATABASE, or pairs such as host=db dbname=shop.
    #[arg(
        long = "database",
        value_name = "URL",
        env = "TASKYARD_DATABASE",
        hide_env_values = true
    )]
    #[arg(global = true)]
    url: Option<String>,
}

/// The table.
#[derive(Debug, Args)]
struct TableArgs {
    /// The schema of the table.
    #[arg(long, value_name = "NAME", default_value = "public")]
    schema: String,
    /// The name of the table.
    #[arg(long, value_name = "NAME", default_value = "task")]
    table: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The subcommands of `sql`.
#[derive(Debug, Subcommand)]
enum SqlVerb {
    /// Validate a configuration file, show its defaults and, with --database, the rights that are missing there.
    #[command(after_help = "Examples:
  taskyard sql check tasks.json
  taskyard sql check tasks.json --database postgres://db/shop
  taskyard sql check --database postgres://db/shop

The exit code is 1 if a right is missing or a table cannot be checked, and 2 if the file is invalid.")]
    Check {
        /// The configuration file; without it, the table public.task of the database is checked.
        file: Option<PathBuf>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show the newest tasks and why they are not running.
    #[command(after_help = "Examples:
  taskyard sql list --database postgres://db/shop
  taskyard sql list --database postgres://db/shop --state plan --count 5
  taskyard sql list --database postgres://db/shop --schema jobs --table task --json")]
    List {
        #[command(flatten)]
        table: TableArgs,
        /// Show only tasks in this state; FAIL and GONE exist in the profile `extended`.
        #[arg(long, ignore_case = true)]
        #[arg(value_parser = ["PLAN", "TAKE", "WORK", "DONE", "STOP", "FAIL", "GONE"])]
        state: Option<String>,
        /// Show at most this many.
        #[arg(long, value_name = "N", default_value_t = 20)]
        count: usize,
    },
    /// Show all columns of a task.
    #[command(after_help = "Examples:
  taskyard sql show 5 --database postgres://db/shop
  taskyard sql show --group reports --database postgres://db/shop")]
    Show(TaskArgs),
    /// Run a task now; a task that has ended is copied, and the copy runs.
    #[command(after_help = "Examples:
  taskyard sql run 5 --database postgres://db/shop
  taskyard sql run --group reports --database postgres://db/shop")]
    Run(TaskArgs),
    /// Stop a task: a running task is cancelled, a planned one does not start.
    #[command(after_help = "Examples:
  taskyard sql stop 5 --database postgres://db/shop
  taskyard sql stop --group reports --database postgres://db/shop")]
    Stop(TaskArgs),
    /// Show the next runs of all tasks or of one.
    #[command(after_help = "Examples:
  taskyard sql next --database postgres://db/shop
  taskyard sql next 5 --count 3 --database postgres://db/shop
  taskyard sql next --group reports --database postgres://db/shop")]
    Next {
        /// The id of the task, or of any of its repetitions.
        id: Option<i64>,
        /// Select the repeating task of this group instead of an id.
        #[arg(long, value_name = "NAME", conflicts_with = "id")]
        group: Option<String>,
        #[command(flatten)]
        table: TableArgs,
        /// Show at most this many.
        #[arg(long, value_name = "N", default_value_t = 20)]
        count: usize,
    },
}

/// A task, selected by its id or by its group.
#[derive(Debug, Args)]
struct TaskArgs {
    /// The id of the task, or of any of its repetitions.
    #[arg(required_unless_present = "group")]
    id: Option<i64>,
    /// Select the repeating task of this group instead of an id.
    #[arg(long, value_name = "NAME", conflicts_with = "id")]
    group: Option<String>,
    #[command(flatten)]
    table: TableArgs,
}

impl TaskArgs {
    /// The selected task.
    fn selector(&self) -> TaskSelector {
        // The parser requires one of the two.
        selector(self.id, self.group.as_deref()).unwrap_or(TaskSelector::Id(0))
    }
}

fn selector(id: Option<i64>, group: Option<&str>) -> Option<TaskSelector> {
    id.map(TaskSelector::Id).or_else(|| group.map(|group| TaskSelector::Group(group.to_owned())))
}

/// The message for a task that does not exist.
fn missing_text(selector: &TaskSelector) -> String {
    match selector {
        TaskSelector::Id(id) => {
            format!("taskyard: task {id} does not exist; see taskyard sql list")
        }
        TaskSelector::Group(group) => format!(
            "taskyard: the group {} has no repeating task; see taskyard sql list",
            printable(group)
        ),
    }
}

/// Runs the scheduler or a subcommand.
pub fn run(args: SqlArgs) -> anyhow::Result<Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let database = &args.database;
        match &args.verb {
            None => schedule(&args).await,
            Some(SqlVerb::Check { file, json }) => {
                let database = database.url().map(conninfo).transpose()?;
                inspect::check(file.as_deref(), database.as_ref(), *json).await
            }
            Some(SqlVerb::List { table, state, count }) => {
                // The parser accepts either case and keeps it.
                let state = state.as_deref().map(str::to_uppercase);
                inspect::list(
                    &mut database.open_admin(table).await?,
                    state.as_deref(),
                    *count,
                    table.json,
                )
                .await
            }
            Some(SqlVerb::Show(one)) => {
                inspect::show(&mut database.open_admin(&one.table).await?, one).await
            }
            Some(SqlVerb::Run(one)) => {
                control::run(&mut database.open_admin(&one.table).await?, one).await
            }
            Some(SqlVerb::Stop(one)) => {
                control::stop(&mut database.open_admin(&one.table).await?, one).await
            }
            Some(SqlVerb::Next { id, group, table, count }) => {
                let selector = selector(*id, group.as_deref());
                inspect::next(&mut database.open_admin(table).await?, selector, *count, table.json)
                    .await
            }
        }
    })
}

/// The message where neither the option nor the variable names a database.
const NO_DATABASE: &str = "no database given; set --database URL or TASKYARD_DATABASE";

impl DatabaseArgs {
    /// The URL; an empty one counts as absent.
    fn url(&self) -> Option<&str> {
        self.url.as_deref().filter(|url| !url.is_empty())
    }

    fn conninfo(&self) -> anyhow::Result<Conninfo> {
        conninfo(self.url().ok_or_else(|| UsageError(NO_DATABASE.into()))?)
    }

    async fn open_admin(&self, table: &TableArgs) -> anyhow::Result<TaskAdmin> {
        let names = TableName { schema: table.schema.clone(), table: table.table.clone() };
        Ok(TaskAdmin::open(&self.conninfo()?, names).await?)
    }
}

/// Reads a connection URL; variables of PostgreSQL's own programs complete it.
pub fn conninfo(text: &str) -> anyhow::Result<Conninfo> {
    if text.is_empty() {
        return Err(UsageError(NO_DATABASE.into()).into());
    }
    let read = Conninfo::parse(text).and_then(|mut conninfo| {
        let variable = |name: &str| std::env::var(name).ok();
        conninfo.fill(variable)?;
        conninfo.password = conninfo.password.or_else(|| variable("PGPASSWORD"));
        conninfo.passfile = conninfo
            .passfile
            .or_else(|| variable("PGPASSFILE"))
            .or_else(|| Some(format!("{}/.pgpass", variable("HOME")?)));
        Ok(conninfo)
    });
    Ok(read.map_err(|error| UsageError(format!("--database: {error}")))?)
}

/// Starts SQL tasks on the current runtime; SIGHUP reads the configuration again.
pub fn start(database: &str, source: Source, patience: Duration) -> anyhow::Result<SqlTasks> {
    let tasks = SqlTasks::start(conninfo(database)?, source, patience)
        .map_err(|error| UsageError(error.to_string()))?;
    let (mut hangup, reloading) = (signal(SignalKind::hangup())?, tasks.clone());
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            reloading.reload();
        }
    });
    Ok(tasks)
}

/// Runs SQL tasks until a signal stops it.
async fn schedule(args: &SqlArgs) -> anyhow::Result<Exit> {
    log::start();
    let source = match (&args.config, &args.rows) {
        (Some(file), _) => Source::File(file.clone()),
        (None, Some(text)) => {
            Source::Inline(Config::parse(text).map_err(|error| UsageError(error.to_string()))?)
        }
        (None, None) => Source::Inline(Config::single(&args.database.conninfo()?)),
    };
    let database = args.database.url().unwrap_or_default();
    let (stop, again) = (StopSignals::new()?, StopSignals::new()?);
    let tasks = start(database, source, args.patience.into())?;
    let mut screen = format!("taskyard {}: running SQL tasks\n", env!("CARGO_PKG_VERSION"));
    for (row, _) in tasks.statuses() {
        screen.push_str(&format!("  {} in {} as {}\n", row.names.quoted(), row.data, row.user));
    }
    if let Some((row, _)) = tasks.statuses().first() {
        let (schema, table) = (&row.names.schema, &row.names.table);
        screen.push_str(&format!(
            "Try it in psql: INSERT INTO {} (input) VALUES ('SELECT now()');\n\
             Then show the tasks: taskyard sql list --database URL --schema {schema} --table {table}\n\
             Stop with Ctrl-C.\n",
            row.names.quoted()
        ));
    }
    // A closed standard output does not stop the scheduler.
    let _ = output::bytes(screen.as_bytes());
    stop_at_first(stop, again).await;
    tasks.stop().await;
    output::line("stopped").context("cannot write to standard output")?;
    Ok(Exit::Ok)
}

//! All commands and their help texts.

use clap::{Parser, Subcommand};

use crate::actions::RetryArgs;
use crate::audit::AuditArgs;
use crate::backup::BackupArgs;
use crate::bench::BenchArgs;
use crate::completions::CompletionsArgs;
use crate::config::ConfigArgs;
use crate::contract::ContractArgs;
use crate::copy::CopyArgs;
use crate::delete::DeleteArgs;
use crate::demo::DemoArgs;
use crate::finish::{AckArgs, BuryArgs, FailArgs, ReleaseArgs, TouchArgs};
use crate::health::HealthArgs;
use crate::kick::KickArgs;
use crate::manager::ManagerArgs;
use crate::migrate::MigrateArgs;
use crate::peek::PeekArgs;
use crate::pool::PoolArgs;
use crate::put::PutArgs;
use crate::restore::RestoreArgs;
use crate::schedule::ScheduleArgs;
use crate::semaphore::SemaphoreArgs;
use crate::serve::ServeArgs;
use crate::simulate::SimulateArgs;
use crate::sql::SqlArgs;
use crate::stats::StatsArgs;
use crate::take::TakeArgs;
use crate::tasks::{ShowTaskArgs, TasksArgs};
use crate::top::TopArgs;
use crate::tube::TubeArgs;
use crate::user::UserArgs;
use crate::when::WhenArgs;
use crate::worker::WorkerArgs;
use crate::workers::WorkersArgs;

/// The list is that of `taskyard_wire::codes`; a test compares them.
const EXIT_CODES: &str = "\
Times: 5s, 1m30s, 250ms, 2h, 1d, or a plain number of seconds.

Exit codes:
  0  done
  1  something failed that no other number says
  2  wrong arguments or a wrong request
  3  nothing to take in the time given
  4  no such tube, task, session, semaphore or schedule
  5  at least one delivery is no longer the caller's
  6  refused: full, too large, overloaded, exists or in use
  7  the server cannot be reached or is stopping
  8  not allowed: the token or a role is missing or wrong
  9  serve: the address to listen on is in use or not allowed
  10  serve: the data folder is in use by another process
  11  serve: the store's URL names no store

First steps:
  taskyard serve                          # in one terminal
  taskyard put mail '{\"to\": \"ann\"}'       # in another; prints the id
  taskyard take mail --lease 1h
  taskyard ack mail 0";

/// A task queue with priorities, delays, leases, schedules, semaphores and SQL tasks.
#[derive(Debug, Parser)]
#[command(name = "taskyard", version, after_help = EXIT_CODES, max_term_width = 100)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub verb: Verb,
}

/// All commands.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run the server; by default it stores tasks in a folder of this machine.
    Serve(Box<ServeArgs>),
    /// Start a server in memory with a lively example, to look around.
    Demo(DemoArgs),
    /// Check and write the configuration file of a server.
    Config(ConfigArgs),
    /// Upgrade the schema of a database to this version.
    Migrate(MigrateArgs),
    /// Copy tubes with their tasks, and semaphores, from one store to another.
    Copy(CopyArgs),
    /// Write everything in a running server's data folder into a file.
    Backup(BackupArgs),
    /// Make a data folder of a backup, or verify a backup.
    Restore(RestoreArgs),
    /// Add tasks to a tube; prints their ids.
    Put(PutArgs),
    /// Take tasks from a tube for a limited time (the lease).
    Take(TakeArgs),
    /// Acknowledge tasks as done; they are removed.
    #[command(after_help = ACK_EXAMPLES)]
    Ack(AckArgs),
    /// Return taken tasks to their tube, at once or after a delay.
    Release(ReleaseArgs),
    /// Set tasks aside; they are not delivered until they are kicked.
    Bury(BuryArgs),
    /// Report that taken tasks failed: the error is kept, and they are tried again.
    Fail(FailArgs),
    /// Make chosen buried tasks ready again: by id, error, payload or worker.
    Retry(RetryArgs),
    /// Make the first buried tasks ready again.
    Kick(KickArgs),
    /// Extend the lease of taken tasks.
    Touch(TouchArgs),
    /// Remove tasks in any state, including taken ones.
    Delete(DeleteArgs),
    /// Show tasks without taking them, and why they are not running.
    Peek(PeekArgs),
    /// List the tasks of a tube: by state, by payload, in the order of delivery.
    Tasks(TasksArgs),
    /// Show everything about one task.
    Task(ShowTaskArgs),
    /// Show when waiting tasks will start.
    When(WhenArgs),
    /// Replay a recorded trace with other consumers, limits and priorities, and show the waits.
    Simulate(SimulateArgs),
    /// Show the number of tasks and calls of each tube.
    Stats(StatsArgs),
    /// Check that the server runs and can write to its store.
    Health(HealthArgs),
    /// Show a live view of all tubes with their rates per second.
    Top(TopArgs),
    /// Create, change, show and remove tubes.
    Tube(TubeArgs),
    /// Put tasks at certain times: by cron expressions or at intervals.
    Schedule(ScheduleArgs),
    /// Run the SQL tasks of a PostgreSQL database: INSERT a query, and it runs.
    Sql(SqlArgs),
    /// Limit how many tasks run at once, by priority: enqueue, release, read events.
    Semaphore(SemaphoreArgs),
    /// Run programs for clients, with limits by running time.
    Pool(PoolArgs),
    /// Take, print and ack tasks until Ctrl-C; with --exec run a command for each.
    Worker(WorkerArgs),
    /// Show the workers: which tasks they hold, and how many they finished.
    Workers(WorkersArgs),
    /// Show what operators and administrators changed: who, from where, how many tasks.
    Audit(AuditArgs),
    /// Show the manager of typed workers and its plan.
    Manager(ManagerArgs),
    /// Check contracts of typed queues and generate code from them.
    Contract(ContractArgs),
    /// Add, list and remove users of a server: roles and tokens.
    User(UserArgs),
    /// Measure the rate and the latency of a running server.
    Bench(BenchArgs),
    /// Print the completion script of a shell.
    Completions(CompletionsArgs),
    /// Write the manual pages of all commands into a folder.
    #[cfg(feature = "man")]
    #[command(hide = true)]
    Man(crate::man::ManArgs),
}

const ACK_EXAMPLES: &str = "\
Examples:
  taskyard ack mail 0:17           delivery 17 of task 0, as printed by take
  taskyard ack mail 0:17 1:18      several tasks
  taskyard ack mail 0              the current delivery of task 0, of any consumer

With the lease number the ack is refused (exit code 5) if the task has been delivered to another
consumer.";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_help_lists_all_exit_codes() {
        let list = include_str!("../../wire/src/codes.rs");
        let rows = list.lines().skip_while(|line| *line != "//! | exit | when |").skip(2);
        let rows: Vec<&str> = rows.take_while(|line| line.starts_with("//! |")).collect();
        assert_eq!(rows.len(), 12);
        for row in rows {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let line = format!("  {}  {}", cells[1], cells[2]);
            assert!(EXIT_CODES.contains(&line), "missing in the help: {line:?}");
        }
    }
}

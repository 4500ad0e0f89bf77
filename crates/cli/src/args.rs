//! Every command, as the help shows it.

use clap::{Parser, Subcommand};

use crate::bench::BenchArgs;
use crate::completions::CompletionsArgs;
use crate::contract::ContractArgs;
use crate::copy::CopyArgs;
use crate::delete::DeleteArgs;
use crate::finish::{AckArgs, ReleaseArgs, TouchArgs};
use crate::kick::KickArgs;
use crate::manager::ManagerArgs;
use crate::migrate::MigrateArgs;
use crate::peek::PeekArgs;
use crate::pool::PoolArgs;
use crate::put::PutArgs;
use crate::semaphore::SemaphoreArgs;
use crate::serve::ServeArgs;
use crate::sql::SqlArgs;
use crate::stats::StatsArgs;
use crate::take::TakeArgs;
use crate::top::TopArgs;
use crate::tube::TubeArgs;
use crate::worker::WorkerArgs;

/// The list is that of `taskyard_wire::codes`; a test compares them.
const EXIT_CODES: &str = "\
Times: 5s, 1m30s, 250ms, 2h, 1d, or a plain number of seconds.

Exit codes:
  0  done
  1  something failed that no other number says
  2  wrong arguments or a wrong request
  3  nothing to take in the time given
  4  no such tube, task, session or semaphore
  5  at least one delivery is no longer the caller's
  6  refused: full, too large, overloaded, exists or in use
  7  the server cannot be reached or is stopping
  8  not allowed: the token is missing or wrong
  9  serve: the address to listen on is in use or not allowed
  10  serve: the data folder is in use by another process
  11  serve: the store's URL names no store

First steps:
  taskyard serve                          # in one terminal
  taskyard put mail '{\"to\": \"ann\"}'       # in another; prints the id
  taskyard take mail
  taskyard ack mail 0";

/// A task queue that knows who goes next.
#[derive(Debug, Parser)]
#[command(name = "taskyard", version, after_help = EXIT_CODES, max_term_width = 100)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run the server, with the tasks in a folder of this machine.
    Serve(ServeArgs),
    /// Bring a database to the form that this version needs.
    Migrate(MigrateArgs),
    /// Copy tubes with their tasks, and semaphores, from one store to another.
    Copy(CopyArgs),
    /// Add tasks to a tube; prints their ids.
    Put(PutArgs),
    /// Take tasks from a tube; ack them when they are done.
    Take(TakeArgs),
    /// Say that tasks are done: they are removed.
    #[command(after_help = ACK_EXAMPLES)]
    Ack(AckArgs),
    /// Give tasks back, to be taken again at once or later.
    Release(ReleaseArgs),
    /// Put tasks aside until somebody kicks them.
    #[command(after_help = BURY_EXAMPLES)]
    Bury(AckArgs),
    /// Bring buried tasks back.
    Kick(KickArgs),
    /// Ask for more time for taken tasks.
    Touch(TouchArgs),
    /// Remove tasks, whoever holds them.
    Delete(DeleteArgs),
    /// Show tasks without taking them, and why they do not run now.
    Peek(PeekArgs),
    /// Show what the tubes have and what was done to them.
    Stats(StatsArgs),
    /// Watch the tubes live: what they have, and what is done to them a second.
    Top(TopArgs),
    /// Make, change, show and remove tubes.
    Tube(TubeArgs),
    /// Run the SQL tasks of a PostgreSQL database: INSERT a query, it runs.
    Sql(SqlArgs),
    /// Let only the best tasks go on: stand in line, release, see events.
    Semaphore(SemaphoreArgs),
    /// Run programs for clients, with limits by running time.
    Pool(PoolArgs),
    /// Take, print and ack tasks until Ctrl-C; with --exec run a command for each.
    Worker(WorkerArgs),
    /// Show who plans for typed workers, and what is planned.
    Manager(ManagerArgs),
    /// Check contracts of typed queues and generate code from them.
    Contract(ContractArgs),
    /// Measure the rate and the latency of a running server.
    Bench(BenchArgs),
    /// Print completions for a shell.
    Completions(CompletionsArgs),
}

const ACK_EXAMPLES: &str = "\
Examples:
  taskyard ack mail 0:17           the delivery 17 of task 0, as take printed it
  taskyard ack mail 0:17 1:18      several
  taskyard ack mail 0              whoever holds it now

With the lease number the ack is refused (exit code 5) when the task was given to somebody else.";

const BURY_EXAMPLES: &str = "\
Examples:
  taskyard bury mail 0:17          a task that was taken
  taskyard bury mail 0             a task in any state
  taskyard kick mail --count 5     bring up to five back";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_exit_codes_are_those_of_the_list() {
        let list = include_str!("../../wire/src/codes.rs");
        let rows = list.lines().skip_while(|line| *line != "//! | exit | when |").skip(2);
        let rows: Vec<&str> = rows.take_while(|line| line.starts_with("//! |")).collect();
        assert_eq!(rows.len(), 12);
        for row in rows {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let line = format!("  {}  {}", cells[1], cells[2]);
            assert!(EXIT_CODES.contains(&line), "the help lacks {line:?}");
        }
    }
}

//! `tube`: creates, changes, shows and removes tubes.

mod change;
pub mod pace;
mod show;

use clap::{Args, Subcommand};
use taskyard_core::{Command, Reply, TubeName};
use taskyard_wire::Exit;
use taskyard_wire::http::NothingAnswer;

use crate::confirm::{check_terminal, confirmed};
use crate::connect::{ServerArgs, unexpected_reply};
use crate::output;

use change::{AlterArgs, TubeCreateArgs};
use show::{TubeListArgs, TubePageArgs};

/// The arguments of `tube`.
#[derive(Debug, Args)]
#[command(after_help = "\
Kinds:
  fifo         order of arrival only
  fifottl      order by priority; ttl, ttr and delay (the default)
  limfifottl   fifottl with a capacity
  utube        order of arrival, one running task per sub-queue
  utubettl     utube with priority, ttl, ttr and delay")]
pub struct TubeArgs {
    #[command(subcommand)]
    verb: TubeVerb,
}

/// The subcommands of `tube`.
#[derive(Debug, Subcommand)]
enum TubeVerb {
    /// Create a tube.
    Create(TubeCreateArgs),
    /// Change a tube; existing tasks keep their times.
    Alter(AlterArgs),
    /// Rename a tube; its tasks stay.
    Rename(RenameArgs),
    /// Stop deliveries; everything else continues.
    Pause(NameArgs),
    /// Resume deliveries.
    Resume(NameArgs),
    /// Remove a tube with its tasks, after a confirmation; refused while tasks are taken or consumers wait.
    Drop(TubeDropArgs),
    /// Remove all tasks of a tube, taken ones too, after a confirmation.
    Truncate(TruncateArgs),
    /// Return all taken tasks of a tube.
    ReleaseAll(NameArgs),
    /// Show all tubes.
    #[command(visible_alias = "ls")]
    List(TubeListArgs),
    /// Show one tube: its options and counters.
    Show(NameArgs),
    /// Show the taken tasks of a tube and their sessions.
    Deliveries(TubePageArgs),
    /// Show the sessions that wait for a task of a tube.
    Consumers(TubePageArgs),
}

/// A tube.
#[derive(Debug, Args)]
struct NameArgs {
    /// The tube.
    tube: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// The arguments of `tube truncate`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard tube truncate mail            asks for confirmation
  taskyard tube truncate mail --yes      does not ask, for scripts")]
struct TruncateArgs {
    #[command(flatten)]
    name: NameArgs,
    /// Do not ask for confirmation.
    #[arg(long, short)]
    yes: bool,
}

/// The arguments of `tube drop`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard tube drop mail            asks for confirmation if the tube has tasks
  taskyard tube drop mail --yes      does not ask, for scripts")]
struct TubeDropArgs {
    #[command(flatten)]
    name: NameArgs,
    /// Do not ask for confirmation.
    #[arg(long, short)]
    yes: bool,
}

/// The arguments of `tube rename`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard tube rename emails letters

Consumers that use the old name get the error that the tube does not exist; a put with the old
name creates a new tube.")]
struct RenameArgs {
    /// The tube.
    tube: String,
    /// The new name.
    name: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// Runs a subcommand.
pub fn run(args: TubeArgs) -> anyhow::Result<Exit> {
    match args.verb {
        TubeVerb::Create(args) => change::create(args),
        TubeVerb::Alter(args) => change::alter(args),
        TubeVerb::Rename(args) => change::rename(&args),
        TubeVerb::Pause(args) => change::pause(&args, true),
        TubeVerb::Resume(args) => change::pause(&args, false),
        TubeVerb::Drop(args) => drop_tube(&args),
        TubeVerb::Truncate(args) => truncate(&args),
        TubeVerb::ReleaseAll(args) => {
            send(&args, |tube| Command::ReleaseAll { tube }, "released all of")
        }
        TubeVerb::List(args) => show::list(&args),
        TubeVerb::Show(args) => show::one(&args),
        TubeVerb::Deliveries(args) => show::deliveries(&args),
        TubeVerb::Consumers(args) => show::consumers(&args),
    }
}

/// Removes all tasks of a tube, after a confirmation.
fn truncate(args: &TruncateArgs) -> anyhow::Result<Exit> {
    if !args.yes {
        check_terminal("truncate removes every task of the tube")?;
        let tube = TubeName::new(&args.name.tube)?;
        let tasks = tasks_in(&args.name, &tube)?;
        if !confirmed(&format!(
            "remove every task of {tube} ({}), taken ones too?",
            output::plural(tasks, "task")
        ))? {
            return Ok(Exit::Ok);
        }
    }
    send(&args.name, |tube| Command::Truncate { tube }, "emptied")
}

/// Removes a tube. One with tasks needs a confirmation.
fn drop_tube(args: &TubeDropArgs) -> anyhow::Result<Exit> {
    if !args.yes {
        let tube = TubeName::new(&args.name.tube)?;
        let tasks = tasks_in(&args.name, &tube)?;
        if tasks > 0 {
            let count = output::plural(tasks, "task");
            check_terminal(&format!("drop removes the tube with {count}"))?;
            if !confirmed(&format!("remove {tube} with {count}?"))? {
                return Ok(Exit::Ok);
            }
        }
    }
    send(&args.name, |tube| Command::DropTube { tube }, "dropped")
}

/// How many tasks the tube has.
fn tasks_in(args: &NameArgs, tube: &TubeName) -> anyhow::Result<u64> {
    let list = Command::Tubes { tube: Some(tube.clone()) };
    let Reply::Tubes(tubes) = args.server.connect.execute(list)? else {
        return Err(unexpected_reply("tubes"));
    };
    Ok(tubes.iter().map(|tube| tube.stats.tasks.total()).sum())
}

/// Sends a command whose reply is empty, and prints that it is done.
fn send(
    args: &NameArgs,
    command: impl Fn(TubeName) -> Command,
    done: &str,
) -> anyhow::Result<Exit> {
    let tube = TubeName::new(&args.tube)?;
    args.server.connect.execute(command(tube.clone()))?;
    if args.server.json {
        output::json(&NothingAnswer {})?;
    } else {
        output::line(format!("{done} {tube}"))?;
    }
    Ok(Exit::Ok)
}

//! `tube`: creates, changes, shows and removes tubes.

mod change;
mod show;

use std::io::{self, IsTerminal};

use clap::{Args, Subcommand};
use taskyard_core::{Command, Reply, TubeName};
use taskyard_wire::Exit;
use taskyard_wire::http::NothingAnswer;

use crate::connect::{ServerArgs, unexpected_reply};
use crate::failure::UsageError;
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
    /// Remove a tube with its tasks; refused while tasks are taken or consumers wait.
    Drop(NameArgs),
    /// Remove all tasks of a tube, taken ones too.
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
        TubeVerb::Drop(args) => send(&args, |tube| Command::DropTube { tube }, "dropped"),
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
    if !args.yes && !confirmed(&args.name)? {
        output::note("nothing was removed");
        return Ok(Exit::Ok);
    }
    send(&args.name, |tube| Command::Truncate { tube }, "emptied")
}

/// Asks for confirmation on the terminal.
fn confirmed(args: &NameArgs) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        let why = "truncate removes every task of the tube and asks for confirmation; standard input is no \
                   terminal, so confirm with --yes";
        return Err(UsageError(why.into()).into());
    }
    let tube = TubeName::new(&args.tube)?;
    let Reply::Tubes(tubes) =
        args.server.connect.execute(Command::Tubes { tube: Some(tube.clone()) })?
    else {
        return Err(unexpected_reply("tubes"));
    };
    let tasks: u64 = tubes.iter().map(|tube| tube.stats.tasks.total()).sum();
    eprint!("remove all {tasks} tasks of {tube}, taken ones too? [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
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

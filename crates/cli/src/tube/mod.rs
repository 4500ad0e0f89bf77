//! `tube`: make, change, show and remove tubes.

mod change;
mod show;

use std::io::{self, IsTerminal};

use clap::{Args, Subcommand};
use taskyard_core::{Command, Reply, TubeName};
use taskyard_wire::Exit;
use taskyard_wire::http::NothingAnswer;

use crate::connect::{ConnectArgs, misfit};
use crate::failure::Wrong;
use crate::output;

use change::{AlterArgs, CreateArgs};
use show::{ListArgs, WhoArgs};

/// What to do with which tube.
#[derive(Debug, Args)]
#[command(after_help = "\
Kinds:
  fifo         in order of arrival, nothing else
  fifottl      order by priority; ttl, ttr, delay (the usual one)
  limfifottl   the same with a capacity
  utube        in order of arrival, one running task for each sub-queue
  utubettl     sub-queues, priority and times")]
pub struct TubeArgs {
    #[command(subcommand)]
    verb: TubeVerb,
}

/// What to do.
#[derive(Debug, Subcommand)]
enum TubeVerb {
    /// Make a tube.
    Create(CreateArgs),
    /// Change a tube; tasks that are there keep their times.
    Alter(AlterArgs),
    /// Give a tube another name; its tasks stay.
    Rename(RenameArgs),
    /// Stop deliveries; everything else goes on.
    Pause(NameArgs),
    /// Let deliveries go on.
    Resume(NameArgs),
    /// Remove a tube with its tasks; refused while tasks are taken or consumers wait.
    Drop(NameArgs),
    /// Remove all tasks of a tube, taken ones too.
    Truncate(TruncateArgs),
    /// Give back every taken task of a tube.
    ReleaseAll(NameArgs),
    /// Show all tubes.
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show one tube: its options and numbers.
    Show(NameArgs),
    /// Show who holds which tasks of a tube.
    Deliveries(WhoArgs),
    /// Show who waits for a task of a tube.
    Consumers(WhoArgs),
}

/// Which tube.
#[derive(Debug, Args)]
struct NameArgs {
    /// The tube.
    tube: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Which tube to empty.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard tube truncate mail            asks first
  taskyard tube truncate mail --yes      for scripts")]
struct TruncateArgs {
    #[command(flatten)]
    name: NameArgs,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
}

/// Which tube, and its new name.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard tube rename emails letters

Consumers that still use the old name are told that there is no such tube; a put under the old name makes a new one.")]
struct RenameArgs {
    /// The tube.
    tube: String,
    /// What it is called from now on.
    name: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Does it.
pub fn run(args: TubeArgs) -> anyhow::Result<Exit> {
    match args.verb {
        TubeVerb::Create(args) => change::create(args),
        TubeVerb::Alter(args) => change::alter(args),
        TubeVerb::Rename(args) => change::rename(&args),
        TubeVerb::Pause(args) => change::pause(&args, true),
        TubeVerb::Resume(args) => change::pause(&args, false),
        TubeVerb::Drop(args) => silent(&args, |tube| Command::DropTube { tube }, "dropped"),
        TubeVerb::Truncate(args) => truncate(&args),
        TubeVerb::ReleaseAll(args) => {
            silent(&args, |tube| Command::ReleaseAll { tube }, "released all of")
        }
        TubeVerb::List(args) => show::list(&args),
        TubeVerb::Show(args) => show::one(&args),
        TubeVerb::Deliveries(args) => show::deliveries(&args),
        TubeVerb::Consumers(args) => show::consumers(&args),
    }
}

/// Removes all tasks of a tube, when that is really wanted.
fn truncate(args: &TruncateArgs) -> anyhow::Result<Exit> {
    if !args.yes && !confirmed(&args.name)? {
        output::note("nothing was removed");
        return Ok(Exit::Ok);
    }
    silent(&args.name, |tube| Command::Truncate { tube }, "emptied")
}

/// Asks at the terminal.
fn confirmed(args: &NameArgs) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        let why = "truncate removes every task of the tube and asks before; there is no terminal to ask \
                   at, so say --yes";
        return Err(Wrong(why.into()).into());
    }
    let tube = TubeName::new(&args.tube)?;
    let Reply::Tubes(tubes) = args.connect.ask(Command::Tubes { tube: Some(tube.clone()) })? else {
        return Err(misfit("tubes"));
    };
    let tasks: u64 = tubes.iter().map(|tube| tube.stats.tasks.total()).sum();
    eprint!("remove all {tasks} tasks of {tube}, taken ones too? [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
}

/// A command that answers nothing.
fn silent(
    args: &NameArgs,
    command: impl Fn(TubeName) -> Command,
    done: &str,
) -> anyhow::Result<Exit> {
    let tube = TubeName::new(&args.tube)?;
    args.connect.ask(command(tube.clone()))?;
    if args.json {
        output::json(&NothingAnswer {})?;
    } else {
        output::line(format!("{done} {tube}"))?;
    }
    Ok(Exit::Ok)
}

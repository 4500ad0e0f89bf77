//! `semaphore`: only the best so many at a time.

mod events;
mod line;
mod members;
mod set;
mod show;

use clap::{Args, Subcommand};
use taskyard_core::{Command, LinePart, Reply, SemaphoreCommand, SemaphoreKey, SemaphoreReply};
use taskyard_wire::Exit;

use crate::connect::{ConnectArgs, misfit};

use events::EventsArgs;
use line::{EnqueueArgs, ReleaseArgs};
use members::{DropArgs, MembersArgs};
use set::{CreateArgs, SetArgs};
use show::{ListArgs, ShowArgs};

/// What to do with which semaphore.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard semaphore create yang --active 1000 --try-release 900
  taskyard semaphore enqueue yang 17 --priority 2.5
  taskyard semaphore events --wait 1m --ack
  taskyard semaphore release yang 17

A semaphore lets the best tasks go on, at most --active at a time. Larger priorities go first. When better
tasks come, the worst of the holders are asked to release.")]
pub struct SemaphoreArgs {
    #[command(subcommand)]
    verb: SemaphoreVerb,
}

/// What to do.
#[derive(Debug, Subcommand)]
enum SemaphoreVerb {
    /// Make a semaphore.
    Create(CreateArgs),
    /// Change a semaphore, or make it.
    Set(SetArgs),
    /// Stand in line, or change a priority.
    Enqueue(EnqueueArgs),
    /// Leave: give a grant back, or the place in line.
    Release(ReleaseArgs),
    /// Fetch events: who may go on, who is asked to release.
    Events(EventsArgs),
    /// Show all semaphores.
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show one semaphore, and where tasks stand in it.
    Show(ShowArgs),
    /// Show who holds a grant, the best first.
    Holders(MembersArgs),
    /// Show the tasks that wait for a grant, the best first.
    Waiting(MembersArgs),
    /// Remove a semaphore; refused while a tube is behind it, or tasks hold its grants or wait for them.
    Drop(DropArgs),
}

/// Does it.
pub fn run(args: SemaphoreArgs) -> anyhow::Result<Exit> {
    match args.verb {
        SemaphoreVerb::Create(args) => set::create(&args),
        SemaphoreVerb::Set(args) => set::run(&args, false),
        SemaphoreVerb::Enqueue(args) => line::enqueue(&args),
        SemaphoreVerb::Release(args) => line::release(&args),
        SemaphoreVerb::Events(args) => events::run(&args),
        SemaphoreVerb::List(args) => show::list(&args),
        SemaphoreVerb::Show(args) => show::one(&args),
        SemaphoreVerb::Holders(args) => members::run(&args, LinePart::Holders),
        SemaphoreVerb::Waiting(args) => members::run(&args, LinePart::Waiting),
        SemaphoreVerb::Drop(args) => members::drop(&args),
    }
}

/// Asks a semaphore.
fn ask(connect: &ConnectArgs, command: SemaphoreCommand) -> anyhow::Result<SemaphoreReply> {
    match connect.ask(Command::Semaphore(command))? {
        Reply::Semaphore(reply) => Ok(reply),
        _ => Err(misfit("semaphore")),
    }
}

fn key(text: &str) -> anyhow::Result<SemaphoreKey> {
    Ok(SemaphoreKey::new(text)?)
}

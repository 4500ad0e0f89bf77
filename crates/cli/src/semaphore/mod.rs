//! `semaphore`: limits how many tasks run at once, by priority.

mod events;
mod grants;
mod members;
mod set;
mod show;

use clap::{Args, Subcommand};
use taskyard_core::{Command, MemberGroup, Reply, SemaphoreCommand, SemaphoreKey, SemaphoreReply};
use taskyard_wire::Exit;

use crate::connect::{ConnectArgs, unexpected_reply};

use events::EventsArgs;
use grants::{EnqueueArgs, GrantReleaseArgs};
use members::{DropArgs, MembersArgs};
use set::{SemaphoreCreateArgs, SetArgs};
use show::{SemaphoreListArgs, ShowArgs};

/// The arguments of `semaphore`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard semaphore create yang --active 1000 --try-release 900
  taskyard semaphore enqueue yang 17 --priority 2.5
  taskyard semaphore events --wait 1m --ack
  taskyard semaphore release yang 17

A semaphore grants at most --active tasks at a time, the ones with the largest priorities. When a
task of higher priority is enqueued, the holders with the lowest priorities are asked to release
their grants.")]
pub struct SemaphoreArgs {
    #[command(subcommand)]
    verb: SemaphoreVerb,
}

/// The subcommands of `semaphore`.
#[derive(Debug, Subcommand)]
enum SemaphoreVerb {
    /// Create a semaphore.
    Create(SemaphoreCreateArgs),
    /// Change a semaphore, or create it.
    Set(SetArgs),
    /// Enqueue a task, or change its priority.
    Enqueue(EnqueueArgs),
    /// End a grant, or stop waiting for one.
    Release(GrantReleaseArgs),
    /// Print events: grants that were acquired, and requests to release.
    Events(EventsArgs),
    /// Show all semaphores.
    #[command(visible_alias = "ls")]
    List(SemaphoreListArgs),
    /// Show one semaphore, or the status of tasks in it.
    Show(ShowArgs),
    /// Show the tasks that hold a grant, largest priority first.
    Holders(MembersArgs),
    /// Show the tasks that wait for a grant, largest priority first.
    Waiting(MembersArgs),
    /// Remove a semaphore; refused while a tube uses it, or tasks hold its grants or wait for them.
    Drop(DropArgs),
}

/// Runs a subcommand.
pub fn run(args: SemaphoreArgs) -> anyhow::Result<Exit> {
    match args.verb {
        SemaphoreVerb::Create(args) => set::create(&args),
        SemaphoreVerb::Set(args) => set::run(&args, false),
        SemaphoreVerb::Enqueue(args) => grants::enqueue(&args),
        SemaphoreVerb::Release(args) => grants::release(&args),
        SemaphoreVerb::Events(args) => events::run(&args),
        SemaphoreVerb::List(args) => show::list(&args),
        SemaphoreVerb::Show(args) => show::one(&args),
        SemaphoreVerb::Holders(args) => members::run(&args, MemberGroup::Holders),
        SemaphoreVerb::Waiting(args) => members::run(&args, MemberGroup::Waiting),
        SemaphoreVerb::Drop(args) => members::drop(&args),
    }
}

/// Sends a command to a semaphore.
fn execute(connect: &ConnectArgs, command: SemaphoreCommand) -> anyhow::Result<SemaphoreReply> {
    match connect.execute(Command::Semaphore(command))? {
        Reply::Semaphore(reply) => Ok(reply),
        _ => Err(unexpected_reply("semaphore")),
    }
}

fn key(text: &str) -> anyhow::Result<SemaphoreKey> {
    Ok(SemaphoreKey::new(text)?)
}

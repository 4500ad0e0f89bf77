//! `kick`: makes buried tasks ready again.

use clap::Args;
use taskyard_core::{Command, Reply, TubeName};
use taskyard_wire::Exit;
use taskyard_wire::http::KickAnswer;

use crate::connect::{ConnectArgs, unexpected_reply};
use crate::output;

/// The arguments of `kick`.
#[derive(Debug, Args)]
#[command(after_help = "\
A kicked task keeps its attempts. In a tube with attempts_max a task that was buried because they
were used up gets one more delivery: when that fails, it is buried again. To give such tasks more
attempts, count them from zero again with retry --reset-attempts, or raise the limit before the
kick.

Examples:
  taskyard kick mail               the first one
  taskyard kick mail --count 10
  taskyard kick mail --all
  taskyard retry mail --all --reset-attempts
  taskyard tube alter mail --attempts-max 20 && taskyard kick mail --all")]
pub struct KickArgs {
    /// The tube.
    tube: String,
    /// Kick at most this many, smallest priority number first.
    #[arg(long, value_name = "N", default_value_t = 1)]
    count: u64,
    /// Kick all buried tasks.
    #[arg(long, conflicts_with = "count")]
    all: bool,
    /// Print a JSON object with the number of kicked tasks.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Kicks tasks and prints their number.
pub fn run(args: KickArgs) -> anyhow::Result<Exit> {
    let count = if args.all { u64::MAX } else { args.count };
    let kick = Command::Kick { tube: TubeName::new(&args.tube)?, count };
    let Reply::Kicked(kicked) = args.connect.execute(kick)? else {
        return Err(unexpected_reply("kick"));
    };
    if args.json {
        output::json(&KickAnswer { kicked })?;
    } else {
        output::line(format!("kicked {kicked}"))?;
    }
    Ok(Exit::Ok)
}

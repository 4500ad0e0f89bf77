//! `delete`: removes tasks.

use clap::Args;
use taskyard_core::{Command, Reply, TaskId, TubeName};
use taskyard_wire::Exit;

use crate::connect::{ConnectArgs, unexpected_reply};
use crate::finish;

/// The arguments of `delete`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard delete mail 0
  taskyard delete mail 3 4 5")]
pub struct DeleteArgs {
    /// The tube.
    tube: String,
    /// The tasks.
    #[arg(required = true, value_name = "ID")]
    ids: Vec<u64>,
    /// Print one JSON object per line, with id and outcome.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Removes tasks.
pub fn run(args: DeleteArgs) -> anyhow::Result<Exit> {
    let tube = TubeName::new(&args.tube)?;
    let ids: Vec<TaskId> = args.ids.into_iter().map(TaskId).collect();
    let delete = Command::Delete { tube: tube.clone(), ids: ids.clone(), show: false };
    let Reply::Finished(outcomes) = args.connect.execute(delete)? else {
        return Err(unexpected_reply("delete"));
    };
    finish::print(&tube, &ids, &outcomes, "deleted", args.json)
}

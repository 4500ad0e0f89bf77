//! `delete`: removes tasks, by their ids or by a filter.

use clap::Args;
use taskyard_wire::Exit;
use taskyard_wire::http::{TaskAction, TaskActionRequest};

use crate::actions::{self, ChosenAction, ChosenArgs};
use crate::connect::ConnectArgs;
use crate::output;

/// The arguments of `delete`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard delete mail 0
  taskyard delete mail 3 4 5
  taskyard delete mail --state buried --match ann --dry-run     count them first
  taskyard delete mail --state buried --match ann               asks for confirmation")]
pub struct DeleteArgs {
    /// The tube.
    tube: String,
    #[command(flatten)]
    chosen: ChosenArgs,
    /// Do not ask for confirmation.
    #[arg(long, short)]
    yes: bool,
    /// Print a JSON object with the numbers of tasks and the outcome of each id.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Removes tasks.
pub fn run(args: DeleteArgs) -> anyhow::Result<Exit> {
    let asks = args.chosen.uses_filter() && !args.chosen.is_dry_run() && !args.yes;
    if asks && !actions::confirmed(&args.tube)? {
        output::note("nothing was removed");
        return Ok(Exit::Ok);
    }
    let (action, request) = (TaskAction::Delete, TaskActionRequest::default());
    let (tube, json, connect) = (&args.tube, args.json, &args.connect);
    args.chosen.run(ChosenAction { tube, action, request, json, connect })
}

//! `delete`: removes tasks, by their ids or by a filter.

use clap::Args;
use taskyard_wire::Exit;
use taskyard_wire::http::{TaskAction, TaskActionRequest};

use crate::actions::{ChosenAction, ChosenArgs};
use crate::confirm::{check_terminal, confirmed};
use crate::connect::ConnectArgs;

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
    if args.chosen.uses_filter() && !args.chosen.is_dry_run() && !args.yes {
        check_terminal("delete with a filter removes every task that matches")?;
        let tube = &args.tube;
        if !confirmed(&format!("remove every task of {tube} that matches, taken ones too?"))? {
            return Ok(Exit::Ok);
        }
    }
    let (action, request) = (TaskAction::Delete, TaskActionRequest::default());
    let (tube, json, connect) = (&args.tube, args.json, &args.connect);
    args.chosen.run(ChosenAction { tube, action, request, json, connect })
}

//! `when`: shows when waiting tasks will start.

use clap::Args;
use taskyard_core::limits::POSITIONS_MAX;
use taskyard_core::{Command, Position, Reply, TaskId, TubeName};
use taskyard_wire::Exit;
use taskyard_wire::http::PositionAnswer;

use crate::connect::{ConnectArgs, unexpected_reply};
use crate::{output, units};

/// The arguments of `when`.
#[derive(Debug, Args)]
#[command(after_help = "\
Half of such tasks start within the first time, nine of ten within the second one. They follow from how long tasks of the tube ran
recently, how many consumers it has, and how well earlier estimates held; so a tube without consumers or without finished tasks has
none, and the reason is shown.

Examples:
  taskyard when mail 17
  taskyard when mail 17 18 19 --json")]
pub struct WhenArgs {
    /// The tube.
    tube: String,
    /// The tasks, at most 100.
    #[arg(value_name = "ID", required = true)]
    ids: Vec<u64>,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Shows when tasks will start; the exit code is 4 if one does not wait.
pub fn run(args: WhenArgs) -> anyhow::Result<Exit> {
    let tube = TubeName::new(&args.tube)?;
    let ids: Vec<TaskId> = args.ids.iter().copied().map(TaskId).collect();
    anyhow::ensure!(ids.len() <= POSITIONS_MAX, "name at most {POSITIONS_MAX} tasks at a time");
    let ask = Command::Positions { tube: tube.clone(), ids: ids.clone() };
    let Reply::Positions(positions) = args.connect.execute(ask)? else {
        return Err(unexpected_reply("positions"));
    };
    if args.json {
        output::json_lines(positions.iter().map(PositionAnswer::new))?;
    } else if !positions.is_empty() {
        let mut table =
            output::table(&["id", "ahead", "half start in", "90 % start in", "because"]);
        for position in &positions {
            table.add_row(row(position));
        }
        output::show(&table)?;
    }
    let missing = ids.iter().filter(|id| positions.iter().all(|found| found.id != **id));
    let missing: Vec<_> = missing.collect();
    for id in &missing {
        output::note(format!(
            "task {id} does not wait in {tube}, or does not exist; see: taskyard task {tube} {id}"
        ));
    }
    Ok(if missing.is_empty() { Exit::Ok } else { Exit::NotFound })
}

fn row(position: &Position) -> [String; 5] {
    let (id, sign) = (position.id.to_string(), if position.is_exact { "" } else { "about " });
    let ahead = format!("{sign}{}", position.ahead);
    match position.estimate {
        Some(Ok(estimate)) => {
            let seconds = |span: taskyard_core::Span| units::in_words(span.as_secs_f64());
            let basis = estimate.basis.to_string();
            [id, ahead, seconds(estimate.p50), seconds(estimate.p90), basis]
        }
        Some(Err(reason)) => [id, ahead, "?".into(), "?".into(), reason.to_string()],
        None => [id, ahead, "?".into(), "?".into(), "the store does not know its consumers".into()],
    }
}

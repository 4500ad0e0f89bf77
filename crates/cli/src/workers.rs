//! `workers`: shows the workers that take tasks from the server.

use clap::Args;
use taskyard_wire::Exit;
use taskyard_wire::http::{WorkerSummary, WorkersAnswer};

use crate::connect::{ConnectArgs, block_on};
use crate::{output, units};

/// The number of tubes that the table shows of one worker.
const TUBES_SHOWN: usize = 3;

/// The arguments of `workers`.
#[derive(Debug, Args)]
#[command(after_help = "\
A worker is the name with which tasks are taken: --worker of take, the field worker over HTTP,
queue.worker(name) over iproto. Without one, Taskyard's own clients use host:process:program, and
others appear with their address. RUNNING counts the tasks that it holds, taken from any server;
DONE and FAILED count on this server. A worker that was not seen for an hour is removed, unless it
holds tasks.

Examples:
  taskyard workers
  taskyard workers --json | jq -r 'select(.running_count > 0) | .name'")]
pub struct WorkersArgs {
    /// Also show the workers of internal tubes, whose names begin with "taskyard."
    #[arg(long)]
    internal: bool,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Prints the workers.
pub fn run(args: WorkersArgs) -> anyhow::Result<Exit> {
    let http = args.connect.http()?;
    let WorkersAnswer { time, workers, cut, .. } =
        block_on(async { Ok(http.workers(args.internal).await?) })?;
    if args.json {
        output::json_lines(&workers)?;
    } else if workers.is_empty() {
        output::line(
            "no workers yet; each taker of tasks appears here, under the name that it gives: \
             taskyard take mail --worker NAME",
        )?;
    } else {
        let head = ["name", "address", "tubes", "running", "oldest", "last seen", "done", "failed"];
        let mut table = output::table(&head);
        for worker in &workers {
            table.add_row(row(worker, time));
        }
        output::show(&table)?;
    }
    if cut {
        output::note("too many tasks are taken to read all of them: RUNNING is incomplete");
    }
    Ok(Exit::Ok)
}

fn row(worker: &WorkerSummary, time: f64) -> [String; 8] {
    let oldest = worker.running.first();
    [
        output::printable(&worker.name),
        worker.address.clone().unwrap_or_else(|| "-".into()),
        tubes(&worker.tubes),
        worker.running_count.to_string(),
        oldest.map_or_else(|| "-".into(), |task| units::in_words(task.age)),
        worker
            .last_seen
            .map_or_else(|| "-".into(), |seen| format!("{} ago", units::in_words(time - seen))),
        worker.done.to_string(),
        worker.failed.to_string(),
    ]
}

/// The first tubes, and how many more there are.
fn tubes(tubes: &[String]) -> String {
    let names: Vec<_> =
        tubes.iter().take(TUBES_SHOWN).map(|tube| output::printable(tube)).collect();
    let names = names.join(", ");
    match tubes.len().saturating_sub(TUBES_SHOWN) {
        0 => names,
        more => format!("{names} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_tubes_are_counted() {
        let names = ["a", "b", "c", "d", "e"].map(str::to_owned);
        assert_eq!(tubes(&names[..3]), "a, b, c");
        assert_eq!(tubes(&names), "a, b, c and 2 more");
    }
}

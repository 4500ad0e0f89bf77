//! `workers`: shows the workers that take tasks from the server.

use clap::Args;
use taskyard_wire::Exit;
use taskyard_wire::http::{MissingServer, WorkerSummary, WorkersAnswer};

use crate::connect::{ConnectArgs, block_on};
use crate::table::Table;
use crate::{output, units};

/// The number of tubes that the table shows of one worker.
const TUBES_SHOWN: usize = 3;

/// The arguments of `workers`.
#[derive(Debug, Args)]
#[command(after_help = "\
A worker is the name with which tasks are taken: --worker of take, the field worker over HTTP,
queue.worker(name) over iproto. Without one, Taskyard's own clients use host:process:program, and
others appear with their address. VERSION is that of Taskyard's client, if it is one. RUNNING counts
the tasks that it holds, taken from any server, and AGE is for how long it has held the oldest of
them. DONE and FAILED count on this server and on its peers (taskyard serve --peer); after each is
the number of the last minute. A worker that was not seen for an hour is removed, unless it holds
tasks.

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
    let WorkersAnswer { time, workers, cut, missing, .. } =
        block_on(async { Ok(http.workers(args.internal).await?) })?;
    if args.json {
        output::json_lines(&workers)?;
    } else if workers.is_empty() {
        output::line(
            "no workers yet; each taker of tasks appears here, under the name that it gives: \
             taskyard take mail --worker NAME",
        )?;
    } else {
        output::show(&table(&workers, time))?;
    }
    if cut {
        output::note("too many tasks are taken to read all of them: RUNNING is incomplete");
    }
    for MissingServer { url, reason } in missing {
        let (url, reason) = (output::printable(&url), output::printable(&reason));
        output::note(format!("without what {url} saw: {reason}"));
    }
    Ok(Exit::Ok)
}

/// The workers, each in a line that usually has at most 100 characters.
fn table(workers: &[WorkerSummary], time: f64) -> Table {
    let counts = ["running", "age", "seen", "done", "/min", "failed", "/min"];
    let mut table =
        output::table(&[&["name", "version", "address", "tubes"][..], &counts].concat());
    for worker in workers {
        table.add_row(row(worker, time));
    }
    table
}

fn row(worker: &WorkerSummary, time: f64) -> [String; 11] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    [
        output::printable(&worker.name),
        or_dash(worker.version.as_deref().map(output::printable)),
        or_dash(worker.address.as_deref().map(output::printable)),
        tubes(&worker.tubes),
        worker.running_count.to_string(),
        or_dash(worker.running.first().map(|oldest| units::short(oldest.age))),
        or_dash(worker.last_seen.map(|seen| format!("{} ago", units::short(time - seen)))),
        worker.done.to_string(),
        worker.done_per_minute.to_string(),
        worker.failed.to_string(),
        worker.failed_per_minute.to_string(),
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
    use taskyard_wire::http::RunningTask;

    use super::*;

    #[test]
    fn a_line_has_at_most_a_hundred_characters() {
        let task = |age| RunningTask { tube: "mail".into(), id: 17, age };
        let worker = WorkerSummary {
            address: Some("192.168.100.200".into()),
            version: Some("0.1.0".into()),
            tubes: vec!["mail".into()],
            running: vec![task(75.0), task(2.0)],
            running_count: 2,
            last_seen: Some(955.0),
            done: 3810,
            failed: 12,
            done_per_minute: 57,
            failed_per_minute: 1,
            ..WorkerSummary::new("web1:4711:mailer")
        };
        let shown = table(&[worker, WorkerSummary::new("a")], 1_000.0).to_string();
        let lines: Vec<&str> = shown.lines().collect();
        let titles = "NAME VERSION ADDRESS TUBES RUNNING AGE SEEN DONE /MIN FAILED /MIN";
        let mailer = "web1:4711:mailer 0.1.0 192.168.100.200 mail 2 1m 45s ago 3810 57 12 1";
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!((words(lines[0]), words(lines[1])), (titles.into(), mailer.into()));
        assert!(lines.iter().all(|line| line.len() <= 100), "{shown}");
    }

    #[test]
    fn many_tubes_are_counted() {
        let names = ["a", "b", "c", "d", "e"].map(str::to_owned);
        assert_eq!(tubes(&names[..3]), "a, b, c");
        assert_eq!(tubes(&names), "a, b, c and 2 more");
    }
}

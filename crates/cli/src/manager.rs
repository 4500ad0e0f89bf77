//! `manager`: shows the manager of typed workers and its plan.

use clap::{Args, Subcommand};
use taskyard_wire::Exit;
use taskyard_wire::http::ManagerAnswer;

use crate::connect::{ServerArgs, block_on};
use crate::output;

/// The arguments of `manager`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard manager status            the active manager, its workers and their processors
  taskyard manager status --json

The manager divides the processors of typed workers among their queues. Every server runs one; of
several servers that share a store only one is active.")]
pub struct ManagerArgs {
    #[command(subcommand)]
    verb: ManagerVerb,
}

#[derive(Debug, Subcommand)]
enum ManagerVerb {
    /// Show the active manager, the workers that reported recently, and the processors of each queue.
    Status(ManagerStatusArgs),
}

#[derive(Debug, Args)]
struct ManagerStatusArgs {
    #[command(flatten)]
    server: ServerArgs,
}

/// Prints the status.
pub fn run(args: ManagerArgs) -> anyhow::Result<Exit> {
    let ManagerVerb::Status(args) = args.verb;
    let http = args.server.connect.http()?;
    let status: ManagerAnswer = block_on(async { Ok(http.get("/v1/manager").await?) })?;
    let text = if args.server.json { serde_json::to_string(&status)? } else { shown(&status) };
    output::line(text)?;
    Ok(Exit::Ok)
}

/// The status as a table.
fn shown(status: &ManagerAnswer) -> String {
    if status.workers.is_empty() {
        return "no worker has reported recently; workers without a plan take from their queues in turn".into();
    }
    let header = ["worker", "queue", "tube", "planned", "busy", "s/task", "errors", "plan"];
    let mut table = output::table(&header);
    for worker in &status.workers {
        for queue in &worker.queues {
            let planned = worker.planned.as_ref().map(|shares| shares.get(&queue.queue_num));
            let planned = planned.map(|count| count.copied().unwrap_or(0).to_string());
            let cost = queue.seconds_per_task.map(|cost| format!("{cost:.4}"));
            let plan = if worker.version == 0 { None } else { Some(worker.version.to_string()) };
            let plan = plan.unwrap_or_else(|| "none yet".into());
            table.add_row([
                worker.name.clone(),
                queue.queue_num.to_string(),
                queue.tube.clone(),
                planned.unwrap_or_else(|| "round robin".into()),
                queue.busy.to_string(),
                cost.unwrap_or_else(|| "-".into()),
                queue.errors.to_string(),
                plan,
            ]);
        }
    }
    let leader = match (&status.leader, status.led) {
        (Some(leader), true) => format!("manager {leader}"),
        (None, true) => "manager active, no plan yet".into(),
        (_, false) => "no active manager; workers keep their last plan".into(),
    };
    let workers = output::plural(status.workers.len() as u64, "worker");
    let plan = status.version.map(|version| format!(", plan {version}")).unwrap_or_default();
    format!("{table}\n{workers}, {leader}{plan}")
}

#[cfg(test)]
mod tests {
    use taskyard_wire::http::{QueueLoad, Shares, WorkerAnswer};

    use super::*;

    #[test]
    fn the_status_shows_the_manager_and_the_plan() {
        assert!(shown(&ManagerAnswer::default()).contains("no worker"));
        let load = QueueLoad {
            queue_num: 7,
            tube: "emails".into(),
            seconds_per_task: Some(0.25),
            target_latency: 1.0,
            errors: 3,
            busy: 2,
        };
        let worker = WorkerAnswer {
            worker: "1f".into(),
            name: "mailer".into(),
            max_processors: 4,
            version: 12,
            queues: vec![load],
            planned: Some(Shares::from([(7, 4)])),
        };
        let (leader, version) = (Some("here".into()), Some(12));
        let mut status = ManagerAnswer { led: true, leader, version, workers: vec![worker] };
        let text = shown(&status);
        assert!(text.starts_with("WORKER  QUEUE  TUBE    PLANNED  BUSY"), "{text}");
        for word in ["mailer", "emails", " 4 ", "0.2500", "\n1 worker, manager here, plan 12"] {
            assert!(text.contains(word), "{word}\n{text}");
        }
        status.led = false;
        status.workers[0].planned = None;
        let text = shown(&status);
        assert!(text.contains("no active manager") && text.contains("round robin"), "{text}");
    }
}

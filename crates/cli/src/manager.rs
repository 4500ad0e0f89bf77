//! `manager`: who plans for typed workers, and what is planned.

use clap::{Args, Subcommand};
use taskyard_wire::Exit;
use taskyard_wire::http::ManagerAnswer;

use crate::connect::{ConnectArgs, block_on};
use crate::output;
use crate::table::Table;

/// What to ask about the manager.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard manager status            who leads, who works, where processors go
  taskyard manager status --json

Every server has a manager; of several servers that share a store one leads.")]
pub struct ManagerArgs {
    #[command(subcommand)]
    verb: ManagerVerb,
}

#[derive(Debug, Subcommand)]
enum ManagerVerb {
    /// Show who plans, which workers reported lately, and how many processors each queue gets.
    Status(StatusArgs),
}

#[derive(Debug, Args)]
struct StatusArgs {
    /// Print it as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Does what is asked.
pub fn run(args: ManagerArgs) -> anyhow::Result<Exit> {
    let ManagerVerb::Status(args) = args.verb;
    let http = args.connect.http()?;
    let status: ManagerAnswer = block_on(async { Ok(http.get("/v1/manager").await?) })?;
    let text = if args.json { serde_json::to_string(&status)? } else { shown(&status) };
    output::line(text)?;
    Ok(Exit::Ok)
}

/// The status for a person.
fn shown(status: &ManagerAnswer) -> String {
    if status.workers.is_empty() {
        return "no worker has reported lately; workers without a plan go round robin".into();
    }
    let header = ["worker", "queue", "tube", "planned", "busy", "s/task", "errors", "plan"];
    let mut table = Table::ruled(header);
    for worker in &status.workers {
        for queue in &worker.queues {
            let planned = worker.planned.as_ref().map(|shares| shares.get(&queue.queue_num));
            let planned = planned.map(|count| count.copied().unwrap_or(0).to_string());
            let cost = queue.seconds_per_task.map(|cost| format!("{cost:.4}"));
            let follows = if worker.version == 0 { None } else { Some(worker.version.to_string()) };
            let follows = follows.unwrap_or_else(|| "none yet".into());
            table.add_row([
                worker.name.clone(),
                queue.queue_num.to_string(),
                queue.tube.clone(),
                planned.unwrap_or_else(|| "round robin".into()),
                queue.busy.to_string(),
                cost.unwrap_or_else(|| "-".into()),
                queue.errors.to_string(),
                follows,
            ]);
        }
    }
    let leader = match (&status.leader, status.led) {
        (Some(leader), true) => format!("led by {leader}"),
        (None, true) => "led, without a plan yet".into(),
        (_, false) => "nobody leads; the workers go on as they did".into(),
    };
    let count = status.workers.len();
    let plan = status.version.map(|version| format!(", plan {version}")).unwrap_or_default();
    format!("{table}\n{count} workers, {leader}{plan}")
}

#[cfg(test)]
mod tests {
    use taskyard_wire::http::{QueueLoad, Shares, WorkerAnswer};

    use super::*;

    #[test]
    fn a_person_sees_who_leads_and_who_goes_where() {
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
        for word in ["mailer", "emails", " 4 ", "0.2500", "led by here, plan 12"] {
            assert!(text.contains(word), "{word}\n{text}");
        }
        status.led = false;
        status.workers[0].planned = None;
        let text = shown(&status);
        assert!(text.contains("nobody leads") && text.contains("round robin"), "{text}");
    }
}

//! `sql run` and `sql stop`: runs or stops a task.

use serde_json::json;
use taskyard_sql::{AdminOutcome, TaskAdmin, TaskSelector};
use taskyard_wire::Exit;

use super::{TaskArgs, missing_text};
use crate::output::{self, note};

/// Runs a task now.
pub async fn run(admin: &mut TaskAdmin, one: &TaskArgs) -> anyhow::Result<Exit> {
    let selector = one.selector();
    let Some(id) = admin.find_exact(&selector).await? else { return Ok(missing(&selector)) };
    let (outcome, words, new) = match admin.run(id).await? {
        AdminOutcome::Done => {
            ("planned", format!("task {id} is planned for now; it runs when its group allows"), id)
        }
        AdminOutcome::Copied(new) => {
            ("copied", format!("task {id} has ended; its copy {new} runs now"), new)
        }
        AdminOutcome::Already => ("running", format!("task {id} is already running"), id),
        AdminOutcome::Missing => return Ok(missing(&selector)),
    };
    print_outcome(one, outcome, &words, new)
}

/// Stops a task.
pub async fn stop(admin: &mut TaskAdmin, one: &TaskArgs) -> anyhow::Result<Exit> {
    let selector = one.selector();
    let Some((id, outcome)) = admin.stop(&selector).await? else { return Ok(missing(&selector)) };
    let (outcome, words) = match outcome {
        AdminOutcome::Done | AdminOutcome::Copied(_) => {
            ("stopped", format!("task {id} is stopped"))
        }
        AdminOutcome::Already => ("ended", format!("task {id} has already ended")),
        AdminOutcome::Missing => return Ok(missing(&selector)),
    };
    print_outcome(one, outcome, &words, id)
}

/// Prints the outcome; `id` is the task that was run or stopped.
fn print_outcome(one: &TaskArgs, outcome: &str, words: &str, id: i64) -> anyhow::Result<Exit> {
    match one.table.json {
        true => output::json(&json!({ "id": id, "outcome": outcome }))?,
        false => output::line(words)?,
    }
    Ok(Exit::Ok)
}

fn missing(selector: &TaskSelector) -> Exit {
    note(missing_text(selector));
    Exit::NotFound
}

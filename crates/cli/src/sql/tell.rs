//! Telling tasks to run or to stop.

use serde_json::json;
use taskyard_sql::{Desk, Told, Which};
use taskyard_wire::Exit;

use super::{OneArgs, named};
use crate::output::{self, note};

/// Lets a task run now.
pub async fn run(desk: &mut Desk, one: &OneArgs) -> anyhow::Result<Exit> {
    let which = one.which();
    let Some(id) = desk.exact(&which).await? else { return Ok(missing(&which)) };
    let (outcome, words, new) = match desk.run(id).await? {
        Told::Done => ("planned", format!("task {id} runs as soon as its group has room"), id),
        Told::Copied(new) => {
            ("copied", format!("task {id} has ended; task {new} runs in its place"), new)
        }
        Told::Already => ("running", format!("task {id} runs already"), id),
        Told::Missing => return Ok(missing(&which)),
    };
    say(one, outcome, &words, new)
}

/// Stops a task.
pub async fn stop(desk: &mut Desk, one: &OneArgs) -> anyhow::Result<Exit> {
    let which = one.which();
    let Some(id) = desk.find(&which).await? else { return Ok(missing(&which)) };
    let (outcome, words) = match desk.stop(id).await? {
        Told::Done | Told::Copied(_) => ("stopped", format!("task {id} is stopped")),
        Told::Already => ("ended", format!("task {id} has ended already")),
        Told::Missing => return Ok(missing(&which)),
    };
    say(one, outcome, &words, id)
}

/// Says what came of it; `id` is the task that it is about now.
fn say(one: &OneArgs, outcome: &str, words: &str, id: i64) -> anyhow::Result<Exit> {
    match one.table.json {
        true => output::json(&json!({ "id": id, "outcome": outcome }))?,
        false => output::line(words)?,
    }
    Ok(Exit::Ok)
}

fn missing(which: &Which) -> Exit {
    note(format!("taskyard: there is {}", named(which)));
    Exit::NotFound
}

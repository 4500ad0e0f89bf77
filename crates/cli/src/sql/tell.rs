//! Telling tasks to run or to stop.

use taskyard_sql::{Desk, Told};
use taskyard_wire::Exit;

use crate::output::{line, note};

/// Lets a task run now.
pub async fn run(desk: &mut Desk, id: i64) -> anyhow::Result<Exit> {
    match desk.run(id).await? {
        Told::Done => line(format!("task {id} runs as soon as its group has room"))?,
        Told::Copied(new) => line(format!("task {id} has ended; task {new} runs in its place"))?,
        Told::Already => line(format!("task {id} runs already"))?,
        Told::Missing => return Ok(missing(id)),
    }
    Ok(Exit::Ok)
}

/// Stops a task.
pub async fn stop(desk: &mut Desk, id: i64) -> anyhow::Result<Exit> {
    match desk.stop(id).await? {
        Told::Done | Told::Copied(_) => line(format!("task {id} is stopped"))?,
        Told::Already => line(format!("task {id} has ended already"))?,
        Told::Missing => return Ok(missing(id)),
    }
    Ok(Exit::Ok)
}

fn missing(id: i64) -> Exit {
    note(format!("taskyard: there is no task {id}"));
    Exit::NotFound
}

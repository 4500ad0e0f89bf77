//! Endpoints that kick, delete, bury or release chosen tasks: by ids, or by the filter of a list.
//!
//! A filter is applied in steps of one request, each of which compares and changes a limited number of tasks: others are not
//! delayed for long, and a caller can show progress, stop and continue.

use axum::http::Method;
use axum::response::Response;
use taskyard_core::{Command, Outcome, Reply, TaskId, TubeName};
use taskyard_wire::http::{TaskAction, TaskActionAnswer, TaskActionRequest};

use super::request::{Json, TubePath};
use super::task_page::Scan;
use super::task_reader::count_existing;
use super::{Refusal, RequestApp, Route, ok};
use crate::app::unexpected_reply;

/// The endpoints of this file.
pub(crate) fn routes() -> Vec<Route> {
    let kick = ("kick_tasks", "Make chosen buried tasks ready again");
    let delete = ("delete_tasks", "Remove chosen tasks in any state");
    let bury = ("bury_tasks", "Set chosen tasks aside until they are kicked");
    let release = ("release_tasks", "End the deliveries of chosen tasks");
    vec![
        route(TaskAction::Kick, "/v1/tubes/{tube}/tasks/kick", kick),
        route(TaskAction::Delete, "/v1/tubes/{tube}/tasks/delete", delete),
        route(TaskAction::Bury, "/v1/tubes/{tube}/tasks/bury", bury),
        route(TaskAction::Release, "/v1/tubes/{tube}/tasks/release", release),
    ]
}

fn route(action: TaskAction, path: &'static str, about: (&'static str, &'static str)) -> Route {
    let handler = move |app: RequestApp, tube: TubePath, request: Request| async move {
        act(&app, tube.0, request.0, action).await
    };
    Route::new(Method::POST, path, about, handler)
        .request_body::<TaskActionRequest>()
        .responds::<TaskActionAnswer>("How many tasks matched and how many were changed")
        .uses_engine()
}

type Request = Json<TaskActionRequest>;

async fn act(
    app: &RequestApp,
    tube: TubeName,
    request: TaskActionRequest,
    action: TaskAction,
) -> Result<Response, Refusal> {
    request.check(action)?;
    if let Some(ids) = &request.ids {
        let ids = ids.iter().copied().map(TaskId).collect();
        return ok(&act_on_ids(app, tube, &request, action, ids).await?);
    }
    let query = request.query(action);
    let mut scan = Scan::new(query.list(tube.clone())?, query.filter()?);
    let (mut matched, mut changed) = (0, 0);
    // Each part is changed right after it was compared, so that few tasks change in between.
    while let Some(tasks) = scan.next(app).await? {
        matched += tasks.len() as u64;
        if !request.dry_run && !tasks.is_empty() {
            let command = request.command_for(action, tube.clone(), &tasks)?;
            changed += done(&change(app, command).await?);
        }
    }
    let (next, scanned) = (scan.matches.cursor(), scan.matches.scanned);
    ok(&TaskActionAnswer { matched, changed, scanned, next, outcomes: None })
}

async fn act_on_ids(
    app: &RequestApp,
    tube: TubeName,
    request: &TaskActionRequest,
    action: TaskAction,
    ids: Vec<TaskId>,
) -> Result<TaskActionAnswer, Refusal> {
    if request.dry_run {
        let matched = count_existing(app, &tube, &ids).await?;
        let scanned = ids.len() as u64;
        return Ok(TaskActionAnswer { matched, scanned, ..TaskActionAnswer::default() });
    }
    let command = request.command(action, tube, ids)?;
    Ok(TaskActionAnswer::of_ids(&change(app, command).await?))
}

async fn change(app: &RequestApp, command: Command) -> Result<Vec<Outcome>, Refusal> {
    match app.run(command).await? {
        Reply::Finished(outcomes) => Ok(outcomes),
        _ => Err(unexpected_reply()),
    }
}

fn done(outcomes: &[Outcome]) -> u64 {
    outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Done(_))).count() as u64
}

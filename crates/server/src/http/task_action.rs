//! Endpoints that kick, delete, bury or release chosen tasks: by ids, or by the filter of a list.
//!
//! A filter is applied in steps of one request, each of which compares and changes a limited number of tasks: others are not
//! delayed for long, and a caller can show progress, stop and continue.

use axum::http::Method;
use axum::response::Response;
use taskyard_core::access::{AccessTarget, changed_tasks};
use taskyard_core::{Command, Outcome, Reply, TaskId, TubeName};
use taskyard_wire::Code;
use taskyard_wire::http::{
    AuditOutcome, TaskAction, TaskActionAnswer, TaskActionRequest, TaskFilterRequest,
};

use super::request::{Json, TubePath};
use super::task_page::Scan;
use super::task_reader::count_existing;
use super::{Refusal, RequestApp, Route, ok};
use crate::app::unexpected_reply;
use crate::audit::AuditDraft;

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
    if request.dry_run {
        return ok(&count_matching(app, tube, &request, action).await?);
    }
    let mut draft = draft(app, &tube, &request, action);
    let answer = match &request.ids {
        Some(ids) => {
            let ids = ids.iter().copied().map(TaskId).collect();
            act_on_ids(app, tube, &request, action, ids, &mut draft).await
        }
        None => act_on_matching(app, tube, &request, action, &mut draft).await,
    };
    record(draft, &request, &answer).await;
    ok(&answer?)
}

async fn count_matching(
    app: &RequestApp,
    tube: TubeName,
    request: &TaskActionRequest,
    action: TaskAction,
) -> Result<TaskActionAnswer, Refusal> {
    let mut answer = TaskActionAnswer::default();
    if let Some(ids) = &request.ids {
        let ids: Vec<_> = ids.iter().copied().map(TaskId).collect();
        answer.matched = count_existing(app, &tube, &ids).await?;
        answer.scanned = ids.len() as u64;
        return Ok(answer);
    }
    let query = request.query(action);
    let mut scan = Scan::new(query.list(tube)?, query.filter()?);
    while let Some(tasks) = scan.next(app).await? {
        answer.matched += tasks.len() as u64;
    }
    (answer.next, answer.scanned) = (scan.matches.cursor(), scan.matches.scanned);
    Ok(answer)
}

async fn act_on_matching(
    app: &RequestApp,
    tube: TubeName,
    request: &TaskActionRequest,
    action: TaskAction,
    draft: &mut AuditDraft,
) -> Result<TaskActionAnswer, Refusal> {
    let mut answer = TaskActionAnswer::default();
    let query = request.query(action);
    let mut scan = Scan::new(query.list(tube.clone())?, query.filter()?);
    // Each part is changed right after it was compared, so that few tasks change in between.
    while let Some(tasks) = scan.next(app).await? {
        answer.matched += tasks.len() as u64;
        if !tasks.is_empty() {
            let command = request.command_for(action, tube.clone(), &tasks)?;
            answer.changed += change(app, command, draft).await?.1;
        }
    }
    (answer.next, answer.scanned) = (scan.matches.cursor(), scan.matches.scanned);
    Ok(answer)
}

async fn act_on_ids(
    app: &RequestApp,
    tube: TubeName,
    request: &TaskActionRequest,
    action: TaskAction,
    ids: Vec<TaskId>,
    draft: &mut AuditDraft,
) -> Result<TaskActionAnswer, Refusal> {
    let command = request.command(action, tube, ids)?;
    Ok(TaskActionAnswer::of_ids(&change(app, command, draft).await?.0))
}

/// Changes tasks; returns the outcome for each, and how many were changed.
async fn change(
    app: &RequestApp,
    command: Command,
    draft: &mut AuditDraft,
) -> Result<(Vec<Outcome>, u64), Refusal> {
    let reply = app.run_part(command).await?;
    let changed = changed_tasks(&reply).unwrap_or_default();
    draft.add_tasks(changed);
    match reply {
        Reply::Finished(outcomes) => Ok((outcomes, changed)),
        _ => Err(unexpected_reply()),
    }
}

/// The audit entry of the whole request, which may be many commands.
fn draft(
    app: &RequestApp,
    tube: &TubeName,
    request: &TaskActionRequest,
    action: TaskAction,
) -> AuditDraft {
    let draft = app.draft(action.name(), AccessTarget::Tube(tube.as_str()));
    let detail = request.reset_attempts.then(|| "reset_attempts".into());
    let filter = request.filter.as_ref().map(filter_text);
    draft.with_ids(request.ids.as_ref().map(Vec::len)).with_filter(filter).with_detail(detail)
}

/// A filter as the client sent it.
fn filter_text(filter: &TaskFilterRequest) -> String {
    serde_json::to_string(filter).unwrap_or_default()
}

/// Records the outcome of a request. Further requests of the same action that change nothing, while
/// they search through a large tube, get no entry.
async fn record(
    mut draft: AuditDraft,
    request: &TaskActionRequest,
    answer: &Result<TaskActionAnswer, Refusal>,
) {
    let recorded = match answer {
        Ok(answer) if answer.changed == 0 && request.after.is_some() => draft.cancel(),
        Ok(_) => {
            // If none was found, the number is known all the same.
            draft.add_tasks(0);
            draft.done()
        }
        Err(refusal) => {
            let outcome = match refusal.code() {
                Code::Forbidden => AuditOutcome::Refused,
                Code::OutcomeUnknown => AuditOutcome::Unknown,
                _ => AuditOutcome::Failed,
            };
            draft.record(outcome, Some(refusal.message()))
        }
    };
    recorded.written().await;
}

//! The endpoint that takes tasks.

use axum::response::Response;
use taskyard_core::{Command, Take};
use taskyard_wire::http::{TakeRequest, TasksAnswer};

use super::request::{Caller, Json, TubePath};
use super::{Refusal, RequestApp, Route, check_wait, streamed};
use crate::app::unexpected_reply;

/// The endpoints of this file.
pub(crate) fn routes() -> Vec<Route> {
    let about = (
        "take",
        "Take tasks, optionally waiting for the first one; each belongs to the caller until its \
         lease expires",
    );
    let route = Route::of_tube("/v1/tubes/{tube}/take", about, take)
        .request_body::<TakeRequest>()
        .responds::<TasksAnswer>("The tasks, possibly none")
        .uses_engine();
    vec![route]
}

/// If the caller is gone, this future is dropped, and the engine returns what it took.
async fn take(
    app: RequestApp,
    TubePath(tube): TubePath,
    caller: Caller,
    Json(mut request): Json<TakeRequest>,
) -> Result<Response, Refusal> {
    check_wait(&app, "wait", request.wait)?;
    let form = request.form();
    let worker = caller.worker(&app, request.worker.take());
    match request.into_command(tube)? {
        Command::Take(take) => streamed::take(&app, Take { worker, ..take }, form).await,
        _ => Err(unexpected_reply()),
    }
}

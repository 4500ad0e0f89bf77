//! Taking tasks.

use axum::extract::State;
use axum::http::Method;
use axum::response::Response;
use taskyard_core::Command;
use taskyard_wire::http::{TakeRequest, TasksAnswer};

use super::request::{InTube, Json};
use super::{Refusal, Route, check_wait, streamed};
use crate::app::{Shared, misfit};

/// The addresses of this file.
pub(crate) fn routes() -> Vec<Route> {
    let about = (
        "take",
        "Take tasks, waiting for the first one if asked to; each stays with the caller until its \
         lease is over",
    );
    let route = Route::new(Method::POST, "/v1/tubes/{tube}/take", about, take)
        .reads::<TakeRequest>()
        .answers::<TasksAnswer>("The tasks; perhaps none")
        .commands();
    vec![route]
}

/// When the caller goes away, this is dropped, and the engine gives what it took to the next one.
async fn take(
    State(app): State<Shared>,
    InTube(tube): InTube,
    Json(request): Json<TakeRequest>,
) -> Result<Response, Refusal> {
    check_wait(&app, "wait", request.wait)?;
    let form = request.form();
    match request.into_command(tube)? {
        Command::Take(take) => streamed::take(&app, take, form).await,
        _ => Err(misfit()),
    }
}

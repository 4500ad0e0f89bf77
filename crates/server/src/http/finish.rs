//! Endpoints that end deliveries: ack, release, bury, fail, touch, and several of these at once.

use axum::response::Response;
use taskyard_core::{Command, Reply};
use taskyard_wire::http::{
    AckRequest, BuryRequest, FailRequest, FinishAnswer, FinishRequest, Form, ReleaseRequest,
    TouchRequest,
};
use taskyard_wire::{Code, draw_seeds};

use super::described::ToSchema;
use super::request::{Json, TubePath};
use super::{Refusal, RequestApp, Route, ok, streamed};
use crate::app::unexpected_reply;

/// Bytes of an outcome in a response.
const OUTCOME_BYTES: usize = 10;

/// The endpoints of this file.
pub(crate) fn routes() -> Vec<Route> {
    let ack = ("ack", "Mark tasks as done: they are removed");
    let bury = ("bury", "Set tasks aside until they are kicked");
    let release = ("release", "Return tasks to the tube");
    let fail =
        ("fail", "Report that deliveries failed: the error is kept, the tasks are tried again");
    let touch = ("touch", "Extend the leases of tasks");
    let finish = ("finish", "End several deliveries in different ways, in one step");
    vec![
        finishes::<AckRequest>(Route::of_tube("/v1/tubes/{tube}/ack", ack, self::ack)),
        finishes::<BuryRequest>(Route::of_tube("/v1/tubes/{tube}/bury", bury, self::bury)),
        finishes::<FailRequest>(Route::of_tube("/v1/tubes/{tube}/fail", fail, self::fail)),
        finishes::<ReleaseRequest>(Route::of_tube(
            "/v1/tubes/{tube}/release",
            release,
            self::release,
        )),
        finishes::<TouchRequest>(Route::of_tube("/v1/tubes/{tube}/touch", touch, self::touch)),
        finishes::<FinishRequest>(Route::of_tube("/v1/tubes/{tube}/finish", finish, self::finish)),
    ]
}

fn finishes<T: ToSchema>(route: Route) -> Route {
    route
        .request_body::<T>()
        .responds::<FinishAnswer>("The outcome of each delivery, in the order of the request")
        .refuses([Code::Unsupported])
        .uses_engine()
}

async fn ack(
    app: RequestApp,
    TubePath(tube): TubePath,
    Json(request): Json<AckRequest>,
) -> Result<Response, Refusal> {
    let show = request.show;
    end(&app, request.into_command(tube)?, show).await
}

async fn bury(
    app: RequestApp,
    TubePath(tube): TubePath,
    Json(request): Json<BuryRequest>,
) -> Result<Response, Refusal> {
    let show = request.show;
    end(&app, request.into_command(tube)?, show).await
}

async fn fail(
    app: RequestApp,
    TubePath(tube): TubePath,
    Json(request): Json<FailRequest>,
) -> Result<Response, Refusal> {
    let show = request.show;
    end(&app, request.into_command(tube)?, show).await
}

async fn release(
    app: RequestApp,
    TubePath(tube): TubePath,
    Json(request): Json<ReleaseRequest>,
) -> Result<Response, Refusal> {
    let show = request.show;
    end(&app, request.into_command(tube)?, show).await
}

async fn touch(
    app: RequestApp,
    TubePath(tube): TubePath,
    Json(request): Json<TouchRequest>,
) -> Result<Response, Refusal> {
    let show = request.show;
    end(&app, request.into_command(tube)?, show).await
}

async fn finish(
    app: RequestApp,
    TubePath(tube): TubePath,
    Json(request): Json<FinishRequest>,
) -> Result<Response, Refusal> {
    let show = request.show;
    end(&app, request.into_command(tube)?, show).await
}

/// Runs a command that replies with an outcome for each item.
pub(super) async fn end(
    app: &RequestApp,
    mut command: Command,
    show: bool,
) -> Result<Response, Refusal> {
    draw_seeds(&mut command);
    let permit = app.response_budget.reserve(expected(app, &command, show)).await?;
    let Reply::Finished(outcomes) = app.run(command).await? else { return Err(unexpected_reply()) };
    // Byte for byte: a program that requests the tasks stores them.
    let response = ok(&FinishAnswer::new(&outcomes, show.then_some(Form::Exact)))?;
    Ok(streamed::with_permit(app, response, permit))
}

/// The expected bytes of the response.
fn expected(app: &RequestApp, command: &Command, show: bool) -> usize {
    let (tube, items) = match command {
        Command::Finish { tube, items, .. } => (tube, items.len()),
        Command::Delete { tube, ids, .. } => (tube, ids.len()),
        _ => return 0,
    };
    let tasks = if show { app.response_budget.expected(tube, items) } else { 0 };
    tasks + items.saturating_mul(OUTCOME_BYTES)
}

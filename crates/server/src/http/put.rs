//! Adding tasks.

use axum::extract::State;
use axum::http::Method;
use axum::response::Response;
use taskyard_core::{Command, Error, Kind, Reply, Result as CoreResult, TubeName, TubeOptions};
use taskyard_wire::Code;
use taskyard_wire::http::{PutAnswer, PutRequest};

use super::request::{InTube, Json};
use super::{Refusal, Route, check_wait, ok};
use crate::app::{App, Shared, misfit};

/// The addresses of this file.
pub(crate) fn routes() -> Vec<Route> {
    let about = (
        "put",
        "Add one task or several, all or none; an unknown tube is created as fifottl unless the \
         server is strict",
    );
    let route = Route::new(Method::POST, "/v1/tubes/{tube}/put", about, put)
        .reads::<PutRequest>()
        .answers::<PutAnswer>("The tasks that were added, in the order of the request")
        .refuses([Code::TubeFull, Code::TooManyTubes])
        .commands();
    vec![route]
}

async fn put(
    State(app): State<Shared>,
    InTube(tube): InTube,
    Json(request): Json<PutRequest>,
) -> Result<Response, Refusal> {
    check_wait(&app, "timeout", request.timeout.unwrap_or_default())?;
    let command = request.into_command(tube.clone())?;
    let reply = if app.strict_tubes {
        app.ask(command).await?
    } else {
        put_or_create(&app, tube, command).await?
    };
    let Reply::Put(placed) = reply else { return Err(misfit()) };
    ok(&PutAnswer::new(&placed))
}

/// One command as long as the tube is there, three when it has to be created.
async fn put_or_create(app: &App, tube: TubeName, command: Command) -> CoreResult<Reply> {
    // Cheap: the payloads are shared.
    match app.ask(command.clone()).await {
        Err(Error::TubeNotFound(_)) => {}
        reply => return reply,
    }
    let options = TubeOptions::new(Kind::FifoTtl);
    app.ask(Command::CreateTube { tube, options, if_not_exists: true }).await?;
    app.ask(command).await
}

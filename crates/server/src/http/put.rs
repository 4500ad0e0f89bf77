//! Adding tasks.

use axum::extract::State;
use axum::http::Method;
use axum::response::Response;
use taskyard_core::{
    Command, Error, Kind, Reply, TubeName, TubeOptions, refuse_priorities, refuse_subqueues,
};
use taskyard_wire::Code;
use taskyard_wire::http::{PutAnswer, PutRequest};

use super::request::{InTube, Json};
use super::{Refusal, Route, check_wait, ok, streamed};
use crate::app::{App, Shared, misfit};

/// What to do about an unknown tube where a put makes none.
const STRICT: &str = "this server makes none by itself, so create it first: PUT /v1/tubes/TUBE";
/// What to do about an unknown tube for tasks with sub-queues.
const SUBQUEUES: &str = "a put would make it as fifottl, which has no sub-queues, so create it \
                         first as utube or utubettl";

/// What to do about an unknown tube for tasks that name their priority in its semaphore.
const SEMAPHORE: &str = "a put would make it without a semaphore, so create it first with one";

/// Bytes of a task in the answer to a put.
const PLACED_BYTES: usize = 48;

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
        .refuses([Code::TubeFull, Code::TooManyTubes, Code::NoSemaphore, Code::Unsupported])
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
    if names_subqueues(&command) {
        check_subqueues(&app, &tube).await?;
    }
    let tasks = if let Command::Put { tasks, .. } = &command { tasks.len() } else { 0 };
    // What was put must be answered, so its room is there before.
    let share = app.answers.reserve(tasks.saturating_mul(PLACED_BYTES)).await?;
    let reply = if app.strict_tubes {
        app.ask(command).await.map_err(|error| match error {
            Error::TubeNotFound(tube) => Refusal::no_tube(tube, STRICT),
            error => error.into(),
        })?
    } else {
        put_or_create(&app, tube, command).await?
    };
    let Reply::Put(placed) = reply else { return Err(misfit()) };
    Ok(streamed::with_share(&app, ok(&PutAnswer::new(&placed))?, share))
}

/// Refuses sub-queues for a tube that has none: the store would ignore them.
async fn check_subqueues(app: &App, tube: &TubeName) -> Result<(), Refusal> {
    if app.subqueue_tubes.knows(tube) {
        return Ok(());
    }
    // What else is wrong the put itself says.
    if let Ok(Reply::Tubes(tubes)) = app.ask(Command::Tubes { tube: Some(tube.clone()) }).await {
        for found in tubes {
            refuse_subqueues(found.options.kind)?;
            app.subqueue_tubes.note(tube);
        }
    }
    Ok(())
}

/// One command as long as the tube is there, three when it has to be created.
async fn put_or_create(app: &App, tube: TubeName, command: Command) -> Result<Reply, Refusal> {
    // Cheap: the payloads are shared.
    match app.ask(command.clone()).await {
        Err(Error::TubeNotFound(_)) => {}
        reply => return Ok(reply?),
    }
    if names_subqueues(&command) {
        return Err(Refusal::no_tube(tube, SUBQUEUES));
    }
    if matches!(&command, Command::Put { tasks, .. } if refuse_priorities(&tube, tasks).is_err()) {
        return Err(Refusal::no_tube(tube, SEMAPHORE));
    }
    let options = TubeOptions::new(Kind::FifoTtl);
    app.ask(Command::CreateTube { tube, options, if_not_exists: true }).await?;
    Ok(app.ask(command).await?)
}

/// Whether a tube made for these tasks would ignore what they say.
fn names_subqueues(command: &Command) -> bool {
    match command {
        Command::Put { tasks, .. } => tasks.iter().any(|task| task.subqueue.is_some()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use taskyard_core::{Body, NewTask, Span};

    use super::*;

    // The first put of a task with a sub-queue made a tube that has none, and ignored it.
    #[test]
    fn a_task_with_a_sub_queue_needs_a_tube_that_has_them() {
        let put = |subqueue: Option<&str>| {
            let plain = NewTask::new(Body::new(b"\x01"));
            let named = NewTask { subqueue: subqueue.map(Into::into), ..plain.clone() };
            let tube = TubeName::new("orders").unwrap();
            Command::Put { tube, tasks: vec![plain, named], wait: Span::ZERO }
        };
        assert!(!names_subqueues(&put(None)));
        assert!(names_subqueues(&put(Some("ann"))));
    }
}

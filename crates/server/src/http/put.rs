//! The endpoint that adds tasks.

use axum::response::Response;
use taskyard_core::{
    Command, Error, Kind, Placed, Reply, TaskId, TubeName, TubeOptions, check_tasks,
    refuse_priorities, refuse_subqueues,
};
use taskyard_wire::Code;
use taskyard_wire::http::{PutAnswer, PutRequest};

use super::estimates::{QueuePositions, check_count};
use super::request::{Json, TubePath};
use super::{Refusal, RequestApp, Route, RunError, check_wait, ok, streamed};
use crate::app::{App, unexpected_reply};

/// Advice for an unknown tube where a put creates none.
const STRICT: &str =
    "this server does not create tubes on put; create it first: PUT /v1/tubes/TUBE";
/// Advice for an unknown tube and tasks with sub-queues.
const SUBQUEUES: &str = "a put would create it as fifottl, which has no sub-queues; create it \
                         first as utube or utubettl";

/// Advice for an unknown tube and tasks with a priority in its semaphore.
const SEMAPHORE: &str = "a put would create it without a semaphore; create it with one first";

/// Bytes of a task in the response to a put.
const PLACED_BYTES: usize = 64;
/// Bytes of its position and estimate.
const ESTIMATE_BYTES: usize = 192;

/// The endpoints of this file.
pub(crate) fn routes() -> Vec<Route> {
    let about = (
        "put",
        "Add one task or several, all or none; an unknown tube is created as fifottl unless the \
         server is strict",
    );
    let route = Route::of_tube("/v1/tubes/{tube}/put", about, put)
        .request_body::<PutRequest>()
        .responds::<PutAnswer>(
            "The tasks that were added or held their keys, in the order of the request",
        )
        .refuses([Code::TubeFull, Code::TooManyTubes, Code::NoSemaphore, Code::Unsupported])
        .uses_engine();
    vec![route]
}

async fn put(
    app: RequestApp,
    TubePath(tube): TubePath,
    Json(request): Json<PutRequest>,
) -> Result<Response, Refusal> {
    check_wait(&app, "timeout", request.timeout.unwrap_or_default())?;
    let estimate = request.estimate;
    let command = request.into_command(tube.clone())?;
    if names_subqueues(&command) {
        Box::pin(check_subqueues(&app, &tube)).await?;
    }
    let tasks = if let Command::Put { tasks, .. } = &command { tasks.len() } else { 0 };
    let bytes = if estimate {
        check_count(tasks)?;
        PLACED_BYTES + ESTIMATE_BYTES
    } else {
        PLACED_BYTES
    };
    // A put must be answered once it is done, so the response budget is reserved before.
    let permit = app.response_budget.reserve(tasks.saturating_mul(bytes)).await?;
    let reply = if app.strict_tubes {
        app.run(command).await.map_err(|error| match error {
            RunError::Failed(Error::TubeNotFound(tube)) => Refusal::no_tube(tube, STRICT),
            error => error.into(),
        })?
    } else {
        put_or_create(&app, tube.clone(), command).await?
    };
    let Reply::Put(placed) = reply else { return Err(unexpected_reply()) };
    let mut answer = PutAnswer::new(&placed);
    if estimate {
        Box::pin(add_estimates(&app, &tube, &placed, &mut answer)).await;
    }
    Ok(streamed::with_permit(&app, ok(&answer)?, permit))
}

/// Adds when the tasks will start. The tasks are in the tube, so the put does not fail if that cannot be read.
async fn add_estimates(app: &App, tube: &TubeName, placed: &[Placed], answer: &mut PutAnswer) {
    let waiting = placed.iter().map(|task| (task.id, task.state));
    let positions = QueuePositions::read(app, tube, waiting).await.unwrap_or_default();
    for task in &mut answer.tasks {
        task.queue = positions.of(TaskId(task.id));
    }
}

/// Refuses sub-queues for a tube that has none: the store would ignore them.
async fn check_subqueues(app: &RequestApp, tube: &TubeName) -> Result<(), Refusal> {
    if app.subqueue_tubes.knows(tube) {
        return Ok(());
    }
    // Other errors are reported by the put itself.
    if let Ok(Reply::Tubes(tubes)) = app.run(Command::Tubes { tube: Some(tube.clone()) }).await {
        for found in tubes {
            refuse_subqueues(found.options.kind)?;
            app.subqueue_tubes.note(tube);
        }
    }
    Ok(())
}

/// One command if the tube exists, three if it has to be created.
async fn put_or_create(
    app: &RequestApp,
    tube: TubeName,
    command: Command,
) -> Result<Reply, Refusal> {
    // Cheap: the payloads are shared.
    match app.run(command.clone()).await {
        Err(RunError::Failed(Error::TubeNotFound(_))) => {}
        reply => return Ok(reply?),
    }
    Box::pin(create_and_put(app, tube, command)).await
}

async fn create_and_put(
    app: &RequestApp,
    tube: TubeName,
    command: Command,
) -> Result<Reply, Refusal> {
    if names_subqueues(&command) {
        return Err(Refusal::no_tube(tube, SUBQUEUES));
    }
    if matches!(&command, Command::Put { tasks, .. } if refuse_priorities(&tube, tasks).is_err()) {
        return Err(Refusal::no_tube(tube, SEMAPHORE));
    }
    if let Command::Put { tasks, .. } = &command {
        // A put that is refused creates no tube.
        check_tasks(tasks)?;
    }
    let options = TubeOptions::new(Kind::FifoTtl);
    // A user who may put may do so as well into a tube that does not exist yet.
    app.run_checked(Command::CreateTube { tube, options, if_not_exists: true }).await?;
    Ok(app.run(command).await?)
}

/// Whether a tube created for these tasks would ignore their sub-queues.
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

    // The first put of a task with a sub-queue created a tube without sub-queues, and ignored it.
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

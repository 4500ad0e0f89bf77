//! The small verbs: kick, delete, peek, and who holds or waits for what.

use axum::extract::State;
use axum::http::Method;
use axum::response::Response;
use serde::Deserialize;
use taskyard_core::limits::BATCH_TASKS_MAX;
use taskyard_core::{Command, Error, Reply, Result as CoreResult};
use taskyard_engine::{Side, Waiting};
use taskyard_wire::Code;
use taskyard_wire::http::{
    ConsumerAnswer, ConsumersAnswer, DeleteRequest, DeliveriesAnswer, DeliveryAnswer, FinishAnswer,
    Form, KickAnswer, KickRequest, PeekRequest, TaskAnswer, TasksAnswer,
};

use super::finish::end;
use super::request::{Asked, InTube, Json, OneTask, count};
use super::route::QueryField;
use super::tubes::infos;
use super::{Refusal, Route, ok, streamed};
use crate::app::{Shared, misfit};

/// How many entries a list has when the request does not say.
const COUNT_DEFAULT: usize = 1_000;

/// The addresses of this file.
pub(crate) fn routes() -> Vec<Route> {
    let mut routes = verbs();
    routes.extend(lists());
    routes
}

fn verbs() -> Vec<Route> {
    let kick = ("kick", "Bring buried tasks back");
    let delete = ("delete", "Remove tasks, whoever holds them");
    let peek = ("peek", "Look at tasks; those that are not there are left out");
    vec![
        Route::new(Method::POST, "/v1/tubes/{tube}/kick", kick, self::kick)
            .reads::<KickRequest>()
            .answers::<KickAnswer>("How many came back")
            .commands(),
        Route::new(Method::POST, "/v1/tubes/{tube}/delete", delete, self::delete)
            .reads::<DeleteRequest>()
            .answers::<FinishAnswer>("What became of each task, in the order of the request")
            .commands(),
        Route::new(Method::POST, "/v1/tubes/{tube}/peek", peek, self::peek)
            .reads::<PeekRequest>()
            .answers::<TasksAnswer>("The tasks, each with the reason why it does not run")
            .commands(),
    ]
}

fn lists() -> Vec<Route> {
    let peek_one = ("peek_one", "Look at one task and why it does not run");
    let deliveries = ("deliveries", "Show who holds what, by id");
    let consumers = ("consumers", "Show who waits on this server for a task, oldest first");
    let count =
        || QueryField::count("count", "At most how many; 1000 when absent", BATCH_TASKS_MAX);
    let base64 = "Answer with `data_base64`: the payload byte for byte";
    vec![
        Route::new(Method::GET, "/v1/tubes/{tube}/tasks/{id}", peek_one, self::peek_one)
            .asks(QueryField::flag("base64", base64))
            .answers::<TaskAnswer>("The task")
            .refuses([Code::TaskNotFound])
            .commands(),
        Route::new(Method::GET, "/v1/tubes/{tube}/deliveries", deliveries, self::deliveries)
            .asks(count())
            .asks(QueryField::flag("show", "Answer with the whole tasks, without payloads"))
            .answers::<DeliveriesAnswer>("The taken tasks")
            .commands(),
        Route::new(Method::GET, "/v1/tubes/{tube}/consumers", consumers, self::consumers)
            .asks(count())
            .answers::<ConsumersAnswer>("The waiting takes")
            .commands(),
    ]
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OneAsked {
    #[serde(default)]
    base64: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeliveriesAsked {
    #[serde(default = "count_default", deserialize_with = "count")]
    count: usize,
    #[serde(default)]
    show: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConsumersAsked {
    #[serde(default = "count_default", deserialize_with = "count")]
    count: usize,
}

const fn count_default() -> usize {
    COUNT_DEFAULT
}

async fn kick(
    State(app): State<Shared>,
    InTube(tube): InTube,
    Json(request): Json<KickRequest>,
) -> Result<Response, Refusal> {
    let reply = app.ask(request.into_command(tube)).await?;
    let Reply::Kicked(kicked) = reply else { return Err(misfit()) };
    ok(&KickAnswer { kicked })
}

async fn delete(
    State(app): State<Shared>,
    InTube(tube): InTube,
    Json(request): Json<DeleteRequest>,
) -> Result<Response, Refusal> {
    let show = request.show;
    end(&app, request.into_command(tube), show).await
}

async fn peek(
    State(app): State<Shared>,
    InTube(tube): InTube,
    Json(request): Json<PeekRequest>,
) -> Result<Response, Refusal> {
    if request.ids.len() > BATCH_TASKS_MAX {
        return Err(Refusal::from(Error::TooLarge {
            what: "the number of tasks in one peek",
            size: request.ids.len(),
            limit: BATCH_TASKS_MAX,
            advice: "look at them in several requests",
        }));
    }
    let shape = (request.ids.len(), request.form());
    let command = request.into_command(tube.clone());
    streamed::peek(&app, tube, command, shape).await
}

async fn peek_one(
    State(app): State<Shared>,
    OneTask(tube, id): OneTask,
    Asked(asked): Asked<OneAsked>,
) -> Result<Response, Refusal> {
    let reply = app.ask(Command::Peek { tube: tube.clone(), ids: vec![id] }).await?;
    let Reply::Tasks(tasks) = reply else { return Err(misfit()) };
    let task = tasks.first().ok_or(Error::TaskNotFound(tube, id))?;
    ok(&TaskAnswer::with_reason(task, Form::of(asked.base64)))
}

async fn deliveries(
    State(app): State<Shared>,
    InTube(tube): InTube,
    Asked(asked): Asked<DeliveriesAsked>,
) -> Result<Response, Refusal> {
    let count = checked(asked.count)?;
    let reply = app.ask(Command::Deliveries { tube: tube.clone(), count }).await?;
    let Reply::Tasks(tasks) = reply else { return Err(misfit()) };
    let deliveries = tasks.iter().map(|task| DeliveryAnswer::new(&tube, task, asked.show));
    ok(&DeliveriesAnswer { deliveries: deliveries.collect() })
}

async fn consumers(
    State(app): State<Shared>,
    InTube(tube): InTube,
    Asked(asked): Asked<ConsumersAsked>,
) -> Result<Response, Refusal> {
    let count = checked(asked.count)?;
    // The engine knows who waits, only the store knows whether the tube is there.
    infos(&app, Some(tube.clone())).await?;
    let waiting = app.engine.waiting().await.into_iter();
    let takes = waiting.filter(|waiting| waiting.tube == tube && waiting.side == Side::Take);
    ok(&ConsumersAnswer { consumers: takes.take(count).map(consumer).collect() })
}

fn consumer(waiting: Waiting) -> ConsumerAnswer {
    let Waiting { tube, since, until, session, .. } = waiting;
    let session = session.map(|session| session.to_string());
    ConsumerAnswer { session, ..ConsumerAnswer::new(&tube, since, until) }
}

pub(super) fn checked(count: usize) -> CoreResult<usize> {
    if (1..=BATCH_TASKS_MAX).contains(&count) {
        return Ok(count);
    }
    Err(Error::Invalid(format!("'count' is {count}; ask for 1 to {BATCH_TASKS_MAX} entries")))
}

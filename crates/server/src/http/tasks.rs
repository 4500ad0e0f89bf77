//! Endpoints about single tasks (kick, delete, peek) and lists of deliveries and waiting consumers.

use axum::http::Method;
use axum::response::Response;
use serde::Deserialize;
use taskyard_core::access::AccessVerb;
use taskyard_core::limits::{BATCH_TASKS_MAX, LIST_TASKS_MAX};
use taskyard_core::{
    Command, Error, Position, Reply, Result as CoreResult, State, Task, TaskId, TubeName,
};
use taskyard_engine::{Side, Waiting};
use taskyard_wire::Code;
use taskyard_wire::http::{
    ConsumerAnswer, ConsumersAnswer, DeleteRequest, DeliveriesAnswer, DeliveryAnswer, FinishAnswer,
    Form, KickAnswer, KickRequest, PeekRequest, PositionsAnswer, PositionsRequest, TaskAnswer,
    TaskPageAnswer, TasksAnswer, TasksQuery,
};

use super::estimates::{QueuePositions, check_count, estimate};
use super::finish::end;
use super::request::{Json, QueryParams, TaskPath, TubePath, count};
use super::route::QueryField;
use super::tubes::infos;
use super::{Refusal, RequestApp, Route, ok, streamed, task_page};
use crate::app::unexpected_reply;

/// The default number of entries in a list.
const COUNT_DEFAULT: usize = 1_000;

/// Names of states, separated by commas.
pub(crate) const STATES_PATTERN: &str =
    "^(ready|taken|delayed|buried|done)(,(ready|taken|delayed|buried|done)){0,4}$";

/// The `next` of a page: an id, in the order of delivery after a priority.
const CURSOR_PATTERN: &str = "^([0-9]{1,20}:)?[0-9]{1,15}$";

/// The endpoints of this file.
pub(crate) fn routes() -> Vec<Route> {
    let mut routes = verbs();
    routes.extend(lists());
    routes
}

fn verbs() -> Vec<Route> {
    let kick = ("kick", "Make buried tasks ready again");
    let delete = ("delete", "Remove tasks in any state");
    let peek = ("peek", "Show tasks; unknown ones are omitted");
    let positions =
        ("positions", "Show where waiting tasks are in the queue, and when they will start");
    vec![
        Route::new(Method::POST, "/v1/tubes/{tube}/kick", kick, self::kick)
            .request_body::<KickRequest>()
            .responds::<KickAnswer>("How many tasks were kicked")
            .uses_engine(),
        Route::new(Method::POST, "/v1/tubes/{tube}/delete", delete, self::delete)
            .request_body::<DeleteRequest>()
            .responds::<FinishAnswer>("The outcome of each task, in the order of the request")
            .uses_engine(),
        Route::new(Method::POST, "/v1/tubes/{tube}/peek", peek, self::peek)
            .request_body::<PeekRequest>()
            .responds::<TasksAnswer>("The tasks, each with the reason why it does not run")
            .uses_engine(),
        Route::new(Method::POST, "/v1/tubes/{tube}/positions", positions, self::positions)
            .request_body::<PositionsRequest>()
            .responds::<PositionsAnswer>("The tasks that wait, each with an estimate or a reason")
            .uses_engine(),
    ]
}

/// The query parameters of a page of tasks.
fn page_fields() -> [QueryField; 15] {
    [
        QueryField::pattern(
            "state",
            "Only tasks in these states, separated by commas; all but done when absent",
            STATES_PATTERN,
        ),
        QueryField::pattern(
            "order",
            "id, or queue for the order of delivery; id when absent",
            "^(id|queue)$",
        ),
        QueryField::pattern("after", "The `next` of the page before", CURSOR_PATTERN),
        QueryField::count("limit", "Maximum number of tasks; 100 when absent", LIST_TASKS_MAX),
        QueryField::text("match", "Only tasks whose payload contains this text; case-sensitive"),
        QueryField::text("key", "Only tasks with this key; not with order=queue"),
        QueryField::text("subqueue", "Only tasks of this sub-queue"),
        QueryField::text(
            "worker",
            "Only tasks that the worker of this name holds or finished, or for which it failed last",
        ),
        QueryField::text("error", "Only tasks with a failure whose error contains this text"),
        QueryField::count(
            "attempts_min",
            "Only tasks with at least this many attempts",
            u32::MAX as usize,
        ),
        QueryField::number(
            "created_from",
            "Only tasks put at this second since the epoch or later",
        ),
        QueryField::number("created_until", "Only tasks put before this second since the epoch"),
        QueryField::number(
            "finished_from",
            "Only done tasks that ended at this second since the epoch or later",
        ),
        QueryField::number(
            "finished_until",
            "Only done tasks that ended before this second since the epoch",
        ),
        estimate("Respond with the positions of waiting tasks, and when they will start"),
    ]
}

fn page() -> Route {
    let page = ("tasks", "List tasks page by page");
    let route = Route::new(Method::GET, "/v1/tubes/{tube}/tasks", page, self::tasks)
        .responds::<TaskPageAnswer>("A page of tasks, each with the reason why it does not run")
        .uses_engine();
    page_fields().into_iter().fold(route, Route::query_param)
}

fn lists() -> Vec<Route> {
    let peek_one = ("peek_one", "Show one task and why it does not run");
    let deliveries = ("deliveries", "Show taken tasks and their holders, by id");
    let consumers =
        ("consumers", "Show consumers that wait on this server for a task, oldest first");
    let count = || {
        QueryField::count("count", "Maximum number of entries; 1000 when absent", BATCH_TASKS_MAX)
    };
    let base64 = "Respond with `data_base64`: the payload byte for byte";
    vec![
        page(),
        Route::new(Method::GET, "/v1/tubes/{tube}/tasks/{id}", peek_one, self::peek_one)
            .query_param(QueryField::flag("base64", base64))
            .query_param(estimate("Respond with when the task will start, if it waits"))
            .responds::<TaskAnswer>("The task")
            .refuses([Code::TaskNotFound])
            .uses_engine(),
        Route::new(Method::GET, "/v1/tubes/{tube}/deliveries", deliveries, self::deliveries)
            .query_param(count())
            .query_param(QueryField::flag("show", "Respond with complete tasks, without payloads"))
            .responds::<DeliveriesAnswer>("The taken tasks")
            .uses_engine(),
        Route::new(Method::GET, "/v1/tubes/{tube}/consumers", consumers, self::consumers)
            .query_param(count())
            .responds::<ConsumersAnswer>("The waiting takes")
            .uses_engine(),
    ]
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PeekOneQuery {
    #[serde(default)]
    base64: bool,
    #[serde(default)]
    estimate: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeliveriesQuery {
    #[serde(default = "count_default", deserialize_with = "count")]
    count: usize,
    #[serde(default)]
    show: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConsumersQuery {
    #[serde(default = "count_default", deserialize_with = "count")]
    count: usize,
}

const fn count_default() -> usize {
    COUNT_DEFAULT
}

async fn kick(
    app: RequestApp,
    TubePath(tube): TubePath,
    Json(request): Json<KickRequest>,
) -> Result<Response, Refusal> {
    let reply = app.run(request.into_command(tube)).await?;
    let Reply::Kicked(kicked) = reply else { return Err(unexpected_reply()) };
    ok(&KickAnswer { kicked })
}

async fn delete(
    app: RequestApp,
    TubePath(tube): TubePath,
    Json(request): Json<DeleteRequest>,
) -> Result<Response, Refusal> {
    let show = request.show;
    end(&app, request.into_command(tube), show).await
}

async fn peek(
    app: RequestApp,
    TubePath(tube): TubePath,
    Json(request): Json<PeekRequest>,
) -> Result<Response, Refusal> {
    if request.ids.len() > BATCH_TASKS_MAX {
        return Err(Refusal::from(Error::TooLarge {
            what: "the number of tasks in one peek",
            size: request.ids.len(),
            limit: BATCH_TASKS_MAX,
            advice: "peek in several requests",
        }));
    }
    if request.estimate {
        check_count(request.ids.len())?;
    }
    streamed::peek(&app, tube, request).await
}

async fn positions(
    app: RequestApp,
    TubePath(tube): TubePath,
    Json(request): Json<PositionsRequest>,
) -> Result<Response, Refusal> {
    let reply = app.run(request.into_command(tube)).await?;
    let Reply::Positions(positions) = reply else { return Err(unexpected_reply()) };
    ok(&PositionsAnswer::new(&positions))
}

async fn peek_one(
    app: RequestApp,
    TaskPath(tube, id): TaskPath,
    QueryParams(query): QueryParams<PeekOneQuery>,
) -> Result<Response, Refusal> {
    let reply = app.run(Command::Peek { tube: tube.clone(), ids: vec![id] }).await?;
    let Reply::Tasks(tasks) = reply else { return Err(unexpected_reply()) };
    let task = tasks.first().ok_or(Error::TaskNotFound(tube.clone(), id))?;
    let answer = TaskAnswer::with_reason(task, Form::of(query.base64));
    ok(&match position(&app, tube, task, query.estimate).await? {
        Some(position) => answer.at_position(&position),
        None => answer,
    })
}

/// Where a task is in the queue, if the answer shows it.
async fn position(
    app: &RequestApp,
    tube: TubeName,
    task: &Task,
    estimate: bool,
) -> Result<Option<Position>, Refusal> {
    let mut positions = match (task.state, estimate) {
        (State::Ready | State::Delayed, true) => {
            let ids = vec![task.id];
            match app.run(Command::Positions { tube, ids }).await? {
                Reply::Positions(positions) => positions,
                _ => return Err(unexpected_reply()),
            }
        }
        (State::Ready, false) => app.engine.positions(tube, vec![task.id]).await?,
        _ => Vec::new(),
    };
    Ok(positions.pop())
}

async fn tasks(
    app: RequestApp,
    TubePath(tube): TubePath,
    QueryParams(query): QueryParams<TasksQuery>,
) -> Result<Response, Refusal> {
    let (list, filter) = (query.list(tube.clone())?, query.filter()?);
    let mut page = task_page::read(&app, list, filter).await?;
    if query.estimate {
        let waiting = page.tasks.iter().map(|task| (TaskId(task.id), task.state.into()));
        let positions = QueuePositions::read(&app, &tube, waiting).await?;
        for task in &mut page.tasks {
            task.queue = positions.of(TaskId(task.id));
        }
    }
    ok(&page)
}

async fn deliveries(
    app: RequestApp,
    TubePath(tube): TubePath,
    QueryParams(query): QueryParams<DeliveriesQuery>,
) -> Result<Response, Refusal> {
    let count = checked(query.count)?;
    let reply = app.run(Command::Deliveries { tube: tube.clone(), count }).await?;
    let Reply::Tasks(tasks) = reply else { return Err(unexpected_reply()) };
    let deliveries = tasks.iter().map(|task| DeliveryAnswer::new(&tube, task, query.show));
    ok(&DeliveriesAnswer { deliveries: deliveries.collect() })
}

async fn consumers(
    app: RequestApp,
    TubePath(tube): TubePath,
    QueryParams(query): QueryParams<ConsumersQuery>,
) -> Result<Response, Refusal> {
    let count = checked(query.count)?;
    // The engine knows the waiting consumers; only the store knows whether the tube exists.
    infos(&app, Some(tube.clone())).await?;
    let waiting = app.engine.waiting().await.into_iter();
    let takes = waiting.filter(|waiting| waiting.tube == tube && waiting.side == Side::Take);
    // With the id of a session a client can act for it.
    let shows_session = app
        .with_permissions(|permissions| permissions.allows(AccessVerb::ShowHolders, tube.as_str()));
    let consumers = takes.take(count).map(|waiting| consumer(waiting, shows_session));
    ok(&ConsumersAnswer { consumers: consumers.collect() })
}

fn consumer(waiting: Waiting, shows_session: bool) -> ConsumerAnswer {
    let Waiting { tube, since, until, session, .. } = waiting;
    let session = session.filter(|_| shows_session).map(|session| session.to_string());
    ConsumerAnswer { session, ..ConsumerAnswer::new(&tube, since, until) }
}

pub(super) fn checked(count: usize) -> CoreResult<usize> {
    if (1..=BATCH_TASKS_MAX).contains(&count) {
        return Ok(count);
    }
    Err(Error::Invalid(format!("'count' is {count}; request 1 to {BATCH_TASKS_MAX} entries")))
}

#[cfg(test)]
mod tests {
    use taskyard_core::limits::TASK_ID_MAX;

    use super::*;

    /// A priority had at most 15 digits.
    #[test]
    fn the_pattern_of_a_cursor_has_room_for_every_priority_and_id() {
        let digits = |number: u64| format!("[0-9]{{1,{}}}", number.to_string().len());
        let expected = format!("^({}:)?{}$", digits(u64::MAX), digits(TASK_ID_MAX));
        assert_eq!(CURSOR_PATTERN, expected);
    }
}

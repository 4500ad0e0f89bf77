//! Endpoints of semaphores: configuration, queue, grants and events.

use axum::http::Method;
use axum::response::Response;
use serde::Deserialize;
use taskyard_core::limits::BATCH_TASKS_MAX;
use taskyard_core::{
    Command, MemberGroup, Reply, SemaphoreCommand, SemaphoreInfo, SemaphoreKey, SemaphoreReply,
    TaskId,
};
use taskyard_wire::Code;
use taskyard_wire::http::{
    AcknowledgeRequest, AcknowledgedAnswer, EnqueueRequest, EventAnswer, EventsAnswer,
    EventsRequest, GrantsAnswer, GrantsRequest, MemberInfoAnswer, MemberInfosAnswer, MembersAnswer,
    NothingAnswer, SemaphoreAnswer, SemaphorePeekRequest, SemaphoreRequest, SemaphoresAnswer,
};

use super::request::{Json, QueryParams, SemaphorePath, count};
use super::route::QueryField;
use super::tasks::checked;
use super::{Refusal, RequestApp, Route, check_wait, ok, streamed};
use crate::app::unexpected_reply;

const ONE: &str = "/v1/semaphores/{semaphore}";
/// The format of a cursor: a priority and a sequence number.
const CURSOR: &str = r"^(0|-?[1-9][0-9]{0,8})(\.[0-9]{0,3}[1-9])?:(0|[1-9][0-9]{0,14})$";
/// Bytes of a task in a response.
const MEMBER_BYTES: usize = 200;

/// The endpoints of this file.
pub(crate) fn routes() -> Vec<Route> {
    let list = ("list_semaphores", "Show all semaphores, by key");
    let show = ("show_semaphore", "Show a semaphore");
    let set = ("set_semaphore", "Create a semaphore or change it");
    let drop = ("drop_semaphore", "Remove a semaphore");
    let enqueue = ("enqueue", "Enqueue a task, or change its priority");
    let peek = ("peek_semaphore", "Show the status of tasks");
    let finish = ("finish_grants", "Release, yield, decline or extend grants");
    let mut routes = vec![
        Route::new(Method::GET, "/v1/semaphores", list, self::list)
            .responds::<SemaphoresAnswer>("All semaphores"),
        Route::new(Method::GET, ONE, show, self::show).responds::<SemaphoreAnswer>("The semaphore"),
        Route::new(Method::PUT, ONE, set, self::set)
            .request_body::<SemaphoreRequest>()
            .responds::<SemaphoreAnswer>("The semaphore after the change")
            .refuses([Code::TooManySemaphores, Code::SemaphoreExists]),
        Route::new(Method::DELETE, ONE, drop, self::drop)
            .query_param(QueryField::flag(
                "force",
                "Also while tasks hold its grants or wait for them",
            ))
            .responds::<NothingAnswer>("The semaphore is removed")
            .refuses([Code::SemaphoreInUse, Code::SemaphoreHasTube]),
        Route::new(Method::POST, "/v1/semaphores/{semaphore}/enqueue", enqueue, self::enqueue)
            .request_body::<EnqueueRequest>()
            .responds::<MemberInfosAnswer>("The status of each task, in the order of the request"),
        Route::new(Method::POST, "/v1/semaphores/{semaphore}/peek", peek, self::peek)
            .request_body::<SemaphorePeekRequest>()
            .responds::<MemberInfosAnswer>("The tasks that exist"),
        Route::new(Method::POST, "/v1/semaphores/{semaphore}/finish", finish, self::finish)
            .request_body::<GrantsRequest>()
            .responds::<GrantsAnswer>("The outcome for each, in the order of the request"),
    ];
    routes.extend(member_routes());
    routes.extend(event_routes());
    routes.push(super::events::route());
    routes.into_iter().map(Route::uses_engine).collect()
}

fn member_routes() -> [Route; 2] {
    let holders = ("holders", "Show the tasks that hold a grant, the best first");
    let waiting = ("waiting", "Show the tasks that wait for a grant, the best first");
    let paged = |route: Route| {
        let count = "Maximum number of entries; 1000 when absent";
        route
            .query_param(QueryField::count("count", count, BATCH_TASKS_MAX))
            .query_param(QueryField::pattern("after", "The `next` of the previous page", CURSOR))
            .responds::<MembersAnswer>("One page")
    };
    [
        paged(Route::new(
            Method::GET,
            "/v1/semaphores/{semaphore}/holders",
            holders,
            self::holders,
        )),
        paged(Route::new(
            Method::GET,
            "/v1/semaphores/{semaphore}/waiting",
            waiting,
            self::waiting,
        )),
    ]
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PageQuery {
    #[serde(default = "members_default", deserialize_with = "count")]
    count: usize,
    #[serde(default)]
    after: Option<String>,
}

/// The default number of tasks in a page.
const fn members_default() -> usize {
    1000
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DropQuery {
    #[serde(default)]
    force: bool,
}

fn event_routes() -> [Route; 2] {
    let events = (
        "semaphore_events",
        "Fetch events, optionally waiting for the first one; each is sent again until it is acknowledged",
    );
    let acknowledge = ("acknowledge_events", "Acknowledge events");
    [
        Route::new(Method::POST, "/v1/semaphore-events", events, self::events)
            .request_body::<EventsRequest>()
            .responds::<EventsAnswer>("The events, possibly none")
            .refuses([Code::SemaphoreNotFound]),
        Route::new(Method::POST, "/v1/semaphore-events/ack", acknowledge, self::acknowledge)
            .request_body::<AcknowledgeRequest>()
            .responds::<AcknowledgedAnswer>("How many of them existed"),
    ]
}

async fn run(app: &RequestApp, command: SemaphoreCommand) -> Result<SemaphoreReply, Refusal> {
    match app.run(Command::Semaphore(command)).await? {
        Reply::Semaphore(reply) => Ok(reply),
        _ => Err(unexpected_reply()),
    }
}

async fn infos(app: &RequestApp, command: SemaphoreCommand) -> Result<Vec<SemaphoreInfo>, Refusal> {
    match run(app, command).await? {
        SemaphoreReply::Semaphores(infos) => Ok(infos),
        _ => Err(unexpected_reply()),
    }
}

async fn one(app: &RequestApp, command: SemaphoreCommand) -> Result<Response, Refusal> {
    let infos = infos(app, command).await?;
    ok(&SemaphoreAnswer::new(infos.first().ok_or_else(unexpected_reply)?))
}

async fn member_infos(app: &RequestApp, command: SemaphoreCommand) -> Result<Response, Refusal> {
    match run(app, command).await? {
        SemaphoreReply::MemberInfos(infos) => {
            ok(&MemberInfosAnswer { tasks: infos.iter().map(MemberInfoAnswer::new).collect() })
        }
        _ => Err(unexpected_reply()),
    }
}

async fn list(app: RequestApp) -> Result<Response, Refusal> {
    let infos = infos(&app, SemaphoreCommand::List { key: None }).await?;
    ok(&SemaphoresAnswer { semaphores: infos.iter().map(SemaphoreAnswer::new).collect() })
}

async fn show(app: RequestApp, SemaphorePath(key): SemaphorePath) -> Result<Response, Refusal> {
    one(&app, SemaphoreCommand::List { key: Some(key) }).await
}

async fn set(
    app: RequestApp,
    SemaphorePath(key): SemaphorePath,
    Json(request): Json<SemaphoreRequest>,
) -> Result<Response, Refusal> {
    one(&app, request.into_command(key)?).await
}

async fn drop(
    app: RequestApp,
    SemaphorePath(key): SemaphorePath,
    QueryParams(DropQuery { force }): QueryParams<DropQuery>,
) -> Result<Response, Refusal> {
    match run(&app, SemaphoreCommand::Drop { key, force }).await? {
        SemaphoreReply::Dropped => ok(&NothingAnswer {}),
        _ => Err(unexpected_reply()),
    }
}

async fn holders(
    app: RequestApp,
    SemaphorePath(key): SemaphorePath,
    QueryParams(query): QueryParams<PageQuery>,
) -> Result<Response, Refusal> {
    members(&app, key, MemberGroup::Holders, query).await
}

async fn waiting(
    app: RequestApp,
    SemaphorePath(key): SemaphorePath,
    QueryParams(query): QueryParams<PageQuery>,
) -> Result<Response, Refusal> {
    members(&app, key, MemberGroup::Waiting, query).await
}

async fn members(
    app: &RequestApp,
    key: SemaphoreKey,
    part: MemberGroup,
    query: PageQuery,
) -> Result<Response, Refusal> {
    let count = checked(query.count)?;
    let after = query.after.map(|after| after.parse()).transpose()?;
    match run(app, SemaphoreCommand::Members { key, part, after, count }).await? {
        SemaphoreReply::Members(page) => ok(&MembersAnswer::new(&page)),
        _ => Err(unexpected_reply()),
    }
}

async fn enqueue(
    app: RequestApp,
    SemaphorePath(key): SemaphorePath,
    Json(request): Json<EnqueueRequest>,
) -> Result<Response, Refusal> {
    let permit =
        app.response_budget.reserve(request.tasks.len().saturating_mul(MEMBER_BYTES)).await?;
    let response = member_infos(&app, request.into_command(key)).await?;
    Ok(streamed::with_permit(&app, response, permit))
}

async fn peek(
    app: RequestApp,
    SemaphorePath(key): SemaphorePath,
    Json(request): Json<SemaphorePeekRequest>,
) -> Result<Response, Refusal> {
    let tasks = request.tasks.into_iter().map(TaskId).collect();
    member_infos(&app, SemaphoreCommand::Peek { key, tasks }).await
}

async fn finish(
    app: RequestApp,
    SemaphorePath(key): SemaphorePath,
    Json(request): Json<GrantsRequest>,
) -> Result<Response, Refusal> {
    let permit =
        app.response_budget.reserve(request.items.len().saturating_mul(MEMBER_BYTES)).await?;
    match run(&app, request.into_command(key)?).await? {
        SemaphoreReply::Finished(outcomes) => {
            Ok(streamed::with_permit(&app, ok(&GrantsAnswer::new(&outcomes))?, permit))
        }
        _ => Err(unexpected_reply()),
    }
}

/// If the caller is gone, this future is dropped, and its events go to another listener.
async fn events(app: RequestApp, Json(request): Json<EventsRequest>) -> Result<Response, Refusal> {
    check_wait(&app, "wait", request.wait)?;
    match run(&app, request.into_command()?).await? {
        SemaphoreReply::Events(events) => {
            ok(&EventsAnswer { events: events.iter().map(EventAnswer::new).collect() })
        }
        _ => Err(unexpected_reply()),
    }
}

async fn acknowledge(
    app: RequestApp,
    Json(request): Json<AcknowledgeRequest>,
) -> Result<Response, Refusal> {
    match run(&app, request.into_command()).await? {
        SemaphoreReply::Acknowledged(acknowledged) => ok(&AcknowledgedAnswer { acknowledged }),
        _ => Err(unexpected_reply()),
    }
}

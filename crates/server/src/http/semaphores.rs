//! Semaphores: making and showing them, standing in line, ending grants, events.

use axum::extract::State;
use axum::http::Method;
use axum::response::Response;
use serde::Deserialize;
use taskyard_core::limits::BATCH_TASKS_MAX;
use taskyard_core::{
    Command, LinePart, Reply, SemaphoreCommand, SemaphoreInfo, SemaphoreKey, SemaphoreReply, TaskId,
};
use taskyard_wire::Code;
use taskyard_wire::http::{
    AcknowledgeRequest, AcknowledgedAnswer, EnqueueRequest, EventAnswer, EventsAnswer,
    EventsRequest, GrantsAnswer, GrantsRequest, LookRequest, MembersAnswer, NothingAnswer,
    SemaphoreAnswer, SemaphoreRequest, SemaphoresAnswer, StandingAnswer, StandingsAnswer,
};

use super::look::checked;
use super::request::{Asked, InSemaphore, Json, count};
use super::route::QueryField;
use super::{Refusal, Route, check_wait, ok, streamed};
use crate::app::{App, Shared, misfit};

const ONE: &str = "/v1/semaphores/{semaphore}";
/// The form of a cursor: a priority and a sequence number.
const CURSOR: &str = r"^(0|-?[1-9][0-9]{0,8})(\.[0-9]{0,3}[1-9])?:(0|[1-9][0-9]{0,14})$";
/// Bytes of a task in an answer.
const STANDING_BYTES: usize = 200;

/// The addresses of this file.
pub(crate) fn routes() -> Vec<Route> {
    let list = ("list_semaphores", "Show all semaphores, by key");
    let show = ("show_semaphore", "Show a semaphore");
    let set = ("set_semaphore", "Make a semaphore or change it");
    let drop = ("drop_semaphore", "Remove a semaphore");
    let enqueue = ("enqueue", "Stand in line, or change the priority of who stands there already");
    let look = ("look", "Show where tasks stand");
    let finish = ("finish_grants", "Release, yield, decline or extend grants");
    let mut routes = vec![
        Route::new(Method::GET, "/v1/semaphores", list, self::list)
            .answers::<SemaphoresAnswer>("All semaphores"),
        Route::new(Method::GET, ONE, show, self::show).answers::<SemaphoreAnswer>("The semaphore"),
        Route::new(Method::PUT, ONE, set, self::set)
            .reads::<SemaphoreRequest>()
            .answers::<SemaphoreAnswer>("The semaphore after that")
            .refuses([Code::TooManySemaphores, Code::SemaphoreExists]),
        Route::new(Method::DELETE, ONE, drop, self::drop)
            .asks(QueryField::flag("force", "Also while tasks hold its grants or wait for them"))
            .answers::<NothingAnswer>("It is gone")
            .refuses([Code::SemaphoreInUse, Code::SemaphoreHasTube]),
        Route::new(Method::POST, "/v1/semaphores/{semaphore}/enqueue", enqueue, self::enqueue)
            .reads::<EnqueueRequest>()
            .answers::<StandingsAnswer>("Where each task stands now, in the order of the request"),
        Route::new(Method::POST, "/v1/semaphores/{semaphore}/look", look, self::look)
            .reads::<LookRequest>()
            .answers::<StandingsAnswer>("Those that are there"),
        Route::new(Method::POST, "/v1/semaphores/{semaphore}/finish", finish, self::finish)
            .reads::<GrantsRequest>()
            .answers::<GrantsAnswer>("What became of each, in the order of the request"),
    ];
    routes.extend(member_routes());
    routes.extend(event_routes());
    routes.push(super::events::route());
    routes.into_iter().map(Route::commands).collect()
}

fn member_routes() -> [Route; 2] {
    let holders = ("holders", "Show who holds a grant, the best first");
    let waiting = ("waiting", "Show the tasks that wait for a grant, the best first");
    let paged = |route: Route| {
        let count = "At most how many; 1000 when absent";
        route
            .asks(QueryField::count("count", count, BATCH_TASKS_MAX))
            .asks(QueryField::pattern("after", "The `next` of the page before", CURSOR))
            .answers::<MembersAnswer>("One page")
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
struct PageAsked {
    #[serde(default = "members_usual", deserialize_with = "count")]
    count: usize,
    #[serde(default)]
    after: Option<String>,
}

/// How many tasks a page has when the request does not say.
const fn members_usual() -> usize {
    1000
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DropAsked {
    #[serde(default)]
    force: bool,
}

fn event_routes() -> [Route; 2] {
    let events = (
        "semaphore_events",
        "Fetch events, waiting for the first one if asked to; each comes again until it is acknowledged",
    );
    let acknowledge = ("acknowledge_events", "Say that events have arrived");
    [
        Route::new(Method::POST, "/v1/semaphore-events", events, self::events)
            .reads::<EventsRequest>()
            .answers::<EventsAnswer>("The events; perhaps none")
            .refuses([Code::SemaphoreNotFound]),
        Route::new(Method::POST, "/v1/semaphore-events/ack", acknowledge, self::acknowledge)
            .reads::<AcknowledgeRequest>()
            .answers::<AcknowledgedAnswer>("How many of them were there"),
    ]
}

async fn ask(app: &App, command: SemaphoreCommand) -> Result<SemaphoreReply, Refusal> {
    match app.ask(Command::Semaphore(command)).await? {
        Reply::Semaphore(reply) => Ok(reply),
        _ => Err(misfit()),
    }
}

async fn infos(app: &App, command: SemaphoreCommand) -> Result<Vec<SemaphoreInfo>, Refusal> {
    match ask(app, command).await? {
        SemaphoreReply::Semaphores(infos) => Ok(infos),
        _ => Err(misfit()),
    }
}

async fn one(app: &App, command: SemaphoreCommand) -> Result<Response, Refusal> {
    let infos = infos(app, command).await?;
    ok(&SemaphoreAnswer::new(infos.first().ok_or_else(misfit)?))
}

async fn standings(app: &App, command: SemaphoreCommand) -> Result<Response, Refusal> {
    match ask(app, command).await? {
        SemaphoreReply::Standings(standings) => {
            ok(&StandingsAnswer { tasks: standings.iter().map(StandingAnswer::new).collect() })
        }
        _ => Err(misfit()),
    }
}

async fn list(State(app): State<Shared>) -> Result<Response, Refusal> {
    let infos = infos(&app, SemaphoreCommand::List { key: None }).await?;
    ok(&SemaphoresAnswer { semaphores: infos.iter().map(SemaphoreAnswer::new).collect() })
}

async fn show(
    State(app): State<Shared>,
    InSemaphore(key): InSemaphore,
) -> Result<Response, Refusal> {
    one(&app, SemaphoreCommand::List { key: Some(key) }).await
}

async fn set(
    State(app): State<Shared>,
    InSemaphore(key): InSemaphore,
    Json(request): Json<SemaphoreRequest>,
) -> Result<Response, Refusal> {
    one(&app, request.into_command(key)?).await
}

async fn drop(
    State(app): State<Shared>,
    InSemaphore(key): InSemaphore,
    Asked(DropAsked { force }): Asked<DropAsked>,
) -> Result<Response, Refusal> {
    match ask(&app, SemaphoreCommand::Drop { key, force }).await? {
        SemaphoreReply::Dropped => ok(&NothingAnswer {}),
        _ => Err(misfit()),
    }
}

async fn holders(
    State(app): State<Shared>,
    InSemaphore(key): InSemaphore,
    Asked(asked): Asked<PageAsked>,
) -> Result<Response, Refusal> {
    members(&app, key, LinePart::Holders, asked).await
}

async fn waiting(
    State(app): State<Shared>,
    InSemaphore(key): InSemaphore,
    Asked(asked): Asked<PageAsked>,
) -> Result<Response, Refusal> {
    members(&app, key, LinePart::Waiting, asked).await
}

async fn members(
    app: &App,
    key: SemaphoreKey,
    part: LinePart,
    asked: PageAsked,
) -> Result<Response, Refusal> {
    let count = checked(asked.count)?;
    let after = asked.after.map(|after| after.parse()).transpose()?;
    match ask(app, SemaphoreCommand::Members { key, part, after, count }).await? {
        SemaphoreReply::Members(page) => ok(&MembersAnswer::new(&page)),
        _ => Err(misfit()),
    }
}

async fn enqueue(
    State(app): State<Shared>,
    InSemaphore(key): InSemaphore,
    Json(request): Json<EnqueueRequest>,
) -> Result<Response, Refusal> {
    let share = app.answers.reserve(request.tasks.len().saturating_mul(STANDING_BYTES)).await?;
    let response = standings(&app, request.into_command(key)).await?;
    Ok(streamed::with_share(&app, response, share))
}

async fn look(
    State(app): State<Shared>,
    InSemaphore(key): InSemaphore,
    Json(request): Json<LookRequest>,
) -> Result<Response, Refusal> {
    let tasks = request.tasks.into_iter().map(TaskId).collect();
    standings(&app, SemaphoreCommand::Look { key, tasks }).await
}

async fn finish(
    State(app): State<Shared>,
    InSemaphore(key): InSemaphore,
    Json(request): Json<GrantsRequest>,
) -> Result<Response, Refusal> {
    let share = app.answers.reserve(request.items.len().saturating_mul(STANDING_BYTES)).await?;
    match ask(&app, request.into_command(key)?).await? {
        SemaphoreReply::Finished(outcomes) => {
            Ok(streamed::with_share(&app, ok(&GrantsAnswer::new(&outcomes))?, share))
        }
        _ => Err(misfit()),
    }
}

/// When the caller goes away, this is dropped, and what it would have got goes to another.
async fn events(
    State(app): State<Shared>,
    Json(request): Json<EventsRequest>,
) -> Result<Response, Refusal> {
    check_wait(&app, "wait", request.wait)?;
    match ask(&app, request.into_command()?).await? {
        SemaphoreReply::Events(events) => {
            ok(&EventsAnswer { events: events.iter().map(EventAnswer::new).collect() })
        }
        _ => Err(misfit()),
    }
}

async fn acknowledge(
    State(app): State<Shared>,
    Json(request): Json<AcknowledgeRequest>,
) -> Result<Response, Refusal> {
    match ask(&app, request.into_command()).await? {
        SemaphoreReply::Acknowledged(acknowledged) => ok(&AcknowledgedAnswer { acknowledged }),
        _ => Err(misfit()),
    }
}

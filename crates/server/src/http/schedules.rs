//! Endpoints of schedules.

use axum::http::Method;
use axum::response::Response;
use serde::Deserialize;
use taskyard_core::access::{AccessTarget, AccessVerb};
use taskyard_core::limits::SCHEDULES_LISTED_MAX;
use taskyard_core::{
    Command, Error, Reply, ScheduleCommand, ScheduleName, ScheduleReply, StoredSchedule, Timestamp,
};
use taskyard_engine::read_timing;
use taskyard_wire::Code;
use taskyard_wire::http::{
    NextTimesAnswer, NothingAnswer, PutAnswer, ScheduleAnswer, ScheduleRequest, SchedulesAnswer,
};

use super::request::{Json, NothingRequest, QueryParams, SchedulePath, count};
use super::route::QueryField;
use super::streamed::with_permit;
use super::{Refusal, RequestApp, Route, RunError, ok};
use crate::app::unexpected_reply;
use crate::response_budget::ResponsePermit;

const ONE: &str = "/v1/schedules/{schedule}";
/// The default number of schedules in a page.
const PAGE_DEFAULT: usize = 100;
/// How many schedules of a page are read together.
const PART: usize = 100;
/// Bytes of a schedule in a response beside its payload.
const SCHEDULE_BYTES: usize = 1 << 10;
/// The default number of next times.
const TIMES_DEFAULT: usize = 20;
/// The largest number of next times.
const TIMES_MAX: usize = 1_000;

/// The endpoints of this file.
pub(crate) fn routes() -> Vec<Route> {
    let list = ("list_schedules", "Show schedules, by name");
    let show = ("show_schedule", "Show a schedule");
    let set = ("set_schedule", "Create a schedule or replace it");
    let remove = ("remove_schedule", "Remove a schedule; its tasks stay");
    let next = ("next_times", "Show the next times of a schedule");
    let routes = [
        Route::new(Method::GET, "/v1/schedules", list, self::list)
            .query_param(QueryField::count(
                "count",
                "Maximum number of schedules; 100 when absent",
                SCHEDULES_LISTED_MAX,
            ))
            .query_param(QueryField::name("after", "The `next` of the previous page"))
            .responds::<SchedulesAnswer>("One page"),
        Route::new(Method::GET, ONE, show, self::show).responds::<ScheduleAnswer>("The schedule"),
        Route::new(Method::PUT, ONE, set, self::set)
            .request_body::<ScheduleRequest>()
            .responds::<ScheduleAnswer>("The schedule, with its next time")
            .refuses([Code::ScheduleExists, Code::TooManySchedules]),
        Route::new(Method::DELETE, ONE, remove, self::remove)
            .responds::<NothingAnswer>("The schedule is removed"),
        Route::new(Method::GET, "/v1/schedules/{schedule}/next", next, self::next)
            .query_param(QueryField::count(
                "count",
                "Maximum number of times; 20 when absent",
                TIMES_MAX,
            ))
            .responds::<NextTimesAnswer>("The times, in order"),
    ];
    let all = routes.into_iter().chain(action_routes());
    all.map(|route| route.uses_engine().refuses([Code::MissingFeature])).collect()
}

fn action_routes() -> [Route; 3] {
    let run = ("run_schedule", "Put the task of a schedule now; its times stay");
    let pause = ("pause_schedule", "Pause a schedule");
    let resume = ("resume_schedule", "Resume a schedule; what it missed is caught up");
    [
        Route::new(Method::POST, "/v1/schedules/{schedule}/run", run, self::run)
            .request_body::<NothingRequest>()
            .responds::<PutAnswer>("The task, or the task of an earlier time that still exists")
            .refuses([Code::TubeNotFound, Code::TubeFull, Code::NoSemaphore]),
        Route::new(Method::POST, "/v1/schedules/{schedule}/pause", pause, self::pause)
            .request_body::<NothingRequest>()
            .responds::<ScheduleAnswer>("The schedule"),
        Route::new(Method::POST, "/v1/schedules/{schedule}/resume", resume, self::resume)
            .request_body::<NothingRequest>()
            .responds::<ScheduleAnswer>("The schedule"),
    ]
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SchedulesQuery {
    #[serde(default = "page_default", deserialize_with = "count")]
    count: usize,
    #[serde(default)]
    after: Option<String>,
}

const fn page_default() -> usize {
    PAGE_DEFAULT
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TimesQuery {
    #[serde(default = "times_default", deserialize_with = "count")]
    count: usize,
}

const fn times_default() -> usize {
    TIMES_DEFAULT
}

fn check_count(count: usize, count_max: usize) -> Result<(), Refusal> {
    if (1..=count_max).contains(&count) {
        return Ok(());
    }
    let text = format!("'count' is {count}; give a number from 1 to {count_max}");
    Err(Error::Invalid(text).into())
}

async fn ask(app: &RequestApp, command: ScheduleCommand) -> Result<ScheduleReply, Refusal> {
    match app.run(Command::Schedule(Box::new(command))).await? {
        Reply::Schedule(reply) => Ok(reply),
        _ => Err(unexpected_reply()),
    }
}

async fn schedules(
    app: &RequestApp,
    command: ScheduleCommand,
) -> Result<Vec<StoredSchedule>, Refusal> {
    match ask(app, command).await? {
        ScheduleReply::Schedules(schedules) => Ok(schedules),
        _ => Err(unexpected_reply()),
    }
}

/// The schedules of a list, also those that the user may not see.
async fn page(app: &RequestApp, command: ScheduleCommand) -> Result<Vec<StoredSchedule>, Refusal> {
    match app.run_checked(Command::Schedule(Box::new(command))).await? {
        Reply::Schedule(ScheduleReply::Schedules(schedules)) => Ok(schedules),
        _ => Err(unexpected_reply()),
    }
}

/// The schedule that a command shows.
async fn one(app: &RequestApp, command: ScheduleCommand) -> Result<StoredSchedule, Refusal> {
    schedules(app, command).await?.pop().ok_or_else(unexpected_reply)
}

/// Schedules with the errors that this server remembers.
async fn answers(app: &RequestApp, schedules: &[StoredSchedule]) -> Vec<ScheduleAnswer> {
    let names = schedules.iter().map(|schedule| schedule.name.clone()).collect();
    let mut notes = app.engine.schedule_notes(names).await;
    let answer = |schedule: &StoredSchedule| {
        ScheduleAnswer::new(schedule, notes.errors.remove(&schedule.name))
    };
    schedules.iter().map(answer).collect()
}

async fn shown(app: &RequestApp, command: ScheduleCommand) -> Result<Response, Refusal> {
    let schedule = one(app, command).await?;
    ok(&answers(app, &[schedule]).await.pop().ok_or_else(unexpected_reply)?)
}

async fn list(
    app: RequestApp,
    QueryParams(SchedulesQuery { count, after }): QueryParams<SchedulesQuery>,
) -> Result<Response, Refusal> {
    check_count(count, SCHEDULES_LISTED_MAX)?;
    let mut after = after.map(|name| ScheduleName::new(&name)).transpose()?;
    let (mut shown, mut permit, mut bytes) = (Vec::new(), ResponsePermit::default(), 0);
    // Read in parts, so that at most one part has no place in the response budget.
    loop {
        let limit = PART.min(count - shown.len());
        let mut part = page(&app, ScheduleCommand::List { after: after.clone(), limit }).await?;
        let is_last = part.len() < limit;
        after = part.last().map(|last| last.name.clone()).or(after);
        app.with_permissions(|permissions| permissions.hide_schedules(&mut part));
        bytes += part.iter().map(bytes_of).sum::<usize>();
        app.response_budget.resize(&mut permit, bytes)?;
        shown.extend(answers(&app, &part).await);
        if is_last || shown.len() >= count {
            let next = after.filter(|_| !is_last).map(|last| last.as_str().to_owned());
            let response = ok(&SchedulesAnswer { schedules: shown, next })?;
            return Ok(with_permit(&app, response, permit));
        }
    }
}

/// The bytes of a schedule in a response: its payload as base64 and the other fields.
fn bytes_of(schedule: &StoredSchedule) -> usize {
    schedule.template.body.bytes() as usize / 3 * 4 + SCHEDULE_BYTES
}

async fn show(app: RequestApp, SchedulePath(name): SchedulePath) -> Result<Response, Refusal> {
    shown(&app, ScheduleCommand::Get { name }).await
}

async fn set(
    app: RequestApp,
    SchedulePath(name): SchedulePath,
    Json(request): Json<ScheduleRequest>,
) -> Result<Response, Refusal> {
    let (only_new, keep_paused) = (request.only_new, request.paused.is_none());
    let schedule = request.into_schedule(name.clone())?;
    let command = ScheduleCommand::Set { schedule, only_new, keep_paused };
    match app.run(Command::Schedule(Box::new(command))).await {
        Ok(reply) => {
            let created = reply == Reply::Schedule(ScheduleReply::Set(true));
            let schedule = one(&app, ScheduleCommand::Get { name }).await?;
            ok(&ScheduleAnswer { created, ..ScheduleAnswer::new(&schedule, None) })
        }
        Err(RunError::Failed(error @ Error::TubeNotFound(_))) => {
            Err(Error::Invalid(format!("'tube' is refused: {error}")).into())
        }
        Err(error) => Err(error.into()),
    }
}

async fn remove(app: RequestApp, SchedulePath(name): SchedulePath) -> Result<Response, Refusal> {
    ask(&app, ScheduleCommand::Remove { name }).await?;
    ok(&NothingAnswer {})
}

async fn pause(
    app: RequestApp,
    SchedulePath(name): SchedulePath,
    Json(NothingRequest {}): Json<NothingRequest>,
) -> Result<Response, Refusal> {
    shown(&app, ScheduleCommand::Pause { name, paused: true }).await
}

async fn resume(
    app: RequestApp,
    SchedulePath(name): SchedulePath,
    Json(NothingRequest {}): Json<NothingRequest>,
) -> Result<Response, Refusal> {
    shown(&app, ScheduleCommand::Pause { name, paused: false }).await
}

async fn run(
    app: RequestApp,
    SchedulePath(name): SchedulePath,
    Json(NothingRequest {}): Json<NothingRequest>,
) -> Result<Response, Refusal> {
    let target = AccessTarget::Schedule(name.as_str());
    let draft = app.draft("run_schedule", target);
    let result = match app.require(AccessVerb::RunSchedule, target) {
        Ok(()) => put_now(&app, name).await,
        Err(denied) => Err(denied),
    };
    let recorded = match &result {
        Ok(reply) => draft.finish(Ok(reply)),
        Err(RunError::Failed(error)) => draft.finish(Err(error)),
        Err(denied @ RunError::Denied { .. }) => draft.refused(&denied.to_string()),
    };
    recorded.written().await;
    match result? {
        Reply::Put(placed) => ok(&PutAnswer::new(&placed)),
        _ => Err(unexpected_reply()),
    }
}

/// Puts the task of a schedule. A user who may put into the tube need not see the payload.
async fn put_now(app: &RequestApp, name: ScheduleName) -> Result<Reply, RunError> {
    let get = Command::Schedule(Box::new(ScheduleCommand::Get { name }));
    match app.run_checked(get).await? {
        Reply::Schedule(ScheduleReply::Schedules(mut found)) if !found.is_empty() => {
            app.run(found.remove(0).run_now()?).await
        }
        _ => Err(Error::Store("unexpected reply of the engine".into()).into()),
    }
}

async fn next(
    app: RequestApp,
    SchedulePath(name): SchedulePath,
    QueryParams(TimesQuery { count }): QueryParams<TimesQuery>,
) -> Result<Response, Refusal> {
    check_count(count, TIMES_MAX)?;
    let schedule = one(&app, ScheduleCommand::Get { name }).await?;
    let timing = read_timing(&schedule.timing)?;
    let times = schedule.times(&timing).take(count).map(Timestamp::as_secs_f64);
    ok(&NextTimesAnswer { times: times.collect() })
}

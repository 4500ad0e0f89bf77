//! Endpoints that create, change, show and remove tubes.

use std::iter::repeat;

use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use taskyard_core::command::TubeInfo;
use taskyard_core::{Command, Reply, Span, TubeName};
use taskyard_engine::TubeFigures;
use taskyard_wire::Code;
use taskyard_wire::http::{
    AlterRequest, CreateAnswer, CreateRequest, DurationsAnswer, NameRequest, NothingAnswer,
    TubeAnswer, TubesAnswer,
};

use super::estimates::estimate;
use super::request::{Json, NothingRequest, QueryParams, TubePath};
use super::route::{QueryField, Shape};
use super::{Refusal, RequestApp, Route, answer, ok};
use crate::app::unexpected_reply;

const TUBE: &str = "/v1/tubes/{tube}";

/// The endpoints of this file.
pub(crate) fn routes() -> Vec<Route> {
    let list = ("list_tubes", "Show all tubes, by name");
    let show = ("show_tube", "Show a tube");
    let name = ("name_tube", "Rename a tube; its tasks stay");
    let drop =
        ("drop_tube", "Remove a tube with its tasks, unless one is taken or a consumer waits");
    vec![
        Route::new(Method::GET, "/v1/tubes", list, self::list)
            .query_param(internal())
            .query_param(drain())
            .responds::<TubesAnswer>("All tubes")
            .uses_engine(),
        Route::new(Method::GET, TUBE, show, self::show)
            .query_param(drain())
            .responds::<TubeAnswer>("The tube")
            .uses_engine(),
        create_route(),
        Route::new(Method::PATCH, TUBE, ("alter_tube", "Change, pause or resume a tube"), alter)
            .request_body::<AlterRequest>()
            .responds::<TubeAnswer>("The tube after the change")
            .uses_engine(),
        Route::new(Method::POST, "/v1/tubes/{tube}/name", name, self::name)
            .request_body::<NameRequest>()
            .responds::<TubeAnswer>("The tube under its new name")
            .refuses([Code::TubeExists, Code::QueueNumTaken])
            .uses_engine(),
        Route::new(Method::DELETE, TUBE, drop, self::drop)
            .responds::<NothingAnswer>("The tube is removed")
            .refuses([Code::TubeHasTaken, Code::TubeHasConsumers])
            .uses_engine(),
        emptying("/v1/tubes/{tube}/truncate", ("truncate", "Remove all tasks of a tube"), true),
        emptying(
            "/v1/tubes/{tube}/release-all",
            ("release_all", "Release every taken task of a tube"),
            false,
        ),
    ]
}

fn create_route() -> Route {
    Route::new(Method::PUT, TUBE, ("create_tube", "Create a tube"), create)
        .request_body::<CreateRequest>()
        .responds_with(201, "The tube was created", Shape::of::<CreateAnswer>())
        .responds::<CreateAnswer>("The tube existed with these options and `if_not_exists` was set")
        .refuses([Code::TubeExists, Code::QueueNumTaken, Code::TooManyTubes])
        .uses_engine()
}

fn emptying(path: &'static str, about: (&'static str, &'static str), truncates: bool) -> Route {
    let route = if truncates {
        Route::new(Method::POST, path, about, truncate)
    } else {
        Route::new(Method::POST, path, about, release_all)
    };
    route.request_body::<NothingRequest>().responds::<NothingAnswer>("Done").uses_engine()
}

/// The query parameter of lists of tubes.
#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    #[serde(default)]
    internal: bool,
}

/// The query parameters of the tubes themselves.
#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TubesQuery {
    #[serde(default)]
    internal: bool,
    #[serde(default)]
    estimate: bool,
}

/// The query parameter of one tube.
#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct TubeQuery {
    #[serde(default)]
    estimate: bool,
}

impl ListQuery {
    /// The requested tubes.
    pub fn of(self, mut infos: Vec<TubeInfo>) -> Vec<TubeInfo> {
        infos.retain(|info| self.internal || !info.name.is_internal());
        infos
    }
}

/// The query parameter that includes internal tubes.
pub(super) fn internal() -> QueryField {
    QueryField::flag("internal", "Include internal tubes, `taskyard.*`")
}

/// The query parameter that asks when tubes will be empty.
pub(super) fn drain() -> QueryField {
    estimate("Respond with when all ready tasks will have started, and how many estimates held")
}

async fn list(
    app: RequestApp,
    QueryParams(query): QueryParams<TubesQuery>,
) -> Result<Response, Refusal> {
    ok(&TubesAnswer { tubes: tubes(&app, query).await? })
}

async fn show(
    app: RequestApp,
    TubePath(tube): TubePath,
    QueryParams(query): QueryParams<TubeQuery>,
) -> Result<Response, Refusal> {
    let infos = infos(&app, Some(tube)).await?;
    let mut tubes = answers(&app, &infos, query.estimate).await;
    ok(&tubes.pop().ok_or_else(unexpected_reply)?)
}

async fn create(
    app: RequestApp,
    TubePath(tube): TubePath,
    Json(request): Json<CreateRequest>,
) -> Result<Response, Refusal> {
    let reply = app.run(request.clone().into_command(tube.clone())?).await?;
    let Reply::Created(created) = reply else { return Err(unexpected_reply()) };
    if !created && !request.lenient {
        for info in infos(&app, Some(tube)).await? {
            request.check_same(&info.name, &info.options)?;
        }
    }
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    answer(status, &CreateAnswer { created })
}

async fn alter(
    app: RequestApp,
    TubePath(tube): TubePath,
    Json(request): Json<AlterRequest>,
) -> Result<Response, Refusal> {
    let current = if request.needs_current_retry() {
        infos(&app, Some(tube.clone())).await?.pop().and_then(|info| info.options.retry)
    } else {
        None
    };
    let reply = app.run(request.into_command(tube, current.as_deref())?).await?;
    let Reply::Tubes(infos) = reply else { return Err(unexpected_reply()) };
    ok(&with_own_counts(&app, &infos).await.pop().ok_or_else(unexpected_reply)?)
}

async fn name(
    app: RequestApp,
    TubePath(tube): TubePath,
    Json(request): Json<NameRequest>,
) -> Result<Response, Refusal> {
    let reply = app.run(request.into_command(tube)?).await?;
    let Reply::Tubes(infos) = reply else { return Err(unexpected_reply()) };
    ok(&with_own_counts(&app, &infos).await.pop().ok_or_else(unexpected_reply)?)
}

async fn drop(app: RequestApp, TubePath(tube): TubePath) -> Result<Response, Refusal> {
    app.run(Command::DropTube { tube }).await?;
    ok(&NothingAnswer {})
}

async fn truncate(
    app: RequestApp,
    TubePath(tube): TubePath,
    Json(NothingRequest {}): Json<NothingRequest>,
) -> Result<Response, Refusal> {
    app.run(Command::Truncate { tube }).await?;
    ok(&NothingAnswer {})
}

async fn release_all(
    app: RequestApp,
    TubePath(tube): TubePath,
    Json(NothingRequest {}): Json<NothingRequest>,
) -> Result<Response, Refusal> {
    app.run(Command::ReleaseAll { tube }).await?;
    ok(&NothingAnswer {})
}

/// The requested tubes, as the response shows them.
pub(super) async fn tubes(app: &RequestApp, query: TubesQuery) -> Result<Vec<TubeAnswer>, Refusal> {
    let TubesQuery { internal, estimate } = query;
    let infos = ListQuery { internal }.of(infos(app, None).await?);
    Ok(answers(app, &infos, estimate).await)
}

/// These tubes as the response shows them, with estimates if they are asked for.
async fn answers(app: &RequestApp, infos: &[TubeInfo], estimate: bool) -> Vec<TubeAnswer> {
    let tubes = with_own_counts(app, infos).await;
    if !estimate {
        return tubes;
    }
    let (drains, held) = (app.engine.drains(infos).await, app.engine.calibrated().await);
    // Without a drain for each tube the engine has stopped.
    let drains = drains.into_iter().map(Some).chain(repeat(None));
    let tubes = tubes.into_iter().zip(infos).zip(drains);
    tubes.map(|((tube, info), drain)| tube.with_estimates(drain, held.get(&info.name))).collect()
}

/// One tube, or all that the user may see, as the engine reports them.
pub(super) async fn infos(
    app: &RequestApp,
    tube: Option<TubeName>,
) -> Result<Vec<TubeInfo>, Refusal> {
    match app.run(Command::Tubes { tube }).await? {
        Reply::Tubes(infos) => Ok(infos),
        _ => Err(unexpected_reply()),
    }
}

/// These tubes, with what only this server knows of them.
async fn with_own_counts(app: &RequestApp, infos: &[TubeInfo]) -> Vec<TubeAnswer> {
    let waiting = app.engine.waiting_counts().await;
    let figures = app.engine.tube_figures().await;
    let answer = |info: &TubeInfo| {
        let consumers = waiting.get(&info.name).map_or(0, |count| count.takes as u64);
        let answer = TubeAnswer::new(info, consumers);
        let Some(figures) = &figures else { return answer };
        let TubeFigures { failures, wait, run } =
            figures.get(&info.name).copied().unwrap_or_default();
        TubeAnswer {
            failures: Some(failures),
            wait: wait.map(durations),
            run: run.map(durations),
            ..answer
        }
    };
    infos.iter().map(answer).collect()
}

fn durations(percentiles: [Span; 3]) -> DurationsAnswer {
    let [p50, p90, p99] = percentiles.map(Span::as_secs_f64);
    DurationsAnswer { p50, p90, p99 }
}

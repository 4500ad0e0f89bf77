//! Making, changing, showing and removing tubes.

use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use taskyard_core::command::TubeInfo;
use taskyard_core::{Command, Error, Reply, TubeName};
use taskyard_wire::Code;
use taskyard_wire::http::{
    AlterRequest, CreateAnswer, CreateRequest, NameRequest, NothingAnswer, TubeAnswer, TubesAnswer,
};

use super::request::{Asked, InTube, Json, NothingRequest};
use super::route::{QueryField, Shape};
use super::{Refusal, Route, answer, ok};
use crate::app::{App, Shared, misfit};

const TUBE: &str = "/v1/tubes/{tube}";

/// The addresses of this file.
pub(crate) fn routes() -> Vec<Route> {
    let list = ("list_tubes", "Show all tubes, by name");
    let show = ("show_tube", "Show a tube");
    let name = ("name_tube", "Give a tube another name; its tasks stay");
    let drop = ("drop_tube", "Remove a tube with its tasks, while nobody holds or waits for one");
    vec![
        Route::new(Method::GET, "/v1/tubes", list, self::list)
            .asks(internal())
            .answers::<TubesAnswer>("All tubes")
            .commands(),
        Route::new(Method::GET, TUBE, show, self::show)
            .answers::<TubeAnswer>("The tube")
            .commands(),
        create_route(),
        Route::new(Method::PATCH, TUBE, ("alter_tube", "Change, pause or resume a tube"), alter)
            .reads::<AlterRequest>()
            .answers::<TubeAnswer>("The tube after the change")
            .commands(),
        Route::new(Method::POST, "/v1/tubes/{tube}/name", name, self::name)
            .reads::<NameRequest>()
            .answers::<TubeAnswer>("The tube under its new name")
            .refuses([Code::TubeExists, Code::QueueNumTaken])
            .commands(),
        Route::new(Method::DELETE, TUBE, drop, self::drop)
            .answers::<NothingAnswer>("It is gone")
            .refuses([Code::TubeHasTaken, Code::TubeHasConsumers])
            .commands(),
        emptying("/v1/tubes/{tube}/truncate", ("truncate", "Remove all tasks of a tube"), true),
        emptying(
            "/v1/tubes/{tube}/release-all",
            ("release_all", "Give back every taken task of a tube"),
            false,
        ),
    ]
}

fn create_route() -> Route {
    Route::new(Method::PUT, TUBE, ("create_tube", "Make a tube"), create)
        .reads::<CreateRequest>()
        .answers_with(201, "It was made", Shape::of::<CreateAnswer>())
        .answers::<CreateAnswer>("It was there already and `if_not_exists` was set")
        .refuses([Code::TubeExists, Code::QueueNumTaken, Code::TooManyTubes])
        .commands()
}

fn emptying(path: &'static str, about: (&'static str, &'static str), truncates: bool) -> Route {
    let route = if truncates {
        Route::new(Method::POST, path, about, truncate)
    } else {
        Route::new(Method::POST, path, about, release_all)
    };
    route.reads::<NothingRequest>().answers::<NothingAnswer>("It is done").commands()
}

/// Which tubes a list has.
#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListAsked {
    #[serde(default)]
    internal: bool,
}

impl ListAsked {
    /// The tubes that are asked for.
    pub fn of(self, mut infos: Vec<TubeInfo>) -> Vec<TubeInfo> {
        infos.retain(|info| self.internal || !info.name.is_internal());
        infos
    }
}

/// The query parameter of lists.
pub(super) fn internal() -> QueryField {
    QueryField::flag("internal", "Show also the tubes of the service itself, `taskyard.*`")
}

async fn list(
    State(app): State<Shared>,
    Asked(asked): Asked<ListAsked>,
) -> Result<Response, Refusal> {
    ok(&TubesAnswer { tubes: tubes(&app, asked).await? })
}

async fn show(State(app): State<Shared>, InTube(tube): InTube) -> Result<Response, Refusal> {
    let infos = infos(&app, Some(tube)).await?;
    ok(&with_consumers(&app, &infos).await.pop().ok_or_else(misfit)?)
}

async fn create(
    State(app): State<Shared>,
    InTube(tube): InTube,
    Json(request): Json<CreateRequest>,
) -> Result<Response, Refusal> {
    let reply = app.ask(request.into_command(tube)?).await?;
    let Reply::Created(created) = reply else { return Err(misfit()) };
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    answer(status, &CreateAnswer { created })
}

async fn alter(
    State(app): State<Shared>,
    InTube(tube): InTube,
    Json(request): Json<AlterRequest>,
) -> Result<Response, Refusal> {
    let reply = app.ask(request.into_command(tube)?).await?;
    let Reply::Tubes(infos) = reply else { return Err(misfit()) };
    ok(&with_consumers(&app, &infos).await.pop().ok_or_else(misfit)?)
}

async fn name(
    State(app): State<Shared>,
    InTube(tube): InTube,
    Json(request): Json<NameRequest>,
) -> Result<Response, Refusal> {
    let reply = app.ask(request.into_command(tube)?).await?;
    let Reply::Tubes(infos) = reply else { return Err(misfit()) };
    ok(&with_consumers(&app, &infos).await.pop().ok_or_else(misfit)?)
}

async fn drop(State(app): State<Shared>, InTube(tube): InTube) -> Result<Response, Refusal> {
    app.ask(Command::DropTube { tube }).await?;
    ok(&NothingAnswer {})
}

async fn truncate(
    State(app): State<Shared>,
    InTube(tube): InTube,
    Json(NothingRequest {}): Json<NothingRequest>,
) -> Result<Response, Refusal> {
    app.ask(Command::Truncate { tube }).await?;
    ok(&NothingAnswer {})
}

async fn release_all(
    State(app): State<Shared>,
    InTube(tube): InTube,
    Json(NothingRequest {}): Json<NothingRequest>,
) -> Result<Response, Refusal> {
    app.ask(Command::ReleaseAll { tube }).await?;
    ok(&NothingAnswer {})
}

/// The tubes that are asked for, as answers show them.
pub(super) async fn tubes(app: &App, asked: ListAsked) -> Result<Vec<TubeAnswer>, Refusal> {
    let infos = asked.of(infos(app, None).await?);
    Ok(with_consumers(app, &infos).await)
}

/// One tube or all, as the engine knows them.
pub(crate) async fn infos(app: &App, tube: Option<TubeName>) -> Result<Vec<TubeInfo>, Error> {
    let all = tube.is_none();
    match app.ask(Command::Tubes { tube }).await? {
        Reply::Tubes(infos) => {
            if all {
                app.tubes.counted(infos.len());
            }
            Ok(infos)
        }
        _ => Err(Error::Store("the engine did not show the tubes".into())),
    }
}

async fn with_consumers(app: &App, infos: &[TubeInfo]) -> Vec<TubeAnswer> {
    let waiting = app.engine.waiting_counts().await;
    let consumers = |info: &TubeInfo| waiting.get(&info.name).map_or(0, |count| count.takes as u64);
    infos.iter().map(|info| TubeAnswer::new(info, consumers(info))).collect()
}

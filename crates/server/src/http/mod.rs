//! The HTTP endpoints of the server and their handlers.

mod audit;
mod backup;
mod described;
mod direct;
mod error;
mod estimates;
mod events;
mod finish;
mod health;
mod manager;
mod missing_servers;
mod part_size;
mod put;
mod request;
mod request_app;
mod route;
mod route_access;
mod schedules;
mod semaphores;
mod series;
mod series_sum;
mod services;
mod session;
mod stats;
mod streamed;
mod take;
mod task_action;
mod task_page;
mod task_reader;
mod tasks;
mod tubes;
mod worker_list;
mod workers;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use taskyard_core::access::AccessVerb;
use taskyard_core::{Error, Result as CoreResult};
use taskyard_wire::Code;

use crate::app::{App, SharedApp};
use crate::config::ExtraRoutes;
use crate::{dashboard, guard};

/// How much of an unknown path is shown in an error, in bytes.
const PATH_SHOWN_MAX: usize = 200;

use direct::DirectRoutes;
pub(crate) use error::Refusal;
pub(crate) use request_app::{RequestApp, RunError};
#[cfg(test)]
pub(crate) use route::{QueryField, QueryKind};
pub(crate) use route::{Route, Shape};
use route_access::{RouteAccess, RouteChecks, access_of};
pub(crate) use session::{is_session, is_sign_in};
pub(crate) use streamed::count;
#[cfg(test)]
pub(crate) use tasks::STATES_PATTERN;

/// How much memory is allocated for a response at first: enough for one task.
const ANSWER_BYTES: usize = 512;
/// Where the documents are, if this server has them.
const DOCUMENTS: &str = "/docs/";

/// Every endpoint in the OpenAPI document.
pub(crate) fn routes() -> Vec<Route> {
    let groups = [
        tubes::routes(),
        put::routes(),
        take::routes(),
        finish::routes(),
        task_action::routes(),
        tasks::routes(),
        stats::routes(),
        series::routes(),
        workers::routes(),
        semaphores::routes(),
        schedules::routes(),
        manager::routes(),
        health::routes(),
        services::routes(),
        session::routes(),
        audit::routes(),
        backup::routes(),
    ];
    groups.into_iter().flatten().collect()
}

/// Everything that the server answers over HTTP.
#[derive(Clone)]
pub(crate) struct HttpRoutes {
    /// Endpoints, dashboard, and errors for everything else.
    pub router: Router,
    /// The endpoints that need no router, once more.
    pub direct: Arc<DirectRoutes>,
}

/// The routes of the whole server.
pub(crate) fn http_routes(app: SharedApp) -> HttpRoutes {
    let mut direct = DirectRoutes::new();
    let has_documents = app.extra_routes.iter().any(|routes| (routes.is_open)(DOCUMENTS));
    let mut router = dashboard::router(app.read_only_dashboard, has_documents);
    for route in routes() {
        let checks = Arc::new(RouteChecks {
            access: access_of(route.name).unwrap_or(RouteAccess::All(AccessVerb::RunServer)),
            accepts_query: !route.query.is_empty() || !route.path.starts_with("/v1/"),
            audit: app.audit.clone(),
            name: route.name,
        });
        if let Some(handler) = route.direct {
            direct.add(route.path, checks.clone(), handler);
        }
        // One layer: each allocates and copies for every request.
        let check = move |mut request: Request, next: Next| {
            let checks = checks.clone();
            async move {
                match checks.admit(&mut request).await {
                    Ok(()) => next.run(request).await,
                    Err(refusal) => refusal.into_response(),
                }
            }
        };
        router = router.route(route.path, route.handler.route_layer(from_fn(check)));
    }
    let router = router
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(route_not_found)
        .with_state(app.clone());
    let router = app.extra_routes.iter().fold(router, |router, extra_routes| {
        let ExtraRoutes { router: extra, is_open } = extra_routes.clone();
        let audit = app.audit.clone();
        let check = move |mut request: Request, next: Next| {
            let access = match is_open(request.uri().path()) {
                true => RouteAccess::Open,
                false => RouteAccess::All(AccessVerb::RunServer),
            };
            let audit = audit.clone();
            async move {
                match access.require(&mut request, (&audit, "service")).await {
                    Ok(()) => next.run(request).await,
                    Err(refusal) => refusal.into_response(),
                }
            }
        };
        router.merge(extra.layer(from_fn(check)))
    });
    let router = router.layer(from_fn_with_state(app, guard::admit));
    HttpRoutes { router, direct: Arc::new(direct) }
}

async fn route_not_found(method: Method, uri: Uri) -> Refusal {
    let path = uri.path();
    let message = match path.strip_prefix("/pool") {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            "this server has no pool; start one: taskyard pool serve FILE, or taskyard serve --pool FILE"
                .into()
        }
        _ => format!("no such endpoint: {method} {}; /openapi.json lists them", shown(path)),
    };
    Refusal::new(Code::RouteNotFound, message)
}

async fn method_not_allowed(method: Method, uri: Uri) -> Refusal {
    let path = shown(uri.path());
    let message = format!("no such endpoint: {method} {path}; the Allow header lists the methods");
    Refusal::new(Code::MethodNotAllowed, message)
}

/// The beginning of a path: clients may send long ones.
fn shown(path: &str) -> &str {
    path.get(..PATH_SHOWN_MAX).unwrap_or(path)
}

/// A response with a JSON body.
fn answer(status: StatusCode, shape: &impl Serialize) -> Result<Response, Refusal> {
    answer_sized(status, shape, ANSWER_BYTES)
}

/// The same for a body of about this many bytes.
fn answer_sized(
    status: StatusCode,
    shape: &impl Serialize,
    bytes: usize,
) -> Result<Response, Refusal> {
    let mut bytes = Vec::with_capacity(bytes);
    serde_json::to_writer(&mut bytes, shape)
        .map_err(|error| Error::Store(format!("cannot encode the response: {error}")))?;
    let mut response = Response::new(bytes.into());
    *response.status_mut() = status;
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    Ok(response)
}

/// A response with status 200.
fn ok(shape: &impl Serialize) -> Result<Response, Refusal> {
    answer(StatusCode::OK, shape)
}

/// Refuses to wait longer than connections stay open without traffic.
fn check_wait(app: &App, field: &str, seconds: f64) -> CoreResult<()> {
    let most = app.wait_seconds_max;
    if seconds <= most {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "'{field}' is {seconds}; wait at most {most} seconds and repeat the request"
    )))
}

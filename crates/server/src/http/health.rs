//! Endpoints about the server itself: health, metrics and the OpenAPI document.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::{Method, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use taskyard_core::service::Health;
use taskyard_wire::Code;

use super::request::QueryParams;
use super::route::Shape;
use super::tubes::{ListQuery, infos, internal};
use super::{Refusal, RequestApp, Route, ok};
use crate::app::SharedApp;
use crate::metrics::{self, TubeMetrics};

const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The server runs and its store can be read and written.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct HealthAnswer {
    /// Always `ok`; an unhealthy server responds with an error.
    status: String,
    /// The server's version.
    version: String,
    /// Conditions that an operator should look at before they become a failure of the store.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(test, schema(required = false))]
    warnings: Vec<String>,
    /// The services hosted beside the queue: `ok` or `unhealthy`. This does not change the status
    /// of the server.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(test, schema(required = false))]
    services: BTreeMap<String, String>,
}

/// The endpoints of this file.
pub(crate) fn routes() -> Vec<Route> {
    let health = ("health", "Check that the server runs and its store can be read and written");
    let metrics = ("metrics", "Show metrics in the text format of Prometheus");
    let document = ("openapi", "Show this document");
    vec![
        Route::new(Method::GET, "/healthz", health, self::health)
            .responds::<HealthAnswer>("The server is healthy")
            .refuses([
                Code::Store,
                Code::StoreUnavailable,
                Code::OutcomeUnknown,
                Code::ShuttingDown,
            ])
            .open(),
        Route::new(Method::GET, "/metrics", metrics, self::metrics)
            .query_param(internal())
            .responds_with(200, "The metrics", Shape::Text("text/plain"))
            .uses_engine(),
        Route::new(Method::GET, "/openapi.json", document, self::document)
            .responds_with(200, "The document", Shape::Object)
            .open(),
    ]
}

async fn health(State(app): State<SharedApp>) -> Result<Response, Refusal> {
    let store = app.store_health().await?;
    let services = app.services.iter().map(|service| {
        let word = if service.health() == Health::Healthy { "ok" } else { "unhealthy" };
        (service.name().to_owned(), word.to_owned())
    });
    let version = env!("CARGO_PKG_VERSION").into();
    let (warnings, services) = (store.warnings, services.collect());
    ok(&HealthAnswer { status: "ok".into(), version, warnings, services })
}

async fn metrics(
    app: RequestApp,
    QueryParams(query): QueryParams<ListQuery>,
) -> Result<Response, Refusal> {
    let tubes = query.of(infos(&app, None).await?);
    let waiting = app.engine.waiting_counts().await;
    let (latencies, figures) = (app.engine.latencies().await, app.engine.tube_figures().await);
    let store = app.store_health().await;
    let schedules = app.engine.schedule_notes(Vec::new()).await.counts;
    let metrics = TubeMetrics {
        tubes,
        waiting,
        figures,
        latencies,
        schedules,
        keys_freed_early: app.engine.keys_freed_early().await,
        estimates: app.engine.calibrated().await,
    };
    let text = metrics::text(&app, &metrics, &store);
    Ok(([(header::CONTENT_TYPE, METRICS)], text).into_response())
}

async fn document(State(app): State<SharedApp>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], app.document.clone()).into_response()
}

//! The server itself: is it well, what does it count, what can be asked of it.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::{Method, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use taskyard_core::service::Health;
use taskyard_wire::Code;

use super::request::Asked;
use super::route::Shape;
use super::tubes::{ListAsked, infos, internal};
use super::{Refusal, Route, ok};
use crate::app::Shared;
use crate::metrics;

const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The server runs and its store can be read and written.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct HealthAnswer {
    /// Always `ok`; a server that is not well refuses.
    status: String,
    /// The server's version.
    version: String,
    /// What an operator should look at before it becomes a failure of the store.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(test, schema(required = false))]
    warnings: Vec<String>,
    /// What runs beside the queue: `ok` or `troubled`. The server itself is well all the same.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(test, schema(required = false))]
    services: BTreeMap<String, String>,
}

/// The addresses of this file.
pub(crate) fn routes() -> Vec<Route> {
    let health = ("health", "Say whether the server runs and its store can be read and written");
    let metrics = ("metrics", "Show counters in the text format of Prometheus");
    let document = ("openapi", "Show this document");
    vec![
        Route::new(Method::GET, "/healthz", health, self::health)
            .answers::<HealthAnswer>("All is well")
            .refuses([Code::Store, Code::StoreAway, Code::OutcomeUnknown, Code::ShuttingDown])
            .open(),
        Route::new(Method::GET, "/metrics", metrics, self::metrics)
            .asks(internal())
            .answers_with(200, "The counters", Shape::Text("text/plain"))
            .commands(),
        Route::new(Method::GET, "/openapi.json", document, self::document)
            .answers_with(200, "The document", Shape::Object)
            .open(),
    ]
}

async fn health(State(app): State<Shared>) -> Result<Response, Refusal> {
    let store = app.store_health().await?;
    let services = app.services.iter().map(|service| {
        let word = if service.health() == Health::Well { "ok" } else { "troubled" };
        (service.name().to_owned(), word.to_owned())
    });
    let version = env!("CARGO_PKG_VERSION").into();
    let (warnings, services) = (store.warnings, services.collect());
    ok(&HealthAnswer { status: "ok".into(), version, warnings, services })
}

async fn metrics(
    State(app): State<Shared>,
    Asked(asked): Asked<ListAsked>,
) -> Result<Response, Refusal> {
    let tubes = asked.of(infos(&app, None).await?);
    let waiting = app.engine.waiting_counts().await;
    let store = app.store_health().await;
    let text = metrics::text(&app, &tubes, &waiting, &store);
    Ok(([(header::CONTENT_TYPE, METRICS)], text).into_response())
}

async fn document(State(app): State<Shared>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], app.document.clone()).into_response()
}

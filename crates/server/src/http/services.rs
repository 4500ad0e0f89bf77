//! What runs beside the queue.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Method;
use axum::response::Response;
use serde::Serialize;
use taskyard_core::service::{Health, Service, Sheet};

use super::{Refusal, Route, ok};
use crate::app::Shared;

/// What runs beside the queue, in the order it was started.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct ServicesAnswer {
    /// One for each.
    services: Vec<ServiceInfo>,
}

/// Something that runs beside the queue.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
struct ServiceInfo {
    /// Its name.
    name: String,
    /// What keeps it from its work, if anything does.
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<String>,
    /// Its parts, each with how it is.
    parts: Vec<PartInfo>,
    /// Its work, as tables of texts.
    sheets: Vec<SheetInfo>,
}

/// A part of a service.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
struct PartInfo {
    /// Its name.
    part: String,
    /// How it is, in words.
    words: String,
}

/// A table of texts about a part of a service.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
struct SheetInfo {
    /// The part.
    part: String,
    /// What the table shows.
    title: String,
    /// The heads of its columns.
    heads: Vec<String>,
    /// Its rows: a text for each column.
    rows: Vec<Vec<String>>,
}

/// The addresses of this file.
pub(crate) fn routes() -> Vec<Route> {
    let about = ("services", "Show what runs beside the queue, such as SQL tasks");
    let route = Route::new(Method::GET, "/v1/services", about, services);
    vec![route.answers::<ServicesAnswer>("What runs beside the queue").commands()]
}

async fn services(State(app): State<Shared>) -> Result<Response, Refusal> {
    let mut services = Vec::with_capacity(app.services.len());
    for service in &app.services {
        services.push(info(service).await);
    }
    ok(&ServicesAnswer { services })
}

async fn info(service: &Arc<dyn Service>) -> ServiceInfo {
    let trouble = match service.health() {
        Health::Well => None,
        Health::Troubled(why) => Some(why),
    };
    let parts = service.status().into_iter();
    let parts = parts.map(|line| PartInfo { part: line.part, words: line.words }).collect();
    let sheets = service.sheets().await.into_iter().map(sheet).collect();
    ServiceInfo { name: service.name().into(), trouble, parts, sheets }
}

fn sheet(sheet: Sheet) -> SheetInfo {
    let heads = sheet.heads.into_iter().map(str::to_owned).collect();
    SheetInfo { part: sheet.part, title: sheet.title.into(), heads, rows: sheet.rows }
}

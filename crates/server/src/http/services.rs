//! Shows the services hosted beside the queue.

use std::sync::Arc;

use axum::http::Method;
use axum::response::Response;
use serde::Serialize;
use taskyard_core::service::{Health, Service, StatusTable};

use super::{Refusal, RequestApp, Route, ok};

/// The hosted services, in the order they were started.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct ServicesAnswer {
    /// One entry for each service.
    services: Vec<ServiceInfo>,
}

/// A hosted service.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
struct ServiceInfo {
    /// Its name.
    name: String,
    /// Why it is unhealthy, if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    /// Its parts, each with a status.
    parts: Vec<PartInfo>,
    /// Tables about its work.
    tables: Vec<TableInfo>,
}

/// A part of a service.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
struct PartInfo {
    /// Its name.
    part: String,
    /// Its status as text.
    status: String,
}

/// A table about a part of a service.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
struct TableInfo {
    /// The part.
    part: String,
    /// What the table shows.
    title: String,
    /// The column names.
    columns: Vec<String>,
    /// The rows: a text for each column.
    rows: Vec<Vec<String>>,
}

/// The endpoints of this file.
pub(crate) fn routes() -> Vec<Route> {
    let about = ("services", "Show the services hosted beside the queue, such as SQL tasks");
    let route = Route::new(Method::GET, "/v1/services", about, services);
    vec![route.responds::<ServicesAnswer>("The hosted services").uses_engine()]
}

async fn services(app: RequestApp) -> Result<Response, Refusal> {
    let mut services = Vec::with_capacity(app.services.len());
    for service in &app.services {
        services.push(info(service).await);
    }
    ok(&ServicesAnswer { services })
}

async fn info(service: &Arc<dyn Service>) -> ServiceInfo {
    let problem = match service.health() {
        Health::Healthy => None,
        Health::Unhealthy(why) => Some(why),
    };
    let parts = service.status().into_iter();
    let parts = parts.map(|line| PartInfo { part: line.part, status: line.status }).collect();
    let tables = service.tables().await.into_iter().map(table).collect();
    ServiceInfo { name: service.name().into(), problem, parts, tables }
}

fn table(table: StatusTable) -> TableInfo {
    let columns = table.columns.into_iter().map(str::to_owned).collect();
    TableInfo { part: table.part, title: table.title.into(), columns, rows: table.rows }
}

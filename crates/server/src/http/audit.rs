//! Shows the latest audit entries.

use axum::http::Method;
use axum::response::Response;
use serde::Deserialize;
use taskyard_core::Error;
use taskyard_core::limits::AUDIT_ENTRIES_MAX;
use taskyard_wire::Code;
use taskyard_wire::http::AuditAnswer;

use super::request::{QueryParams, count};
use super::route::QueryField;
use super::{Refusal, RequestApp, Route, ok};

/// The default number of entries.
const LIMIT_DEFAULT: usize = 100;

/// The endpoints of this file.
pub(crate) fn routes() -> Vec<Route> {
    let about = (
        "audit",
        "Show the latest actions of operators and administrators on this server, since it started",
    );
    let limit = "Maximum number of entries; 100 when absent";
    let route = Route::new(Method::GET, "/v1/audit", about, audit)
        .query_param(QueryField::count("limit", limit, AUDIT_ENTRIES_MAX))
        .responds::<AuditAnswer>("The entries, the newest first")
        .refuses([Code::Unauthorized]);
    vec![route]
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AuditQuery {
    #[serde(default = "limit_default", deserialize_with = "count")]
    limit: usize,
}

const fn limit_default() -> usize {
    LIMIT_DEFAULT
}

async fn audit(
    app: RequestApp,
    QueryParams(AuditQuery { limit }): QueryParams<AuditQuery>,
) -> Result<Response, Refusal> {
    if !(1..=AUDIT_ENTRIES_MAX).contains(&limit) {
        let message = format!("'limit' is {limit}; request 1 to {AUDIT_ENTRIES_MAX} entries");
        return Err(Error::Invalid(message).into());
    }
    ok(&AuditAnswer { entries: app.audit.recent(limit), errors: app.audit.errors() })
}

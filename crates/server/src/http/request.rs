//! Extracts and checks the parts of a request.

use std::sync::{Arc, PoisonError};

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::header::USER_AGENT;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use taskyard_core::{Error, ScheduleName, SemaphoreKey, TaskId, TubeName};
use taskyard_wire::http::parse_whole;

use super::Refusal;
use crate::app::{App, SharedApp};
use crate::guard::ClientConnection;
use crate::worker_origins::client_version;

/// The parsed JSON body. An absent body is an empty object.
pub(crate) struct Json<T>(pub T);

/// The tube in the path.
pub(crate) struct TubePath(pub TubeName);

/// The semaphore in the path.
pub(crate) struct SemaphorePath(pub SemaphoreKey);

/// The schedule in the path.
pub(crate) struct SchedulePath(pub ScheduleName);

/// The task in the path.
pub(crate) struct TaskPath(pub TubeName, pub TaskId);

/// The parsed query parameters.
pub(crate) struct QueryParams<T>(pub T);

/// The connection of a request, and the program that sent it.
pub(crate) struct Caller {
    connection: Option<Arc<ClientConnection>>,
    agent: Option<HeaderValue>,
}

/// An empty object.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct NothingRequest {}

impl<T: DeserializeOwned + Send + 'static> FromRequest<SharedApp> for Json<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &SharedApp) -> Result<Self, Refusal> {
        Ok(Json(app.request_reader.read(request.into_body()).await?))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for TubePath {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let name = Path::<String>::from_request_parts(parts, state).await;
        let Path(name) = name.map_err(|error| bad_path(error.body_text()))?;
        Ok(TubePath(TubeName::new(&name)?))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for SemaphorePath {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let key = Path::<String>::from_request_parts(parts, state).await;
        let Path(key) = key.map_err(|error| bad_path(error.body_text()))?;
        Ok(SemaphorePath(SemaphoreKey::new(&key)?))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for SchedulePath {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let name = Path::<String>::from_request_parts(parts, state).await;
        let Path(name) = name.map_err(|error| bad_path(error.body_text()))?;
        Ok(SchedulePath(ScheduleName::new(&name)?))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for TaskPath {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let names = Path::<(String, String)>::from_request_parts(parts, state).await;
        let Path((name, id)) = names.map_err(|error| bad_path(error.body_text()))?;
        let tube = TubeName::new(&name)?;
        // The parser would also accept a plus sign, which no other interface of Taskyard does.
        let digits = id.bytes().all(|byte| byte.is_ascii_digit());
        match id.parse() {
            Ok(id) if digits => Ok(TaskPath(tube, TaskId(id))),
            _ => Err(bad_path(format!("'{id}' is not a task id"))),
        }
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryParams<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let Query(query) = Query::try_from_uri(&parts.uri).map_err(|error| {
            Error::Invalid(format!("cannot parse the query: {}", error.body_text()))
        })?;
        Ok(QueryParams(query))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        Ok(Caller::new(parts.extensions.get().cloned(), &parts.headers))
    }
}

impl Caller {
    /// The caller of a request with these headers.
    pub fn new(connection: Option<Arc<ClientConnection>>, headers: &HeaderMap) -> Self {
        Caller { connection, agent: headers.get(USER_AGENT).cloned() }
    }

    /// The worker that takes: the name in the request, or else the address of the client.
    pub fn worker(&self, app: &App, name: Option<String>) -> Option<Arc<str>> {
        let Some(connection) = &self.connection else { return name.map(Into::into) };
        let mut latest = connection.worker.lock().unwrap_or_else(PoisonError::into_inner);
        Some(match name {
            Some(name) => {
                let agent = || self.agent.as_ref()?.to_str().ok().and_then(client_version);
                latest.name(&app.worker_origins, &name, connection.peer, agent)
            }
            None => latest.address(connection.peer),
        })
    }
}

/// A number of entries in a query, in any notation: `3`, `3.0` or `3e0`.
pub(super) fn count<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
    let count = parse_whole(&String::deserialize(from)?).map_err(D::Error::custom)?;
    Ok(usize::try_from(count).unwrap_or(usize::MAX))
}

fn bad_path(message: String) -> Refusal {
    Error::Invalid(format!("cannot parse the path: {message}")).into()
}

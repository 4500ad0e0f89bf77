//! The parts of a request, checked.

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use taskyard_core::{Error, SemaphoreKey, TaskId, TubeName};
use taskyard_wire::http::parse_whole;

use super::Refusal;
use crate::app::Shared;

/// The JSON body in its shape. No body at all is an empty object.
pub(crate) struct Json<T>(pub T);

/// The tube that the address names.
pub(crate) struct InTube(pub TubeName);

/// The semaphore that the address names.
pub(crate) struct InSemaphore(pub SemaphoreKey);

/// The task that the address names.
pub(crate) struct OneTask(pub TubeName, pub TaskId);

/// The query parameters in their shape.
pub(crate) struct Asked<T>(pub T);

/// Nothing to say: an empty object.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct NothingRequest {}

impl<T: DeserializeOwned + Send + 'static> FromRequest<Shared> for Json<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &Shared) -> Result<Self, Refusal> {
        Ok(Json(app.intake.read(request.into_body()).await?))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for InTube {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let name = Path::<String>::from_request_parts(parts, state).await;
        let Path(name) = name.map_err(|error| bad_address(error.body_text()))?;
        Ok(InTube(TubeName::new(&name)?))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for InSemaphore {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let key = Path::<String>::from_request_parts(parts, state).await;
        let Path(key) = key.map_err(|error| bad_address(error.body_text()))?;
        Ok(InSemaphore(SemaphoreKey::new(&key)?))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for OneTask {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let names = Path::<(String, String)>::from_request_parts(parts, state).await;
        let Path((name, id)) = names.map_err(|error| bad_address(error.body_text()))?;
        let tube = TubeName::new(&name)?;
        // The parser would also take a plus sign, which no other face of Taskyard does.
        let digits = id.bytes().all(|byte| byte.is_ascii_digit());
        match id.parse() {
            Ok(id) if digits => Ok(OneTask(tube, TaskId(id))),
            _ => Err(bad_address(format!("'{id}' is not a task's number"))),
        }
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let Query(asked) = Query::try_from_uri(&parts.uri).map_err(|error| {
            Error::Invalid(format!("the query cannot be read: {}", error.body_text()))
        })?;
        Ok(Asked(asked))
    }
}

/// A number of entries in a query, however it is written: `3`, `3.0` or `3e0`.
pub(super) fn count<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
    let count = parse_whole(&String::deserialize(from)?).map_err(D::Error::custom)?;
    Ok(usize::try_from(count).unwrap_or(usize::MAX))
}

fn bad_address(message: String) -> Refusal {
    Error::Invalid(format!("the address cannot be read: {message}")).into()
}

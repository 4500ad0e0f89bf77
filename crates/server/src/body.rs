//! Reads requests: not too large, not too slow, and not too many bytes at once.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use taskyard_core::Error;
use taskyard_core::limits::PENDING_BYTES_MAX;
use taskyard_wire::http::parse;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// How long a request may take to arrive.
const ARRIVAL_MAX: Duration = Duration::from_secs(60);
/// How long and how far the rest of a refused request is read, so that the refusal gets through.
const DISCARD_MAX: Duration = Duration::from_secs(5);
const DISCARD_BYTES_MAX: usize = 256 << 20;
/// How much memory a request gets before its bytes are here.
const RESERVED_BYTES_MAX: usize = 8 << 20;
/// From this size on a request is parsed aside, so that it does not hold up other connections.
const ASIDE_BYTES: usize = 512 << 10;

/// Reads requests within the limits. The bytes of all requests that are being read and parsed are
/// counted together.
pub(crate) struct Intake {
    room: Arc<Semaphore>,
    bytes_max: usize,
}

/// The bytes of a request. Their room is free again when this is dropped.
struct Held {
    bytes: Bytes,
    _room: Option<OwnedSemaphorePermit>,
}

impl Intake {
    /// Reads requests of up to `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        Intake { room: Arc::new(Semaphore::new(PENDING_BYTES_MAX.max(bytes_max))), bytes_max }
    }

    /// Reads a request whole and turns it into its shape.
    pub async fn read<T: DeserializeOwned + Send + 'static>(&self, body: Body) -> Result<T, Error> {
        let held = timeout(ARRIVAL_MAX, self.gather(body)).await.unwrap_or_else(|_| {
            let seconds = ARRIVAL_MAX.as_secs();
            Err(Error::Invalid(format!("the request did not arrive within {seconds} seconds")))
        })?;
        check_object(&held.bytes)?;
        if held.bytes.len() < ASIDE_BYTES {
            return parse(&held.bytes);
        }
        let parsed = tokio::task::spawn_blocking(move || parse(&held.bytes)).await;
        parsed.unwrap_or_else(|_| Err(Error::Store("the request could not be parsed".into())))
    }

    async fn gather(&self, mut body: Body) -> Result<Held, Error> {
        let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        if announced > self.bytes_max {
            discard(body).await;
            return Err(self.too_large(announced));
        }
        let mut held = Held { bytes: Bytes::new(), _room: None };
        // Most requests come in one piece, which is then used as it is.
        let mut pieces = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                Error::Invalid(format!("the request ended before it was complete: {error}"))
            })?;
            let Ok(piece) = frame.into_data() else { continue };
            let size = held.bytes.len() + pieces.len() + piece.len();
            if size > self.bytes_max {
                discard(body).await;
                return Err(self.too_large(size));
            }
            self.reserve(&mut held._room, piece.len())?;
            if held.bytes.is_empty() && pieces.is_empty() {
                held.bytes = piece;
                continue;
            }
            if pieces.is_empty() {
                pieces.reserve(announced.min(RESERVED_BYTES_MAX));
                pieces.extend_from_slice(&std::mem::take(&mut held.bytes));
            }
            pieces.extend_from_slice(&piece);
        }
        if !pieces.is_empty() {
            held.bytes = pieces.into();
        }
        Ok(held)
    }

    fn reserve(&self, room: &mut Option<OwnedSemaphorePermit>, size: usize) -> Result<(), Error> {
        let overloaded = || Error::Overloaded("too many bytes of requests are on their way");
        let size = u32::try_from(size).map_err(|_| overloaded())?;
        let more = self.room.clone().try_acquire_many_owned(size).map_err(|_| overloaded())?;
        match room {
            Some(room) => room.merge(more),
            None => *room = Some(more),
        }
        Ok(())
    }

    fn too_large(&self, size: usize) -> Error {
        let advice = "send the tasks in several requests";
        Error::TooLarge { what: "the request, in bytes,", size, limit: self.bytes_max, advice }
    }
}

/// Refuses lists: the shapes could be read from them too, with the fields in a secret order.
fn check_object(bytes: &[u8]) -> Result<(), Error> {
    match bytes.trim_ascii_start().first() {
        None | Some(b'{') => Ok(()),
        Some(_) => Err(Error::Invalid("the request must be a JSON object in braces".into())),
    }
}

/// Reads the rest away. Many callers look for an answer only when everything is sent.
async fn discard(mut body: Body) {
    let reading = async {
        let mut size = 0;
        while let Some(Ok(frame)) = body.frame().await {
            size += frame.data_ref().map_or(0, Bytes::len);
            if size > DISCARD_BYTES_MAX {
                return;
            }
        }
    };
    // Whether it worked or not: the refusal is sent, and the connection closed if need be.
    let _ = timeout(DISCARD_MAX, reading).await;
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[tokio::test]
    async fn the_bytes_of_all_requests_together_are_limited() {
        let intake = Intake { room: Arc::new(Semaphore::new(10)), bytes_max: 100 };
        let mut room = None;
        intake.reserve(&mut room, 3).unwrap();
        let read = async |text: &'static str| intake.read::<Value>(Body::from(text)).await;
        assert!(matches!(read(r#"{"a": 12}"#).await, Err(Error::Overloaded(_))));
        assert!(read(r#"{"a":1}"#).await.is_ok());
        assert!(read(r#"{"a":1}"#).await.is_ok(), "what is read makes room again");
        drop(room);
        assert!(read(r#"{"a": 12}"#).await.is_ok());
    }
}

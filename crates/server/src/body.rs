//! Reads requests: not too large, not too slow, and not too many bytes at once.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use taskyard_core::Error;
use taskyard_core::limits::{REQUEST_BYTES_SHARE, SMALL_BYTES_MAX};
use taskyard_wire::http::parse;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

/// How long a request may take to arrive.
const ARRIVAL_MAX: Duration = Duration::from_secs(60);
/// So many bytes must come in the time that a request may stall, or all there are.
const PROGRESS_BYTES_MIN: usize = 8 << 10;
/// What part of the room is for small requests alone.
const SMALL_PART: usize = 8;
/// What part of the room for large requests is for those that have less than their share.
const RESERVED_PART: usize = 4;
/// How long and how far the rest of a refused request is read, so that the refusal gets through.
const DISCARD_MAX: Duration = Duration::from_secs(5);
const DISCARD_BYTES_MAX: usize = 256 << 20;
/// How much memory a request gets before its bytes are here.
const RESERVED_BYTES_MAX: usize = 8 << 20;
/// From this size on a request is parsed aside, so that it does not hold up other connections.
const ASIDE_BYTES: usize = 512 << 10;

/// Reads requests within the limits. The bytes of all requests that are being read and parsed are
/// counted together, those of small requests apart.
pub(crate) struct Intake {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    bytes_max: usize,
    bytes_total_max: usize,
    /// What of the room for large requests is left to those that have less than their share.
    reserved: usize,
    share: usize,
    stall_max: Duration,
}

/// The bytes of a request. Their room is free again when this is dropped.
struct Held {
    bytes: Bytes,
    _room: Room,
}

/// The room that one request has.
#[derive(Default)]
struct Room {
    small: Option<OwnedSemaphorePermit>,
    large: Option<OwnedSemaphorePermit>,
}

impl Room {
    fn bytes(&self) -> usize {
        permits(&self.small) + permits(&self.large)
    }
}

fn permits(room: &Option<OwnedSemaphorePermit>) -> usize {
    room.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
}

impl Intake {
    /// Reads requests of up to `bytes_max` bytes, and of `bytes_total_max` together. Each must make progress
    /// within `stall_max`.
    pub fn new(bytes_max: usize, bytes_total_max: usize, stall_max: Duration) -> Self {
        let small = bytes_total_max / SMALL_PART;
        // One request of the largest size can always be read when there is no other.
        let large = (bytes_total_max - small).max(bytes_max);
        Intake {
            small: Arc::new(Semaphore::new(small)),
            large: Arc::new(Semaphore::new(large)),
            bytes_max,
            bytes_total_max: small + large,
            reserved: (large / RESERVED_PART).min(large - bytes_max),
            share: REQUEST_BYTES_SHARE.min(large / RESERVED_PART),
            stall_max,
        }
    }

    /// How many bytes are being read and parsed.
    pub fn bytes(&self) -> usize {
        let free = self.small.available_permits() + self.large.available_permits();
        self.bytes_total_max.saturating_sub(free)
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
        let mut held = Held { bytes: Bytes::new(), _room: Room::default() };
        // Most requests come in one piece, which is then used as it is.
        let mut pieces = Vec::new();
        let mut progress = Progress::new(self.stall_max);
        while let Some(piece) = progress.next(&mut body).await? {
            let size = held.bytes.len() + pieces.len() + piece.len();
            if size > self.bytes_max {
                discard(body).await;
                return Err(self.too_large(size));
            }
            if let Err(overloaded) = self.reserve(&mut held._room, piece.len()) {
                drop((held, pieces));
                discard(body).await;
                return Err(overloaded);
            }
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

    /// Adds room for so many more bytes. A request that is small so far has room of its own; one that has more
    /// than its share leaves a part to the others.
    fn reserve(&self, room: &mut Room, size: usize) -> Result<(), Error> {
        let bytes = room.bytes() + size;
        if bytes <= SMALL_BYTES_MAX
            && room.large.is_none()
            && add(&self.small, &mut room.small, size)
        {
            return Ok(());
        }
        let more = bytes - permits(&room.large);
        let free = self.large.available_permits();
        let is_fair = bytes <= self.share || free >= more + self.reserved;
        if !is_fair || !add(&self.large, &mut room.large, more) {
            return Err(Error::Overloaded("too many bytes of requests are being received"));
        }
        room.small = None;
        Ok(())
    }

    fn too_large(&self, size: usize) -> Error {
        let advice = "send the tasks in several requests";
        Error::TooLarge { what: "the request, in bytes,", size, limit: self.bytes_max, advice }
    }
}

/// Takes so much of the room, if it is free.
fn add(room: &Arc<Semaphore>, to: &mut Option<OwnedSemaphorePermit>, size: usize) -> bool {
    let Ok(size) = u32::try_from(size) else { return false };
    let Ok(more) = room.clone().try_acquire_many_owned(size) else { return false };
    match to {
        Some(to) => to.merge(more),
        None => *to = Some(more),
    }
    true
}

/// Sees that a request keeps coming.
struct Progress {
    stall_max: Duration,
    /// When enough must have come, and how much did since the last time.
    deadline: Instant,
    bytes: usize,
}

impl Progress {
    fn new(stall_max: Duration) -> Self {
        Progress { stall_max, deadline: Instant::now() + stall_max, bytes: 0 }
    }

    /// The next piece of a request, `None` at its end.
    async fn next(&mut self, body: &mut Body) -> Result<Option<Bytes>, Error> {
        loop {
            match timeout_at(self.deadline, body.frame()).await {
                Ok(None) => return Ok(None),
                Ok(Some(Ok(frame))) => {
                    let Ok(piece) = frame.into_data() else { continue };
                    self.bytes += piece.len();
                    return Ok(Some(piece));
                }
                Ok(Some(Err(error))) => {
                    let text = format!("the request ended before it was complete: {error}");
                    return Err(Error::Invalid(text));
                }
                Err(_) if self.bytes >= PROGRESS_BYTES_MIN => {
                    *self = Progress::new(self.stall_max);
                }
                Err(_) => {
                    let seconds = self.stall_max.as_secs_f64();
                    return Err(Error::Invalid(format!(
                        "the request came too slowly: less than {PROGRESS_BYTES_MIN} bytes in {seconds} s"
                    )));
                }
            }
        }
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
pub(crate) async fn discard(mut body: Body) {
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

    const STALL_MAX: Duration = Duration::from_secs(10);
    const KIB: usize = 1 << 10;

    fn intake() -> Intake {
        Intake::new(2_000 * KIB, 3_200 * KIB, STALL_MAX)
    }

    fn reserve(intake: &Intake, room: &mut Room, kib: usize) -> bool {
        intake.reserve(room, kib * KIB).is_ok()
    }

    // Three requests that stopped in the middle used all the room there was, and every request with a body was
    // refused for a minute.
    #[tokio::test]
    async fn small_requests_have_room_while_large_ones_use_theirs() {
        let intake = intake();
        // 400 KiB for small ones, 2,800 KiB for large ones, of which 700 KiB are for those with less than 700.
        let mut large = Room::default();
        assert!(reserve(&intake, &mut large, 2_000));
        let mut second = Room::default();
        assert!(reserve(&intake, &mut second, 700), "its share is free");
        assert!(!reserve(&intake, &mut second, 50), "more would be unfair");
        let small = Body::from(r#"{"a": 12}"#);
        assert!(intake.read::<Value>(small).await.is_ok());
        assert_eq!(intake.bytes(), 2_700 * KIB, "what is read makes room again");
        let mut many: Vec<Room> = Vec::new();
        for _ in 0..100 {
            let mut room = Room::default();
            if !reserve(&intake, &mut room, 8) {
                break;
            }
            many.push(room);
        }
        assert_eq!(
            many.len(),
            400 / 8 + 100 / 8,
            "small ones may use what is left of the other room"
        );
        drop((large, second, many));
        assert_eq!(intake.bytes(), 0);
    }

    #[tokio::test]
    async fn a_request_that_grows_gives_back_the_room_for_small_ones() {
        let intake = intake();
        let mut room = Room::default();
        assert!(reserve(&intake, &mut room, 60));
        assert_eq!(permits(&room.small), 60 * KIB);
        assert!(reserve(&intake, &mut room, 60));
        assert_eq!((permits(&room.small), permits(&room.large)), (0, 120 * KIB));
        assert_eq!(intake.bytes(), 120 * KIB);
    }

    #[tokio::test]
    async fn the_largest_request_can_always_be_read_alone() {
        let intake = Intake::new(2_000 * KIB, 100 * KIB, STALL_MAX);
        let mut room = Room::default();
        assert!(reserve(&intake, &mut room, 1_000) && reserve(&intake, &mut room, 1_000));
        assert!(!reserve(&intake, &mut room, 100));
    }
}

//! Reads requests within limits on size, speed and total bytes.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use http_body_util::BodyExt;
use hyper::body::Frame;
use serde::de::DeserializeOwned;
use taskyard_core::Error;
use taskyard_core::limits::{
    REQUEST_BYTES_SHARE, SIGN_IN_BYTES_MAX, SIGN_IN_BYTES_TOTAL_MAX, SMALL_BYTES_MAX,
};
use taskyard_wire::http::parse;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep, timeout};

/// The next part of a body, `None` at its end.
type NextFrame = Option<Result<Frame<Bytes>, axum::Error>>;

/// How long a request may take to arrive.
const ARRIVAL_MAX: Duration = Duration::from_secs(60);
/// This many bytes must arrive within the stall time, or the rest of the request.
const PROGRESS_BYTES_MIN: usize = 8 << 10;
/// One part in this many of the budget is for small requests only.
const SMALL_PART: usize = 8;
/// One part in this many of the budget for large requests is for those below their share.
const RESERVED_PART: usize = 4;
/// How long, and how many bytes, the rest of a refused request is read, so that the client receives
/// the refusal.
const DISCARD_MAX: Duration = Duration::from_secs(5);
const DISCARD_BYTES_MAX: usize = 256 << 20;
/// How much memory is allocated for a request before its bytes arrive.
const RESERVED_BYTES_MAX: usize = 8 << 20;
/// Larger requests are parsed on a blocking thread, so that they do not delay other connections.
const BLOCKING_PARSE_BYTES: usize = 512 << 10;

/// Reads requests within limits. The bytes of all requests being read and parsed are counted
/// together; small requests have a budget of their own.
pub(crate) struct RequestReader {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    bytes_max: usize,
    bytes_total_max: usize,
    /// The part of the budget for large requests that is left to those below their share.
    reserved: usize,
    share: usize,
    stall_max: Duration,
}

/// The bytes of a request. Their permit is released when this is dropped.
struct ReceivedRequest {
    bytes: Bytes,
    _permit: RequestPermit,
}

/// The bytes that one request uses of the budgets.
#[derive(Default)]
struct RequestPermit {
    small: Option<OwnedSemaphorePermit>,
    large: Option<OwnedSemaphorePermit>,
}

impl RequestPermit {
    fn bytes(&self) -> usize {
        permits(&self.small) + permits(&self.large)
    }
}

fn permits(permit: &Option<OwnedSemaphorePermit>) -> usize {
    permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
}

impl RequestReader {
    /// Reads requests of up to `bytes_max` bytes each and `bytes_total_max` bytes together. Each
    /// must make progress within `stall_max`.
    pub fn new(bytes_max: usize, bytes_total_max: usize, stall_max: Duration) -> Self {
        let small = bytes_total_max / SMALL_PART;
        // One request of the largest size can always be read when it is the only one.
        let large = (bytes_total_max - small).max(bytes_max);
        RequestReader {
            small: Arc::new(Semaphore::new(small)),
            large: Arc::new(Semaphore::new(large)),
            bytes_max,
            bytes_total_max: small + large,
            reserved: (large / RESERVED_PART).min(large - bytes_max),
            share: REQUEST_BYTES_SHARE.min(large / RESERVED_PART),
            stall_max,
        }
    }

    /// Reads requests to sign in, which come before the user is known.
    pub fn of_sign_in(stall_max: Duration) -> Self {
        RequestReader::new(SIGN_IN_BYTES_MAX, SIGN_IN_BYTES_TOTAL_MAX, stall_max)
    }

    /// How many bytes are being read and parsed.
    pub fn bytes(&self) -> usize {
        let free = self.small.available_permits() + self.large.available_permits();
        self.bytes_total_max.saturating_sub(free)
    }

    /// Reads a request completely and parses it.
    pub async fn read<T: DeserializeOwned + Send + 'static>(&self, body: Body) -> Result<T, Error> {
        let held = self.gather(body).await?;
        check_object(&held.bytes)?;
        if held.bytes.len() < BLOCKING_PARSE_BYTES {
            return parse(&held.bytes);
        }
        let parsed = tokio::task::spawn_blocking(move || parse(&held.bytes)).await;
        parsed.unwrap_or_else(|_| Err(Error::Store("parsing the request failed".into())))
    }

    async fn gather(&self, mut body: Body) -> Result<ReceivedRequest, Error> {
        let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        if announced > self.bytes_max {
            discard(body).await;
            return Err(self.too_large(announced));
        }
        let mut held = ReceivedRequest { bytes: Bytes::new(), _permit: RequestPermit::default() };
        // Most requests arrive in one piece, which is then used without a copy.
        let mut pieces = Vec::new();
        let mut progress = Progress::new(self.stall_max);
        while let Some(piece) = progress.next(&mut body).await? {
            let size = held.bytes.len() + pieces.len() + piece.len();
            if size > self.bytes_max {
                discard(body).await;
                return Err(self.too_large(size));
            }
            if let Err(overloaded) = self.reserve(&mut held._permit, piece.len()) {
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

    /// Adds `size` bytes to the permit. A request that is small so far uses the budget for small
    /// ones; one above its share leaves a part to the others.
    fn reserve(&self, permit: &mut RequestPermit, size: usize) -> Result<(), Error> {
        let bytes = permit.bytes() + size;
        if bytes <= SMALL_BYTES_MAX
            && permit.large.is_none()
            && add(&self.small, &mut permit.small, size)
        {
            return Ok(());
        }
        let more = bytes - permits(&permit.large);
        let free = self.large.available_permits();
        let is_fair = bytes <= self.share || free >= more + self.reserved;
        if !is_fair || !add(&self.large, &mut permit.large, more) {
            return Err(Error::Overloaded("too many request bytes are being received"));
        }
        permit.small = None;
        Ok(())
    }

    fn too_large(&self, size: usize) -> Error {
        let advice = "send the tasks in several requests";
        Error::TooLarge { what: "the request, in bytes,", size, limit: self.bytes_max, advice }
    }
}

/// Adds `size` bytes of this budget to the permit, if they are free.
fn add(pool: &Arc<Semaphore>, to: &mut Option<OwnedSemaphorePermit>, size: usize) -> bool {
    let Ok(size) = u32::try_from(size) else { return false };
    let Ok(more) = pool.clone().try_acquire_many_owned(size) else { return false };
    match to {
        Some(to) => to.merge(more),
        None => *to = Some(more),
    }
    true
}

/// Checks that a request makes progress.
struct Progress {
    stall_max: Duration,
    /// How many bytes have arrived since the last deadline.
    bytes: usize,
    /// Whether the request did not arrive at once.
    has_waited: bool,
    /// Only for a request that did not arrive in the next moment either: setting timers costs more than reading it.
    timers: Option<ArrivalTimers>,
}

/// When a request must have arrived, and when enough bytes of it.
struct ArrivalTimers {
    end: Pin<Box<Sleep>>,
    stall: Pin<Box<Sleep>>,
}

impl Progress {
    fn new(stall_max: Duration) -> Self {
        Progress { stall_max, bytes: 0, has_waited: false, timers: None }
    }

    /// The next piece of a request, `None` at its end.
    async fn next(&mut self, body: &mut Body) -> Result<Option<Bytes>, Error> {
        loop {
            match poll_fn(|cx| self.poll_frame(body, cx)).await? {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    let Ok(piece) = frame.into_data() else { continue };
                    self.bytes += piece.len();
                    return Ok(Some(piece));
                }
                Some(Err(error)) => {
                    let text = format!("the request ended before it was complete: {error}");
                    return Err(Error::Invalid(text));
                }
            }
        }
    }

    fn poll_frame(
        &mut self,
        body: &mut Body,
        cx: &mut Context<'_>,
    ) -> Poll<Result<NextFrame, Error>> {
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) {
            return Poll::Ready(Ok(frame));
        }
        if !self.has_waited {
            // The connection reads a body only when it is asked for. It is polled again at once in any case.
            self.has_waited = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.poll_timers(cx).map(Err)
    }

    /// Becomes ready when the request came too slowly.
    fn poll_timers(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        let stall_max = self.stall_max;
        let timers = self.timers.get_or_insert_with(|| ArrivalTimers {
            end: Box::pin(sleep(ARRIVAL_MAX)),
            stall: Box::pin(sleep(stall_max)),
        });
        if timers.end.as_mut().poll(cx).is_ready() {
            let seconds = ARRIVAL_MAX.as_secs();
            let text = format!("the request did not arrive within {seconds} seconds");
            return Poll::Ready(Error::Invalid(text));
        }
        while timers.stall.as_mut().poll(cx).is_ready() {
            if self.bytes < PROGRESS_BYTES_MIN {
                let seconds = stall_max.as_secs_f64();
                return Poll::Ready(Error::Invalid(format!(
                    "the request came too slowly: less than {PROGRESS_BYTES_MIN} bytes in {seconds} s"
                )));
            }
            self.bytes = 0;
            timers.stall.as_mut().reset(Instant::now() + stall_max);
        }
        Poll::Pending
    }
}

/// Refuses JSON lists: serde would accept them as structs, with the fields by position.
fn check_object(bytes: &[u8]) -> Result<(), Error> {
    match bytes.trim_ascii_start().first() {
        None | Some(b'{') => Ok(()),
        Some(_) => Err(Error::Invalid("the request must be a JSON object in braces".into())),
    }
}

/// Reads and drops the rest of a body. Many clients read the response only after they have sent
/// everything.
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
    // In any case the refusal is sent, and the connection closed if necessary.
    let _ = timeout(DISCARD_MAX, reading).await;
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const STALL_MAX: Duration = Duration::from_secs(10);
    const KIB: usize = 1 << 10;

    fn request_reader() -> RequestReader {
        RequestReader::new(2_000 * KIB, 3_200 * KIB, STALL_MAX)
    }

    fn reserve(request_reader: &RequestReader, permit: &mut RequestPermit, kib: usize) -> bool {
        request_reader.reserve(permit, kib * KIB).is_ok()
    }

    // Requests to sign in are read for every client that can connect.
    #[tokio::test]
    async fn requests_to_sign_in_use_little_memory() {
        let request_reader = RequestReader::of_sign_in(STALL_MAX);
        let of_size = |size: usize| Body::from(format!("{{\"a\": \"{}\"}}", "x".repeat(size - 9)));
        assert!(request_reader.read::<Value>(of_size(SIGN_IN_BYTES_MAX)).await.is_ok());
        assert!(request_reader.read::<Value>(of_size(SIGN_IN_BYTES_MAX + 1)).await.is_err());
        let mut many: Vec<RequestPermit> = Vec::new();
        loop {
            let mut permit = RequestPermit::default();
            if request_reader.reserve(&mut permit, SIGN_IN_BYTES_MAX).is_err() {
                break;
            }
            many.push(permit);
        }
        assert_eq!(many.len(), SIGN_IN_BYTES_TOTAL_MAX / SIGN_IN_BYTES_MAX);
        assert!(request_reader.read::<Value>(of_size(100)).await.is_err());
        drop(many);
        assert!(request_reader.read::<Value>(of_size(100)).await.is_ok());
    }

    // Three requests that stopped in the middle used the whole budget, and every request with a
    // body was refused for a minute.
    #[tokio::test]
    async fn small_requests_have_room_while_large_ones_use_theirs() {
        let request_reader = request_reader();
        // 400 KiB for small requests, 2,800 KiB for large ones, of which 700 KiB are for those with
        // less than 700.
        let mut large = RequestPermit::default();
        assert!(reserve(&request_reader, &mut large, 2_000));
        let mut second = RequestPermit::default();
        assert!(reserve(&request_reader, &mut second, 700), "its share is available");
        assert!(!reserve(&request_reader, &mut second, 50), "more would be unfair");
        let small = Body::from(r#"{"a": 12}"#);
        assert!(request_reader.read::<Value>(small).await.is_ok());
        assert_eq!(request_reader.bytes(), 2_700 * KIB, "read requests release their bytes");
        let mut many: Vec<RequestPermit> = Vec::new();
        for _ in 0..100 {
            let mut permit = RequestPermit::default();
            if !reserve(&request_reader, &mut permit, 8) {
                break;
            }
            many.push(permit);
        }
        assert_eq!(
            many.len(),
            400 / 8 + 100 / 8,
            "small requests may use what is left of the other budget"
        );
        drop((large, second, many));
        assert_eq!(request_reader.bytes(), 0);
    }

    #[tokio::test]
    async fn a_request_that_grows_gives_back_the_room_for_small_ones() {
        let request_reader = request_reader();
        let mut permit = RequestPermit::default();
        assert!(reserve(&request_reader, &mut permit, 60));
        assert_eq!(permits(&permit.small), 60 * KIB);
        assert!(reserve(&request_reader, &mut permit, 60));
        assert_eq!((permits(&permit.small), permits(&permit.large)), (0, 120 * KIB));
        assert_eq!(request_reader.bytes(), 120 * KIB);
    }

    #[tokio::test]
    async fn the_largest_request_can_always_be_read_alone() {
        let request_reader = RequestReader::new(2_000 * KIB, 100 * KIB, STALL_MAX);
        let mut permit = RequestPermit::default();
        assert!(
            reserve(&request_reader, &mut permit, 1_000)
                && reserve(&request_reader, &mut permit, 1_000)
        );
        assert!(!reserve(&request_reader, &mut permit, 100));
    }
}

//! Protects the HTTP library from wall clocks whose date it cannot write into a response: it panics, also when the clock is set
//! while a connection is open.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Why no request is served.
pub(crate) const UNUSABLE_CLOCK: &str = "the clock of the server's machine shows a time before 1970 or after the year 9999; set the clock";
/// The first second of the year 10000.
const END: Duration = Duration::from_secs(253_402_300_800);

/// Whether the wall clock shows a date that HTTP cannot express.
pub(crate) fn clock_is_unusable() -> bool {
    is_unusable(SystemTime::now())
}

fn is_unusable(wall: SystemTime) -> bool {
    // The library writes the date of a second that begins soon.
    wall.duration_since(UNIX_EPOCH).map_or(true, |since| since + Duration::from_secs(2) >= END)
}

/// Serves a connection as long as the wall clock is usable. `None` if it is not; then the connection
/// is to be closed.
pub(crate) async fn serve_guarded<F: Future>(mut connection: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|cx| match clock_is_unusable() {
        true => Poll::Ready(None),
        false => connection.as_mut().poll(cx).map(Some),
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_that_http_cannot_express_are_unusable() {
        let day = Duration::from_secs(24 * 3600);
        for (wall, unusable) in [
            (UNIX_EPOCH - Duration::from_nanos(1), true),
            (UNIX_EPOCH, false),
            (UNIX_EPOCH + END - day, false),
            (UNIX_EPOCH + END - Duration::from_nanos(1), true),
            (UNIX_EPOCH + END + day, true),
        ] {
            assert_eq!(is_unusable(wall), unusable, "{wall:?}");
        }
    }
}

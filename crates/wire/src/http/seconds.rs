//! Converts between seconds in JSON and whole microseconds inside.
//!
//! Rounding to the nearest microsecond makes the conversion exact in both directions for every
//! duration and for every timestamp before the year 2255.

use taskyard_core::{Error, Result, Span, Timestamp};

/// Timestamps from here on mean never: what a number of seconds can express ends a little later.
const NEVER_SECONDS: f64 = 9.2e12;

/// The duration that the field `name` gives in seconds.
pub(super) fn span(name: &str, seconds: f64) -> Result<Span> {
    if seconds.is_nan() || seconds < 0.0 {
        return Err(Error::Invalid(format!(
            "'{name}' is {seconds}; give a number of seconds that is not negative, or leave it out"
        )));
    }
    Ok(Span::from_micros(micros(seconds)))
}

/// The duration of a field that may be absent.
pub(super) fn optional_span(name: &str, seconds: Option<f64>) -> Result<Option<Span>> {
    seconds.map(|seconds| span(name, seconds)).transpose()
}

/// The timestamp that the field `name` gives in seconds since the epoch.
pub(super) fn moment(name: &str, seconds: f64) -> Result<Timestamp> {
    if !seconds.is_finite() || seconds < 0.0 {
        return Err(Error::Invalid(format!(
            "'{name}' is {seconds}; give a moment as seconds since 1970-01-01 00:00:00 UTC"
        )));
    }
    if seconds >= NEVER_SECONDS {
        return Ok(Timestamp::NEVER);
    }
    Ok(Timestamp::from_micros(micros(seconds)))
}

/// The timestamp of a field that may be absent.
pub(super) fn optional_moment(name: &str, seconds: Option<f64>) -> Result<Option<Timestamp>> {
    seconds.map(|seconds| moment(name, seconds)).transpose()
}

/// A duration in seconds.
pub fn seconds_of(span: Span) -> f64 {
    span.as_secs_f64()
}

/// A timestamp in seconds since the epoch; `None` for never.
pub fn moment_of(moment: Timestamp) -> Option<f64> {
    (moment != Timestamp::NEVER).then(|| moment.as_secs_f64())
}

/// The nearest whole microsecond; a value that is too large becomes the largest number.
fn micros(seconds: f64) -> i64 {
    (seconds * 1e6).round() as i64
}

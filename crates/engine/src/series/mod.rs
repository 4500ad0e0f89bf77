//! Time series of every tube: what commands did, how many tasks there were, how long tasks waited
//! and ran.
//!
//! The event loop notes the commands of a batch (`notes`), and applies the replies to the registry
//! (`collector`). The registry (`registry`) keeps the series and knows no clock: the time is an
//! argument. Nothing is stored on disk.

mod collector;
mod deliveries;
mod histogram;
mod interval_clock;
mod notes;
mod registry;
mod ring;
mod sampling;
mod service;
#[cfg(test)]
mod tests;
mod tube_series;

pub(crate) use collector::{Collector, Moment};
pub use histogram::{Latency, Percentiles};
pub(crate) use notes::Notes;
pub use ring::{CommandCounts, Depth, SeriesPoint};
use taskyard_core::{Span, Timestamp, TubeName};
pub(crate) use tube_series::Ending;

/// The number of seconds in a series.
const SECONDS: u32 = 3_600;
/// The number of minutes in a series.
const MINUTES: u32 = 2_880;
/// Durations of a second that ended this many seconds ago are no longer those of now.
const RECENT_SECONDS: u32 = 60;
/// The most bytes that the series of one tube uses.
pub const TUBE_SERIES_BYTES_MAX: usize = tube_series::TubeSeries::BYTES_MAX;

/// The length of the intervals of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// One second, for the last hour.
    Second,
    /// One minute, for the last two days.
    Minute,
}

impl Step {
    /// The length in seconds.
    pub const fn seconds(self) -> i64 {
        match self {
            Step::Second => 1,
            Step::Minute => 60,
        }
    }

    /// The most points of a series.
    pub const fn points_max(self) -> u32 {
        match self {
            Step::Second => SECONDS,
            Step::Minute => MINUTES,
        }
    }
}

/// Selects a part of a series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeriesRequest {
    /// The tube; `None` is the sum over all tubes that are not internal.
    pub tube: Option<TubeName>,
    /// The first interval.
    pub from: SeriesStart,
    /// The length of the intervals.
    pub step: Step,
}

/// Where a part of a series begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeriesStart {
    /// As early as possible.
    Oldest,
    /// At this moment of the wall clock.
    At(Timestamp),
    /// This long before now.
    Last(Span),
}

/// A part of a series: complete intervals without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// When the first interval begins, in wall time.
    pub from: Timestamp,
    /// The intervals.
    pub points: Vec<SeriesPoint>,
}

/// What the series of one tube say about it now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TubeFigures {
    /// The number of failed deliveries since its series began.
    pub failures: u64,
    /// How long tasks had been ready when they were taken, in the latest second of the last minute
    /// with any.
    pub wait: Percentiles,
    /// The same for how long deliveries lasted.
    pub run: Percentiles,
}

/// The durations of one tube since its series began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TubeLatency {
    /// The tube.
    pub tube: TubeName,
    /// How long taken tasks had been ready.
    pub wait: Latency,
    /// How long finished deliveries had lasted.
    pub run: Latency,
}

//! Time series of a tube, or of all tubes together.

use serde::{Deserialize, Serialize};

/// A time series: complete intervals without gaps, oldest first. All arrays have the same length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SeriesAnswer {
    /// The tube; absent for the sum over all tubes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tube: Option<String>,
    /// The length of an interval, in seconds.
    pub step: f64,
    /// When the first interval begins, in seconds since the epoch.
    pub from: f64,
    /// Tasks put in each interval.
    pub puts: Vec<u32>,
    /// Tasks delivered.
    pub takes: Vec<u32>,
    /// Deliveries acknowledged.
    pub acks: Vec<u32>,
    /// Deliveries that failed.
    pub fails: Vec<u32>,
    /// Ready tasks at the end of each interval.
    pub ready: Vec<u32>,
    /// Taken tasks.
    pub taken: Vec<u32>,
    /// Delayed tasks.
    pub delayed: Vec<u32>,
    /// Buried tasks.
    pub buried: Vec<u32>,
    /// How long the tasks taken in each interval had been ready.
    pub wait: PercentilesAnswer,
    /// How long the deliveries that were acknowledged or failed in each interval had lasted.
    pub run: PercentilesAnswer,
}

/// Percentiles of durations in seconds, with an error of at most 5 %; `null` for an interval without
/// any duration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PercentilesAnswer {
    /// The median.
    pub p50: Vec<Option<f64>>,
    /// The 90th percentile.
    pub p90: Vec<Option<f64>>,
    /// The 99th percentile.
    pub p99: Vec<Option<f64>>,
}

//! Time series of a tube, or of all tubes together.

use serde::{Deserialize, Serialize};

/// A query for time series.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeriesQuery {
    /// The tube; the sum over all tubes that are not internal when absent.
    pub tube: Option<String>,
    /// The first moment, in seconds since the epoch, or before now if negative.
    pub from: Option<f64>,
    /// The length of an interval.
    #[serde(default)]
    pub step: SeriesStep,
    /// Whether the series of the peers of the server are added.
    #[serde(default)]
    pub all: bool,
    /// Whether only what the server has in memory is shown, as its peers ask for it.
    #[serde(default)]
    pub passive: bool,
}

/// The length of an interval, as a query names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum SeriesStep {
    /// The last hour by second.
    #[default]
    #[serde(rename = "1s")]
    Second,
    /// The last two days by minute.
    #[serde(rename = "1m")]
    Minute,
}

impl SeriesQuery {
    /// The parameters that are set, for a client.
    pub fn parameters(&self) -> Vec<(&'static str, String)> {
        let mut parameters = Vec::new();
        parameters.extend(self.tube.clone().map(|tube| ("tube", tube)));
        parameters.extend(self.from.map(|from| ("from", from.to_string())));
        if self.step == SeriesStep::Minute {
            parameters.push(("step", "1m".into()));
        }
        if self.all {
            parameters.push(("all", "true".into()));
        }
        if self.passive {
            parameters.push(("passive", "true".into()));
        }
        parameters
    }
}

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
    /// Identifies the running server that answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The number of servers whose series are added; absent unless `all` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub servers: Option<u32>,
    /// Peers of the server whose series are not added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<MissingServer>,
}

/// A server that is not part of an answer about all servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MissingServer {
    /// Its URL.
    pub url: String,
    /// Why it is missing.
    pub reason: String,
}

/// Percentiles of durations in seconds, with an error of at most 5 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DurationsAnswer {
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
}

impl DurationsAnswer {
    /// Those of the latest interval of a series that has any.
    pub fn latest(series: &PercentilesAnswer) -> Option<Self> {
        let intervals = series.p50.iter().zip(&series.p90).zip(&series.p99).rev();
        let mut found = intervals.filter_map(|((p50, p90), p99)| {
            Some(DurationsAnswer { p50: (*p50)?, p90: (*p90)?, p99: (*p99)? })
        });
        found.next()
    }
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

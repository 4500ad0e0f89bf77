//! The retry policy and the rate limit of a tube in requests and answers.

use serde::{Deserialize, Serialize};
use taskyard_core::limits::{RATE_BURST_MAX, RETRY_FACTOR_PERMILLE_MAX, RETRY_JITTER_PERMILLE_MAX};
use taskyard_core::{Error, RateLimit, RetryPolicy};

use super::seconds::{optional_span, seconds_of, span};
use super::whole;

/// The delays before further attempts: `min(delay_max, delay · factor^(n−1))` after failed attempt n,
/// shortened or extended at random by the part `jitter`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RetryRequest {
    /// Seconds after the first failed attempt, at most 30 days; 5 when absent.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 2_592_000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<f64>,
    /// The factor from one delay to the next, from 1 to 100 in thousandths; 2 when absent.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 100))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    /// The longest delay in seconds before the jitter, at most 30 days; 3600 when absent, or `delay`
    /// if that is longer.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 2_592_000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_max: Option<f64>,
    /// The part by which a delay may differ, from 0 to 1 in thousandths; 0.2 when absent.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 1))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<f64>,
}

/// The delays before further attempts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RetryAnswer {
    /// Seconds after the first failed attempt.
    pub delay: f64,
    /// The factor from one delay to the next.
    pub factor: f64,
    /// The longest delay in seconds, before the jitter.
    pub delay_max: f64,
    /// The part by which a delay is shortened or extended at random.
    pub jitter: f64,
}

/// How many deliveries a tube allows: a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RateRequest {
    /// Deliveries in the time `per`, from 1 to 1000000.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000))]
    #[serde(deserialize_with = "whole::number")]
    pub count: u32,
    /// The time in seconds, from 0.001 to 86400.
    #[cfg_attr(feature = "openapi", schema(minimum = 0.001, maximum = 86_400))]
    pub per: f64,
    /// Most deliveries at once after a pause, from 1 to 100000; `count` when absent, at most 100000.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 100_000))]
    #[serde(default, deserialize_with = "whole::maybe", skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
}

/// How many deliveries a tube allows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RateAnswer {
    /// Deliveries in the time `per`.
    pub count: u32,
    /// The time in seconds.
    pub per: f64,
    /// Most deliveries at once after a pause.
    pub burst: u32,
}

impl RetryRequest {
    /// The request for this policy, on the client's side.
    pub fn new(policy: &RetryPolicy) -> Self {
        let RetryAnswer { delay, factor, delay_max, jitter } = RetryAnswer::new(policy);
        let (delay_max, jitter) = (Some(delay_max), Some(jitter));
        RetryRequest { delay: Some(delay), factor: Some(factor), delay_max, jitter }
    }

    /// The checked policy, on the server's side.
    pub fn into_policy(self, retry_lost: bool) -> Result<RetryPolicy, Error> {
        let usual = RetryPolicy::DEFAULT;
        let delay = optional_span("retry.delay", self.delay)?.unwrap_or(usual.delay);
        let delay_max = optional_span("retry.delay_max", self.delay_max)?;
        let factor = self
            .factor
            .map(|factor| permille("retry.factor", factor, 1_000, RETRY_FACTOR_PERMILLE_MAX));
        let jitter = self
            .jitter
            .map(|jitter| permille("retry.jitter", jitter, 0, RETRY_JITTER_PERMILLE_MAX));
        let policy = RetryPolicy {
            delay,
            factor_permille: factor.transpose()?.unwrap_or(usual.factor_permille),
            delay_max: delay_max.unwrap_or(usual.delay_max.max(delay)),
            jitter_permille: jitter.transpose()?.unwrap_or(usual.jitter_permille),
            retry_lost,
        };
        policy.check()?;
        Ok(policy)
    }
}

impl RetryAnswer {
    /// The policy as answers show it.
    pub fn new(policy: &RetryPolicy) -> Self {
        RetryAnswer {
            delay: seconds_of(policy.delay),
            factor: f64::from(policy.factor_permille) / 1e3,
            delay_max: seconds_of(policy.delay_max),
            jitter: f64::from(policy.jitter_permille) / 1e3,
        }
    }

    /// The result for the client's caller.
    pub fn into_policy(self, retry_lost: bool) -> Result<RetryPolicy, Error> {
        let RetryAnswer { delay, factor, delay_max, jitter } = self;
        let (delay_max, jitter) = (Some(delay_max), Some(jitter));
        let request = RetryRequest { delay: Some(delay), factor: Some(factor), delay_max, jitter };
        request.into_policy(retry_lost)
    }
}

impl RateRequest {
    /// The request for this limit, on the client's side.
    pub fn new(rate: &RateLimit) -> Self {
        let RateAnswer { count, per, burst } = RateAnswer::new(rate);
        RateRequest { count, per, burst: Some(burst) }
    }

    /// The checked limit, on the server's side.
    pub fn into_rate(self) -> Result<RateLimit, Error> {
        let burst = self.burst.unwrap_or(self.count.min(RATE_BURST_MAX));
        let rate = RateLimit { count: self.count, per: span("rate.per", self.per)?, burst };
        rate.check()?;
        Ok(rate)
    }
}

impl RateAnswer {
    /// The limit as answers show it.
    pub fn new(rate: &RateLimit) -> Self {
        RateAnswer { count: rate.count, per: seconds_of(rate.per), burst: rate.burst }
    }

    /// The result for the client's caller.
    pub fn into_rate(self) -> Result<RateLimit, Error> {
        let RateAnswer { count, per, burst } = self;
        RateRequest { count, per, burst: Some(burst) }.into_rate()
    }
}

/// The policy of a new tube. Expired leases cannot follow a policy that the tube does not have.
pub(super) fn new_policy(
    retry: Option<RetryRequest>,
    retry_lost: Option<bool>,
) -> Result<Option<Box<RetryPolicy>>, Error> {
    let retry = retry.map(|retry| retry.into_policy(false)).transpose()?;
    Ok(changed_policy(retry.map(Some), retry_lost, None)?.flatten().map(Box::new))
}

/// The change of a policy if it, or whether expired leases follow it, changes. The option that is
/// not given stays as it is in the `current` policy.
pub fn changed_policy(
    retry: Option<Option<RetryPolicy>>,
    retry_lost: Option<bool>,
    current: Option<&RetryPolicy>,
) -> Result<Option<Option<RetryPolicy>>, Error> {
    let kept = current.is_some_and(|current| current.retry_lost);
    match (retry, retry_lost) {
        (Some(Some(policy)), lost) => {
            Ok(Some(Some(RetryPolicy { retry_lost: lost.unwrap_or(kept), ..policy })))
        }
        (None, Some(retry_lost)) if current.is_some() => {
            Ok(current.map(|current| Some(RetryPolicy { retry_lost, ..*current })))
        }
        (_, Some(true)) => Err(Error::Invalid(
            "'retry_lost' needs a retry policy; give 'retry' too, or leave 'retry_lost' out".into(),
        )),
        (retry, _) => Ok(retry),
    }
}

/// A number of a field in thousandths.
fn permille(name: &str, value: f64, least: u32, most: u32) -> Result<u32, Error> {
    let thousandths = (value * 1e3).round();
    if (f64::from(least)..=f64::from(most)).contains(&thousandths) {
        return Ok(thousandths as u32);
    }
    let (least, most) = (least / 1_000, most / 1_000);
    Err(Error::Invalid(format!("{name} must be between {least} and {most}, not {value}")))
}

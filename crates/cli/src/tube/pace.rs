//! Parses and prints retry policies and rate limits.

use std::fmt::Write;
use std::str::FromStr;

use taskyard_core::{Command, RateLimit, Reply, RetryPolicy, TubeName};
use taskyard_wire::http::{
    RateAnswer, RateRequest, RetryAnswer, RetryRequest, changed_policy, seconds_of,
};

use crate::connect::{ConnectArgs, unexpected_reply};
use crate::failure::UsageError;
use crate::units::{self, OrNone};

const POLICY: &str =
    "write default, or a delay and what differs from 10s,factor=2,max=1h,jitter=0.2";
const RATE: &str = "write a number and a time, such as 10/s, 100/1m or 5/1s,burst=20";

/// A retry policy: `default`, or `DELAY[,factor=2,max=1h,jitter=0.2]`.
pub fn policy(text: &str) -> Result<RetryPolicy, String> {
    if text == "default" {
        return Ok(RetryPolicy::DEFAULT);
    }
    let mut parts = text.split(',');
    let delay = units::span(parts.next().unwrap_or_default()).map_err(|_| POLICY)?;
    let mut request = RetryRequest { delay: Some(seconds_of(delay)), ..RetryRequest::default() };
    for part in parts {
        let value = match part.split_once('=').ok_or(POLICY)? {
            ("factor", value) => request.factor.replace(number(value).ok_or(POLICY)?),
            ("max", value) => {
                let most = units::span(value).map_err(|_| POLICY)?;
                request.delay_max.replace(seconds_of(most))
            }
            ("jitter", value) => request.jitter.replace(number(value).ok_or(POLICY)?),
            _ => return Err(POLICY.into()),
        };
        if value.is_some() {
            return Err(format!("{part} is given twice"));
        }
    }
    request.into_policy(false).map_err(|error| error.to_string())
}

/// A retry policy, or `none`.
pub fn policy_or_none(text: &str) -> Result<OrNone<RetryPolicy>, String> {
    if text == "none" { Ok(OrNone(None)) } else { policy(text).map(|policy| OrNone(Some(policy))) }
}

/// A rate limit: `COUNT/PER[,burst=N]`; `PER` may be a unit alone.
pub fn rate(text: &str) -> Result<RateLimit, String> {
    let (limit, burst) = match text.split_once(',') {
        Some((limit, burst)) => (limit, Some(burst.strip_prefix("burst=").ok_or(RATE)?)),
        None => (text, None),
    };
    let (count, per) = limit.split_once('/').filter(|(_, per)| !per.is_empty()).ok_or(RATE)?;
    let per = units::span(per).or_else(|_| units::span(&format!("1{per}"))).map_err(|_| RATE)?;
    let whole = |text: &str| u32::from_str(text).map_err(|_| RATE);
    let burst = burst.map(whole).transpose()?;
    let request = RateRequest { count: whole(count)?, per: seconds_of(per), burst };
    request.into_rate().map_err(|error| error.to_string())
}

/// A rate limit, or `none`.
pub fn rate_or_none(text: &str) -> Result<OrNone<RateLimit>, String> {
    if text == "none" { Ok(OrNone(None)) } else { rate(text).map(|rate| OrNone(Some(rate))) }
}

/// The change of the policy of a tube. If only one of the two options is given, the other one stays.
pub fn change(
    connect: &ConnectArgs,
    tube: &str,
    retry: Option<OrNone<RetryPolicy>>,
    retry_lost: Option<bool>,
) -> anyhow::Result<Option<Option<RetryPolicy>>> {
    let retry = retry.map(|retry| retry.0);
    let current = match (retry, retry_lost) {
        (Some(Some(_)), None) | (None, Some(_)) => {
            let show = Command::Tubes { tube: Some(TubeName::new(tube)?) };
            let Reply::Tubes(tubes) = connect.execute(show)? else {
                return Err(unexpected_reply("tubes"));
            };
            tubes.into_iter().find_map(|info| info.options.retry)
        }
        _ => None,
    };
    let changed = changed_policy(retry, retry_lost, current.as_deref());
    changed.map_err(|_| {
        UsageError("--retry-lost needs a retry policy; give --retry too".into()).into()
    })
}

/// A policy in the form that [`policy`] reads.
pub fn show_policy(retry: &RetryAnswer) -> String {
    let RetryAnswer { delay, factor, delay_max, jitter } = retry;
    format!("{delay}s,factor={factor},max={delay_max}s,jitter={jitter}")
}

/// A limit in the form that [`rate`] reads.
pub fn show_rate(rate: &RateAnswer) -> String {
    let RateAnswer { count, per, burst } = rate;
    let mut text = format!("{count}/{per}s");
    if burst != count {
        let _ = write!(text, ",burst={burst}");
    }
    text
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_parsed_and_printed() {
        let shown = |text: &str| show_policy(&RetryAnswer::new(&policy(text).unwrap()));
        for (text, expected) in [
            ("default", "5s,factor=2,max=3600s,jitter=0.2"),
            ("10", "10s,factor=2,max=3600s,jitter=0.2"),
            ("2h", "7200s,factor=2,max=7200s,jitter=0.2"),
            ("250ms,jitter=0,factor=1.5,max=1m", "0.25s,factor=1.5,max=60s,jitter=0"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
            assert_eq!(shown(expected), expected);
        }
        for text in ["", "none", "5s,", "5s,factor", "5s,factor=x", "5s,max=", "5s,top=1", "x"] {
            assert_eq!(policy(text), Err(POLICY.to_owned()), "{text}");
        }
        for (text, part) in [
            ("5s,factor=0.5", "retry.factor"),
            ("5s,jitter=2", "retry.jitter"),
            ("5s,max=4s", "retry.delay_max"),
            ("5s,factor=2,factor=3", "factor=3 is given twice"),
        ] {
            assert!(policy(text).unwrap_err().contains(part), "{text}");
        }
        assert_eq!(policy_or_none("none"), Ok(OrNone(None)));
    }

    #[test]
    fn rates_are_parsed_and_printed() {
        let shown = |text: &str| show_rate(&RateAnswer::new(&rate(text).unwrap()));
        for (text, expected) in [
            ("10/s", "10/1s"),
            ("100/1m", "100/60s"),
            ("5/0.5", "5/0.5s"),
            ("5/1h,burst=20", "5/3600s,burst=20"),
            ("5/s,burst=5", "5/1s"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
            assert_eq!(shown(expected), expected);
        }
        for text in ["", "5", "5/", "/s", "5/x", "-1/s", "5/s,20", "5/s,burst=x", "5/s,burst=1,"] {
            assert_eq!(rate(text), Err(RATE.to_owned()), "{text}");
        }
        for (text, part) in
            [("0/s", "rate.count"), ("1/0", "rate.per"), ("1/s,burst=0", "rate.burst")]
        {
            assert!(rate(text).unwrap_err().contains(part), "{text}");
        }
        assert_eq!(rate_or_none("none"), Ok(OrNone(None)));
    }
}

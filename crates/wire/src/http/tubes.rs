//! Creating, changing and showing tubes.

use serde::{Deserialize, Serialize};
use taskyard_core::command::TubeInfo;
use taskyard_core::limits::KEEP_DONE_DEFAULT;
use taskyard_core::{
    Command, Error, Kind, RateLimit, Result, RetryPolicy, SemaphoreKey, Span, TubeChange, TubeName,
    TubeOptions, TubeStats,
};

use super::names::KindWord;
use super::object;
use super::options::check_options;
use super::pace::{RateAnswer, RateRequest, RetryAnswer, RetryRequest, changed_policy, new_policy};
use super::position::{CalibrationAnswer, EstimateAnswer, NoEstimateAnswer};
use super::seconds::{moment_of, optional_moment, optional_span, seconds_of};
use super::series::DurationsAnswer;
use super::tube_counts::{CallCounts, TaskCounts};
use super::whole;
use super::{is_false, present};

/// The options of a new tube. Every option has a default; times are seconds and may have a
/// fraction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateRequest {
    /// The preset; `fifottl` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<KindWord>,
    /// Whether its tasks may be lost at a restart, for speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temporary: Option<bool>,
    /// Most tasks of any state; 0 accepts none, no limit when absent. A `limfifottl` tube needs one.
    #[serde(default, deserialize_with = "whole::maybe", skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u64>,
    /// Time to live of a task whose put names none, in seconds. Like `ttr`, `delay`, `pri` and
    /// `ttl_kills_taken` only for the kinds that end in `ttl`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<f64>,
    /// Time to run of a task whose put names none, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttr: Option<f64>,
    /// Delay of a task whose put names none, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<f64>,
    /// Priority of a task whose put names none; smaller goes first.
    #[serde(default, deserialize_with = "whole::maybe", skip_serializing_if = "Option::is_none")]
    pub pri: Option<u64>,
    /// Bury a task instead of giving it back when this many deliveries have failed.
    #[serde(default, deserialize_with = "whole::maybe", skip_serializing_if = "Option::is_none")]
    pub attempts_max: Option<u32>,
    /// The delays before further attempts of failed deliveries whose `fail` names no delay; they are ready at once when
    /// absent.
    #[serde(default, deserialize_with = "object::maybe", skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryRequest>,
    /// Whether tasks whose lease expired wait as failed ones do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_lost: Option<bool>,
    /// How many deliveries it allows; no limit when absent.
    #[serde(default, deserialize_with = "object::maybe", skip_serializing_if = "Option::is_none")]
    pub rate: Option<RateRequest>,
    /// Keep done tasks for this many seconds, with their results; they are removed at once when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_done: Option<f64>,
    /// Most done tasks to keep, 10000 when absent; the oldest are removed first.
    #[serde(default, deserialize_with = "whole::maybe", skip_serializing_if = "Option::is_none")]
    pub keep_done_max: Option<u64>,
    /// Let the ttl end a delivery, as Tarantool's queue does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_kills_taken: Option<bool>,
    /// Begin without deliveries, until it is resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// The key of a semaphore: tasks are ready only while they hold a grant of it. Not for kinds with sub-queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 128))]
    pub semaphore: Option<String>,
    /// The permanent number of its queue in a contract; no other tube has it.
    #[serde(default, deserialize_with = "whole::maybe", skip_serializing_if = "Option::is_none")]
    pub queue_num: Option<u32>,
    /// Leave an existing tube of that name as it is instead of refusing; refused if it differs in one of the options
    /// given here.
    #[serde(default, skip_serializing_if = "is_false")]
    pub if_not_exists: bool,
    /// Ignore options that the kind does not have, and those that differ from an existing tube, instead of refusing them.
    #[serde(default, skip_serializing_if = "is_false")]
    pub lenient: bool,
}

/// What to change about a tube. An absent option stays; `null` removes a limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AlterRequest {
    /// Stop deliveries (`true`) or resume them (`false`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// Most tasks of any state; 0 accepts none, `null` is no limit.
    #[serde(default, deserialize_with = "whole::present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
    pub capacity: Option<Option<u64>>,
    /// Default time to live in seconds; `null` is none.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
    pub ttl: Option<Option<f64>>,
    /// Default time to run in seconds; `null` is none.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
    pub ttr: Option<Option<f64>>,
    /// Default delay in seconds; `null` is none.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
    pub delay: Option<Option<f64>>,
    /// Default priority; smaller goes first.
    #[serde(default, deserialize_with = "whole::maybe", skip_serializing_if = "Option::is_none")]
    pub pri: Option<u64>,
    /// Deliveries before a task is buried; `null` is no limit.
    #[serde(default, deserialize_with = "whole::present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u32>))]
    pub attempts_max: Option<Option<u32>>,
    /// The delays before further attempts; `null` is none.
    #[serde(
        default,
        deserialize_with = "object::present",
        skip_serializing_if = "Option::is_none"
    )]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<RetryRequest>))]
    pub retry: Option<Option<RetryRequest>>,
    /// Whether tasks whose lease expired wait as failed ones do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_lost: Option<bool>,
    /// How many deliveries it allows; `null` is no limit.
    #[serde(
        default,
        deserialize_with = "object::present",
        skip_serializing_if = "Option::is_none"
    )]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<RateRequest>))]
    pub rate: Option<Option<RateRequest>>,
    /// How many seconds done tasks are kept; `null` removes them.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
    pub keep_done: Option<Option<f64>>,
    /// Most done tasks to keep.
    #[serde(default, deserialize_with = "whole::maybe", skip_serializing_if = "Option::is_none")]
    pub keep_done_max: Option<u64>,
}

/// The new name of a tube. Its tasks stay, taken ones too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NameRequest {
    /// The name; the current one is accepted.
    pub name: String,
    /// Its permanent number, if it has none yet.
    #[serde(default, deserialize_with = "whole::maybe", skip_serializing_if = "Option::is_none")]
    pub queue_num: Option<u32>,
}

/// Whether the tube is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateAnswer {
    /// `false` if it existed already.
    pub created: bool,
}

/// Tubes with their options, counts and statistics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TubesAnswer {
    /// By name.
    pub tubes: Vec<TubeAnswer>,
}

/// One tube with its options, counts and statistics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TubeAnswer {
    /// Its name.
    pub name: String,
    /// Its number in the store.
    pub number: u32,
    /// The preset it was created from.
    pub kind: KindWord,
    /// Whether its tasks may be lost at a restart.
    pub temporary: bool,
    /// Most tasks of any state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u64>,
    /// Default time to live, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<f64>,
    /// Default time to run, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttr: Option<f64>,
    /// Default delay, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<f64>,
    /// Default priority.
    pub pri: u64,
    /// Deliveries before a task is buried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts_max: Option<u32>,
    /// The delays before further attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryAnswer>,
    /// Whether tasks whose lease expired wait as failed ones do.
    #[serde(default, skip_serializing_if = "is_false")]
    pub retry_lost: bool,
    /// How many deliveries it allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<RateAnswer>,
    /// How many seconds done tasks are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_done: Option<f64>,
    /// Most done tasks to keep, if it keeps any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_done_max: Option<u64>,
    /// Whether the ttl ends a delivery.
    pub ttl_kills_taken: bool,
    /// Whether deliveries are stopped.
    pub paused: bool,
    /// The key of its semaphore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub semaphore: Option<String>,
    /// The permanent number of its queue in a contract.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_num: Option<u32>,
    /// Ready tasks that could be delivered right now.
    pub takeable: u64,
    /// Consumers that wait for a task on this server.
    pub consumers: u64,
    /// Deliveries that failed on this server, as its time series count them; absent if it collects
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<u64>,
    /// How long tasks had been ready when this server delivered them, in the latest second of the
    /// last minute in which it did; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<DurationsAnswer>,
    /// The same for how long deliveries that were acknowledged or failed had lasted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<DurationsAnswer>,
    /// When time alone next changes something in it, in seconds since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_wakeup: Option<f64>,
    /// Since when the longest waiting ready task waits, in seconds since the epoch; absent when
    /// none does. Tasks behind a running one of their sub-queue do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_ready: Option<f64>,
    /// Tasks by state.
    pub tasks: TaskCounts,
    /// How often each operation took effect since the store was opened.
    pub calls: CallCounts,
    /// When all ready tasks will have started, if the request asked for estimates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<EstimateAnswer>,
    /// Why that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_drain: Option<NoEstimateAnswer>,
    /// How many estimates held on this server, if the request asked for estimates; absent if none was checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimates: Option<CalibrationAnswer>,
}

impl CreateRequest {
    /// The request for such a tube, on the client's side. A program must not behave differently
    /// when its tubes move from its own process to a server, so this accepts what the core accepts.
    pub fn new(options: &TubeOptions, if_not_exists: bool) -> Self {
        CreateRequest {
            kind: Some(options.kind.into()),
            temporary: options.temporary.then_some(true),
            capacity: options.capacity,
            ttl: options.ttl.map(seconds_of),
            ttr: options.ttr.map(seconds_of),
            delay: options.delay.map(seconds_of),
            pri: Some(options.pri),
            attempts_max: options.attempts_max,
            retry: options.retry.as_deref().map(RetryRequest::new),
            retry_lost: options.retry.as_ref().and_then(|retry| retry.retry_lost.then_some(true)),
            rate: options.rate.as_deref().map(RateRequest::new),
            keep_done: options.keep_done.map(seconds_of),
            keep_done_max: keep_done_max(options),
            ttl_kills_taken: options.ttl_kills_taken.then_some(true),
            paused: options.paused.then_some(true),
            semaphore: options.semaphore.as_ref().map(ToString::to_string),
            queue_num: options.queue_num,
            if_not_exists,
            lenient: true,
        }
    }

    /// The command, on the server's side.
    pub fn into_command(self, tube: TubeName) -> Result<Command> {
        let options = TubeOptions {
            kind: self.kind.unwrap_or_default().into(),
            temporary: self.temporary.unwrap_or_default(),
            capacity: self.capacity,
            ttl: optional_span("ttl", self.ttl)?,
            ttr: optional_span("ttr", self.ttr)?,
            delay: optional_span("delay", self.delay)?,
            pri: self.pri.unwrap_or_default(),
            attempts_max: self.attempts_max,
            retry: new_policy(self.retry, self.retry_lost)?,
            rate: self.rate.map(RateRequest::into_rate).transpose()?.map(Box::new),
            keep_done: optional_span("keep_done", self.keep_done)?,
            keep_done_max: self.keep_done_max.unwrap_or(KEEP_DONE_DEFAULT),
            ttl_kills_taken: self.ttl_kills_taken.unwrap_or_default(),
            paused: self.paused.unwrap_or_default(),
            semaphore: self.semaphore.as_deref().map(SemaphoreKey::new).transpose()?,
            queue_num: self.queue_num,
        };
        if !self.lenient {
            check_options(&options)?;
        }
        Ok(Command::CreateTube { tube, options, if_not_exists: self.if_not_exists })
    }

    /// Refuses an existing tube that differs in a given option.
    pub fn check_same(&self, tube: &TubeName, options: &TubeOptions) -> Result<()> {
        let mut differs = Vec::new();
        let mut compare = |name: &str, wanted: Option<String>, found: Option<String>| {
            if wanted.is_some() && wanted != found {
                let shown = |value: Option<String>| value.unwrap_or("none".into());
                differs.push(format!("{name} is {}, not {}", shown(found), shown(wanted)));
            }
        };
        let number = |number: Option<u64>| number.map(|number| number.to_string());
        let flag = |flag: Option<bool>| flag.map(|flag| flag.to_string());
        let time = |time: Option<Span>| time.map(|time| format!("{} s", time.as_secs_f64()));
        let kind = self.kind.map(|kind| Kind::from(kind).name().to_owned());
        compare("kind", kind, Some(options.kind.name().to_owned()));
        compare("temporary", flag(self.temporary), flag(Some(options.temporary)));
        compare("capacity", number(self.capacity), number(options.capacity));
        compare("ttl", time(optional_span("ttl", self.ttl)?), time(options.ttl));
        compare("ttr", time(optional_span("ttr", self.ttr)?), time(options.ttr));
        compare("delay", time(optional_span("delay", self.delay)?), time(options.delay));
        compare("pri", number(self.pri), number(Some(options.pri)));
        let small = |count: Option<u32>| number(count.map(u64::from));
        compare("attempts_max", small(self.attempts_max), small(options.attempts_max));
        self.compare_pace(options, &mut compare)?;
        let keep_done = optional_span("keep_done", self.keep_done)?;
        compare("keep_done", time(keep_done), time(options.keep_done));
        compare("keep_done_max", number(self.keep_done_max), number(Some(options.keep_done_max)));
        let kills = flag(self.ttl_kills_taken);
        compare("ttl_kills_taken", kills, flag(Some(options.ttl_kills_taken)));
        compare("paused", flag(self.paused), flag(Some(options.paused)));
        let semaphore = options.semaphore.as_ref().map(ToString::to_string);
        compare("semaphore", self.semaphore.clone(), semaphore);
        compare("queue_num", small(self.queue_num), small(options.queue_num));
        if differs.is_empty() {
            return Ok(());
        }
        Err(Error::TubeDiffers { tube: tube.clone(), differs: differs.join(", ") })
    }

    /// Compares the retry policy and the rate limit, as JSON.
    fn compare_pace(
        &self,
        options: &TubeOptions,
        compare: &mut impl FnMut(&str, Option<String>, Option<String>),
    ) -> Result<()> {
        let policy = self.retry.map(|retry| retry.into_policy(false)).transpose()?;
        let shown = |policy: &RetryPolicy| as_json(&RetryAnswer::new(policy));
        let found = options.retry.as_deref();
        compare("retry", policy.as_ref().map(shown), found.map(shown));
        let lost = found.is_some_and(|retry| retry.retry_lost);
        let flag = self.retry_lost.map(|lost| lost.to_string());
        compare("retry_lost", flag, Some(lost.to_string()));
        let rate = self.rate.map(RateRequest::into_rate).transpose()?;
        let shown = |rate: &RateLimit| as_json(&RateAnswer::new(rate));
        compare("rate", rate.as_ref().map(shown), options.rate.as_deref().map(shown));
        Ok(())
    }
}

fn as_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

impl AlterRequest {
    /// The request for this change, on the client's side.
    pub fn new(change: &TubeChange) -> Self {
        let seconds = |span: Option<Option<Span>>| span.map(|span| span.map(seconds_of));
        AlterRequest {
            paused: change.paused,
            capacity: change.capacity,
            ttl: seconds(change.ttl),
            ttr: seconds(change.ttr),
            delay: seconds(change.delay),
            pri: change.pri,
            attempts_max: change.attempts_max,
            retry: change.retry.as_ref().map(|retry| retry.as_deref().map(RetryRequest::new)),
            retry_lost: change.retry.as_ref().and_then(|retry| Some(retry.as_ref()?.retry_lost)),
            rate: change.rate.as_ref().map(|rate| rate.as_deref().map(RateRequest::new)),
            keep_done: seconds(change.keep_done),
            keep_done_max: change.keep_done_max,
        }
    }

    /// Whether the change of the retry policy depends on the current policy.
    pub const fn needs_current_retry(&self) -> bool {
        matches!((&self.retry, self.retry_lost), (Some(Some(_)), None) | (None, Some(_)))
    }

    /// The command, on the server's side. `current` is the tube's retry policy, if it has one and the request
    /// depends on it.
    pub fn into_command(self, tube: TubeName, current: Option<&RetryPolicy>) -> Result<Command> {
        let policy = |retry: RetryRequest| retry.into_policy(false);
        let retry = self.retry.map(|retry| retry.map(policy).transpose()).transpose()?;
        let retry = changed_policy(retry, self.retry_lost, current)?;
        let limit = |rate: Option<RateRequest>| rate.map(RateRequest::into_rate).transpose();
        let rate = self.rate.map(limit).transpose()?;
        let span = |name, seconds: Option<Option<f64>>| {
            seconds.map(|seconds| optional_span(name, seconds)).transpose()
        };
        let change = TubeChange {
            paused: self.paused,
            capacity: self.capacity,
            ttl: span("ttl", self.ttl)?,
            ttr: span("ttr", self.ttr)?,
            delay: span("delay", self.delay)?,
            pri: self.pri,
            attempts_max: self.attempts_max,
            retry: retry.map(|retry| retry.map(Box::new)),
            rate: rate.map(|rate| rate.map(Box::new)),
            keep_done: span("keep_done", self.keep_done)?,
            keep_done_max: self.keep_done_max,
        };
        Ok(Command::AlterTube { tube, change })
    }
}

impl NameRequest {
    /// The request for this name, on the client's side.
    pub fn new(name: &TubeName, queue_num: Option<u32>) -> Self {
        NameRequest { name: name.to_string(), queue_num }
    }

    /// The command, on the server's side.
    pub fn into_command(self, tube: TubeName) -> Result<Command> {
        let name = TubeName::new(&self.name)?;
        Ok(Command::NameTube { tube, name, queue_num: self.queue_num })
    }
}

impl TubeAnswer {
    /// The tube as answers show it; `consumers` is how many wait on it.
    pub fn new(info: &TubeInfo, consumers: u64) -> Self {
        let options = &info.options;
        TubeAnswer {
            name: info.name.to_string(),
            number: info.number,
            kind: options.kind.into(),
            temporary: options.temporary,
            capacity: options.capacity,
            ttl: options.ttl.map(seconds_of),
            ttr: options.ttr.map(seconds_of),
            delay: options.delay.map(seconds_of),
            pri: options.pri,
            attempts_max: options.attempts_max,
            retry: options.retry.as_deref().map(RetryAnswer::new),
            retry_lost: options.retry.as_ref().is_some_and(|retry| retry.retry_lost),
            rate: options.rate.as_deref().map(RateAnswer::new),
            keep_done: options.keep_done.map(seconds_of),
            keep_done_max: keep_done_max(options),
            ttl_kills_taken: options.ttl_kills_taken,
            paused: options.paused,
            semaphore: options.semaphore.as_ref().map(ToString::to_string),
            queue_num: options.queue_num,
            takeable: info.takeable,
            consumers,
            failures: None,
            wait: None,
            run: None,
            next_wakeup: info.next_wakeup.and_then(moment_of),
            oldest_ready: info.oldest_ready.and_then(moment_of),
            tasks: info.stats.tasks.into(),
            calls: info.stats.calls.into(),
            drain: None,
            no_drain: None,
            estimates: None,
        }
    }

    /// The result for the client's caller.
    pub fn into_info(self) -> Result<TubeInfo> {
        let retry = self.retry.map(|retry| retry.into_policy(self.retry_lost)).transpose()?;
        let rate = self.rate.map(RateAnswer::into_rate).transpose()?;
        Ok(TubeInfo {
            name: TubeName::new(&self.name)?,
            number: self.number,
            options: TubeOptions {
                kind: self.kind.into(),
                temporary: self.temporary,
                capacity: self.capacity,
                ttl: optional_span("ttl", self.ttl)?,
                ttr: optional_span("ttr", self.ttr)?,
                delay: optional_span("delay", self.delay)?,
                pri: self.pri,
                attempts_max: self.attempts_max,
                retry: retry.map(Box::new),
                rate: rate.map(Box::new),
                keep_done: optional_span("keep_done", self.keep_done)?,
                keep_done_max: self.keep_done_max.unwrap_or(KEEP_DONE_DEFAULT),
                ttl_kills_taken: self.ttl_kills_taken,
                paused: self.paused,
                semaphore: self.semaphore.as_deref().map(SemaphoreKey::new).transpose()?,
                queue_num: self.queue_num,
            },
            stats: TubeStats { tasks: self.tasks.into(), calls: self.calls.into() },
            takeable: self.takeable,
            next_wakeup: optional_moment("next_wakeup", self.next_wakeup)?,
            oldest_ready: optional_moment("oldest_ready", self.oldest_ready)?,
        })
    }
}

/// How many done tasks a tube keeps, where that is not the usual number of one that keeps none.
fn keep_done_max(options: &TubeOptions) -> Option<u64> {
    let max = options.keep_done_max;
    (options.keep_done.is_some() || max != KEEP_DONE_DEFAULT).then_some(max)
}

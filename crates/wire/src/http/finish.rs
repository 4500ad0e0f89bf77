//! Ending deliveries: ack, release, bury, touch.

use serde::{Deserialize, Serialize};
use taskyard_core::failure::stored_error;
use taskyard_core::{
    AfterFailure, Command, Error, Fail, Finish, FinishItem, Holder, Lease, Outcome, Result, Span,
    TaskId, TubeName,
};

use super::names::{FinishWord, OutcomeWord};
use super::put::one_of;
use super::seconds::{optional_span, seconds_of, span};
use super::task::{Form, TaskAnswer};
use super::whole;
use super::{is_false, present};
use crate::payload::{Packed, Payload};

/// A delivery: the task and, to make sure that it is still the caller's, the lease number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Delivery {
    /// The task's number in the tube.
    #[serde(deserialize_with = "whole::number")]
    pub id: u64,
    /// The lease number from the answer to take. Without it the current delivery is meant, of any
    /// holder.
    #[serde(default, deserialize_with = "whole::maybe", skip_serializing_if = "Option::is_none")]
    pub lease: Option<u64>,
}

/// Deliveries to ack: `tasks`, or `id` and `lease` of one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AckRequest {
    /// Several deliveries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<Vec<Delivery>>,
    /// The one task, instead of `tasks`.
    #[serde(default, deserialize_with = "whole::maybe", skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Its lease number.
    #[serde(default, deserialize_with = "whole::maybe", skip_serializing_if = "Option::is_none")]
    pub lease: Option<u64>,
    /// The result, any JSON value up to 64 KiB as MessagePack: kept with the done tasks if their tube keeps those.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub result: Option<Payload>,
    /// The result as MessagePack in base64, instead of `result`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_base64: Option<Packed>,
    /// Answer with the tasks as they are afterwards.
    #[serde(default, skip_serializing_if = "is_false")]
    pub show: bool,
}

/// Deliveries to bury: `tasks`, or `id` and `lease` of one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BuryRequest {
    /// Several deliveries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<Vec<Delivery>>,
    /// The one task, instead of `tasks`.
    #[serde(default, deserialize_with = "whole::maybe", skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Its lease number.
    #[serde(default, deserialize_with = "whole::maybe", skip_serializing_if = "Option::is_none")]
    pub lease: Option<u64>,
    /// What went wrong: kept with the tasks, cut to 1 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Answer with the tasks as they are afterwards.
    #[serde(default, skip_serializing_if = "is_false")]
    pub show: bool,
}

/// Deliveries that failed: `tasks`, or `id` and `lease` of one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FailRequest {
    /// Several deliveries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<Vec<Delivery>>,
    /// The one task, instead of `tasks`.
    #[serde(default, deserialize_with = "whole::maybe", skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Its lease number.
    #[serde(default, deserialize_with = "whole::maybe", skip_serializing_if = "Option::is_none")]
    pub lease: Option<u64>,
    /// What went wrong: kept with the tasks, cut to 1 KiB.
    pub error: String,
    /// Seconds before the tasks become ready again. When absent, as the retry policy of the tube says, or after
    /// `default_delay` if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<f64>,
    /// Seconds before the tasks become ready again if the tube has no retry policy; at once when absent. Not used with
    /// `delay`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_delay: Option<f64>,
    /// Answer with the tasks as they are afterwards.
    #[serde(default, skip_serializing_if = "is_false")]
    pub show: bool,
}

/// Deliveries to give back: `tasks`, or `id` and `lease` of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ReleaseRequest {
    /// Several deliveries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<Vec<Delivery>>,
    /// The one task, instead of `tasks`.
    #[serde(default, deserialize_with = "whole::maybe", skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Its lease number.
    #[serde(default, deserialize_with = "whole::maybe", skip_serializing_if = "Option::is_none")]
    pub lease: Option<u64>,
    /// Seconds before the tasks become ready again; at once when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<f64>,
    /// Whether the delivery counts as an attempt.
    #[serde(default = "yes")]
    pub counted: bool,
    /// Answer with the tasks as they are afterwards.
    #[serde(default, skip_serializing_if = "is_false")]
    pub show: bool,
}

/// Deliveries that need more time: `tasks`, or `id` and `lease` of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TouchRequest {
    /// Several deliveries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<Vec<Delivery>>,
    /// The one task, instead of `tasks`.
    #[serde(default, deserialize_with = "whole::maybe", skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Its lease number.
    #[serde(default, deserialize_with = "whole::maybe", skip_serializing_if = "Option::is_none")]
    pub lease: Option<u64>,
    /// How many seconds more.
    pub seconds: f64,
    /// Answer with the tasks as they are afterwards.
    #[serde(default, skip_serializing_if = "is_false")]
    pub show: bool,
}

/// Deliveries that end in different ways, in one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FinishRequest {
    /// What to do with which delivery.
    pub tasks: Vec<FinishPart>,
    /// Answer with the tasks as they are afterwards.
    #[serde(default, skip_serializing_if = "is_false")]
    pub show: bool,
}

/// One delivery and how it ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FinishPart {
    /// How it ends or is extended.
    pub verb: FinishWord,
    /// The task's number in the tube.
    #[serde(deserialize_with = "whole::number")]
    pub id: u64,
    /// The lease number from the answer to take. Without it the current delivery is meant, of any
    /// holder.
    #[serde(default, deserialize_with = "whole::maybe", skip_serializing_if = "Option::is_none")]
    pub lease: Option<u64>,
    /// For `release` and `fail`: seconds before the task becomes ready again. A `fail` without it follows the retry policy
    /// of the tube.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<f64>,
    /// For `fail` without `delay`: seconds before the task becomes ready again if the tube has no retry policy; at once when
    /// absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_delay: Option<f64>,
    /// For `fail`, and optional for `bury`: what went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// For `release`: whether the delivery counts as an attempt; it does when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<bool>,
    /// For `touch`: how many seconds more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// For `ack`: the result, kept with a done task.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub result: Option<Payload>,
    /// The result as MessagePack in base64, instead of `result`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_base64: Option<Packed>,
}

/// The outcome of each item, in the order of the request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FinishAnswer {
    /// How many were done.
    pub done: u64,
    /// One word for each item.
    pub outcomes: Vec<OutcomeWord>,
    /// The tasks as they are afterwards, if the request said `show`; `null` where nothing was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<Vec<Option<TaskAnswer>>>,
}

const fn yes() -> bool {
    true
}

impl AckRequest {
    /// The command, on the server's side.
    pub fn into_command(self, tube: TubeName) -> Result<Command> {
        let ack = ack(self.result, self.result_base64)?;
        finish(tube, self.tasks, self.id, self.lease, ack, self.show)
    }
}

/// An ack, with a result if there is one.
fn ack(result: Option<Payload>, base64: Option<Packed>) -> Result<Finish> {
    let result = one_of("result", result, base64)?;
    Ok(result.map_or(Finish::Ack, |result| Finish::ack_with(&result)))
}

impl BuryRequest {
    /// The command, on the server's side.
    pub fn into_command(self, tube: TubeName) -> Result<Command> {
        let bury = bury(self.error.as_deref());
        finish(tube, self.tasks, self.id, self.lease, bury, self.show)
    }
}

impl FailRequest {
    /// The command, on the server's side.
    pub fn into_command(self, tube: TubeName) -> Result<Command> {
        let fail = failed(&self.error, self.delay, self.default_delay)?;
        finish(tube, self.tasks, self.id, self.lease, fail, self.show)
    }
}

/// A failed delivery; without a delay by the policy of its tube. The server draws the random number.
fn failed(error: &str, delay: Option<f64>, default_delay: Option<f64>) -> Result<Finish> {
    let default_delay = optional_span("default_delay", default_delay)?;
    let by_policy =
        AfterFailure::Policy { seed: 0, default_delay: default_delay.unwrap_or_default() };
    let then = optional_span("delay", delay)?.map_or(by_policy, AfterFailure::Retry);
    Ok(Finish::Fail(Box::new(Fail { error: stored_error(error), then })))
}

/// A bury, with an error if there is one.
fn bury(error: Option<&str>) -> Finish {
    error.map_or(Finish::Bury, |error| Finish::fail(error, None))
}

impl ReleaseRequest {
    /// The command, on the server's side.
    pub fn into_command(self, tube: TubeName) -> Result<Command> {
        let delay = optional_span("delay", self.delay)?.unwrap_or(Span::ZERO);
        let release = Finish::Release { delay, counted: self.counted };
        finish(tube, self.tasks, self.id, self.lease, release, self.show)
    }
}

impl TouchRequest {
    /// The command, on the server's side.
    pub fn into_command(self, tube: TubeName) -> Result<Command> {
        let touch = Finish::Touch(span("seconds", self.seconds)?);
        finish(tube, self.tasks, self.id, self.lease, touch, self.show)
    }
}

/// The command that does one thing with all deliveries.
fn finish(
    tube: TubeName,
    tasks: Option<Vec<Delivery>>,
    id: Option<u64>,
    lease: Option<u64>,
    finish: Finish,
    show: bool,
) -> Result<Command> {
    let deliveries = match (tasks, id) {
        (Some(tasks), None) if lease.is_none() => tasks,
        (None, Some(id)) => vec![Delivery { id, lease }],
        (None, None) => {
            return Err(Error::Invalid(
                "no task is named; give 'id' and 'lease', or 'tasks' with a list of them".into(),
            ));
        }
        (Some(_), _) => {
            return Err(Error::Invalid(
                "both 'tasks' and one task are given; use one of them".into(),
            ));
        }
    };
    let items = deliveries.into_iter().map(|delivery| FinishItem {
        id: TaskId(delivery.id),
        holder: holder(delivery.lease),
        finish: finish.clone(),
    });
    Ok(Command::Finish { tube, items: items.collect(), show })
}

fn holder(lease: Option<u64>) -> Holder {
    lease.map_or(Holder::Any, |lease| Holder::Lease(Lease(lease)))
}

impl FinishRequest {
    /// The request for these items, on the client's side. HTTP requests have no sessions.
    pub fn new(items: &[FinishItem], show: bool) -> Result<Self> {
        let tasks = items.iter().map(FinishPart::new).collect::<Result<_>>()?;
        Ok(FinishRequest { tasks, show })
    }

    /// The command, on the server's side.
    pub fn into_command(self, tube: TubeName) -> Result<Command> {
        let items = self.tasks.into_iter().map(FinishPart::into_item).collect::<Result<_>>()?;
        Ok(Command::Finish { tube, items, show: self.show })
    }
}

impl FinishPart {
    fn new(item: &FinishItem) -> Result<Self> {
        let lease = match item.holder {
            Holder::Lease(lease) => Some(lease.0),
            Holder::Any => None,
            Holder::Session(_) => {
                return Err(Error::Invalid(
                    "a session does not travel over HTTP; name the lease instead".into(),
                ));
            }
        };
        let plain = FinishPart {
            verb: FinishWord::Ack,
            id: item.id.0,
            lease,
            delay: None,
            default_delay: None,
            error: None,
            counted: None,
            seconds: None,
            result: None,
            result_base64: None,
        };
        Ok(match &item.finish {
            Finish::Ack => plain,
            Finish::AckWithResult(result) => {
                FinishPart { result_base64: Some(Packed::new(result.payload())), ..plain }
            }
            Finish::Bury => FinishPart { verb: FinishWord::Bury, ..plain },
            Finish::Touch(more) => {
                FinishPart { verb: FinishWord::Touch, seconds: Some(seconds_of(*more)), ..plain }
            }
            Finish::Release { delay, counted } => FinishPart {
                verb: FinishWord::Release,
                delay: Some(seconds_of(*delay)),
                counted: Some(*counted),
                ..plain
            },
            Finish::Fail(fail) => {
                let (verb, delay, default_delay) = match fail.then {
                    AfterFailure::Bury => (FinishWord::Bury, None, None),
                    AfterFailure::Retry(delay) => (FinishWord::Fail, Some(delay), None),
                    AfterFailure::Policy { default_delay: Span::ZERO, .. } => {
                        (FinishWord::Fail, None, None)
                    }
                    AfterFailure::Policy { default_delay, .. } => {
                        (FinishWord::Fail, None, Some(default_delay))
                    }
                };
                FinishPart {
                    verb,
                    delay: delay.map(seconds_of),
                    default_delay: default_delay.map(seconds_of),
                    error: Some((*fail.error).to_owned()),
                    ..plain
                }
            }
        })
    }

    fn into_item(self) -> Result<FinishItem> {
        let has_result = self.result.is_some() || self.result_base64.is_some();
        let error = self.error.as_deref();
        if self.default_delay.is_some() && self.verb != FinishWord::Fail {
            return Err(Error::Invalid("only 'fail' has a 'default_delay'; leave it out".into()));
        }
        let finish = match (self.verb, self.delay, self.counted, self.seconds, error) {
            (FinishWord::Ack, None, None, None, None) => ack(self.result, self.result_base64)?,
            _ if has_result => {
                return Err(Error::Invalid("only 'ack' has a 'result'; leave it out".into()));
            }
            (FinishWord::Bury, None, None, None, error) => bury(error),
            (FinishWord::Touch, None, None, Some(more), None) => {
                Finish::Touch(span("seconds", more)?)
            }
            (FinishWord::Release, delay, counted, None, None) => Finish::Release {
                delay: optional_span("delay", delay)?.unwrap_or(Span::ZERO),
                counted: counted.unwrap_or(true),
            },
            (FinishWord::Fail, delay, None, None, Some(error)) => {
                failed(error, delay, self.default_delay)?
            }
            _ => {
                return Err(Error::Invalid(
                    "'touch' needs 'seconds', 'fail' needs 'error' and may have 'delay', 'release' may have \
                     'delay' and 'counted', 'bury' may have 'error', 'ack' may have 'result'"
                        .into(),
                ));
            }
        };
        Ok(FinishItem { id: TaskId(self.id), holder: holder(self.lease), finish })
    }
}

impl FinishAnswer {
    /// The answer with these outcomes, with the tasks if `show` says in which form.
    pub fn new(outcomes: &[Outcome], show: Option<Form>) -> Self {
        let words: Vec<OutcomeWord> = outcomes.iter().map(OutcomeWord::from).collect();
        let task = |outcome: &Outcome, form| match outcome {
            Outcome::Done(task) => task.as_ref().map(|task| TaskAnswer::new(task, form)),
            Outcome::Stale | Outcome::Missing => None,
        };
        FinishAnswer {
            done: words.iter().filter(|word| **word == OutcomeWord::Done).count() as u64,
            outcomes: words,
            tasks: show.map(|form| outcomes.iter().map(|outcome| task(outcome, form)).collect()),
        }
    }

    /// The result for the client's caller.
    pub fn into_outcomes(self) -> Result<Vec<Outcome>> {
        let lacking = || Error::Store("the server's answer has no finished tasks".into());
        let shown = self.tasks.is_some();
        let tasks = self.tasks.unwrap_or_else(|| vec![None; self.outcomes.len()]);
        if tasks.len() != self.outcomes.len() {
            return Err(lacking());
        }
        let outcomes =
            self.outcomes.into_iter().zip(tasks).map(|(word, task)| match (word, task) {
                (OutcomeWord::Done, None) if shown => Err(lacking()),
                (OutcomeWord::Done, task) => {
                    let task = task.map(TaskAnswer::into_task).transpose()?;
                    Ok(Outcome::Done(task.map(Box::new)))
                }
                (OutcomeWord::Stale, _) => Ok(Outcome::Stale),
                (OutcomeWord::Missing, _) => Ok(Outcome::Missing),
            });
        outcomes.collect()
    }
}

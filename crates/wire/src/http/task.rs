//! A task as answers show it.

use serde::{Deserialize, Serialize};
use taskyard_core::failure::{is_worker_name, stored_error};
use taskyard_core::{
    Body, Error, Failure, Failures, Finished, Lease, Position, Priority, Reason, Result, Span,
    State, Task, TaskId, Timestamp,
};

use super::names::StateWord;
use super::position::QueueAnswer;
use super::put::{checked_key, one_of};
use super::seconds::{moment, moment_of, optional_moment, optional_span, seconds_of, span};
use super::{is_false, present};
use crate::payload::{Packed, Payload};

/// A task. Timestamps are seconds since the epoch; fields that do not apply are left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskAnswer {
    /// Its number in the tube.
    pub id: u64,
    /// The number of the current delivery, for ack, release, bury and touch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<u64>,
    /// When the current delivery ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_until: Option<f64>,
    /// Earlier deliveries that ended without ack or bury.
    pub attempts: u32,
    /// After how many failed deliveries it is buried, if its put said so; only in the answer to a peek.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts_max: Option<u32>,
    /// Its state.
    pub state: StateWord,
    /// Smaller goes first.
    pub pri: u64,
    /// Its place in the order of delivery, from 1, while it is ready; only in the answer that shows one task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// When it was put.
    pub created: f64,
    /// When it becomes ready, while it is delayed; of a taken task since when it was ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<f64>,
    /// When it is removed if it is not taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<f64>,
    /// How many seconds a delivery may last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttr: Option<f64>,
    /// When the current delivery began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<f64>,
    /// When it had become ready for the latest earlier delivery that was given back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_start: Option<f64>,
    /// Its sub-queue, in tubes that have them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subqueue: Option<String>,
    /// Its priority in the semaphore of its tube, if its put named one; only in the answer to a
    /// peek.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub semaphore_priority: Option<f64>,
    /// Its unique key; only where a task is shown, not in the answer to take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The name of the worker that holds it or finished it, if it gave one; only where a task is shown, not in the answer to take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// The error of its latest failure; in a page of tasks only the first line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When it failed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_at: Option<f64>,
    /// Its latest failures, oldest first; only in the answer to a peek.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<FailureAnswer>,
    /// When it was finished, for a done task that its tube keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<f64>,
    /// How many milliseconds the delivery lasted that finished it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_ms: Option<f64>,
    /// The result that its ack gave.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub result: Option<Payload>,
    /// The same as MessagePack in base64, if JSON cannot represent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_base64: Option<Packed>,
    /// Why it does not run now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<ReasonAnswer>,
    /// The small object that is stored with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta: Option<Payload>,
    /// The same as MessagePack in base64, if JSON cannot represent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta_base64: Option<Packed>,
    /// The payload.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub data: Option<Payload>,
    /// The payload as MessagePack in base64, if JSON cannot represent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<Packed>,
    /// Whether `data` is only the beginning of the payload's JSON, as a text; only in pages of tasks.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cut: bool,
    /// Its position in the queue, if the request asked for estimates and it waits.
    #[serde(flatten, deserialize_with = "QueueAnswer::read")]
    #[cfg_attr(feature = "openapi", schema(value_type = QueueAnswer))]
    pub queue: Option<Box<QueueAnswer>>,
}

/// A delivery that failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FailureAnswer {
    /// When it ended.
    pub at: f64,
    /// Which attempt it was, from 1.
    pub attempt: u32,
    /// How many seconds it lasted.
    pub run: f64,
    /// The worker, if it gave its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// What went wrong.
    pub error: String,
}

/// Why a task does not run now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReasonAnswer {
    /// The reason, for programs.
    pub name: String,
    /// The reason, for people.
    pub text: String,
    /// When the reason ends, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<f64>,
}

/// How an answer contains payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As JSON if JSON can represent it, otherwise as base64.
    Json,
    /// As base64, byte for byte.
    Exact,
}

impl Form {
    /// The form for a request that asked for base64, or did not.
    pub const fn of(base64: bool) -> Form {
        if base64 { Form::Exact } else { Form::Json }
    }

    fn split(self, bytes: Option<&[u8]>) -> (Option<Payload>, Option<Packed>) {
        let Some(bytes) = bytes else { return (None, None) };
        if self == Form::Json
            && let Ok(payload) = Payload::from_msgpack(bytes)
        {
            return (Some(payload), None);
        }
        (None, Some(Packed::new(bytes)))
    }
}

impl TaskAnswer {
    /// The task with its reason: what a peek answers.
    pub fn with_reason(task: &Task, form: Form) -> Self {
        let reason = Some(ReasonAnswer::new(task.reason));
        TaskAnswer { reason, ..TaskAnswer::new(task, form) }
    }

    /// The same with its place in the order of delivery, and with the estimate if the position has one.
    pub fn at_position(self, found: &Position) -> Self {
        let is_ready = State::from(self.state) == State::Ready;
        let all = QueueAnswer::new(found);
        let queue = match found.estimate {
            Some(_) => all,
            // Without an estimate the place says the same as the number of tasks ahead.
            None => QueueAnswer { ahead: None, approximate: all.approximate && is_ready, ..all },
        };
        let queue = Some(queue).filter(|queue| *queue != QueueAnswer::default()).map(Box::new);
        TaskAnswer { position: is_ready.then_some(found.ahead + 1), queue, ..self }
    }

    /// The task; a reason that does not follow from its state is included.
    pub fn new(task: &Task, form: Form) -> Self {
        let (data, data_base64) = form.split(task.body.as_ref().map(Body::payload));
        let (meta, meta_base64) = form.split(task.body.as_ref().and_then(Body::meta));
        let finished = task.finished.as_ref();
        let (result, result_base64) = form.split(finished.and_then(Finished::result));
        let worker = task.worker.as_deref().or(finished.and_then(Finished::worker));
        let usual = usual_reason(task.state, task.due);
        let latest = task.failures.as_ref().and_then(Failures::last);
        let failures = task.failures.iter().flat_map(|failures| failures.iter());
        TaskAnswer {
            id: task.id.0,
            lease: task.lease.map(|lease| lease.0),
            lease_until: task.lease_until.and_then(moment_of),
            attempts: task.attempts,
            attempts_max: task.attempts_max,
            state: task.state.into(),
            pri: task.pri,
            position: None,
            created: task.created.as_secs_f64(),
            due: task.due.and_then(moment_of),
            expires: moment_of(task.expires),
            ttr: (task.ttr != Span::FOREVER).then(|| seconds_of(task.ttr)),
            start: task.start.and_then(moment_of),
            previous_start: task.previous_start.and_then(moment_of),
            subqueue: task.subqueue.as_deref().map(str::to_owned),
            semaphore_priority: task.semaphore_priority.map(Priority::value),
            key: task.key.as_ref().map(|key| key.as_str().to_owned()),
            worker: worker.map(str::to_owned),
            failed_at: latest.as_ref().and_then(|latest| moment_of(latest.at)),
            error: latest.map(|latest| (*latest.error).to_owned()),
            failures: failures.map(FailureAnswer::new).collect(),
            finished: finished.and_then(|finished| moment_of(finished.at())),
            run_ms: finished.map(|finished| finished.run().as_micros() as f64 / 1e3),
            result,
            result_base64,
            reason: (task.reason != usual).then(|| ReasonAnswer::new(task.reason)),
            meta,
            meta_base64,
            data,
            data_base64,
            cut: false,
            queue: None,
        }
    }

    /// The result for the client's caller. The holder is only in deliveries.
    pub fn into_task(self) -> Result<Task> {
        let state = State::from(self.state);
        let lease = self.lease.map(Lease);
        let never = |applies: bool| applies.then_some(Timestamp::NEVER);
        let named = self.reason.map(ReasonAnswer::into_reason).transpose()?;
        // A task that waits for a semaphore has no time of its own.
        let is_gated = matches!(named, Some(Reason::Semaphore | Reason::Expired));
        let waits = state == State::Delayed && !is_gated;
        let due = optional_moment("due", self.due)?.or(never(waits));
        let reason = named.unwrap_or_else(|| usual_reason(state, due));
        let data = one_of("data", self.data, self.data_base64)?;
        let meta = one_of("meta", self.meta, self.meta_base64)?.unwrap_or_default();
        let result = one_of("result", self.result, self.result_base64)?.unwrap_or_default();
        let worker = self.worker.as_deref().filter(|name| is_worker_name(name));
        let finished = match optional_moment("finished", self.finished)? {
            Some(at) => {
                let run = span("run_ms", self.run_ms.unwrap_or(0.0) / 1e3)?;
                Some(Finished::new(at, run, worker, &result))
            }
            None => None,
        };
        Ok(Task {
            key: self.key.as_deref().map(checked_key).transpose()?.map(Box::new),
            id: TaskId(self.id),
            state,
            pri: self.pri,
            created: moment("created", self.created)?,
            due,
            expires: optional_moment("expires", self.expires)?.unwrap_or(Timestamp::NEVER),
            ttr: optional_span("ttr", self.ttr)?.unwrap_or(Span::FOREVER),
            attempts: self.attempts,
            start: optional_moment("start", self.start)?,
            previous_start: optional_moment("previous_start", self.previous_start)?,
            attempts_max: self.attempts_max,
            subqueue: self.subqueue.map(Into::into),
            semaphore_priority: self.semaphore_priority.map(Priority::new).transpose()?,
            session: None,
            worker: self.worker.filter(|_| finished.is_none()).map(Into::into),
            failures: read_failures(self.failures)?,
            finished,
            lease,
            lease_until: optional_moment("lease_until", self.lease_until)?
                .or(never(lease.is_some())),
            reason,
            body: data.map(|data| Body::with_meta(&data, &meta)),
        })
    }
}

/// The usual reason of a task in this state, which is not shown.
fn usual_reason(state: State, due: Option<Timestamp>) -> Reason {
    match state {
        State::Ready => Reason::WaitsForConsumer,
        State::Taken => Reason::Running,
        State::Delayed => Reason::NotDue(due.unwrap_or(Timestamp::NEVER)),
        State::Buried => Reason::Buried,
        State::Done => Reason::Finished,
    }
}

impl FailureAnswer {
    fn new(failure: Failure) -> Self {
        FailureAnswer {
            at: failure.at.as_secs_f64(),
            attempt: failure.attempt,
            run: seconds_of(failure.run),
            worker: failure.worker.as_deref().map(str::to_owned),
            error: (*failure.error).to_owned(),
        }
    }

    fn into_failure(self) -> Result<Failure> {
        Ok(Failure {
            at: moment("at", self.at)?,
            attempt: self.attempt,
            run: span("run", self.run)?,
            worker: self.worker.filter(|name| is_worker_name(name)).map(Into::into),
            error: stored_error(&self.error),
        })
    }
}

/// The failures of an answer, for the client's caller.
fn read_failures(answers: Vec<FailureAnswer>) -> Result<Option<Failures>> {
    answers.into_iter().try_fold(None, |before: Option<Failures>, answer| {
        let failure = answer.into_failure()?;
        Ok(Some(Failures::with(before.as_ref(), &failure)))
    })
}

impl ReasonAnswer {
    /// The reason as answers show it.
    pub fn new(reason: Reason) -> Self {
        let until = match reason {
            Reason::NotDue(moment) | Reason::RateLimited(moment) => moment_of(moment),
            _ => None,
        };
        ReasonAnswer { name: reason.name().into(), text: reason.to_string(), until }
    }

    /// The result for the client's caller.
    pub fn into_reason(self) -> Result<Reason> {
        let until = optional_moment("until", self.until)?.unwrap_or(Timestamp::NEVER);
        let known = [
            Reason::WaitsForConsumer,
            Reason::Running,
            Reason::NotDue(until),
            Reason::RateLimited(until),
            Reason::TubePaused,
            Reason::SubqueueBusy,
            Reason::Semaphore,
            Reason::Buried,
            Reason::AttemptsUsedUp,
            Reason::Expired,
            Reason::Finished,
        ];
        let found = known.into_iter().find(|reason| reason.name() == self.name);
        found.ok_or_else(|| {
            Error::Store(format!("the server gives the unknown reason '{}'", self.name))
        })
    }
}

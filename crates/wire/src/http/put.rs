//! Adding tasks: the request and its answer.

use serde::{Deserialize, Serialize};
use taskyard_core::limits::META_BYTES_MAX;
use taskyard_core::{
    Body, Command, Error, HeldKey, Key, KeyRequest, NewTask, OnConflict, Placed, Priority, Result,
    Span, TaskId, Timestamp, TubeName,
};

use super::names::{ConflictWord, StateWord};
use super::position::QueueAnswer;
use super::seconds::{optional_moment, optional_span, seconds_of};
use super::whole;
use super::{is_false, present};
use crate::payload::{Packed, Payload};

/// One task or several to add: the fields of a task, or `tasks`. All are added or none.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PutRequest {
    /// Several tasks. Without it the other fields are the one task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks: Option<Vec<PutTask>>,
    /// Seconds to wait for free capacity when the tube is full; 0 answers at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<f64>,
    /// Whether the answer says when the tasks will start; for at most 100 tasks.
    #[serde(skip_serializing_if = "is_false")]
    pub estimate: bool,
    /// The one task.
    #[serde(flatten)]
    pub task: PutTask,
}

/// A task to add.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PutTask {
    /// The payload: any JSON value, `null` too.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub data: Option<Payload>,
    /// The payload as MessagePack in base64, for values that JSON cannot represent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<Packed>,
    /// Priority: smaller goes first. The tube's when absent.
    #[serde(default, deserialize_with = "whole::maybe", skip_serializing_if = "Option::is_none")]
    pub pri: Option<u64>,
    /// Seconds after which the task is removed if it was not taken. The tube's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<f64>,
    /// Seconds a delivery may last before the task is given back. The tube's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttr: Option<f64>,
    /// Seconds before the task becomes ready. The tube's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<f64>,
    /// When the task becomes ready, in seconds since the epoch; refused together with `delay`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<f64>,
    /// Bury the task when this many deliveries have failed, at least 1. The tube's when absent.
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    #[serde(default, deserialize_with = "whole::maybe", skip_serializing_if = "Option::is_none")]
    pub attempts_max: Option<u32>,
    /// The sub-queue, in tubes that have them; `utube` is accepted too.
    #[serde(default, alias = "utube", skip_serializing_if = "Option::is_none")]
    pub subqueue: Option<String>,
    /// The priority of the task in the semaphore of the tube, instead of `pri`: larger goes first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub semaphore_priority: Option<f64>,
    /// A key that only one task of the tube has: 1 to 128 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 128))]
    pub key: Option<String>,
    /// Seconds for which the key stays held after the end of the task, at most 7 days; 0 when
    /// absent. Needs `key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 604_800))]
    pub unique_for: Option<f64>,
    /// What happens if the key is held; `keep` when absent. Needs `key`.
    #[serde(
        default,
        deserialize_with = "ConflictWord::read",
        skip_serializing_if = "Option::is_none"
    )]
    pub on_conflict: Option<ConflictWord>,
    /// A small object that is stored with the task, at most 1 KiB as MessagePack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub meta: Option<Payload>,
    /// The same as MessagePack in base64, for values that JSON cannot represent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta_base64: Option<Packed>,
}

/// The tasks that were added or held their keys, in the order of the request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PutAnswer {
    /// One entry for each task.
    pub tasks: Vec<PlacedTask>,
}

/// A task that was added, or that held the key of the put.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PlacedTask {
    /// Its number in the tube.
    pub id: u64,
    /// `ready` or `delayed`; of a task that held the key its state, which is `done` if it has ended.
    pub state: StateWord,
    /// Whether the task held the key, so that none was added.
    #[serde(default, skip_serializing_if = "is_false")]
    pub existing: bool,
    /// Its position in the queue, if the request asked for estimates and it waits.
    #[serde(flatten, deserialize_with = "QueueAnswer::read")]
    #[cfg_attr(feature = "openapi", schema(value_type = QueueAnswer))]
    pub queue: Option<Box<QueueAnswer>>,
}

impl PutRequest {
    /// The request for these tasks, on the client's side. Payloads go as base64, so that they
    /// arrive byte for byte.
    pub fn new(tasks: &[NewTask], wait: Span) -> Self {
        let tasks = Some(tasks.iter().map(PutTask::new).collect());
        let timeout = (!wait.is_zero()).then(|| seconds_of(wait));
        PutRequest { tasks, timeout, ..PutRequest::default() }
    }

    /// The command, on the server's side.
    pub fn into_command(self, tube: TubeName) -> Result<Command> {
        let wait = optional_span("timeout", self.timeout)?.unwrap_or(Span::ZERO);
        let tasks = match self.tasks {
            None => vec![self.task.into_new_task()?],
            Some(_) if self.task != PutTask::default() => {
                return Err(Error::Invalid(
                    "both 'tasks' and the fields of one task are given; use one of them".into(),
                ));
            }
            Some(tasks) => tasks.into_iter().map(PutTask::into_new_task).collect::<Result<_>>()?,
        };
        Ok(Command::Put { tube, tasks, wait })
    }
}

impl PutTask {
    /// The JSON form of this task, on the client's side.
    pub fn new(task: &NewTask) -> Self {
        let key = task.key.as_deref();
        PutTask {
            data: None,
            data_base64: Some(Packed::new(task.body.payload())),
            pri: task.pri,
            ttl: task.ttl.map(seconds_of),
            ttr: task.ttr.map(seconds_of),
            delay: task.delay.map(seconds_of),
            at: task.at.map(Timestamp::as_secs_f64),
            attempts_max: task.attempts_max,
            subqueue: task.subqueue.as_deref().map(str::to_owned),
            semaphore_priority: task.semaphore_priority.map(Priority::value),
            key: key.map(|key| key.held.key.as_str().to_owned()),
            unique_for: key
                .map(|key| key.held.unique_for)
                .filter(|span| !span.is_zero())
                .map(seconds_of),
            on_conflict: key
                .map(|key| key.on_conflict)
                .filter(|word| *word != OnConflict::Keep)
                .map(Into::into),
            meta: None,
            meta_base64: task.body.meta().map(Packed::new),
        }
    }

    /// The task to add, on the server's side.
    pub fn into_new_task(self) -> Result<NewTask> {
        let key = key_request(self.key, self.unique_for, self.on_conflict)?;
        let Some(data) = one_of("data", self.data, self.data_base64)? else {
            return Err(Error::Invalid(
                "a task needs 'data' (any JSON value) or 'data_base64' (MessagePack)".into(),
            ));
        };
        let meta = one_of("meta", self.meta, self.meta_base64)?.unwrap_or_default();
        check_meta(&meta)?;
        Ok(NewTask {
            key: key.map(Box::new),
            body: Body::with_meta(&data, &meta),
            pri: self.pri,
            ttl: optional_span("ttl", self.ttl)?,
            ttr: optional_span("ttr", self.ttr)?,
            delay: optional_span("delay", self.delay)?,
            at: optional_moment("at", self.at)?,
            attempts_max: self.attempts_max,
            subqueue: self.subqueue.map(Into::into),
            semaphore_priority: self.semaphore_priority.map(Priority::new).transpose()?,
        })
    }
}

/// The key of a put and what belongs to it.
fn key_request(
    key: Option<String>,
    unique_for: Option<f64>,
    on_conflict: Option<ConflictWord>,
) -> Result<Option<KeyRequest>> {
    let Some(key) = key else {
        let field = match (unique_for, on_conflict) {
            (None, None) => return Ok(None),
            (Some(_), _) => "unique_for",
            (None, Some(_)) => "on_conflict",
        };
        return Err(Error::Invalid(format!("'{field}' needs a 'key'; give one, or leave it out")));
    };
    let unique_for = optional_span("unique_for", unique_for)?.unwrap_or(Span::ZERO);
    let held = HeldKey { key: checked_key(&key)?, unique_for };
    Ok(Some(KeyRequest { held, on_conflict: on_conflict.unwrap_or_default().into() }))
}

/// The key that the field `key` gives.
pub(super) fn checked_key(key: &str) -> Result<Key> {
    Key::new(key).map_err(|error| Error::Invalid(format!("'key' is refused: {error}")))
}

/// The bytes of the form that was given; both is an error.
pub(super) fn one_of(
    name: &str,
    json: Option<Payload>,
    base64: Option<Packed>,
) -> Result<Option<Vec<u8>>> {
    match (json, base64) {
        (Some(_), Some(_)) => Err(Error::Invalid(format!(
            "both '{name}' and '{name}_base64' are given; use one of them"
        ))),
        (Some(json), None) => Ok(Some(json.into_msgpack())),
        (None, base64) => Ok(base64.map(Packed::into_msgpack)),
    }
}

/// Refuses a meta that is too large or not a map. Empty bytes are no meta.
fn check_meta(meta: &[u8]) -> Result<()> {
    if meta.len() > META_BYTES_MAX {
        return Err(Error::TooLarge {
            what: "meta",
            size: meta.len(),
            limit: META_BYTES_MAX,
            advice: "move what is large into the data",
        });
    }
    match meta.first() {
        None | Some(0x80..=0x8f | 0xde | 0xdf) => Ok(()),
        Some(_) => Err(Error::Invalid("'meta' must be an object, such as {\"trace\": 1}".into())),
    }
}

impl PutAnswer {
    /// The answer to a put.
    pub fn new(placed: &[Placed]) -> Self {
        let tasks = placed.iter().map(|task| PlacedTask {
            id: task.id.0,
            state: task.state.into(),
            existing: task.existing,
            queue: None,
        });
        PutAnswer { tasks: tasks.collect() }
    }

    /// The result for the client's caller.
    pub fn into_placed(self) -> Vec<Placed> {
        let tasks = self.tasks.into_iter();
        tasks
            .map(|task| Placed {
                id: TaskId(task.id),
                state: task.state.into(),
                existing: task.existing,
            })
            .collect()
    }
}

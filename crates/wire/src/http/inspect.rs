//! The smaller verbs: kick, delete, peek, deliveries and consumers.

use serde::{Deserialize, Serialize};
use taskyard_core::{Command, Error, Result, SessionId, Task, TaskId, Timestamp, TubeName};

use super::is_false;
use super::seconds::moment_of;
use super::task::{Form, TaskAnswer};
use super::whole;

/// How many buried tasks to bring back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct KickRequest {
    /// At most how many, lowest priority number first.
    #[serde(default = "one", deserialize_with = "whole::number")]
    pub count: u64,
}

/// How many buried tasks were brought back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KickAnswer {
    /// The number of tasks.
    pub kicked: u64,
}

/// Tasks to remove, also if they are taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DeleteRequest {
    /// Their numbers in the tube.
    #[serde(deserialize_with = "whole::list")]
    pub ids: Vec<u64>,
    /// Answer with the tasks as they were last.
    #[serde(default, skip_serializing_if = "is_false")]
    pub show: bool,
}

/// Tasks to show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PeekRequest {
    /// Their numbers in the tube. Tasks that do not exist are left out of the answer.
    #[serde(deserialize_with = "whole::list")]
    pub ids: Vec<u64>,
    /// Always answer with `data_base64`: the payload byte for byte.
    #[serde(default, skip_serializing_if = "is_false")]
    pub base64: bool,
    /// Whether the answer says when the tasks will start; for at most 100 tasks.
    #[serde(default, skip_serializing_if = "is_false")]
    pub estimate: bool,
}

/// Done without a result: an empty object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NothingAnswer {}

/// The current deliveries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeliveriesAnswer {
    /// The taken tasks, by id.
    pub deliveries: Vec<DeliveryAnswer>,
}

/// One taken task and its holder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeliveryAnswer {
    /// The tube.
    pub tube: String,
    /// The task's number in the tube.
    pub id: u64,
    /// The number of the delivery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<u64>,
    /// The session that holds it, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The name of the worker that holds it, if it gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// When the task was taken, in seconds since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<f64>,
    /// When the delivery ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<f64>,
    /// The whole task without its payload, if it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskAnswer>,
}

/// The waiting consumers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ConsumersAnswer {
    /// The waiting takes, oldest first.
    pub consumers: Vec<ConsumerAnswer>,
}

/// One waiting take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ConsumerAnswer {
    /// The tube it waits on.
    pub tube: String,
    /// Since when, in seconds since the epoch.
    pub since: f64,
    /// Until when, unless it waits for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<f64>,
    /// The session that waits, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
}

const fn one() -> u64 {
    1
}

impl KickRequest {
    /// The command, on the server's side.
    pub const fn into_command(self, tube: TubeName) -> Command {
        Command::Kick { tube, count: self.count }
    }
}

impl DeleteRequest {
    /// The request for these tasks, on the client's side.
    pub fn new(ids: &[TaskId], show: bool) -> Self {
        DeleteRequest { ids: ids.iter().map(|id| id.0).collect(), show }
    }

    /// The command, on the server's side.
    pub fn into_command(self, tube: TubeName) -> Command {
        Command::Delete { tube, ids: self.ids.into_iter().map(TaskId).collect(), show: self.show }
    }
}

impl PeekRequest {
    /// The request for these tasks, byte for byte, on the client's side.
    pub fn new(ids: &[TaskId]) -> Self {
        PeekRequest { ids: ids.iter().map(|id| id.0).collect(), base64: true, estimate: false }
    }

    /// The command, on the server's side.
    pub fn into_command(self, tube: TubeName) -> Command {
        Command::Peek { tube, ids: self.ids.into_iter().map(TaskId).collect() }
    }

    /// How the answer contains payloads.
    pub const fn form(&self) -> Form {
        Form::of(self.base64)
    }
}

impl DeliveryAnswer {
    /// The delivery of a taken task, with the task itself if `show` is set.
    pub fn new(tube: &TubeName, task: &Task, show: bool) -> Self {
        DeliveryAnswer {
            tube: tube.to_string(),
            id: task.id.0,
            lease: task.lease.map(|lease| lease.0),
            session: task.session.map(|session| session.to_string()),
            worker: task.worker.as_deref().map(str::to_owned),
            time: task.start.and_then(moment_of),
            until: task.lease_until.and_then(moment_of),
            task: show.then(|| TaskAnswer::new(task, Form::Exact)),
        }
    }

    /// The result for the client's caller, if the whole tasks were asked for.
    pub fn into_task(self) -> Result<Task> {
        let lacking = || Error::Store("the server's answer has no taken task".into());
        let session = self.session.as_deref().map(session_of).transpose()?;
        Ok(Task { session, ..self.task.ok_or_else(lacking)?.into_task()? })
    }
}

/// Parses the text form of a session: the first three groups are little-endian.
fn session_of(text: &str) -> Result<SessionId> {
    let wrong = || Error::Store(format!("the server names the session '{text}', which is none"));
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let number = u128::from_str_radix(&digits, 16).map_err(|_| wrong())?;
    let mut bytes = number.to_be_bytes();
    bytes[..4].reverse();
    bytes[4..6].reverse();
    bytes[6..8].reverse();
    let session = SessionId(bytes);
    if session.to_string() == text { Ok(session) } else { Err(wrong()) }
}

impl ConsumerAnswer {
    /// A take that waits on `tube` since and until these moments.
    pub fn new(tube: &TubeName, since: Timestamp, until: Timestamp) -> Self {
        ConsumerAnswer {
            tube: tube.to_string(),
            since: since.as_secs_f64(),
            until: moment_of(until),
            session: None,
        }
    }
}

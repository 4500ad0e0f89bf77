//! Taking tasks.

use serde::{Deserialize, Serialize};
use taskyard_core::limits::BATCH_TASKS_MAX;
use taskyard_core::{Command, Error, Result, Span, Take, Task, TubeName};

use super::is_false;
use super::seconds::{optional_span, seconds_of, span};
use super::task::{Form, TaskAnswer};
use super::whole;

/// How long a delivery lasts when the request does not say, in seconds.
pub const LEASE_SECONDS_DEFAULT: f64 = 60.0;

/// How many tasks to take and how long to wait for them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TakeRequest {
    /// At most how many tasks, 1 to 10000; in tubes with sub-queues at most one of each.
    #[serde(default = "one", deserialize_with = "whole::number")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 10000))]
    pub count: u64,
    /// Seconds to wait for the first task; 0 answers at once.
    #[serde(default)]
    pub wait: f64,
    /// Seconds the delivery may last before the task is given back. `null` is the task's own ttr.
    #[serde(default = "lease_default")]
    pub lease: Option<f64>,
    /// The name of the worker, at most 128 bytes: lists show who holds a task, and its failures keep the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// Always answer with `data_base64`: the payload byte for byte.
    #[serde(default, skip_serializing_if = "is_false")]
    pub base64: bool,
}

/// Tasks that were taken or peeked at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TasksAnswer {
    /// The tasks; perhaps none.
    pub tasks: Vec<TaskAnswer>,
}

const fn one() -> u64 {
    1
}

const fn lease_default() -> Option<f64> {
    Some(LEASE_SECONDS_DEFAULT)
}

impl Default for TakeRequest {
    fn default() -> Self {
        TakeRequest { count: one(), wait: 0.0, lease: lease_default(), worker: None, base64: false }
    }
}

impl TakeRequest {
    /// The request for this take, on the client's side. HTTP requests have no sessions.
    pub fn new(take: &Take) -> Result<Self> {
        if take.session.is_some() {
            return Err(Error::Invalid(
                "a take over HTTP has no session; give a lease time instead".into(),
            ));
        }
        Ok(TakeRequest {
            count: take.count as u64,
            wait: seconds_of(take.wait),
            lease: take.lease.map(seconds_of),
            worker: take.worker.as_deref().map(str::to_owned),
            base64: true,
        })
    }

    /// The command, on the server's side.
    pub fn into_command(self, tube: TubeName) -> Result<Command> {
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        if !(1..=BATCH_TASKS_MAX).contains(&count) {
            return Err(Error::Invalid(format!(
                "'count' is {count}; ask for 1 to {BATCH_TASKS_MAX} tasks"
            )));
        }
        let lease = optional_span("lease", self.lease)?;
        if lease == Some(Span::ZERO) {
            return Err(Error::Invalid(
                "'lease' is 0, so the task would be given back at once; give more seconds".into(),
            ));
        }
        let wait = span("wait", self.wait)?;
        let worker = self.worker.map(Into::into);
        Ok(Command::Take(Take { tube, count, session: None, lease, worker, wait }))
    }

    /// How the answer contains payloads.
    pub const fn form(&self) -> Form {
        Form::of(self.base64)
    }
}

impl TasksAnswer {
    /// The answer with these tasks.
    pub fn new(tasks: &[Task], form: Form) -> Self {
        TasksAnswer { tasks: tasks.iter().map(|task| TaskAnswer::new(task, form)).collect() }
    }

    /// The result for the client's caller.
    pub fn into_tasks(self) -> Result<Vec<Task>> {
        self.tasks.into_iter().map(TaskAnswer::into_task).collect()
    }
}

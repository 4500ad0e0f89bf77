//! What workers and the manager write to each other, and what the manager shows.
//!
//! Reports and plans are tasks of the tubes below, so they travel on every way to a queue and are shared by all
//! servers of a store. A leader holds the seat, the latest report of each worker and the plan that holds: who
//! wants to know looks at what is taken.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use taskyard_core::{Body, Error, Result};
use utoipa::ToSchema;

use crate::payload::{json_to_msgpack, msgpack_to_json};

/// One task, and who holds it leads.
pub const SEAT_TUBE: &str = "taskyard.manager.seat";
/// Where workers report.
pub const REPORTS_TUBE: &str = "taskyard.manager.reports";
/// Where the plan is.
pub const PLANS_TUBE: &str = "taskyard.manager.plans";

/// How many processors each queue gets, by the queue's number.
pub type Shares = BTreeMap<u32, u32>;

/// What a worker tells about itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerReport {
    /// Who it is: another one each time a worker begins.
    pub worker: String,
    /// How it is called.
    pub name: String,
    /// How many processors it has.
    pub max_processors: u32,
    /// The version of the plan that it follows; 0 is none.
    pub version: u64,
    /// Its queues.
    pub queues: Vec<QueueLoad>,
}

/// What a queue costs a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueueLoad {
    /// The queue's number in the contract.
    pub queue_num: u32,
    /// Its tube.
    pub tube: String,
    /// A moving average; absent before the first batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_per_task: Option<f64>,
    /// How soon a task that is ready should be done, in seconds.
    pub target_latency: f64,
    /// Tasks and batches that went wrong since the worker began.
    pub errors: u64,
    /// Processors that work on it now.
    pub busy: u32,
}

/// What a manager tells all workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanLetter {
    /// Of two plans the one with the larger number holds.
    pub version: u64,
    /// Whose plan it is.
    pub leader: String,
    /// The processors of each worker. Who is not named goes on as it did.
    pub workers: BTreeMap<String, Shares>,
}

/// Who leads, and who works on what.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ManagerAnswer {
    /// Whether a server of this store leads now.
    pub led: bool,
    /// The server that made the plan; absent while there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// The number of the plan; absent while there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// The workers that reported lately, by name.
    pub workers: Vec<WorkerAnswer>,
}

/// A worker that reported lately.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkerAnswer {
    /// Who it is: another one each time a worker begins.
    pub worker: String,
    /// How it is called.
    pub name: String,
    /// How many processors it has.
    pub max_processors: u32,
    /// The version of the plan that it follows; 0 is none yet.
    pub version: u64,
    /// What its queues cost it.
    pub queues: Vec<QueueLoad>,
    /// The processors that the plan gives to each queue, by the queue's number; absent while it has no plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned: Option<Shares>,
}

impl WorkerAnswer {
    /// What a worker said, and what the plan says to it.
    pub fn new(report: WorkerReport, plan: Option<&PlanLetter>) -> Self {
        let planned = plan.and_then(|plan| plan.workers.get(&report.worker)).cloned();
        let WorkerReport { worker, name, max_processors, version, queues } = report;
        WorkerAnswer { worker, name, max_processors, version, queues, planned }
    }
}

/// A report or a plan as what a task carries.
pub fn letter_to_body(letter: &impl Serialize) -> Result<Body> {
    let json = serde_json::to_string(letter)
        .map_err(|error| Error::Invalid(format!("a letter cannot be written: {error}")))?;
    Ok(Body::new(&json_to_msgpack(&json)?))
}

/// The report or plan that a task carries; `None` when it is something else.
pub fn letter_of<T: DeserializeOwned>(body: &Body) -> Option<T> {
    let json = msgpack_to_json(body.payload()).ok()?;
    serde_json::from_str(&json).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_arrive_as_they_were_written() {
        let load = QueueLoad {
            queue_num: 7,
            tube: "emails".into(),
            seconds_per_task: Some(0.25),
            target_latency: 1.0,
            errors: 3,
            busy: 2,
        };
        let report = WorkerReport {
            worker: "1f".into(),
            name: "mailer".into(),
            max_processors: 4,
            version: u64::MAX,
            queues: vec![load.clone(), QueueLoad { seconds_per_task: None, ..load }],
        };
        assert_eq!(letter_of(&letter_to_body(&report).unwrap()), Some(report));
        let workers = BTreeMap::from([("1f".into(), Shares::from([(7, 4)]))]);
        let plan = PlanLetter { version: 9, leader: "here".into(), workers };
        assert_eq!(letter_of(&letter_to_body(&plan).unwrap()), Some(plan));
    }

    /// Anybody may put anything into these tubes.
    #[test]
    fn what_is_no_letter_is_passed_over() {
        for payload in [&b""[..], b"\xc1", b"\x80", b"\x91\x01", b"\xc4\x01\xff"] {
            assert_eq!(letter_of::<PlanLetter>(&Body::new(payload)), None);
            assert_eq!(letter_of::<WorkerReport>(&Body::new(payload)), None);
        }
    }
}

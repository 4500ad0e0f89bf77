//! The messages between workers and the manager, and the manager's status.
//!
//! Reports and plans are tasks of the tubes below, so they work over every connection to a queue
//! and are shared by all servers of a store. The leader holds the leader task, the latest report of
//! each worker and the current plan; the status is read from the taken tasks.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use taskyard_core::{Body, Error, Result};

use crate::payload::{json_to_msgpack, msgpack_to_json};

/// Has one task; its holder is the leader.
pub const LEADER_TUBE: &str = "taskyard.manager.seat";
/// The tube of the workers' reports.
pub const REPORTS_TUBE: &str = "taskyard.manager.reports";
/// The tube of the plan.
pub const PLANS_TUBE: &str = "taskyard.manager.plans";

/// How many processors each queue gets, by the queue's number.
pub type Shares = BTreeMap<u32, u32>;

/// The report of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerReport {
    /// Its identity: a new one each time a worker starts.
    pub worker: String,
    /// Its name.
    pub name: String,
    /// How many processors it has.
    pub max_processors: u32,
    /// The version of the plan that it follows; 0 is none.
    pub version: u64,
    /// Its queues.
    pub queues: Vec<QueueLoad>,
}

/// The load of a queue in a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueueLoad {
    /// The queue's number in the contract.
    pub queue_num: u32,
    /// Its tube.
    pub tube: String,
    /// A moving average; absent before the first batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_per_task: Option<f64>,
    /// The target time from ready to done, in seconds.
    pub target_latency: f64,
    /// Failed tasks and batches since the worker started.
    pub errors: u64,
    /// Processors that currently work on it.
    pub busy: u32,
}

/// The plan for all workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanMessage {
    /// The version; a larger one replaces a smaller one.
    pub version: u64,
    /// The manager that made it.
    pub leader: String,
    /// The processors of each worker. A worker that is not listed keeps its last plan.
    pub workers: BTreeMap<String, Shares>,
}

/// The status of the manager and the workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ManagerAnswer {
    /// Whether a server of this store is the leader now.
    pub led: bool,
    /// The server that made the plan; absent while there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// The number of the plan; absent while there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// The workers with a recent report, by name.
    pub workers: Vec<WorkerAnswer>,
}

/// A worker with a recent report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerAnswer {
    /// Its identity: a new one each time a worker starts.
    pub worker: String,
    /// Its name.
    pub name: String,
    /// How many processors it has.
    pub max_processors: u32,
    /// The version of the plan that it follows; 0 is none yet.
    pub version: u64,
    /// The load of its queues.
    pub queues: Vec<QueueLoad>,
    /// The processors that the plan gives to each queue, by the queue's number; absent while it has no plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned: Option<Shares>,
}

impl WorkerAnswer {
    /// Combines the report of a worker with its part of the plan.
    pub fn new(report: WorkerReport, plan: Option<&PlanMessage>) -> Self {
        let planned = plan.and_then(|plan| plan.workers.get(&report.worker)).cloned();
        let WorkerReport { worker, name, max_processors, version, queues } = report;
        WorkerAnswer { worker, name, max_processors, version, queues, planned }
    }
}

/// Encodes a report or a plan as the body of a task.
pub fn encode_message(letter: &impl Serialize) -> Result<Body> {
    let json = serde_json::to_string(letter)
        .map_err(|error| Error::Invalid(format!("the message cannot be encoded: {error}")))?;
    Ok(Body::new(&json_to_msgpack(&json)?))
}

/// Decodes the report or plan in a task; `None` if it is something else.
pub fn decode_message<T: DeserializeOwned>(body: &Body) -> Option<T> {
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
        assert_eq!(decode_message(&encode_message(&report).unwrap()), Some(report));
        let workers = BTreeMap::from([("1f".into(), Shares::from([(7, 4)]))]);
        let plan = PlanMessage { version: 9, leader: "here".into(), workers };
        assert_eq!(decode_message(&encode_message(&plan).unwrap()), Some(plan));
    }

    /// These tubes may contain any task.
    #[test]
    fn what_is_no_letter_is_passed_over() {
        for payload in [&b""[..], b"\xc1", b"\x80", b"\x91\x01", b"\xc4\x01\xff"] {
            assert_eq!(decode_message::<PlanMessage>(&Body::new(payload)), None);
            assert_eq!(decode_message::<WorkerReport>(&Body::new(payload)), None);
        }
    }
}

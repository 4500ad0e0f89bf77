//! The list of workers.

use serde::{Deserialize, Serialize};

use super::{MissingServer, is_false};

/// How many of its running tasks a worker shows.
pub const WORKER_RUNNING_MAX: usize = 100;
/// Maximum number of workers in one answer, and the default.
pub const WORKERS_PAGE_MAX: usize = 1_000;

/// The workers of this server, and those that hold tasks of its store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkersAnswer {
    /// The time of this list, in seconds since the epoch.
    pub time: f64,
    /// The workers, by name.
    pub workers: Vec<WorkerSummary>,
    /// The value of `after` for the next page; absent if no worker follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// So many tasks are taken that not all of them are shown and counted.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cut: bool,
    /// Identifies the running server that answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The number of servers that are in this list; absent unless `all` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub servers: Option<u32>,
    /// Peers of the server that are not in this list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<MissingServer>,
}

/// One worker: a name with which tasks are taken.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerSummary {
    /// Its name.
    pub name: String,
    /// The address from which it last connected to this server, or to a peer with `all`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Its machine, if the name has the form `host:process:program`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Its process id, if the name has that form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<u32>,
    /// Its program, if the name has that form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// The version of its client, if that is Taskyard's or gave one over iproto.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The tubes from which it took, at most 32.
    pub tubes: Vec<String>,
    /// The tasks that it holds, taken from any server, those that run longest first; at most 100.
    pub running: Vec<RunningTask>,
    /// The number of tasks that it holds.
    pub running_count: u64,
    /// When it last took, finished or touched a task, in seconds since the epoch; now while it waits for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<f64>,
    /// Deliveries that it acknowledged on this server, or on all with `all`.
    pub done: u64,
    /// Deliveries that it reported as failed there.
    pub failed: u64,
    /// Of these, acknowledged in the last minute.
    pub done_per_minute: u64,
    /// Of these, failed in the last minute.
    pub failed_per_minute: u64,
}

/// A task that a worker holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunningTask {
    /// The tube.
    pub tube: String,
    /// The task's number in the tube.
    pub id: u64,
    /// How long ago it was taken, in seconds.
    pub age: f64,
}

impl WorkerSummary {
    /// A worker of which only the name is known.
    pub fn new(name: &str) -> Self {
        let mut worker = WorkerSummary { name: name.to_owned(), ..WorkerSummary::default() };
        if let Some((host, process, program)) = parts(name) {
            worker.host = Some(host.to_owned());
            worker.process = Some(process);
            worker.program = Some(program.to_owned());
        }
        worker
    }
}

/// The parts of a name of the form `host:process:program`.
fn parts(name: &str) -> Option<(&str, u32, &str)> {
    let (host, rest) = name.split_once(':')?;
    let (process, program) = rest.split_once(':')?;
    let is_number = process.bytes().all(|byte| byte.is_ascii_digit());
    let process = process.parse().ok().filter(|_| is_number)?;
    (!host.is_empty() && !program.is_empty()).then_some((host, process, program))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_parts() {
        assert_eq!(parts("web1:4711:mailer"), Some(("web1", 4711, "mailer")));
        assert_eq!(parts("web1:4711:a:b"), Some(("web1", 4711, "a:b")));
        for name in ["", "mailer", "10.0.0.7", "10.0.0.7:3301", "::1", "[::1]:3301", "w:+1:p"] {
            assert_eq!(parts(name), None, "{name}");
        }
        assert_eq!(parts("w:1:"), None);
        assert_eq!(parts("w:4294967296:p"), None);
    }
}

//! Sets the kernel's limits for each process.

use std::io;

use rustix::process::{Resource, Rlimit, setrlimit};
use serde::{Deserialize, Serialize};

use crate::config::Limits;

/// Files that a process may have open.
const OPEN_MAX: u64 = 256;

/// Limits of one process of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rlimits {
    memory: u64,
    file: u64,
    /// Number of processes of its user, if it has one of its own.
    processes: Option<u64>,
    /// Seconds of processor time: the soft limit sends a signal of its own, so that it is not mistaken for a kill,
    /// the hard limit kills.
    pub cpu: Option<(u64, u64)>,
}

impl Rlimits {
    pub fn new(limits: &Limits, processes: Option<u64>, cpu: Option<u64>) -> Self {
        Rlimits {
            memory: limits.memory_bytes_max,
            file: limits.file_bytes_max,
            processes,
            cpu: cpu.map(|seconds| (seconds, seconds.saturating_add(1))),
        }
    }

    /// Each limit with its soft and hard value. Memory is last: code that runs afterwards may have none.
    fn limits(&self) -> impl Iterator<Item = (Resource, u64, u64)> {
        let both = |resource, max| (resource, max, max);
        let limits_set = [
            Some(both(Resource::Core, 0)),
            Some(both(Resource::Fsize, self.file)),
            Some(both(Resource::Nofile, OPEN_MAX)),
            self.processes.map(|max| both(Resource::Nproc, max)),
            self.cpu.map(|(soft, hard)| (Resource::Cpu, soft, hard)),
            Some(both(Resource::As, self.memory)),
        ];
        limits_set.into_iter().flatten()
    }

    /// Sets the limits for this process and its children.
    pub fn set(&self) -> io::Result<()> {
        for (resource, soft, hard) in self.limits() {
            setrlimit(resource, Rlimit { current: Some(soft), maximum: Some(hard) })?;
        }
        Ok(())
    }
}

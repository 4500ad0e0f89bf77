//! Limits that the system keeps for each process, and how they are set.

use std::io;
use std::path::Path;

use rustix::process::{Resource, Rlimit, setrlimit};
use serde::{Deserialize, Serialize};

use crate::config::Limits;

const PRLIMIT: &str = "/usr/bin/prlimit";
/// Files that a process may have open.
const OPEN_MAX: u64 = 256;

/// What one process of a program may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rlimits {
    memory: u64,
    file: u64,
    /// Processes of its user, where it has one of its own.
    processes: Option<u64>,
    /// Seconds of processor time: a signal of its own at first, so that it is not taken for a kill from outside,
    /// then the kill.
    cpu: Option<(u64, u64)>,
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

    /// Each with its soft and its hard value. Memory is the last: what is done behind it may have none.
    fn all(&self) -> impl Iterator<Item = (Resource, u64, u64)> {
        let both = |resource, most| (resource, most, most);
        let some = [
            Some(both(Resource::Core, 0)),
            Some(both(Resource::Fsize, self.file)),
            Some(both(Resource::Nofile, OPEN_MAX)),
            self.processes.map(|most| both(Resource::Nproc, most)),
            self.cpu.map(|(soft, hard)| (Resource::Cpu, soft, hard)),
            Some(both(Resource::As, self.memory)),
        ];
        some.into_iter().flatten()
    }

    /// Sets them for this process, and so for those that it starts.
    pub fn set(&self) -> io::Result<()> {
        for (resource, soft, hard) in self.all() {
            setrlimit(resource, Rlimit { current: Some(soft), maximum: Some(hard) })?;
        }
        Ok(())
    }

    /// What must be written before a command for `prlimit` to run it.
    pub fn prlimit(&self) -> Vec<String> {
        let word = |(resource, soft, hard)| {
            let name = match resource {
                Resource::Core => "core",
                Resource::Fsize => "fsize",
                Resource::Nofile => "nofile",
                Resource::Nproc => "nproc",
                Resource::Cpu => "cpu",
                _ => "as",
            };
            format!("--{name}={soft}:{hard}")
        };
        let words = [PRLIMIT.into()].into_iter().chain(self.all().map(word));
        words.chain(["--".into()]).collect()
    }
}

/// Whether `prlimit` is there to set them for programs that nobody of ours starts.
pub(super) fn has_prlimit() -> bool {
    Path::new(PRLIMIT).exists()
}

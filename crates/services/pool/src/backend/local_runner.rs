//! Runs programs on this machine, or simulates them.

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::isolation::Isolation;
use super::process_cleanup::{self, ProcessMark};
use super::resource_monitor::ResourceMonitor;
use super::sandbox::SandboxSpec;
use super::sandbox_pool::{SandboxPool, prestart};
use super::spawner::Spawner;
use super::task_folder::TaskFolders;
use super::user_slots::UserSlots;
use super::users::ClaimedUsers;
use super::{RunningProgram, TaskSpec, job};
use crate::config::{Config, Limits};
use crate::protocol::{OutgoingFrame, Stream};
use crate::scheduler::{Allocation, Control, RunOutcome};

/// Frames that are buffered for a client before the program has to wait.
const FRAMES: usize = 8;
/// Pieces of standard input that are buffered for the program.
const INPUTS: usize = 4;

/// Runs tasks. The allocation is released when the task has ended or its job is aborted.
pub trait Runner: Debug + Send + Sync {
    /// Runs a task.
    fn run(&self, allocation: Allocation, spec: Arc<TaskSpec>) -> (RunningProgram, AbortHandle);

    /// Describes each missing kind of isolation in a sentence.
    fn gaps(&self) -> Vec<String>;

    /// How the memory of tasks is limited, in a sentence; `None` if no program is run.
    fn memory_accounting(&self) -> Option<String> {
        None
    }

    /// Stops starting sandboxes ahead of tasks.
    fn close(&self) {}

    /// Whether nothing is left of any task or ready sandbox.
    fn is_empty(&self) -> bool {
        true
    }
}

/// Counts of sandboxes that are started ahead of tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SandboxCounts {
    /// Sandboxes that are ready.
    pub ready: usize,
    /// Tasks that started in a ready sandbox, since the start of the pool.
    pub used: u64,
}

/// Runs programs on this machine.
#[derive(Clone, Debug)]
pub struct LocalRunner(Arc<RunnerShared>);

/// State shared by all jobs.
#[derive(Debug)]
pub(super) struct RunnerShared {
    pub isolation: Isolation,
    pub folders: TaskFolders,
    pub users: UserSlots,
    pub sandboxes: SandboxPool,
    pub spawner: Spawner,
    pub monitor: Arc<ResourceMonitor>,
    pub limits: Limits,
    pub kill_after: Duration,
}

impl LocalRunner {
    /// Claims users, creates the folder, tests the sandbox and starts the first sandboxes. Fails if the sandbox does not
    /// work, unless the configuration wants none.
    pub async fn start(config: &Config) -> std::io::Result<Self> {
        // A halted program may still be ending while the next one starts.
        let users_count = config.backends * 2;
        let root = rustix::process::geteuid().is_root();
        let users = root
            .then(|| ClaimedUsers::claim(config.isolation.first_uid, users_count))
            .transpose()?;
        let first = users.as_ref().map(ClaimedUsers::first);
        if let Some(first) = first {
            process_cleanup::become_subreaper()?;
            // Only processes that an earlier, killed pool left behind.
            let mark = ProcessMark::Users(first..first + users_count);
            let clear =
                tokio::task::spawn_blocking(move || process_cleanup::kill_marked(&mark)).await;
            if !clear.unwrap_or_default() {
                tracing::error!(
                    first,
                    users_count,
                    "processes of an earlier pool cannot be killed"
                );
            }
        }
        let folders = TaskFolders::new()?;
        let isolation = Isolation::probe(config, first, &folders).await;
        let isolation = isolation.map_err(std::io::Error::other)?;
        let host = Arc::new(RunnerShared {
            folders,
            users: UserSlots::new(users_count, users),
            sandboxes: SandboxPool::new(config.backends),
            spawner: Spawner::start(isolation.has_bubblewrap())?,
            isolation,
            monitor: ResourceMonitor::start(config.limits.clone()),
            limits: config.limits.clone(),
            kill_after: config.kill_after(),
        });
        if let Some(program) = config.programs.values().next() {
            prestart(&host, &Arc::new(SandboxSpec::of(program)));
        }
        Ok(LocalRunner(host))
    }

    /// How programs are isolated.
    pub fn isolation(&self) -> &Isolation {
        &self.0.isolation
    }

    /// Number of folders of tasks.
    pub fn folders(&self) -> usize {
        self.0.folders.count()
    }

    /// The folder that contains them.
    pub fn folder(&self) -> &Path {
        self.0.folders.path()
    }

    /// Counts of sandboxes that are started ahead of tasks.
    pub fn sandboxes(&self) -> SandboxCounts {
        SandboxCounts { ready: self.0.sandboxes.count(), used: self.0.sandboxes.used() }
    }

    /// Removes the ready sandboxes; from now on each task starts its own.
    pub fn close(&self) {
        self.0.sandboxes.close();
    }

    /// Whether nothing is left of any task or ready sandbox.
    pub fn is_empty(&self) -> bool {
        // In this order: a sandbox that is being started has its folder before it is ready.
        self.0.sandboxes.is_idle() && self.0.folders.all() == 0
    }
}

impl Runner for LocalRunner {
    fn run(&self, allocation: Allocation, spec: Arc<TaskSpec>) -> (RunningProgram, AbortHandle) {
        let (sender, frames) = mpsc::channel(FRAMES);
        let (input, stdin) = mpsc::channel(INPUTS);
        let job = job::run(self.0.clone(), spec, allocation, sender, stdin);
        (RunningProgram { frames, input }, tokio::spawn(job).abort_handle())
    }

    fn gaps(&self) -> Vec<String> {
        self.0.isolation.gaps()
    }

    fn memory_accounting(&self) -> Option<String> {
        Some(self.0.isolation.memory_accounting())
    }

    fn close(&self) {
        LocalRunner::close(self);
    }

    fn is_empty(&self) -> bool {
        LocalRunner::is_empty(self)
    }
}

/// Runs nothing: each task writes a line and ends after a while. For benchmarks and load tests that measure
/// everything but programs.
#[derive(Clone, Copy, Debug)]
pub struct StubRunner {
    /// How long each task takes.
    pub takes: Duration,
}

impl Runner for StubRunner {
    fn run(&self, mut allocation: Allocation, _: Arc<TaskSpec>) -> (RunningProgram, AbortHandle) {
        let (sender, frames) = mpsc::channel(FRAMES);
        let (input, _) = mpsc::channel(INPUTS);
        let takes = self.takes;
        let job = async move {
            let _ = sender.send(OutgoingFrame::Output(Stream::Stdout, Vec::new())).await;
            let halted = async {
                while let Some(control) = allocation.control.recv().await {
                    if let Control::Halt(why) = control {
                        return why;
                    }
                }
                "the pool is stopping".into()
            };
            let error = tokio::select! {
                () = sleep(takes) => None,
                () = sender.closed() => Some("the client left".into()),
                why = halted => Some(why),
            };
            allocation.finish(RunOutcome::Done);
            let _ = sender.send(OutgoingFrame::Output(Stream::Stdout, b"done\n".to_vec())).await;
            let _ = sender.send(OutgoingFrame::Complete(error)).await;
        };
        (RunningProgram { frames, input }, tokio::spawn(job).abort_handle())
    }

    fn gaps(&self) -> Vec<String> {
        vec!["no program is run: tasks are simulated".into()]
    }
}

//! Runs programs: each task in its own folder, process group and, where possible, sandbox.
//!
//! Start reading at `job` (one task from its folder to its result), then `sandbox` (what surrounds it),
//! `sandbox_init` (what starts it there) and `isolation`.

mod control_group;
mod init_channel;
mod isolation;
mod job;
mod local_runner;
mod memory_sample;
mod output;
mod process_cleanup;
mod process_group;
mod removal;
mod resource_monitor;
mod rlimits;
mod run_request;
mod sandbox;
mod sandbox_init;
mod sandbox_pool;
mod sandbox_probe;
mod seccomp;
mod spawner;
mod stopwatch;
mod task_folder;
mod task_spec;
mod user_slots;
mod users;
mod workspace;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::config::Config;
use crate::protocol::OutgoingFrame;
use crate::scheduler::{Allocation, PoolStopping, Scheduler};

pub use isolation::Isolation;
pub use sandbox_init::{run_as_sandbox_init, set_sandbox_init_executable};
pub use sandbox_probe::SandboxUnavailable;
pub use task_spec::{TaskSource, TaskSpec, TaskSpecError, add_file, duration};

pub use local_runner::{LocalRunner, Runner, SandboxCounts, StubRunner};

use local_runner::RunnerShared;

/// The backends of this process.
#[derive(Debug)]
pub struct Backends {
    backends: Vec<Mutex<LocalBackend>>,
    scheduler: Scheduler,
    runner: LocalRunner,
}

#[derive(Debug, Default)]
struct LocalBackend {
    alive: bool,
    /// The jobs assigned to it: one, and possibly halted ones that are still being killed.
    jobs: Vec<AbortHandle>,
}

/// A running program: its frames and its standard input.
#[derive(Debug)]
pub struct RunningProgram {
    /// Its frames. Dropping this stops the program.
    pub frames: mpsc::Receiver<OutgoingFrame>,
    /// Its standard input, if it is interactive. Dropping this closes the input.
    pub input: mpsc::Sender<Vec<u8>>,
}

impl RunningProgram {
    /// A program that sends no frames and reads no input.
    pub(crate) fn finished() -> Self {
        RunningProgram { frames: mpsc::channel(1).1, input: mpsc::channel(1).0 }
    }
}

impl Backends {
    /// Creates the backends and registers them with the scheduler.
    pub async fn start(config: &Config, scheduler: Scheduler) -> std::io::Result<Self> {
        let runner = LocalRunner::start(config).await?;
        let backends = (0..config.backends).map(|_| Mutex::default()).collect();
        let this = Backends { backends, scheduler, runner };
        for id in 0..this.backends.len() {
            this.restore_backend(id).await.map_err(std::io::Error::other)?;
        }
        Ok(this)
    }

    /// How programs are isolated.
    pub fn isolation(&self) -> &Isolation {
        self.runner.isolation()
    }

    /// Number of folders of tasks: one for each program that runs or ends, and those that could not be removed yet.
    pub fn folders(&self) -> usize {
        self.runner.folders()
    }

    /// Counts of sandboxes that are started ahead of tasks.
    pub fn sandboxes(&self) -> SandboxCounts {
        self.runner.sandboxes()
    }

    /// Stops starting sandboxes ahead of tasks and removes the ready ones.
    pub(crate) fn close(&self) {
        self.runner.close();
    }

    /// Whether nothing is left of any task or ready sandbox.
    pub(crate) fn is_empty(&self) -> bool {
        self.runner.is_empty()
    }

    /// The folder that contains the folders of tasks.
    pub fn folder(&self) -> &Path {
        self.runner.folder()
    }

    /// Runs a task on its allocated backend.
    pub fn run(&self, allocation: Allocation, spec: Arc<TaskSpec>) -> RunningProgram {
        let backend = self.backends.get(allocation.backend).map(lock);
        // A backend that has failed meanwhile runs nothing, so the allocation is dropped and counts as lost.
        let Some(mut backend) = backend.filter(|backend| backend.alive) else {
            return RunningProgram::finished();
        };
        let (running, job) = self.runner.run(allocation, spec);
        backend.jobs.retain(|job| !job.is_finished());
        backend.jobs.push(job);
        running
    }

    /// A backend fails: its program is killed, and its task is requeued or lost.
    pub async fn fail_backend(&self, id: usize) -> Result<(), PoolStopping> {
        let Some(backend) = self.backends.get(id) else { return Ok(()) };
        lock(backend).alive = false;
        self.scheduler.set_backend(id, false).await?;
        lock(backend).jobs.drain(..).for_each(|job| job.abort());
        Ok(())
    }

    /// Adds a backend, or brings one back after a failure.
    pub async fn restore_backend(&self, id: usize) -> Result<(), PoolStopping> {
        let Some(backend) = self.backends.get(id) else { return Ok(()) };
        lock(backend).alive = true;
        self.scheduler.set_backend(id, true).await
    }
}

impl Drop for Backends {
    fn drop(&mut self) {
        self.close();
        for backend in &self.backends {
            lock(backend).jobs.drain(..).for_each(|job| job.abort());
        }
    }
}

fn lock(backend: &Mutex<LocalBackend>) -> MutexGuard<'_, LocalBackend> {
    backend.lock().unwrap_or_else(PoisonError::into_inner)
}

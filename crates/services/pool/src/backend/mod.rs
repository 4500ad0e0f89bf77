//! Runs programs: each task in a folder and a process group of its own, kept apart as well as the
//! machine allows.
//!
//! Start reading at `job` (one task from its folder to its result), then `wall` (what is around it), `first` (what
//! starts it there) and `isolation`.

mod account;
mod first;
mod folder;
mod group;
mod isolation;
mod job;
mod lanes;
mod orders;
mod output;
mod ready;
mod removal;
mod rlimits;
mod room;
mod spawner;
mod stage;
mod stopwatch;
mod sweep;
mod users;
mod wall;
mod warden;
mod workshop;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::config::Config;
use crate::protocol::Outgoing;
use crate::scheduler::{Allocation, Scheduler, Stopping};

pub use first::{enter, stand_in};
pub use isolation::Isolation;
pub use stage::{Plan, Source, StageError, add_file, duration};

pub use workshop::{Runner, Stub, Walls, Workshop};

use workshop::Host;

/// The backends of this process.
#[derive(Debug)]
pub struct Backends {
    slots: Vec<Mutex<Slot>>,
    scheduler: Scheduler,
    workshop: Workshop,
}

#[derive(Debug, Default)]
struct Slot {
    alive: bool,
    /// The jobs that were given to it: one, and perhaps a halted one that is still being killed.
    jobs: Vec<AbortHandle>,
}

/// A program that runs: what it says, and the way to its standard input.
#[derive(Debug)]
pub struct Running {
    /// What it says. Dropping this stops the program.
    pub frames: mpsc::Receiver<Outgoing>,
    /// Its standard input, if it is interactive. Dropping this ends the input.
    pub input: mpsc::Sender<Vec<u8>>,
}

impl Running {
    /// One that has nothing to say and hears nothing.
    pub(crate) fn over() -> Self {
        Running { frames: mpsc::channel(1).1, input: mpsc::channel(1).0 }
    }
}

impl Backends {
    /// Makes the backends and tells the scheduler of them.
    pub async fn start(config: &Config, scheduler: Scheduler) -> std::io::Result<Self> {
        let workshop = Workshop::start(config).await?;
        let slots = (0..config.backends).map(|_| Mutex::default()).collect();
        let this = Backends { slots, scheduler, workshop };
        for id in 0..this.slots.len() {
            this.revive(id).await.map_err(std::io::Error::other)?;
        }
        Ok(this)
    }

    /// How programs are kept apart.
    pub fn isolation(&self) -> &Isolation {
        self.workshop.isolation()
    }

    /// How many folders of tasks there are: one for each program that runs or ends, and those that could not be
    /// removed yet.
    pub fn folders(&self) -> usize {
        self.workshop.folders()
    }

    /// The walls that stand before their task has come.
    pub fn walls(&self) -> Walls {
        self.workshop.walls()
    }

    /// Keeps nothing ready any more.
    pub(crate) fn close(&self) {
        self.workshop.close();
    }

    /// Whether nothing is left of any task, nor of what was there for the next one.
    pub(crate) fn is_clear(&self) -> bool {
        self.workshop.is_clear()
    }

    /// Where the folders of tasks are.
    pub fn folder(&self) -> &Path {
        self.workshop.folder()
    }

    /// Runs a task on the backend that is held for it.
    pub fn run(&self, allocation: Allocation, plan: Arc<Plan>) -> Running {
        let slot = self.slots.get(allocation.backend).map(lock);
        // A backend that died meanwhile runs nothing, so the allocation is lost with it.
        let Some(mut slot) = slot.filter(|slot| slot.alive) else { return Running::over() };
        let (running, job) = self.workshop.run(allocation, plan);
        slot.jobs.retain(|job| !job.is_finished());
        slot.jobs.push(job);
        running
    }

    /// A backend dies: what runs on it is killed, and its task is lost or takes its place again.
    pub async fn lose(&self, id: usize) -> Result<(), Stopping> {
        let Some(slot) = self.slots.get(id) else { return Ok(()) };
        lock(slot).alive = false;
        self.scheduler.set_backend(id, false).await?;
        lock(slot).jobs.drain(..).for_each(|job| job.abort());
        Ok(())
    }

    /// A backend comes, or comes back.
    pub async fn revive(&self, id: usize) -> Result<(), Stopping> {
        let Some(slot) = self.slots.get(id) else { return Ok(()) };
        lock(slot).alive = true;
        self.scheduler.set_backend(id, true).await
    }
}

impl Drop for Backends {
    fn drop(&mut self) {
        self.close();
        for slot in &self.slots {
            lock(slot).jobs.drain(..).for_each(|job| job.abort());
        }
    }
}

fn lock(slot: &Mutex<Slot>) -> MutexGuard<'_, Slot> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

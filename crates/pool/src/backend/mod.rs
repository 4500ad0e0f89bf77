//! Runs programs: each task in a folder and a process group of its own, kept apart as well as the
//! machine allows.
//!
//! Start reading at `job` (one task from its folder to its result), then `isolation`.

mod account;
mod folder;
mod group;
mod isolation;
mod job;
mod lanes;
mod output;
mod removal;
mod room;
mod spawner;
mod stage;
mod sweep;
mod users;
mod warden;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::config::{Config, Limits};
use crate::protocol::Outgoing;
use crate::scheduler::{Allocation, Scheduler, Stopping};

pub use isolation::Isolation;
pub use stage::{Plan, StageError, add_file, duration};

use folder::Folders;
use lanes::Lanes;
use spawner::Spawner;
use users::Users;
use warden::Warden;

/// Frames that wait for a client before the program has to.
const FRAMES: usize = 8;
/// Pieces of standard input that wait for the program.
const INPUTS: usize = 4;

/// The backends of this process.
#[derive(Debug)]
pub struct Backends {
    slots: Vec<Mutex<Slot>>,
    scheduler: Scheduler,
    host: Arc<Host>,
}

/// What all jobs share.
#[derive(Debug)]
struct Host {
    pub isolation: Isolation,
    pub folders: Folders,
    pub lanes: Lanes,
    pub spawner: Spawner,
    pub warden: Arc<Warden>,
    pub limits: Limits,
    pub kill_after: Duration,
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

impl Backends {
    /// Makes the backends and tells the scheduler of them.
    pub async fn start(config: &Config, scheduler: Scheduler) -> std::io::Result<Self> {
        let mut isolation = Isolation::probe(&config.isolation).await;
        // A halted program may still be ending while the next one starts.
        let lanes = config.backends * 2;
        let users = isolation.first_uid().map(|first| Users::claim(first, lanes)).transpose()?;
        if let Some(users) = &users {
            isolation.set_first_uid(users.first());
            sweep::adopt()?;
        }
        let host = Arc::new(Host {
            folders: Folders::new()?,
            lanes: Lanes::new(lanes, users),
            spawner: Spawner::start(isolation.has_bubblewrap())?,
            isolation,
            warden: Warden::start(config.limits.clone()),
            limits: config.limits.clone(),
            kill_after: config.kill_after(),
        });
        let slots = (0..config.backends).map(|_| Mutex::default()).collect();
        let this = Backends { slots, scheduler, host };
        for id in 0..this.slots.len() {
            this.revive(id).await.map_err(std::io::Error::other)?;
        }
        Ok(this)
    }

    /// How programs are kept apart.
    pub fn isolation(&self) -> &Isolation {
        &self.host.isolation
    }

    /// How many folders of tasks there are: one for each program that runs or ends, and those that could not be
    /// removed yet.
    pub fn folders(&self) -> usize {
        self.host.folders.count()
    }

    /// Where the folders of tasks are.
    pub fn folder(&self) -> &Path {
        self.host.folders.path()
    }

    /// Runs a task on the backend that is held for it.
    pub fn run(&self, allocation: Allocation, plan: Arc<Plan>) -> Running {
        let (sender, frames) = mpsc::channel(FRAMES);
        let (input, stdin) = mpsc::channel(INPUTS);
        let running = Running { frames, input };
        let Some(slot) = self.slots.get(allocation.backend) else { return running };
        let mut slot = lock(slot);
        // A backend that died meanwhile runs nothing, so the allocation is lost with it.
        if slot.alive {
            let job = job::run(self.host.clone(), plan, allocation, sender, stdin);
            slot.jobs.retain(|job| !job.is_finished());
            slot.jobs.push(tokio::spawn(job).abort_handle());
        }
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
        for slot in &self.slots {
            lock(slot).jobs.drain(..).for_each(|job| job.abort());
        }
    }
}

fn lock(slot: &Mutex<Slot>) -> MutexGuard<'_, Slot> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

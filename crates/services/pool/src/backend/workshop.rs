//! Runs programs on this machine, or pretends to.

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::folder::Folders;
use super::isolation::Isolation;
use super::lanes::Lanes;
use super::ready::{Ready, refill};
use super::spawner::Spawner;
use super::sweep::{self, Mark};
use super::users::Users;
use super::wall::Shape;
use super::warden::Warden;
use super::{Plan, Running, job};
use crate::config::{Config, Limits};
use crate::protocol::{Outgoing, Stream};
use crate::scheduler::{Allocation, Control, Ended};

/// Frames that wait for a client before the program has to.
const FRAMES: usize = 8;
/// Pieces of standard input that wait for the program.
const INPUTS: usize = 4;

/// What runs tasks. The allocation is given back when the task has ended or its job is aborted.
pub trait Runner: Debug + Send + Sync {
    /// Runs a task.
    fn run(&self, allocation: Allocation, plan: Arc<Plan>) -> (Running, AbortHandle);

    /// What is not kept apart, a sentence for each.
    fn gaps(&self) -> Vec<String>;

    /// Nothing more comes: keeps nothing ready.
    fn close(&self) {}

    /// Whether nothing is left of any task, nor of what was there for the next one.
    fn is_clear(&self) -> bool {
        true
    }
}

/// Walls that are put up ahead of tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Walls {
    /// Those that stand ready.
    pub ready: usize,
    /// Tasks that found theirs ready, since the start.
    pub used: u64,
}

/// Runs programs on this machine.
#[derive(Clone, Debug)]
pub struct Workshop(Arc<Host>);

/// What all jobs share.
#[derive(Debug)]
pub(super) struct Host {
    pub isolation: Isolation,
    pub folders: Folders,
    pub lanes: Lanes,
    pub ready: Ready,
    pub spawner: Spawner,
    pub warden: Arc<Warden>,
    pub limits: Limits,
    pub kill_after: Duration,
}

impl Workshop {
    /// Sees what this machine allows, and has users, folders and the first walls ready.
    pub async fn start(config: &Config) -> std::io::Result<Self> {
        // A halted program may still be ending while the next one starts.
        let lanes = config.backends * 2;
        let root = rustix::process::geteuid().is_root();
        let users = root.then(|| Users::claim(config.isolation.first_uid, lanes)).transpose()?;
        let first = users.as_ref().map(Users::first);
        if let Some(first) = first {
            sweep::adopt()?;
            // Only what an earlier pool left behind when it was killed.
            let mark = Mark::Users(first..first + lanes);
            let clear = tokio::task::spawn_blocking(move || sweep::sweep(&mark)).await;
            if !clear.unwrap_or_default() {
                tracing::error!(first, lanes, "processes of an earlier pool cannot be killed");
            }
        }
        let isolation = Isolation::probe(&config.isolation, first).await;
        let host = Arc::new(Host {
            folders: Folders::new()?,
            lanes: Lanes::new(lanes, users),
            ready: Ready::new(config.backends),
            spawner: Spawner::start(isolation.has_bubblewrap())?,
            isolation,
            warden: Warden::start(config.limits.clone()),
            limits: config.limits.clone(),
            kill_after: config.kill_after(),
        });
        if let Some(program) = config.programs.values().next() {
            refill(&host, &Arc::new(Shape::of(program)));
        }
        Ok(Workshop(host))
    }

    /// How programs are kept apart.
    pub fn isolation(&self) -> &Isolation {
        &self.0.isolation
    }

    /// How many folders of tasks there are.
    pub fn folders(&self) -> usize {
        self.0.folders.count()
    }

    /// Where they are.
    pub fn folder(&self) -> &Path {
        self.0.folders.path()
    }

    /// The walls that stand before their task has come.
    pub fn walls(&self) -> Walls {
        Walls { ready: self.0.ready.count(), used: self.0.ready.used() }
    }

    /// Lets them fall; from now on a task waits for its own.
    pub fn close(&self) {
        self.0.ready.close();
    }

    /// Whether nothing is left of any task, nor of what was there for the next one.
    pub fn is_clear(&self) -> bool {
        // In this order: what is being put up has its folder before it is done.
        self.0.ready.is_idle() && self.0.folders.all() == 0
    }
}

impl Runner for Workshop {
    fn run(&self, allocation: Allocation, plan: Arc<Plan>) -> (Running, AbortHandle) {
        let (sender, frames) = mpsc::channel(FRAMES);
        let (input, stdin) = mpsc::channel(INPUTS);
        let job = job::run(self.0.clone(), plan, allocation, sender, stdin);
        (Running { frames, input }, tokio::spawn(job).abort_handle())
    }

    fn gaps(&self) -> Vec<String> {
        self.0.isolation.gaps()
    }

    fn close(&self) {
        Workshop::close(self);
    }

    fn is_clear(&self) -> bool {
        Workshop::is_clear(self)
    }
}

/// Runs nothing: each task writes a word and ends after a while. For measurements and for storms of tasks, where
/// what surrounds programs is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Stub {
    /// How long each task takes.
    pub takes: Duration,
}

impl Runner for Stub {
    fn run(&self, mut allocation: Allocation, _: Arc<Plan>) -> (Running, AbortHandle) {
        let (sender, frames) = mpsc::channel(FRAMES);
        let (input, _) = mpsc::channel(INPUTS);
        let takes = self.takes;
        let job = async move {
            let _ = sender.send(Outgoing::Output(Stream::Stdout, Vec::new())).await;
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
            allocation.end(Ended::Done);
            let _ = sender.send(Outgoing::Output(Stream::Stdout, b"done\n".to_vec())).await;
            let _ = sender.send(Outgoing::Complete(error)).await;
        };
        (Running { frames, input }, tokio::spawn(job).abort_handle())
    }

    fn gaps(&self) -> Vec<String> {
        vec!["nothing is run at all: each task only pretends".into()]
    }
}

//! Controls a program with all processes it started as one group.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::process::Child;

use super::resource_monitor::all_processes;

/// A child that leads its own process group. The whole group is killed when this is dropped.
///
/// If the child is bubblewrap, the program is not in that group but in the session of bubblewrap's child, the init
/// process of a PID namespace. Signals are sent there: bubblewrap itself would be killed by the first one, and the
/// program with it. Bubblewrap ends when its child has ended.
#[derive(Debug)]
pub(crate) struct ProcessGroup {
    sandboxed: bool,
    child: Child,
    pid: Pid,
    exit: AsyncFd<OwnedFd>,
    reaped: bool,
}

impl ProcessGroup {
    /// Takes over a child that was just started; `sandboxed` says whether it is bubblewrap.
    pub fn new(child: Child, sandboxed: bool) -> io::Result<Self> {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let pid = id.and_then(Pid::from_raw).ok_or_else(|| io::Error::other("no process"))?;
        let exit = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe, for types that change their number; an OwnedFd does not"
        )]
        let exit = AsyncFd::with_interest(exit, Interest::READABLE)?;
        Ok(ProcessGroup { sandboxed, child, pid, exit, reaped: false })
    }

    /// The process id of the leader.
    pub fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Completes when the leader has ended. It is not reaped yet, so its process id is not reused and the rest of the
    /// group can be killed safely.
    pub async fn ended(&self) -> io::Result<()> {
        self.exit.readable().await.map(drop)
    }

    /// Sends SIGTERM to the program.
    pub fn terminate(&self) {
        match self.init_process() {
            // Without a session the program has not been started yet.
            Some(init) if kill_process_group(init, Signal::TERM).is_ok() => {}
            _ if self.sandboxed => self.kill(),
            _ => self.signal(Signal::TERM),
        }
    }

    /// Kills the program. A process that cannot be killed keeps bubblewrap alive, so it is noticed.
    pub fn kill(&self) {
        match self.init_process() {
            Some(init) => drop(kill_process(init, Signal::KILL)),
            None => self.signal(Signal::KILL),
        }
    }

    /// The init process of the sandbox, if it exists yet.
    fn init_process(&self) -> Option<Pid> {
        let init = || children(self.id(), self.id()).first().copied();
        (self.sandboxed && !self.reaped).then(init).flatten()
    }

    /// Kills the rest of the group and returns how its leader ended.
    pub async fn reap(&mut self) -> io::Result<ExitStatus> {
        self.signal(Signal::KILL);
        let status = self.child.wait().await?;
        self.reaped = true;
        Ok(status)
    }

    fn signal(&self, signal: Signal) {
        if !self.reaped {
            // A group that is gone needs no signal.
            let _ = kill_process_group(self.pid, signal);
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
        self.signal(Signal::KILL);
    }
}

/// The children of a thread of a process that is not reaped yet; where the kernel does not list them by thread, those
/// of the whole process.
pub(super) fn children(parent: u32, thread: u32) -> Vec<Pid> {
    let pid = |id: u32| i32::try_from(id).ok().and_then(Pid::from_raw);
    match fs::read_to_string(format!("/proc/{parent}/task/{thread}/children")) {
        Ok(ids) => {
            ids.split_whitespace().filter_map(|id| id.parse().ok()).filter_map(pid).collect()
        }
        // Not every kernel has this file.
        Err(_) => {
            let all = all_processes().into_iter().filter(|process| process.parent == parent);
            all.filter_map(|process| pid(process.id)).collect()
        }
    }
}

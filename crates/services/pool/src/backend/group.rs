//! A program with everything it started, as one thing that can be ended.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::process::Child;

use super::warden::processes;

/// A child that leads its own process group. The whole group is killed when this is dropped.
///
/// Where the child is bubblewrap, the program is not in that group but in the session of bubblewrap's own child, the
/// first process of a namespace. Signals go there: bubblewrap itself would die of the first one, and the program with
/// it, unasked. It ends when its child has.
#[derive(Debug)]
pub(crate) struct Group {
    wrapped: bool,
    child: Child,
    pid: Pid,
    exit: AsyncFd<OwnedFd>,
    reaped: bool,
}

impl Group {
    /// Takes over a child that was just started, `wrapped` in bubblewrap or not.
    pub fn new(child: Child, wrapped: bool) -> io::Result<Self> {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let pid = id.and_then(Pid::from_raw).ok_or_else(|| io::Error::other("no process"))?;
        let exit = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe, for types that change their number; an OwnedFd does not"
        )]
        let exit = AsyncFd::with_interest(exit, Interest::READABLE)?;
        Ok(Group { wrapped, child, pid, exit, reaped: false })
    }

    /// The number of the leader.
    pub fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Ready when the leader has ended. It is not reaped yet, so its number is still its own and the
    /// rest of the group can be killed without hitting a stranger.
    pub async fn ended(&self) -> io::Result<()> {
        self.exit.readable().await.map(drop)
    }

    /// Asks the program to end.
    pub fn terminate(&self) {
        match self.first_inside() {
            // One without a session has not come to its program yet.
            Some(first) if kill_process_group(first, Signal::TERM).is_ok() => {}
            _ if self.wrapped => self.kill(),
            _ => self.signal(Signal::TERM),
        }
    }

    /// Ends the program. What cannot be killed inside bubblewrap keeps that alive, so it is noticed.
    pub fn kill(&self) {
        match self.first_inside() {
            Some(first) => drop(kill_process(first, Signal::KILL)),
            None => self.signal(Signal::KILL),
        }
    }

    /// The first process inside bubblewrap, if it is there yet.
    fn first_inside(&self) -> Option<Pid> {
        let first = || children(self.id(), self.id()).first().copied();
        (self.wrapped && !self.reaped).then(first).flatten()
    }

    /// Kills what is left of the group and says how its leader ended.
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

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
        self.signal(Signal::KILL);
    }
}

/// The children of a thread of a process that is not reaped yet; where the system does not tell threads apart, those of
/// the whole process.
pub(super) fn children(parent: u32, thread: u32) -> Vec<Pid> {
    let pid = |id: u32| i32::try_from(id).ok().and_then(Pid::from_raw);
    match fs::read_to_string(format!("/proc/{parent}/task/{thread}/children")) {
        Ok(ids) => {
            ids.split_whitespace().filter_map(|id| id.parse().ok()).filter_map(pid).collect()
        }
        // Not every system tells them so.
        Err(_) => {
            let all = processes().into_iter().filter(|process| process.parent == parent);
            all.filter_map(|process| pid(process.id)).collect()
        }
    }
}

//! A program with everything it started, as one thing that can be ended.

use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::process::Child;

/// A child that leads its own process group. The whole group is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Group {
    child: Child,
    pid: Pid,
    exit: AsyncFd<OwnedFd>,
    reaped: bool,
}

impl Group {
    /// Takes over a child that was just started.
    pub fn new(child: Child) -> io::Result<Self> {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let pid = id.and_then(Pid::from_raw).ok_or_else(|| io::Error::other("no process"))?;
        let exit = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe, for types that change their number; an OwnedFd does not"
        )]
        let exit = AsyncFd::with_interest(exit, Interest::READABLE)?;
        Ok(Group { child, pid, exit, reaped: false })
    }

    /// The number of the leader.
    pub fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Ready when the leader has ended. It is not reaped yet, so its number is still its own and the
    /// rest of the group can be killed without hitting a stranger.
    pub async fn ended(&self) -> io::Result<()> {
        self.exit.readable().await.map(drop)
    }

    /// Asks the group to end.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Ends the group.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Kills what is left of the group and says how its leader ended.
    pub async fn reap(&mut self) -> io::Result<ExitStatus> {
        self.kill();
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
    }
}

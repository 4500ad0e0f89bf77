//! Starts all programs from one thread.

use std::io;
use std::sync::mpsc;
use std::thread;

use tokio::process::Command;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::process_group::ProcessGroup;
use super::workspace::Workspace;

/// A handle to the thread that starts programs. The thread lives as long as the pool: starting a program takes time
/// that the threads that serve clients do not have, and some of those end, which a program that requests a signal at
/// the end of its parent would take for the end of the pool.
#[derive(Debug)]
pub(super) struct Spawner(mpsc::Sender<SpawnRequest>);

struct SpawnRequest {
    command: Command,
    /// Not cleaned up before the program exists and can be killed.
    workspace: Workspace,
    reply: oneshot::Sender<io::Result<ProcessGroup>>,
}

impl Spawner {
    /// Starts the thread, on the current runtime; it ends when this is dropped. `sandboxed` says whether programs run
    /// inside bubblewrap.
    pub fn start(sandboxed: bool) -> io::Result<Self> {
        let (sender, requests) = mpsc::channel::<SpawnRequest>();
        let runtime = Handle::current();
        thread::Builder::new().name("pool-spawner".into()).spawn(move || {
            let _entered = runtime.enter();
            for SpawnRequest { mut command, workspace, reply } in requests {
                let started = command.spawn().and_then(|child| {
                    let group = ProcessGroup::new(child, sandboxed)?;
                    // A program in a sandbox starts only when this is done.
                    workspace.control_group().map_or(Ok(()), |control| control.add(group.id()))?;
                    Ok(group)
                });
                // If the receiver is gone, the program is killed by being dropped.
                drop(reply.send(started));
                drop(workspace);
            }
        })?;
        Ok(Spawner(sender))
    }

    /// Starts a program in this workspace.
    pub async fn spawn(&self, command: Command, workspace: Workspace) -> io::Result<ProcessGroup> {
        let (reply, started) = oneshot::channel();
        let gone = || io::Error::other("the thread that starts programs is gone");
        self.0.send(SpawnRequest { command, workspace, reply }).map_err(|_| gone())?;
        started.await.map_err(|_| gone())?
    }
}

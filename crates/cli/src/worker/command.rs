//! The command of a task, in a process group of its own: a Ctrl-C in the terminal does not reach
//! it, and killing it reaches everything it started.

use std::io;
use std::process::{ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use taskyard_core::{Task, TubeName};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use crate::data;

/// A command that runs. When this goes before the command has ended, the whole group is killed.
pub struct Running {
    child: Child,
    group: Option<Pid>,
    feeding: JoinHandle<()>,
}

impl Running {
    /// Starts `command` by a shell, with the task's payload on its standard input.
    pub fn start(command: &str, tube: &TubeName, task: &Task) -> io::Result<Self> {
        let lease = task.lease.map(|lease| lease.to_string()).unwrap_or_default();
        let mut shell = Command::new("sh");
        shell
            .args(["-c", command])
            .env("TASKYARD_TUBE", tube.as_str())
            .env("TASKYARD_ID", task.id.to_string())
            .env("TASKYARD_LEASE", lease)
            .env("TASKYARD_ATTEMPTS", task.attempts.to_string());
        Running::spawn(shell, data::plain(task.body.as_ref()))
    }

    /// Starts a command with this on its standard input.
    pub fn spawn(mut command: Command, payload: Vec<u8>) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).process_group(0).spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let input = child.stdin.take();
        let feeding = tokio::spawn(async move {
            if let Some(mut input) = input {
                // Whether the command reads its input or not is its own affair.
                let _ = input.write_all(&payload).await;
            }
        });
        Ok(Running { child, group, feeding })
    }

    /// Waits for the command's own end; what it left in the background goes on.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await?;
        // From here on the number may belong to somebody else.
        self.group = None;
        Ok(status)
    }

    /// Kills the command and everything it started.
    pub async fn kill(mut self) -> io::Result<()> {
        self.kill_group();
        self.wait().await.map(drop)
    }

    fn kill_group(&self) {
        if let Some(group) = self.group {
            // A group that has just ended needs no killing.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.feeding.abort();
        self.kill_group();
    }
}

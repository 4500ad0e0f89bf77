//! Runs the command of a task in its own process group: Ctrl-C in the terminal does not signal it, and killing it kills
//! all its children.

use std::io;
use std::process::{ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use taskyard_core::{Task, TubeName};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use crate::payload;

/// A running command. Dropping it before the command has ended kills the whole process group.
pub struct RunningCommand {
    child: Child,
    group: Option<Pid>,
    feeding: JoinHandle<()>,
}

impl RunningCommand {
    /// Starts `command` in a shell, with the payload of the task on its standard input.
    pub fn start(command: &str, tube: &TubeName, task: &Task) -> io::Result<Self> {
        let lease = task.lease.map(|lease| lease.to_string()).unwrap_or_default();
        let mut shell = Command::new("sh");
        shell
            .args(["-c", command])
            .env("TASKYARD_TUBE", tube.as_str())
            .env("TASKYARD_ID", task.id.to_string())
            .env("TASKYARD_LEASE", lease)
            .env("TASKYARD_ATTEMPTS", task.attempts.to_string());
        RunningCommand::spawn(shell, payload::plain(task.body.as_ref()))
    }

    /// Starts a command with this on its standard input.
    pub fn spawn(mut command: Command, payload: Vec<u8>) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).process_group(0).spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let input = child.stdin.take();
        let feeding = tokio::spawn(async move {
            if let Some(mut input) = input {
                // The command need not read its input.
                let _ = input.write_all(&payload).await;
            }
        });
        Ok(RunningCommand { child, group, feeding })
    }

    /// Waits for the end of the command; its background processes continue.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await?;
        // From here on the process id may be reused.
        self.group = None;
        Ok(status)
    }

    /// Kills the command and all its children.
    pub async fn kill(mut self) -> io::Result<()> {
        self.kill_group();
        self.wait().await.map(drop)
    }

    fn kill_group(&self) {
        if let Some(group) = self.group {
            // The group may have just ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        self.feeding.abort();
        self.kill_group();
    }
}

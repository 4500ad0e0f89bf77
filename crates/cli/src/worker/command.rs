//! Runs the command of a task in its own process group: Ctrl-C in the terminal does not signal it, and killing it kills
//! all its children. What it writes is passed on, and its end is kept for the task.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use taskyard_core::{Task, TubeName};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use crate::payload;

/// How many bytes of the last errors of a command are kept: with the exit status they fit into the error of a task.
const ERRORS_KEPT: usize = 800;
/// How long the worker waits for the rest of the output after a command has ended: a background process may hold it open.
const OUTPUT_WAIT: Duration = Duration::from_millis(200);

/// A running command. Dropping it before the command has ended kills the whole process group.
pub struct RunningCommand {
    child: Child,
    group: Option<Pid>,
    feeding: JoinHandle<()>,
    errors: Option<PassedOutput>,
    output: Option<PassedOutput>,
}

impl RunningCommand {
    /// Starts `command` in a shell, with the payload of the task on its standard input. Up to `output_kept` bytes of its
    /// standard output are kept.
    pub fn start(
        command: &str,
        tube: &TubeName,
        task: &Task,
        output_kept: Option<usize>,
    ) -> io::Result<Self> {
        let lease = task.lease.map(|lease| lease.to_string()).unwrap_or_default();
        let mut shell = Command::new("sh");
        shell
            .args(["-c", command])
            .env("TASKYARD_TUBE", tube.as_str())
            .env("TASKYARD_ID", task.id.to_string())
            .env("TASKYARD_LEASE", lease)
            .env("TASKYARD_ATTEMPTS", task.attempts.to_string())
            .stderr(Stdio::piped());
        if output_kept.is_some() {
            shell.stdout(Stdio::piped());
        }
        let mut running = RunningCommand::spawn(shell, payload::plain(task.body.as_ref()))?;
        let errors = running.child.stderr.take();
        running.errors = errors.map(|from| {
            PassedOutput::begin(from, tokio::io::stderr(), OutputPart::End(ERRORS_KEPT))
        });
        running.output = running.child.stdout.take().zip(output_kept).map(|(from, bytes)| {
            PassedOutput::begin(from, tokio::io::stdout(), OutputPart::Beginning(bytes))
        });
        Ok(running)
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
        Ok(RunningCommand { child, group, feeding, errors: None, output: None })
    }

    /// Waits for the end of the command; its background processes continue.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await?;
        // From here on the process id may be reused.
        self.group = None;
        Ok(status)
    }

    /// What the command wrote last to its standard error, after its end.
    pub async fn last_errors(&mut self) -> String {
        kept_text(self.errors.take()).await
    }

    /// The beginning of its standard output, after its end.
    pub async fn output(&mut self) -> String {
        kept_text(self.output.take()).await
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

/// Which part of an output is kept.
#[derive(Clone, Copy)]
enum OutputPart {
    Beginning(usize),
    End(usize),
}

impl OutputPart {
    fn add(self, kept: &Mutex<Vec<u8>>, part: &[u8]) {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        match self {
            OutputPart::Beginning(most) => {
                let size = part.len().min(most.saturating_sub(kept.len()));
                kept.extend_from_slice(&part[..size]);
            }
            OutputPart::End(most) => {
                kept.extend_from_slice(part);
                let surplus = kept.len().saturating_sub(most);
                kept.drain(..surplus);
            }
        }
    }
}

/// An output of a command that is passed on to the same output of the worker.
struct PassedOutput {
    kept: Arc<Mutex<Vec<u8>>>,
    passing: JoinHandle<()>,
}

impl PassedOutput {
    /// Passes the output on without blocking the thread of the worker, which has to extend the lease.
    fn begin(
        mut from: impl AsyncRead + Send + Unpin + 'static,
        mut to: impl AsyncWrite + Send + Unpin + 'static,
        which: OutputPart,
    ) -> Self {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let shared = kept.clone();
        let passing = tokio::spawn(async move {
            let mut part = [0; 8192];
            while let Ok(size @ 1..) = from.read(&mut part).await {
                which.add(&shared, &part[..size]);
                // The worker's own output may be closed; the command continues.
                if to.write_all(&part[..size]).await.is_ok() {
                    let _ = to.flush().await;
                }
            }
        });
        PassedOutput { kept, passing }
    }
}

/// The text that was kept, without white space around it. An output that a background process holds open is passed on
/// further.
async fn kept_text(output: Option<PassedOutput>) -> String {
    let Some(PassedOutput { kept, passing }) = output else { return String::new() };
    let _ = tokio::time::timeout(OUTPUT_WAIT, passing).await;
    let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    String::from_utf8_lossy(&kept).trim().to_owned()
}

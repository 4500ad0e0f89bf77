//! Starts sandboxes: a folder, a user id, and bubblewrap with an init process that waits for a request. Starting one
//! takes most of the time from the arrival of a task to its start, so it is done ahead where possible.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use tokio::net::unix::pipe;
use tokio::process::Command;

use super::init_channel::InitChannel;
use super::isolation::{PathState, path_states};
use super::process_group::ProcessGroup;
use super::run_request::{ProgramStreams, RunRequest};
use super::user_slots::UserSlot;
use super::workspace::Workspace;
use super::{RunnerShared, TaskSpec};
use crate::config::Program;

/// What a sandbox depends on before its task is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SandboxSpec {
    /// Paths that can be read inside beside `/usr`.
    pub read: Vec<PathBuf>,
    /// Environment variables beside the standard ones.
    pub environment: BTreeMap<String, String>,
}

impl SandboxSpec {
    pub fn of(program: &Program) -> Self {
        SandboxSpec { read: program.read.clone(), environment: program.environment.clone() }
    }
}

/// A sandbox for one task, never used again. A request that is sent while it is being started is handled afterwards.
/// It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Sandbox {
    pub spec: Arc<SandboxSpec>,
    /// The paths of the machine that it shows.
    paths: Vec<PathState>,
    group: ProcessGroup,
    init: InitChannel,
    stderr: pipe::Receiver,
    /// Last, so that processes are killed before their folder is removed.
    workspace: Workspace,
}

/// A program that was started, or is about to be.
#[derive(Debug)]
pub(super) struct StartedProgram {
    pub group: ProcessGroup,
    /// The channel to the init process of the sandbox.
    pub init: Option<InitChannel>,
    pub stdin: Option<pipe::Sender>,
    pub stdout: pipe::Receiver,
    pub stderr: pipe::Receiver,
    pub workspace: Workspace,
}

impl Sandbox {
    /// Starts a sandbox for this user.
    pub async fn start(
        shared: &Arc<RunnerShared>,
        spec: Arc<SandboxSpec>,
        slot: UserSlot,
    ) -> io::Result<Self> {
        let workspace = Workspace::open(shared.clone(), slot).await?;
        let paths = path_states(&spec.read);
        let (init, socket) = InitChannel::open()?;
        let (stderr, errors) = io::pipe()?;
        let mut command =
            Command::from(shared.isolation.sandbox_command(&spec, workspace.context())?);
        command.stdout(socket).stderr(errors).kill_on_drop(true);
        let group = shared.spawner.spawn(command, workspace.clone()).await?;
        let stderr = pipe::Receiver::from_owned_fd(stderr.into())?;
        Ok(Sandbox { spec, paths, group, init, stderr, workspace })
    }

    /// Whether the paths it shows are still those of the machine.
    pub fn is_current(&self) -> bool {
        path_states(&self.spec.read) == self.paths
    }

    /// Writes the files of the task and sends the request to run it. The channel reports whether it started.
    pub async fn run(
        mut self,
        shared: &RunnerShared,
        task: &Arc<TaskSpec>,
        seconds_max: Option<u64>,
    ) -> io::Result<StartedProgram> {
        self.workspace.fill(task.clone()).await?;
        let limits = shared.isolation.limits(self.workspace.uid(), seconds_max, &shared.limits);
        let request = RunRequest { command: task.command.clone(), limits };
        let (stdout, output) = io::pipe()?;
        let (input, stdin) = task.interactive.then(io::pipe).transpose()?.unzip();
        let streams = ProgramStreams { stdout: output.into(), stdin: input.map(OwnedFd::from) };
        // Everything that may fail comes before the program can start.
        let stdin = stdin.map(|end| pipe::Sender::from_owned_fd(end.into())).transpose()?;
        let stdout = pipe::Receiver::from_owned_fd(stdout.into())?;
        self.init.send_request(&request, streams).await?;
        Ok(StartedProgram {
            group: self.group,
            init: Some(self.init),
            stdin,
            stdout,
            stderr: self.stderr,
            workspace: self.workspace,
        })
    }
}

impl StartedProgram {
    /// Starts the program of a task without a sandbox.
    pub async fn unsandboxed(
        shared: &Arc<RunnerShared>,
        task: &Arc<TaskSpec>,
        seconds_max: Option<u64>,
        slot: UserSlot,
    ) -> io::Result<Self> {
        let workspace = Workspace::open(shared.clone(), slot).await?;
        workspace.fill(task.clone()).await?;
        let limits = shared.isolation.limits(workspace.uid(), seconds_max, &shared.limits);
        let command = shared.isolation.unsandboxed_command(task, workspace.context(), limits);
        let mut command = Command::from(command?);
        let [(stdout, output), (stderr, errors)] = [io::pipe()?, io::pipe()?];
        let (input, stdin) = task.interactive.then(io::pipe).transpose()?.unzip();
        command.stdin(input.map_or_else(Stdio::null, Stdio::from));
        command.stdout(output).stderr(errors).kill_on_drop(true);
        let group = shared.spawner.spawn(command, workspace.clone()).await?;
        Ok(StartedProgram {
            group,
            init: None,
            stdin: stdin.map(|end| pipe::Sender::from_owned_fd(end.into())).transpose()?,
            stdout: pipe::Receiver::from_owned_fd(stdout.into())?,
            stderr: pipe::Receiver::from_owned_fd(stderr.into())?,
            workspace,
        })
    }
}

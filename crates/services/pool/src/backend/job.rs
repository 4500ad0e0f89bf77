//! Runs one task: starts its program, forwards output, enforces the time limit, and reads the result.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout};

use super::init_channel::{InitChannel, ProgramExit};
use super::output::OutputReader;
use super::process_group::ProcessGroup;
use super::resource_monitor::{MonitorGuard, MonitoredTask, memory_limit};
use super::sandbox::{SandboxSpec, StartedProgram};
use super::sandbox_pool::{ActiveTask, start_new};
use super::stopwatch::Stopwatch;
use super::workspace::Workspace;
use super::{RunnerShared, TaskSpec};
use crate::protocol::{OutgoingFrame, Stream};
use crate::scheduler::{Allocation, Control, RunOutcome};
use crate::units::seconds;

/// How long a killed program may take to end; then its backend is taken out of service for good. A machine that is
/// overloaded for a while must not cost a backend.
const KILL_MAX: Duration = Duration::from_secs(15);
/// How long output of an ended program is still read.
const DRAIN_MAX: Duration = Duration::from_millis(200);
/// Signals with which another process may have killed the program.
const KILL_SIGNALS: [i32; 2] = [9, 15];
/// Bubblewrap reports a program killed by a signal with this plus the signal number.
const SIGNAL_STATUS_BASE: i32 = 128;
/// The signal for used up processor time.
const CPU_LIMIT_SIGNAL: i32 = 24;

/// The error for a program that never started.
const NOT_STARTED: &str = "the program could not be started";

/// Why a program was stopped.
#[derive(Clone, Debug, PartialEq)]
enum StopReason {
    Time(Duration),
    /// It has not started in time.
    StartTimeout,
    Halt(String),
    /// It exceeded a resource limit.
    Limit(String),
    ClientLeft,
}

/// How a program ended.
struct ProgramEnd {
    /// The status of the started process: the program, or bubblewrap around it.
    status: io::Result<ExitStatus>,
    /// The exit that the init process of the sandbox reported.
    exit: Option<ProgramExit>,
    stop: Option<StopReason>,
    output_exceeded: bool,
    /// Output that was not sent to the client yet.
    rest: Vec<OutgoingFrame>,
}

/// Runs a task to its end. The backend is free before the client has read everything.
pub(super) async fn run(
    shared: Arc<RunnerShared>,
    spec: Arc<TaskSpec>,
    mut allocation: Allocation,
    frames: mpsc::Sender<OutgoingFrame>,
    mut stdin: mpsc::Receiver<Vec<u8>>,
) {
    let active = ActiveTask::new(shared.clone(), SandboxSpec::of(&spec.program));
    let mut choice = SandboxChoice::ReadyOrNew;
    // When the time limit was lowered by the client or the pool.
    let mut lowered = None;
    let (mut end, workspace) = loop {
        let start = match start(&active, &shared, &spec, allocation.limit, choice).await {
            Some(Ok(start)) => start,
            Some(Err(error)) => {
                return fail(allocation, &frames, "cannot start the program", &error).await;
            }
            None => return,
        };
        let ready = start.ready;
        let mut watch = ProgramRun::new(&shared, &spec, start.program, stdin, frames.clone());
        let Some(end) = watch.run(&mut allocation, &mut lowered).await else {
            return allocation.finish(RunOutcome::Stuck);
        };
        let (workspace, unread_input) = (watch.workspace.clone(), watch.unread_input());
        match unread_input {
            // A ready sandbox may have died while it waited; the client need not know.
            Some(client_input) if ready && end.never_started() => {
                (stdin, choice) = (client_input, SandboxChoice::New)
            }
            _ => break (end, workspace),
        }
    };
    let rest = std::mem::take(&mut end.rest);
    // If it may not run again, the client learns how it ended.
    if end.may_retry() && allocation.may_rerun() {
        return allocation.finish(RunOutcome::Lost);
    }
    let last = last_frames(&shared, &spec, &workspace, &end).await;
    drop(workspace);
    drop(active);
    allocation.finish(RunOutcome::Done);
    for frame in rest.into_iter().chain(last) {
        if frames.send(frame).await.is_err() {
            return;
        }
    }
}

/// Which sandbox a task gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SandboxChoice {
    /// A ready one, if there is one.
    ReadyOrNew,
    /// A newly started one.
    New,
}

/// A started program, and whether its sandbox was started ahead.
struct JobStart {
    program: StartedProgram,
    ready: bool,
}

/// Starts the program of a task; `None` if the pool is stopping.
async fn start(
    active: &ActiveTask,
    shared: &Arc<RunnerShared>,
    spec: &Arc<TaskSpec>,
    limit: Option<Duration>,
    choice: SandboxChoice,
) -> Option<io::Result<JobStart>> {
    let seconds_max = limit.map(|limit| limit.as_secs() + 1);
    if !shared.isolation.has_bubblewrap() {
        let slot = shared.users.take().await?;
        let program = StartedProgram::unsandboxed(shared, spec, seconds_max, slot).await;
        return Some(program.map(|program| JobStart { program, ready: false }));
    }
    if choice == SandboxChoice::ReadyOrNew
        && let Some(sandbox) = shared.sandboxes.take(&active.spec).await
        && sandbox.is_current()
    {
        match sandbox.run(shared, spec, seconds_max).await {
            Ok(program) => return Some(Ok(JobStart { program, ready: true })),
            Err(error) => tracing::debug!(%error, "a ready sandbox cannot be used"),
        }
    }
    let program = match start_new(shared, &active.spec).await? {
        Ok(sandbox) => sandbox.run(shared, spec, seconds_max).await,
        Err(error) => Err(error),
    };
    Some(program.map(|program| JobStart { program, ready: false }))
}

async fn fail(
    allocation: Allocation,
    frames: &mpsc::Sender<OutgoingFrame>,
    what: &str,
    error: &io::Error,
) {
    tracing::error!(%error, "{what}");
    allocation.finish(RunOutcome::Done);
    let _ = frames.send(OutgoingFrame::Complete(Some(format!("{what}: {error}")))).await;
}

/// A program under supervision.
struct ProgramRun {
    group: ProcessGroup,
    /// The channel to the init process of its sandbox.
    init: Option<InitChannel>,
    /// Since when the program runs, as far as that is known.
    time: Stopwatch,
    stdout: OutputReader<pipe::Receiver>,
    stderr: OutputReader<pipe::Receiver>,
    /// A frame that the client has not taken yet; until then nothing more is read.
    pending: Option<OutgoingFrame>,
    frames: mpsc::Sender<OutgoingFrame>,
    /// Input of the client, until a task forwards it.
    client_input: Option<mpsc::Receiver<Vec<u8>>>,
    /// Input sent before the start, and the standard input of the program, until it has started.
    program_stdin: Option<(Vec<u8>, pipe::Sender)>,
    stdin_task: Option<AbortHandle>,
    kill_after: Duration,
    memory_bytes_max: u64,
    resources: MonitorGuard,
    workspace: Workspace,
}

impl ProgramRun {
    fn new(
        shared: &RunnerShared,
        spec: &TaskSpec,
        program: StartedProgram,
        client_input: mpsc::Receiver<Vec<u8>>,
        frames: mpsc::Sender<OutgoingFrame>,
    ) -> Self {
        let StartedProgram { group, init, stdin, stdout, stderr, workspace } = program;
        let context = workspace.context();
        let monitored = MonitoredTask {
            folder: context.folder.into(),
            uid: context.uid,
            leader: group.id(),
            control_group: workspace.control_group().map(|control| control.folder().into()),
            memory_folder_bytes: shared.isolation.memory_folder_bytes(),
        };
        let bytes_max = shared.limits.output_bytes_max;
        let errors = if spec.stderr_redir { Stream::Stdout } else { Stream::Stderr };
        let mut time = Stopwatch::new(Instant::now());
        if init.is_none() {
            time.start(Instant::now());
        }
        ProgramRun {
            stdout: OutputReader::new(Some(stdout), Stream::Stdout, bytes_max),
            stderr: OutputReader::new(Some(stderr), errors, bytes_max),
            time,
            pending: init.is_none().then(started_frame),
            client_input: Some(client_input),
            program_stdin: stdin.map(|pipe| (spec.stdin.clone(), pipe)),
            kill_after: shared.kill_after,
            memory_bytes_max: shared.limits.task_memory_bytes_max,
            resources: shared.monitor.watch(monitored),
            stdin_task: None,
            init,
            group,
            frames,
            workspace,
        }
    }

    /// Connects the client to the standard input. Nothing is taken before the start, because another run may need it.
    fn start_stdin(&mut self) {
        if let Some((first, pipe)) = self.program_stdin.take()
            && let Some(client_input) = self.client_input.take()
        {
            self.stdin_task =
                Some(tokio::spawn(write_stdin(pipe, first, client_input)).abort_handle());
        }
    }

    /// The input of the client, if none of it was taken.
    fn unread_input(mut self) -> Option<mpsc::Receiver<Vec<u8>>> {
        self.client_input.take()
    }

    /// Supervises the program to its end; `None` if it cannot be killed.
    async fn run(
        &mut self,
        allocation: &mut Allocation,
        lowered: &mut Option<Instant>,
    ) -> Option<ProgramEnd> {
        let stop = self.until_end_or_stop(allocation, lowered).await;
        if stop.is_some() {
            match self.time.has_started() {
                true => self.group.terminate(),
                // The init process does not handle SIGTERM and would still start the program.
                false => self.group.kill(),
            }
            if timeout(self.kill_after, self.group.ended()).await.is_err() {
                self.group.kill();
                if timeout(KILL_MAX, self.group.ended()).await.is_err() {
                    return None;
                }
            }
        }
        let status = self.group.reap().await;
        let exit = match self.init.take() {
            Some(init) => Some(init.exit().await),
            None => None,
        };
        if !self.time.has_started()
            && exit
                .is_some_and(|exit| !matches!(exit, ProgramExit::NotStarted | ProgramExit::Refused))
        {
            self.pending = Some(started_frame());
        }
        // Bubblewrap exits by itself after its init process, with which all other processes of the sandbox end.
        let exit_known = matches!(exit, Some(ProgramExit::Exited(_) | ProgramExit::Killed(_)));
        if exit_known && status.as_ref().is_ok_and(|status| status.code().is_some()) {
            self.workspace.note_processes_gone();
        }
        let rest = self.drain().await;
        let output_exceeded = self.stdout.exceeded() || self.stderr.exceeded();
        // A program that never started is reported as such.
        let stop = stop.filter(|stop| *stop != StopReason::StartTimeout);
        // The kernel has killed the whole group; another run would end in the same way.
        let out_of_memory =
            || self.workspace.control_group().is_some_and(|one| one.is_out_of_memory());
        let stop = match stop {
            None if out_of_memory() => Some(StopReason::Limit(memory_limit(self.memory_bytes_max))),
            stop => stop,
        };
        Some(ProgramEnd { status, exit, stop, output_exceeded, rest })
    }

    /// Forwards output until the program ends by itself or has to be stopped.
    async fn until_end_or_stop(
        &mut self,
        allocation: &mut Allocation,
        lowered: &mut Option<Instant>,
    ) -> Option<StopReason> {
        loop {
            allocation.note_pause(self.time.tick(Instant::now()));
            let started = self.time.has_started();
            if started {
                self.start_stdin();
            }
            if self.pending.is_none() {
                self.pending = self.stdout.take_full().or_else(|| self.stderr.take_full());
            }
            let due = [self.stdout.due(), self.stderr.due()].into_iter().flatten().min();
            // What is written before the program starts is not output of the program: it is read at the end.
            let idle = started && self.pending.is_none();
            let (end, start_end) = (self.time.end(allocation.limit), self.time.start_end());
            tokio::select! {
                biased;
                () = self.frames.closed() => return Some(StopReason::ClientLeft),
                control = allocation.control.recv() => match control {
                    Some(Control::Limit(lower)) => {
                        // It also applies if the task has to continue in another sandbox.
                        allocation.limit = Some(lower);
                        *lowered = Some(Instant::now());
                    }
                    Some(Control::Halt(why)) => return Some(StopReason::Halt(why)),
                    None => return Some(StopReason::Halt("the pool is stopping".into())),
                },
                // Checked before the time limit: a program that has ended was not stopped, however late that is
                // noticed.
                _ = self.group.ended() => {
                    allocation.note_pause(self.time.tick(Instant::now()));
                    return None;
                }
                // Checked before the time limit, too: time does not count while the pool is paused.
                () = sleep_until(self.time.next_tick()) => {}
                () = at(end) => {
                    let limit = allocation.limit.unwrap_or_default();
                    allocation.note_time_limit(limit, *lowered);
                    return Some(StopReason::Time(limit));
                }
                () = at(start_end) => return Some(StopReason::StartTimeout),
                why = self.resources.limit_exceeded() => return Some(StopReason::Limit(why)),
                () = program_started(&mut self.init), if !started => {
                    self.time.start(Instant::now());
                    self.pending = Some(started_frame());
                }
                permit = self.frames.reserve(), if self.pending.is_some() => {
                    if let (Ok(permit), Some(frame)) = (permit, self.pending.take()) {
                        if frame.is_visible() {
                            allocation.mark_seen();
                        }
                        permit.send(frame);
                    }
                }
                () = at(due), if idle => {
                    let now = Instant::now();
                    self.pending = self.stdout.take_due(now).or_else(|| self.stderr.take_due(now));
                }
                () = self.stdout.read(), if idle => {}
                () = self.stderr.read(), if idle => {}
            }
        }
    }

    /// Reads what the program wrote before it ended.
    async fn drain(&mut self) -> Vec<OutgoingFrame> {
        let reading = async {
            while !(self.stdout.is_closed() && self.stderr.is_closed()) {
                tokio::select! {
                    () = self.stdout.read() => {}
                    () = self.stderr.read() => {}
                }
            }
        };
        // A process that escaped may keep the pipe open forever.
        let _ = timeout(DRAIN_MAX, reading).await;
        let rest = [self.pending.take(), self.stdout.take(), self.stderr.take()];
        rest.into_iter().flatten().collect()
    }
}

impl Drop for ProgramRun {
    fn drop(&mut self) {
        if let Some(stdin_task) = &self.stdin_task {
            stdin_task.abort();
        }
    }
}

impl ProgramEnd {
    /// Whether nothing happened that a client could have seen.
    fn never_started(&self) -> bool {
        self.stop.is_none() && self.exit == Some(ProgramExit::NotStarted)
    }

    /// Whether the program never started, or was killed by another process.
    fn may_retry(&self) -> bool {
        let killed = |signal| KILL_SIGNALS.contains(&signal);
        self.stop.is_none()
            && match (&self.status, self.exit) {
                (Err(_), _) => false,
                (_, Some(ProgramExit::NotStarted)) => true,
                (_, Some(ProgramExit::Exited(_) | ProgramExit::Refused)) => false,
                (_, Some(ProgramExit::Killed(signal))) => killed(signal),
                (Ok(status), Some(ProgramExit::Unknown)) => status
                    .signal()
                    .or(status.code().map(|code| code - SIGNAL_STATUS_BASE))
                    .is_some_and(killed),
                (Ok(status), None) => status.signal().is_some_and(killed),
            }
    }

    /// The error for the client, if there is one.
    fn error(&self) -> Option<String> {
        match &self.stop {
            Some(StopReason::Time(limit)) => {
                return Some(format!("time limit ({})", seconds(*limit)));
            }
            Some(StopReason::StartTimeout) => return Some(NOT_STARTED.into()),
            Some(StopReason::Halt(why) | StopReason::Limit(why)) => return Some(why.clone()),
            Some(StopReason::ClientLeft) => return Some("the client left".into()),
            None => {}
        }
        let status = match &self.status {
            Ok(status) => status,
            Err(error) => return Some(format!("cannot determine how the program ended: {error}")),
        };
        if self.output_exceeded {
            return Some("output limit".into());
        }
        let (signal, code) = match self.exit {
            Some(ProgramExit::NotStarted | ProgramExit::Refused) => {
                return Some(NOT_STARTED.into());
            }
            Some(ProgramExit::Exited(code)) => (None, Some(code)),
            Some(ProgramExit::Killed(signal)) => (Some(signal), None),
            // Without bubblewrap, or if the init process was killed, the exit status decides.
            Some(ProgramExit::Unknown) | None => (status.signal(), status.code()),
        };
        match (signal, code) {
            (Some(CPU_LIMIT_SIGNAL), _) => Some("processor time limit".into()),
            (Some(signal), _) => Some(format!("the program was killed by signal {signal}")),
            (None, Some(0)) => None,
            (None, Some(code)) => Some(format!("the program exited with status {code}")),
            (None, None) => Some("the program ended for an unknown reason".into()),
        }
    }
}

/// An empty output frame means that the program runs.
fn started_frame() -> OutgoingFrame {
    OutgoingFrame::Output(Stream::Stdout, Vec::new())
}

/// Completes when the program starts.
async fn program_started(init: &mut Option<InitChannel>) {
    match init {
        Some(init) => init.started().await,
        None => std::future::pending().await,
    }
}

/// The result and the last frame. A partial result is sent too.
async fn last_frames(
    shared: &RunnerShared,
    spec: &TaskSpec,
    workspace: &Workspace,
    end: &ProgramEnd,
) -> Vec<OutgoingFrame> {
    let mut frames = Vec::new();
    let mut error = end.error();
    if let Some((file, format, media)) = &spec.result {
        match workspace.read(file, shared.limits.result_bytes_max).await {
            Ok(Some(bytes)) => {
                let (format, media) = (format.clone(), media.clone());
                frames.push(OutgoingFrame::Result { format, media, bytes });
            }
            Ok(None) => error = error.or_else(|| Some("the program wrote no result".into())),
            Err(why) => error = error.or_else(|| Some(format!("cannot read the result: {why}"))),
        }
    }
    frames.push(OutgoingFrame::Complete(error));
    frames
}

/// Writes input of the client to the program, beginning with what was sent before the start.
async fn write_stdin(mut pipe: pipe::Sender, first: Vec<u8>, mut stdin: mpsc::Receiver<Vec<u8>>) {
    if pipe.write_all(&first).await.is_err() {
        return;
    }
    while let Some(bytes) = stdin.recv().await {
        if pipe.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

/// Completes at this moment, or never.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(raw: i32, exit: Option<ProgramExit>) -> ProgramEnd {
        let status = Ok(ExitStatus::from_raw(raw));
        ProgramEnd { status, exit, stop: None, output_exceeded: false, rest: Vec::new() }
    }

    #[test]
    fn used_up_processor_time_is_not_a_kill() {
        let exit_known = SIGNAL_STATUS_BASE + CPU_LIMIT_SIGNAL;
        for end in [
            end(CPU_LIMIT_SIGNAL, None),
            end(exit_known << 8, Some(ProgramExit::Killed(CPU_LIMIT_SIGNAL))),
        ] {
            assert!(!end.may_retry());
            assert_eq!(end.error().as_deref(), Some("processor time limit"));
        }
    }

    #[test]
    fn a_program_that_never_started_or_was_killed_is_retried_and_an_exit_is_not() {
        let may_rerun = [
            end(9, None),
            end(1 << 8, Some(ProgramExit::NotStarted)),
            end(137 << 8, Some(ProgramExit::Killed(9))),
            end(137 << 8, Some(ProgramExit::Unknown)),
            end(9, Some(ProgramExit::Unknown)),
        ];
        assert!(may_rerun.iter().all(ProgramEnd::may_retry));
        let refused = end(2 << 8, Some(ProgramExit::Refused));
        let not = [
            end(137 << 8, None),
            end(137 << 8, Some(ProgramExit::Exited(137))),
            end(0, None),
            refused,
        ];
        assert!(!not.iter().any(ProgramEnd::may_retry));
        assert_eq!(not[1].error().as_deref(), Some("the program exited with status 137"));
        assert_eq!(may_rerun[1].error().as_deref(), Some("the program could not be started"));
    }
}

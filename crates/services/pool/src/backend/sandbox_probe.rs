//! Runs a trivial program in a sandbox, as tasks are run, and checks what surrounds it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::process::Command;
use tokio::time::timeout;

use super::init_channel::{InitChannel, ProgramExit};
use super::isolation::{Isolation, ProgramContext};
use super::process_group::ProcessGroup;
use super::run_request::{ProgramStreams, RunRequest};
use super::sandbox::SandboxSpec;
use super::task_folder::TaskFolders;
use crate::config::Limits;

/// How long the program may take; a busy machine starts one late.
const PROBE_MAX: Duration = Duration::from_secs(20);
/// How long output of the ended program is read.
const READ_MAX: Duration = Duration::from_secs(1);
/// Longest part of an error output that is shown, in bytes.
const STDERR_BYTES_MAX: usize = 500;
/// Prints what the kernel knows about its own process.
const COMMAND: [&str; 2] = ["/bin/cat", "/proc/self/status"];
/// What has to be in it: its parent is the init process of the sandbox, no program that it starts gets more rights,
/// its system calls are filtered, and it has no rights over the machine.
const EXPECTED: [(&str, &str); 4] =
    [("PPid", "1"), ("NoNewPrivs", "1"), ("Seccomp", "2"), ("CapEff", "0000000000000000")];

/// Why programs cannot be sandboxed on this machine.
#[derive(Debug, thiserror::Error)]
pub enum SandboxUnavailable {
    /// There is no bubblewrap.
    #[error(
        "programs cannot be sandboxed: {0} does not exist; install bubblewrap (the package is called `bubblewrap`) or \
         set `isolation.bubblewrap` to its path. To run programs without a sandbox, write `sandbox: none` in the file \
         of the pool"
    )]
    Missing(PathBuf),
    /// A program does not run in it.
    #[error(
        "programs cannot be sandboxed: {0}; allow unprivileged user namespaces \
         (`sysctl user.max_user_namespaces kernel.unprivileged_userns_clone kernel.apparmor_restrict_unprivileged_userns` \
         shows them; in a container they need its permission). To run programs without a sandbox, write \
         `sandbox: none` in the file of the pool"
    )]
    Failed(String),
}

/// Runs the program in a sandbox of this kind; the error says what is wrong with it.
pub(super) async fn probe(isolation: &Isolation, folders: &TaskFolders) -> Result<(), String> {
    match timeout(PROBE_MAX, run_in_sandbox(isolation, folders)).await {
        Ok(Ok(ProbeEnd { exit: ProgramExit::Exited(0), stdout, .. })) => check_status(&stdout),
        Ok(Ok(ProbeEnd { stderr, .. })) => {
            let stderr: String = stderr.trim().chars().take(STDERR_BYTES_MAX).collect();
            Err(format!("a program could not be run in bubblewrap: {stderr}"))
        }
        Ok(Err(error)) => Err(format!("bubblewrap could not be started: {error}")),
        Err(_) => Err(format!("bubblewrap ran no program within {} s", PROBE_MAX.as_secs())),
    }
}

/// How the program ended and what it wrote.
struct ProbeEnd {
    exit: ProgramExit,
    stdout: String,
    stderr: String,
}

async fn run_in_sandbox(isolation: &Isolation, folders: &TaskFolders) -> io::Result<ProbeEnd> {
    let uid = isolation.first_uid();
    let folder = folders.create(uid)?;
    let spec = SandboxSpec { read: Vec::new(), environment: Default::default() };
    let context = ProgramContext { folder: folder.path(), uid };
    let mut command = Command::from(isolation.sandbox_command(&spec, context)?);
    let (mut init, socket) = InitChannel::open()?;
    let [(stdout, output), (stderr, errors)] = [io::pipe()?, io::pipe()?];
    command.stdout(socket).stderr(errors).kill_on_drop(true);
    let control_group = isolation.new_control_group()?;
    let mut group = ProcessGroup::new(command.spawn()?, true)?;
    if let Some(control_group) = &control_group {
        control_group.add(group.id())?;
    }
    // It has the other ends of the pipes.
    drop(command);
    // Those of the pool may be too low for this program.
    let limits = isolation.limits(uid, None, &Limits::default());
    let request = RunRequest { command: COMMAND.map(String::from).into(), limits };
    let streams = ProgramStreams { stdout: output.into(), stdin: None };
    init.send_request(&request, streams).await?;
    group.ended().await?;
    group.reap().await?;
    let exit = init.exit().await;
    let stdout = read_rest(pipe::Receiver::from_owned_fd(stdout.into())?).await;
    let stderr = read_rest(pipe::Receiver::from_owned_fd(stderr.into())?).await;
    Ok(ProbeEnd { exit, stdout, stderr })
}

async fn read_rest(mut pipe: pipe::Receiver) -> String {
    let mut bytes = Vec::new();
    let _ = timeout(READ_MAX, pipe.read_to_end(&mut bytes)).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Checks what a program in a sandbox has read about itself.
fn check_status(status: &str) -> Result<(), String> {
    for (name, expected) in EXPECTED {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let found = line.map_or("nothing", str::trim);
        if found != expected {
            return Err(format!(
                "a program in bubblewrap is not isolated: {name} is {found} instead of {expected}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_isolated_is_noticed() {
        let good = "Name:\tcat\nPPid:\t1\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n";
        assert_eq!(check_status(good), Ok(()));
        for (line, wrong) in [
            ("PPid:\t1\n", "PPid:\t17\n"),
            ("NoNewPrivs:\t1\n", "NoNewPrivs:\t0\n"),
            ("NoNewPrivs:\t1\n", ""),
            ("Seccomp:\t2\n", "Seccomp:\t0\n"),
            ("CapEff:\t0000000000000000\n", "CapEff:\t000001ffffffffff\n"),
        ] {
            let error = check_status(&good.replace(line, wrong)).unwrap_err();
            assert!(error.contains(line.split(':').next().unwrap()), "{error}");
        }
        assert!(check_status("").is_err());
    }
}

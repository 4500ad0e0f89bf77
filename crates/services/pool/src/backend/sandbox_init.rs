//! The init process of a sandbox: receives a request over a socket, runs the program and reports how it ended.
//!
//! It is the small program `taskyard-sandbox` if that is beside this executable and of the same build, because a large
//! executable takes a millisecond longer to start, otherwise this executable; it is started inside bubblewrap with an
//! argument of its own. Its standard input is the executable file, from which it was started, so that the file need not
//! be visible inside the sandbox; its standard output is the socket to the pool; its standard error is that of the
//! program. It runs as the program's user and has no more rights.
//!
//! Without a sandbox it is started with one more argument and the request, sets the same limits and becomes the program.
//!
//! It ends when the other end of the socket is closed, that is when the pool is gone for whatever reason, and when
//! the outer process of bubblewrap is killed. The kernel ends all other processes of the sandbox with it.

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio, exit};
use std::sync::OnceLock;
use std::sync::mpsc::sync_channel;
use std::thread;

use close_fds::set_fds_cloexec;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{
    DumpableBehavior, Pid, Signal, WaitOptions, WaitStatus, geteuid, set_dumpable_behavior,
    set_parent_process_death_signal, wait,
};
use rustix::thread::set_no_new_privs;

use super::init_channel::{ProgramExit, STARTED};
use super::run_request::{ProgramStreams, RunRequest};
use super::seccomp;

/// The argument that makes the executable run as this process.
pub(super) const ARGUMENT: &str = "taskyard-pool-sandbox-init";
/// The second argument: whether programs may have memory that exists without being mapped. Without it they may not.
pub(super) const MEMORY_FILES: &str = "memory-files";
pub(super) const NO_MEMORY_FILES: &str = "no-memory-files";
/// The second argument that only prints [`BUILD`].
const PRINT_BUILD: &str = "build";
/// The argument before a request that is run without a sandbox.
pub(super) const UNSANDBOXED: &str = "unsandboxed";
/// The path of the executable inside the sandbox: its own standard input.
pub(super) const EXECUTABLE_INSIDE: &str = "/proc/self/fd/0";
/// Programs inherit the descriptors below this one: their standard streams.
const FIRST_PRIVATE_FD: i32 = 3;
/// Exit status when the request is invalid or the program cannot be started.
const FAILED: u8 = 2;
/// Exit status, as of shells, when this process cannot become the program.
const NOT_STARTED: u8 = 127;
/// Shells report a program killed by a signal with this plus the signal number.
const SIGNAL_STATUS_BASE: i32 = 128;
/// Stack size of the thread that watches the pool, in bytes.
const WATCH_STACK_BYTES: usize = 64 << 10;
/// Permission to read and execute for users other than the owner.
const OTHERS_READ_EXECUTE: u32 = 0o005;

/// The small program with nothing but this process, where it may be: beside this executable in a folder of a build, or in
/// the place that packages use.
const SMALL_PROGRAMS: [&str; 2] = ["taskyard-sandbox", "../libexec/taskyard-sandbox"];
/// Identifies the sources of both ends of the socket: a program of another build may use another protocol.
const BUILD: u64 = hash_of(&[
    include_str!("sandbox_init.rs"),
    include_str!("init_channel.rs"),
    include_str!("run_request.rs"),
    include_str!("rlimits.rs"),
    include_str!("seccomp.rs"),
    env!("CARGO_PKG_VERSION"),
]);

/// The path of the executable that runs.
const THIS_EXECUTABLE: &str = "/proc/self/exe";
/// The executable that can be started with [`ARGUMENT`].
static EXECUTABLE: OnceLock<PathBuf> = OnceLock::new();

/// Has to be called first in `main` of an executable whose pools use bubblewrap, because the executable is started
/// again inside each sandbox. Returns an exit code in that case, otherwise `None`.
#[must_use]
pub fn run_as_sandbox_init() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_none_or(|argument| argument != ARGUMENT) {
        set_sandbox_init_executable(THIS_EXECUTABLE.into());
        return None;
    }
    let second = args.next();
    if second.as_deref().is_some_and(|argument| argument == PRINT_BUILD) {
        println!("{BUILD}");
        return Some(ExitCode::SUCCESS);
    }
    // Descriptors that the parent of the pool left open.
    set_fds_cloexec(FIRST_PRIVATE_FD, &[]);
    let memory_files = second.is_some_and(|argument| argument == MEMORY_FILES);
    let served = match (args.next(), args.next()) {
        (Some(argument), Some(request)) if argument == UNSANDBOXED => {
            run_unsandboxed(&request, memory_files)
        }
        _ => serve(memory_files),
    };
    let code = served.unwrap_or_else(|error| {
        eprintln!("{ARGUMENT} is started by a pool inside bubblewrap, not by hand: {error}");
        FAILED
    });
    Some(ExitCode::from(code))
}

/// Sets another executable that calls [`run_as_sandbox_init`], for tests, which have a `main` of their own.
pub fn set_sandbox_init_executable(executable: PathBuf) {
    let _ = EXECUTABLE.set(executable);
}

/// Opens the executable so that any user may start it.
pub(super) fn open() -> io::Result<File> {
    let path =
        EXECUTABLE.get().ok_or_else(|| io::Error::other("`run_as_sandbox_init` was not called"))?;
    if path == Path::new(THIS_EXECUTABLE)
        && let Some(small) = std::env::current_exe().ok().and_then(|own| open_small(&own))
    {
        return Ok(small);
    }
    executable_by_all(File::open(path)?)
}

/// The small program of the same build that was installed with an executable.
fn open_small(executable: &Path) -> Option<File> {
    let folder = executable.parent()?;
    SMALL_PROGRAMS.iter().find_map(|name| {
        let file = executable_by_all(File::open(folder.join(name)).ok()?).ok()?;
        // The open file is asked, because the path may lead to another one a moment later.
        let mut command = Command::new(format!("/proc/self/fd/{}", file.as_raw_fd()));
        command.args([ARGUMENT, PRINT_BUILD]).env_clear().stdin(Stdio::null());
        let printed = command.stderr(Stdio::null()).output().ok()?.stdout;
        (printed == format!("{BUILD}\n").as_bytes()).then_some(file)
    })
}

/// A hash of texts (FNV-1a), computed by the compiler.
const fn hash_of(texts: &[&str]) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut index = 0;
    while index < texts.len() {
        let bytes = texts[index].as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
            at += 1;
        }
        index += 1;
    }
    hash
}

/// Returns the file, or a copy in memory if other users may not execute the file.
fn executable_by_all(mut file: File) -> io::Result<File> {
    if file.metadata()?.mode() & OTHERS_READ_EXECUTE == OTHERS_READ_EXECUTE {
        return Ok(file);
    }
    let mut copy = File::from(memfd_create(ARGUMENT, MemfdFlags::CLOEXEC)?);
    io::copy(&mut file, &mut copy)?;
    copy.set_permissions(Permissions::from_mode(0o555))?;
    // A file that is open for writing cannot be executed.
    File::open(format!("/proc/self/fd/{}", copy.as_raw_fd()))
}

/// Receives the request, runs the program and reports its end; returns the exit status of this process.
fn serve(memory_files: bool) -> io::Result<u8> {
    // The program runs as the same user: it must not inspect or control this process.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // If bubblewrap was killed before this call, the pool ends this process, or has ended itself.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // Before the request, so that no task waits for it.
    seccomp::apply(memory_files)?;
    let socket = rustix::stdio::stdout();
    // A pool that has no request, or is gone, closes the socket.
    let Some((request, streams)) = RunRequest::receive(socket)? else { return Ok(0) };
    exit_with_pool(socket)?;
    let child = match start(&request, streams) {
        Ok(child) => child,
        Err(error) => {
            eprintln!("cannot start {}: {error}", request.command[0]);
            // Without a report the pool knows that nothing started, and may try again.
            if is_permanent(&error) {
                write_report(format!("{}\n", ProgramExit::Refused).as_bytes())?;
            }
            return Ok(FAILED);
        }
    };
    write_report(STARTED)?;
    let status = wait_for(child)?;
    let exit_of_program = match status.terminating_signal() {
        Some(signal) => ProgramExit::Killed(signal),
        None => ProgramExit::Exited(status.exit_status().unwrap_or_default()),
    };
    write_report(format!("{exit_of_program}\n").as_bytes())?;
    Ok(match exit_of_program {
        ProgramExit::Killed(signal) => (SIGNAL_STATUS_BASE + signal) as u8,
        _ => status.exit_status().unwrap_or_default() as u8,
    })
}

/// Becomes the program, within its limits. Returns only if that fails.
fn run_unsandboxed(request: &OsStr, memory_files: bool) -> io::Result<u8> {
    let request = RunRequest::parse(request.as_encoded_bytes())?;
    match seccomp::is_supported() {
        true => seccomp::apply(memory_files)?,
        false => set_no_new_privs(true)?,
    }
    request.limits.set()?;
    let error = Command::new(&request.command[0]).args(&request.command[1..]).exec();
    eprintln!("cannot start {}: {error}", request.command[0]);
    Ok(NOT_STARTED)
}

/// Ends this process, and so the sandbox, as soon as the pool is gone; a request may have been in the socket longer
/// than the pool existed.
fn exit_with_pool(socket: BorrowedFd<'_>) -> io::Result<()> {
    let socket = socket.try_clone_to_owned()?;
    let (watches, is_watching) = sync_channel(0);
    let watch = move || {
        let _ = watches.send(());
        // The pool sends nothing more, so any result means that it is gone.
        let _ = rustix::io::retry_on_intr(|| rustix::io::read(&socket, &mut [0_u8]));
        exit(FAILED.into());
    };
    thread::Builder::new().stack_size(WATCH_STACK_BYTES).spawn(watch)?;
    // Starting a thread needs memory, which may be unavailable once the limits are set.
    is_watching.recv().map_err(io::Error::other)
}

/// Whether the program cannot be started anywhere.
fn is_permanent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::ArgumentListTooLong
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::NotADirectory
    ) || error.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error())
}

/// Starts the program within its limits. They apply to this process too from then on.
fn start(request: &RunRequest, streams: ProgramStreams) -> io::Result<Pid> {
    let given = |stream: OwnedFd| Stdio::from(stream);
    let mut command = Command::new(&request.command[0]);
    command.args(&request.command[1..]);
    command.stdin(streams.stdin.map_or_else(Stdio::null, given)).stdout(given(streams.stdout));
    // The user is already set. Setting it again makes the standard library use `fork`, which needs no additional
    // address space; the other way to start a program does, and the limit may leave none.
    command.uid(geteuid().as_raw());
    request.limits.set()?;
    let child = command.spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other("no process"))
}

/// Waits for the program and reaps orphans, whose parent this process is.
fn wait_for(child: Pid) -> io::Result<WaitStatus> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == child => return Ok(status),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn write_report(mut report: &[u8]) -> io::Result<()> {
    while !report.is_empty() {
        let written =
            rustix::io::retry_on_intr(|| rustix::io::write(rustix::stdio::stdout(), report))?;
        report = &report[written..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    // Where executables have permissions for their owner only, programs ran without a sandbox.
    #[test]
    fn an_executable_for_its_owner_only_is_started() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("true");
        std::fs::copy("/bin/true", &path).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        let start = |file: File| {
            let mut command = Command::new(EXECUTABLE_INSIDE);
            if geteuid().is_root() {
                command.uid(1_000_000 + std::process::id());
            }
            command.stdin(file).status()
        };
        if geteuid().is_root() {
            assert!(start(File::open(&path).unwrap()).is_err());
        }
        assert!(start(executable_by_all(File::open(&path).unwrap()).unwrap()).unwrap().success());
    }

    // A program that a later version left beside this one would not understand the requests.
    #[test]
    fn a_small_program_of_another_build_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let bin = folder.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        assert!(open_small(&bin.join("taskyard")).is_none());
        for place in SMALL_PROGRAMS {
            let path = bin.join(place);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            // It prints its arguments instead of the number of a build.
            std::fs::copy("/bin/echo", &path).unwrap();
            assert!(open_small(&bin.join("taskyard")).is_none(), "{place}");
            std::fs::write(&path, "no program").unwrap();
            assert!(open_small(&bin.join("taskyard")).is_none(), "{place}");
        }
    }

    #[test]
    fn other_sources_have_another_hash() {
        assert_ne!(hash_of(&["a"]), hash_of(&["b"]));
        assert_eq!(hash_of(&["a", "b"]), hash_of(&["ab"]));
    }
}

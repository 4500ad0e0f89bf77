//! The first process inside bubblewrap: it waits to be told what to run, runs it, and tells how that ended.
//!
//! It is this very executable under a word of its own. Its standard input is the executable, from which it was started,
//! so that nothing of it has to be seen inside the walls; its standard output is the socket to the pool; its standard
//! error is that of the program. It runs as the program's user and has no more rights than that.
//!
//! It ends when the other end of the socket is closed, so when the pool is gone for whatever reason, and when the outer
//! process of bubblewrap is killed. The system ends everything else inside with it.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio, exit};
use std::sync::OnceLock;
use std::sync::mpsc::sync_channel;
use std::thread;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{
    DumpableBehavior, Pid, Signal, WaitOptions, WaitStatus, geteuid, set_dumpable_behavior,
    set_parent_process_death_signal, wait,
};

use super::account::{BEGUN, Fate};
use super::orders::{Orders, Streams};

/// The word that makes the executable this process.
pub(super) const WORD: &str = "taskyard-pool-first";
/// Where the executable is found inside, as its own standard input.
pub(super) const INSIDE: &str = "/proc/self/fd/0";
/// What this process ends with when it was told nothing that it understands.
const REFUSED: u8 = 2;
/// What shells add to the number of the signal that ended a program.
const BY_SIGNAL: i32 = 128;
/// The stack of the thread that watches the pool, in bytes.
const WATCH_STACK: usize = 64 << 10;
/// Read and execute, for others than the owner.
const FOR_OTHERS: u32 = 0o005;

/// The executable that can be started with [`WORD`].
static EXECUTABLE: OnceLock<PathBuf> = OnceLock::new();

/// To be called first in `main` of an executable whose pools use bubblewrap: inside it the executable is started again,
/// which is the case when this answers how to end. Otherwise go on.
#[must_use]
pub fn enter() -> Option<ExitCode> {
    if std::env::args_os().nth(1).is_none_or(|word| word != WORD) {
        stand_in("/proc/self/exe".into());
        return None;
    }
    let code = attend().unwrap_or_else(|error| {
        eprintln!("{WORD} is what a pool starts inside bubblewrap, not for people: {error}");
        REFUSED
    });
    Some(ExitCode::from(code))
}

/// Names another executable that calls [`enter`] first, where this one cannot: tests have a `main` of their own.
pub fn stand_in(executable: PathBuf) {
    let _ = EXECUTABLE.set(executable);
}

/// The executable, opened so that any user may start it.
pub(super) fn open() -> io::Result<File> {
    let path = EXECUTABLE.get().ok_or_else(|| io::Error::other("`enter` was not called"))?;
    for_all(File::open(path)?)
}

/// The same file, or a copy in memory: that others may not start it is no reason to do without walls.
fn for_all(mut file: File) -> io::Result<File> {
    if file.metadata()?.mode() & FOR_OTHERS == FOR_OTHERS {
        return Ok(file);
    }
    let mut copy = File::from(memfd_create(WORD, MemfdFlags::CLOEXEC)?);
    io::copy(&mut file, &mut copy)?;
    copy.set_permissions(Permissions::from_mode(0o555))?;
    // One that is open for writing cannot be started.
    File::open(format!("/proc/self/fd/{}", copy.as_raw_fd()))
}

/// Waits for orders and carries them out; answers the status to end with.
fn attend() -> io::Result<u8> {
    // The program has the same user: it shall not look into this process, nor speak for it.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // Should bubblewrap have been killed before this, the pool ends this process as well, or is gone itself.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let socket = rustix::stdio::stdout();
    // A pool that has nothing to run, or is gone, says nothing.
    let Some((orders, streams)) = Orders::receive(socket)? else { return Ok(0) };
    end_with_pool(socket)?;
    let child = match start(&orders, streams) {
        Ok(child) => child,
        Err(error) => {
            eprintln!("cannot start {}: {error}", orders.command[0]);
            // Otherwise nothing has begun, which the pool sees: it may go better elsewhere, or later.
            if is_lasting(&error) {
                tell(format!("{}\n", Fate::Refused).as_bytes())?;
            }
            return Ok(REFUSED);
        }
    };
    tell(BEGUN)?;
    let status = until_ended(child)?;
    let fate = match status.terminating_signal() {
        Some(signal) => Fate::Killed(signal),
        None => Fate::Exited(status.exit_status().unwrap_or_default()),
    };
    tell(format!("{fate}\n").as_bytes())?;
    Ok(match fate {
        Fate::Killed(signal) => (BY_SIGNAL + signal) as u8,
        _ => status.exit_status().unwrap_or_default() as u8,
    })
}

/// Ends this process, and so everything inside, as soon as the pool is gone; orders may have waited here longer than the
/// pool that gave them.
fn end_with_pool(socket: BorrowedFd<'_>) -> io::Result<()> {
    let socket = socket.try_clone_to_owned()?;
    let (watches, is_watching) = sync_channel(0);
    let watch = move || {
        let _ = watches.send(());
        // The pool says nothing more, so whatever comes is the end.
        let _ = rustix::io::retry_on_intr(|| rustix::io::read(&socket, &mut [0_u8]));
        exit(REFUSED.into());
    };
    thread::Builder::new().stack_size(WATCH_STACK).spawn(watch)?;
    // A thread takes memory to begin with, and soon there may be none.
    is_watching.recv().map_err(io::Error::other)
}

/// Whether a program cannot be started wherever it is tried.
fn is_lasting(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::ArgumentListTooLong
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::NotADirectory
    ) || error.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error())
}

/// Starts the program within its limits. This process has them too from then on, and needs nothing more.
fn start(orders: &Orders, streams: Streams) -> io::Result<Pid> {
    let given = |stream: OwnedFd| Stdio::from(stream);
    let mut command = Command::new(&orders.command[0]);
    command.args(&orders.command[1..]);
    command.stdin(streams.stdin.map_or_else(Stdio::null, given)).stdout(given(streams.stdout));
    // It has this user already. To say so makes the library fork, which takes no address space of its own; the other
    // way to start a program does, and there may be none left.
    command.uid(geteuid().as_raw());
    orders.limits.set()?;
    let child = command.spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other("no process"))
}

/// Waits for the program, and meanwhile for orphans, whose parent this is.
fn until_ended(child: Pid) -> io::Result<WaitStatus> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == child => return Ok(status),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn tell(mut words: &[u8]) -> io::Result<()> {
    while !words.is_empty() {
        let told = rustix::io::retry_on_intr(|| rustix::io::write(rustix::stdio::stdout(), words))?;
        words = &words[told..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    // Where executables are made for their owner alone, programs would have had no walls at all.
    #[test]
    fn one_that_is_for_its_owner_alone_is_started_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("true");
        std::fs::copy("/bin/true", &path).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        let start = |file: File| {
            let mut command = Command::new(INSIDE);
            if geteuid().is_root() {
                command.uid(1_000_000 + std::process::id());
            }
            command.stdin(file).status()
        };
        if geteuid().is_root() {
            assert!(start(File::open(&path).unwrap()).is_err());
        }
        assert!(start(for_all(File::open(&path).unwrap()).unwrap()).unwrap().success());
    }
}

//! Kills what got away from its process group: everything that bears the mark of its task, or of a pool that is gone.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::group::children;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, set_child_subreaper, waitid,
};

/// How long killed processes may take to be gone.
const GONE_MAX: Duration = Duration::from_secs(5);
/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(2);

/// By what the processes of a task are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Every process of these users.
    Users(Range<u32>),
    /// A process with this folder among its arguments: bubblewrap and the first process inside. Everything else inside
    /// dies with that.
    Argument(PathBuf),
    /// A process that still has this folder as its home. A program may hide from that.
    Home(PathBuf),
}

/// Kills all such processes, and says whether they are gone.
pub(crate) fn sweep(mark: &Mark) -> bool {
    let given_up = Instant::now() + GONE_MAX;
    loop {
        let found = processes(mark);
        if found.is_empty() {
            return true;
        }
        for pid in found {
            let _ = kill_process(pid, Signal::KILL);
        }
        if Instant::now() > given_up {
            return false;
        }
        sleep(PAUSE);
    }
}

/// Lets orphans of programs come to this process instead of the machine's first one, which may take its time to wait
/// for them: until somebody does, each counts among the processes that its user may have.
pub(crate) fn adopt() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Waits for what this user left behind, all of it killed already, and says whether nothing is left. Nobody else in
/// this process has children of such a user.
pub(crate) fn bury(uid: u32) -> bool {
    let given_up = Instant::now() + GONE_MAX;
    loop {
        let left: Vec<Pid> = own_children().into_iter().filter(|pid| belongs(*pid, uid)).collect();
        if left.is_empty() {
            return true;
        }
        for pid in left {
            let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
        if Instant::now() > given_up {
            return false;
        }
        sleep(PAUSE);
    }
}

/// The children of this process, dead ones too.
fn own_children() -> Vec<Pid> {
    let own = std::process::id();
    let Ok(threads) = fs::read_dir(format!("/proc/{own}/task")) else { return Vec::new() };
    let threads = threads.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    threads.flat_map(|thread: u32| children(own, thread)).collect()
}

fn belongs(pid: Pid, uid: u32) -> bool {
    fs::metadata(format!("/proc/{}", pid.as_raw_nonzero())).is_ok_and(|about| about.uid() == uid)
}

/// The living processes with this mark.
fn processes(mark: &Mark) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let living = entries.flatten().filter_map(|entry| {
        let number: i32 = entry.file_name().to_str()?.parse().ok()?;
        mark.is_on(&entry.path()).then(|| Pid::from_raw(number)).flatten()
    });
    living.collect()
}

impl Mark {
    /// Whether the process with this folder below `/proc` has the mark. A dead one that nobody has waited for has
    /// neither arguments nor environment.
    fn is_on(&self, process: &Path) -> bool {
        let read = |name: &str| fs::read(process.join(name)).unwrap_or_default();
        match self {
            Mark::Argument(folder) => has_word(&read("cmdline"), folder.as_os_str().as_bytes()),
            Mark::Users(users) => lives_as(&String::from_utf8_lossy(&read("status")), users),
            Mark::Home(folder) => {
                let home = [b"HOME=", folder.as_os_str().as_bytes()].concat();
                has_word(&read("environ"), &home)
            }
        }
    }
}

/// Whether one of these words, each with a zero behind it, is this one.
fn has_word(words: &[u8], word: &[u8]) -> bool {
    words.split(|byte| *byte == 0).any(|one| one == word)
}

/// Whether this status is of a living process of one of these users.
fn lives_as(status: &str, wanted: &Range<u32>) -> bool {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let users = field("Uid:").unwrap_or_default();
    let state = field("State:").unwrap_or("Z").trim_start();
    let mut users = users.split_whitespace().filter_map(|user| user.parse().ok());
    users.any(|user| wanted.contains(&user)) && !state.starts_with(['Z', 'X'])
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::{Child, Command, Stdio};

    use rustix::process::geteuid;

    use super::*;

    fn killed(child: &mut Child) -> bool {
        child.wait().unwrap().signal() == Some(9)
    }

    // A client that left at once killed bubblewrap before its child was bound to it; the program went on for ever
    // where the pool was not root, or where orphans had another parent than the first process.
    #[test]
    fn processes_are_known_by_their_mark_and_nobody_else_is_hit() {
        let [one, other] = [1, 2].map(|_| tempfile::tempdir().unwrap());
        let start = |command: &mut Command| command.process_group(0).spawn().unwrap();
        let argument = |folder: &Path| {
            // It waits for a word that never comes.
            let mut command = Command::new("/bin/sh");
            start(command.args(["-c", "read word", "sh"]).arg(folder).stdin(Stdio::piped()))
        };
        let home =
            |folder: &Path| start(Command::new("/bin/sleep").arg("1000").env("HOME", folder));
        let mut all =
            [argument(one.path()), argument(other.path()), home(one.path()), home(other.path())];
        assert!(sweep(&Mark::Argument(one.path().into())));
        assert!(killed(&mut all[0]));
        assert!(sweep(&Mark::Home(one.path().into())));
        assert!(killed(&mut all[2]));
        for at in [1, 3] {
            assert_eq!(all[at].try_wait().unwrap(), None);
        }
        if geteuid().is_root() {
            let user = 1_000_000 + std::process::id();
            let mut owned = start(Command::new("/bin/sleep").arg("1000").uid(user).gid(user));
            assert!(sweep(&Mark::Users(user + 1..user + 9)));
            assert_eq!(owned.try_wait().unwrap(), None);
            assert!(sweep(&Mark::Users(user..user + 1)));
            assert!(killed(&mut owned));
        }
        for at in [1, 3] {
            all[at].kill().unwrap();
            assert!(killed(&mut all[at]));
        }
    }
}

//! Kills processes that left their process group, by the mark of their task or of a pool that is gone.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::process_group::children;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, set_child_subreaper, waitid,
};

/// How long killed processes may take to end.
const EXIT_MAX: Duration = Duration::from_secs(5);
/// Delay between two checks.
const PAUSE: Duration = Duration::from_millis(2);

/// How the processes of a task are recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProcessMark {
    /// Every process of these users.
    Users(Range<u32>),
    /// A process with this folder among its arguments: bubblewrap and the init process. All other processes of the
    /// sandbox end with the init process.
    Argument(PathBuf),
    /// A process that has this folder as its home. A program can evade this.
    Home(PathBuf),
}

/// Kills all such processes and returns whether they have ended.
pub(crate) fn kill_marked(mark: &ProcessMark) -> bool {
    let given_up = Instant::now() + EXIT_MAX;
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

/// Makes this process the parent of orphaned programs instead of the machine's init process, which may reap them
/// late: until then each counts towards the process limit of its user.
pub(crate) fn become_subreaper() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Reaps the killed processes of this user and returns whether none is left. No other part of this process has
/// children of such a user.
pub(crate) fn reap_user(uid: u32) -> bool {
    let given_up = Instant::now() + EXIT_MAX;
    loop {
        let left: Vec<Pid> =
            own_children().into_iter().filter(|pid| has_owner(*pid, uid)).collect();
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

/// The children of this process, including zombies.
fn own_children() -> Vec<Pid> {
    let own = std::process::id();
    let Ok(threads) = fs::read_dir(format!("/proc/{own}/task")) else { return Vec::new() };
    let threads = threads.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    threads.flat_map(|thread: u32| children(own, thread)).collect()
}

fn has_owner(pid: Pid, uid: u32) -> bool {
    fs::metadata(format!("/proc/{}", pid.as_raw_nonzero())).is_ok_and(|about| about.uid() == uid)
}

/// The live processes with this mark.
fn processes(mark: &ProcessMark) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let living = entries.flatten().filter_map(|entry| {
        let number: i32 = entry.file_name().to_str()?.parse().ok()?;
        mark.matches(&entry.path()).then(|| Pid::from_raw(number)).flatten()
    });
    living.collect()
}

impl ProcessMark {
    /// Whether the process with this folder below `/proc` has the mark. A zombie has neither arguments nor
    /// environment.
    fn matches(&self, process: &Path) -> bool {
        let read = |name: &str| fs::read(process.join(name)).unwrap_or_default();
        match self {
            ProcessMark::Argument(folder) => {
                has_entry(&read("cmdline"), folder.as_os_str().as_bytes())
            }
            ProcessMark::Users(users) => {
                is_alive_as(&String::from_utf8_lossy(&read("status")), users)
            }
            ProcessMark::Home(folder) => {
                let home = [b"HOME=", folder.as_os_str().as_bytes()].concat();
                has_entry(&read("environ"), &home)
            }
        }
    }
}

/// Whether a list of zero-terminated strings contains this one.
fn has_entry(entries: &[u8], wanted: &[u8]) -> bool {
    entries.split(|byte| *byte == 0).any(|one| one == wanted)
}

/// Whether this is the status of a live process of one of these users.
fn is_alive_as(status: &str, wanted: &Range<u32>) -> bool {
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

    // A client that left at once killed bubblewrap before its child was bound to it; the program ran on forever if
    // the pool was not root, or if orphans had another parent than the init process.
    #[test]
    fn only_marked_processes_are_killed() {
        let [one, other] = [1, 2].map(|_| tempfile::tempdir().unwrap());
        let start = |command: &mut Command| command.process_group(0).spawn().unwrap();
        let argument = |folder: &Path| {
            // It waits for input that never comes.
            let mut command = Command::new("/bin/sh");
            start(command.args(["-c", "read word", "sh"]).arg(folder).stdin(Stdio::piped()))
        };
        let home =
            |folder: &Path| start(Command::new("/bin/sleep").arg("1000").env("HOME", folder));
        let mut all =
            [argument(one.path()), argument(other.path()), home(one.path()), home(other.path())];
        assert!(kill_marked(&ProcessMark::Argument(one.path().into())));
        assert!(killed(&mut all[0]));
        assert!(kill_marked(&ProcessMark::Home(one.path().into())));
        assert!(killed(&mut all[2]));
        for at in [1, 3] {
            assert_eq!(all[at].try_wait().unwrap(), None);
        }
        if geteuid().is_root() {
            let user = 1_000_000 + std::process::id();
            let mut owned = start(Command::new("/bin/sleep").arg("1000").uid(user).gid(user));
            assert!(kill_marked(&ProcessMark::Users(user + 1..user + 9)));
            assert_eq!(owned.try_wait().unwrap(), None);
            assert!(kill_marked(&ProcessMark::Users(user..user + 1)));
            assert!(killed(&mut owned));
        }
        for at in [1, 3] {
            all[at].kill().unwrap();
            assert!(killed(&mut all[at]));
        }
    }
}

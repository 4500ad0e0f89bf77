//! How programs are kept apart, and what this machine does not allow.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use super::rlimits::{Rlimits, has_prlimit};
use super::wall::Shape;
use super::{Plan, first};
use crate::config::{self, Limits};

const BUBBLEWRAP: &str = "/usr/bin/bwrap";
/// Where commands are looked for.
const PATH: &str = "/usr/bin:/bin";
/// Where a program finds its folder inside bubblewrap.
const INSIDE: &str = "/job";
/// Processes and threads that are there beside the program: the outer one of bubblewrap, the first one inside with the
/// thread that watches the pool, and one on its way to be the program.
const WRAPPING: u64 = 4;
/// The system's folders that programs may read, as far as they are there.
const READ: [&str; 8] = [
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/fonts",
];
/// How much a program may keep in its own `/tmp`, and as much in `/dev/shm`, in bytes. Both are in memory.
const MEMORY_FOLDER_BYTES_MAX: u64 = 64 << 20;
/// Seconds of processor time beyond the time a task has.
const CPU_SPARE: u64 = 2;

/// What keeps programs apart on this machine.
#[derive(Clone, Debug)]
pub struct Isolation {
    first_uid: Option<u32>,
    /// What is started inside bubblewrap, where that works.
    first: Option<Arc<File>>,
    prlimit: bool,
}

/// Where and as whom a program runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site<'a> {
    pub folder: &'a Path,
    pub uid: Option<u32>,
}

impl Isolation {
    /// Tries what works here, as the first of the users that programs run under, if there are some: they must be this
    /// pool's own by now, because another one ends whatever its users run.
    pub async fn probe(wanted: &config::Isolation, first_uid: Option<u32>) -> Self {
        let mut this = Isolation { first_uid, first: None, prlimit: has_prlimit() };
        if wanted.bubblewrap && Path::new(BUBBLEWRAP).exists() {
            let tried = match first::open() {
                Ok(first) => this.has_room_for(&first).await.map(|()| first),
                Err(error) => Err(error),
            };
            match tried {
                Ok(first) => this.first = Some(Arc::new(first)),
                Err(error) => tracing::warn!(%error, "bubblewrap does not work"),
            }
        }
        this
    }

    /// Whether the first process comes to its place inside; it is told nothing there, so it ends.
    async fn has_room_for(&self, first: &File) -> io::Result<()> {
        let mut trial = Command::new(BUBBLEWRAP);
        trial.args(walls(&[])).args(["--", first::INSIDE, first::WORD]).env_clear();
        let (_, silent) = UnixStream::pair()?;
        trial.stdin(first.try_clone()?).stdout(OwnedFd::from(silent)).stderr(Stdio::piped());
        self.dress(&mut trial, self.first_uid);
        let tried = tokio::process::Command::from(trial).spawn()?.wait_with_output().await?;
        match tried.status.success() {
            true => Ok(()),
            false => Err(io::Error::other(String::from_utf8_lossy(&tried.stderr).trim())),
        }
    }

    /// What is not kept apart, a sentence for each; nothing when all is.
    pub fn gaps(&self) -> Vec<String> {
        let mut gaps = Vec::new();
        if !self.has_bubblewrap() {
            gaps.push(
                "programs see this machine's files and network: bubblewrap is missing, off, or \
                 namespaces are not allowed"
                    .into(),
            );
        }
        if self.first_uid.is_none() {
            gaps.push(
                "programs run as the same user as the pool and their number is not limited: only \
                 root can give them users of their own"
                    .into(),
            );
        }
        if !self.has_bubblewrap() && !self.prlimit {
            gaps.push("memory, files and processor time have no limits: prlimit is missing".into());
        }
        gaps
    }

    /// The first user that programs run under, if they have users of their own.
    pub fn first_uid(&self) -> Option<u32> {
        self.first_uid
    }

    /// Whether bubblewrap is used.
    pub fn has_bubblewrap(&self) -> bool {
        self.first.is_some()
    }

    /// The command that puts up walls of this shape around a folder, with the first process in them. Its standard
    /// input is taken.
    pub(super) fn wall(&self, shape: &Shape, site: Site<'_>) -> io::Result<Command> {
        let first =
            self.first.as_ref().ok_or_else(|| io::Error::other("there is no bubblewrap"))?;
        let mut command = Command::new(BUBBLEWRAP);
        command.args(walls(&shape.read)).arg("--bind").args([site.folder, Path::new(INSIDE)]);
        // The root is a folder in memory that nobody may fill.
        command.args(["--remount-ro", "/", "--chdir", INSIDE, "--", first::INSIDE, first::WORD]);
        // The mark by which it is found should it be left alone.
        command.arg(site.folder).current_dir(site.folder).stdin(first.try_clone()?);
        self.furnish(&mut command, &shape.environment, Path::new(INSIDE), Path::new("/tmp"));
        self.dress(&mut command, site.uid);
        Ok(command)
    }

    /// The command that runs a task without walls: no shell, nothing of the pool's environment, all limits set.
    pub(super) fn bare(&self, plan: &Plan, site: Site<'_>, limits: Rlimits) -> Command {
        let mut words = if self.prlimit { limits.prlimit() } else { Vec::new() };
        words.extend(plan.command.iter().cloned());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(site.folder);
        self.furnish(&mut command, &plan.program.environment, site.folder, site.folder);
        self.dress(&mut command, site.uid);
        command
    }

    fn furnish(
        &self,
        command: &mut Command,
        environment: &BTreeMap<String, String>,
        home: &Path,
        temporary: &Path,
    ) {
        command.env_clear().env("PATH", PATH).env("LANG", "C.UTF-8");
        command.env("HOME", home).env("TMPDIR", temporary).envs(environment);
    }

    fn dress(&self, command: &mut Command, uid: Option<u32>) {
        command.process_group(0);
        if let Some(uid) = uid {
            // The groups of the pool's user are given up with it.
            command.uid(uid).gid(uid);
        }
    }

    /// What each process of a program of this user may use. `seconds_max` is the longest time it may have; an
    /// interactive one has no such.
    pub(super) fn limits(
        &self,
        uid: Option<u32>,
        seconds_max: Option<u64>,
        limits: &Limits,
    ) -> Rlimits {
        let wrapping = if self.has_bubblewrap() { WRAPPING } else { 0 };
        let processes = uid.map(|_| limits.processes_max.saturating_add(wrapping));
        // Each processor may be used all the time.
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get()) as u64;
        let cpu = seconds_max.map(|seconds| (seconds + CPU_SPARE).saturating_mul(processors));
        Rlimits::new(limits, processes, cpu)
    }
}

/// What is at a place of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Link(PathBuf),
    /// The numbers of its file system and on it.
    Place(u64, u64),
    Nothing,
}

/// What walls show that are put up now: a place that is replaced later is still the old one inside.
pub(super) fn seen(read: &[PathBuf]) -> Vec<Seen> {
    let see = |place: &Path| match (std::fs::read_link(place), std::fs::metadata(place)) {
        (Ok(target), _) => Seen::Link(target),
        (_, Ok(about)) => Seen::Place(about.dev(), about.ino()),
        _ => Seen::Nothing,
    };
    places(read).map(see).collect()
}

fn places(read: &[PathBuf]) -> impl Iterator<Item = &Path> {
    READ.iter().map(Path::new).chain(read.iter().map(PathBuf::as_path))
}

/// What bubblewrap is told: nothing of the machine but programs and what they read, no network, no
/// other processes.
///
/// It is not told `--die-with-parent`: that ends the outer process of bubblewrap at once, and the inner one, which has
/// not asked for it yet, would wait for ever for the word that its mappings are written. So the outer one goes on, and
/// the first process inside ends with the pool (see `first`), and bubblewrap with it.
fn walls(read: &[PathBuf]) -> Vec<String> {
    let mut args: Vec<String> = Vec::new();
    let mut add = |words: &[&str]| args.extend(words.iter().map(|word| word.to_string()));
    add(&["--unshare-all", "--new-session", "--as-pid-1"]);
    add(&["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]);
    let size = MEMORY_FOLDER_BYTES_MAX.to_string();
    for folder in ["/dev/shm", "/tmp"] {
        add(&["--size", &size, "--tmpfs", folder]);
    }
    // The folder around the devices is in memory too, and has no size.
    add(&["--remount-ro", "/dev"]);
    for place in places(read) {
        let text = place.display().to_string();
        match std::fs::read_link(place) {
            // `/bin` is most often a link into `/usr`.
            Ok(target) => args.extend(["--symlink".into(), target.display().to_string(), text]),
            Err(_) => args.extend(["--ro-bind-try".into(), text.clone(), text]),
        }
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    // A program with two busy threads was killed after half of the time its client had asked for, and run again,
    // and once more: processor time counts for all threads together.
    #[test]
    fn a_program_may_use_every_processor_all_its_time() {
        let isolation = Isolation { first_uid: None, first: None, prlimit: true };
        let args = isolation.limits(None, Some(30), &Limits::default()).prlimit();
        let cpu = args.iter().find_map(|arg| arg.strip_prefix("--cpu=")).unwrap();
        let (soft, hard) = cpu.split_once(':').unwrap();
        let processors = std::thread::available_parallelism().unwrap().get() as u64;
        assert!(soft.parse::<u64>().unwrap() > 30 * processors, "{cpu}");
        assert!(hard.parse::<u64>().unwrap() > soft.parse().unwrap(), "{cpu}");
    }
}

//! How programs are kept apart, and what this machine does not allow.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Plan;
use super::rlimits::{Rlimits, Setter};
use crate::config::{self, Limits};

const BUBBLEWRAP: &str = "/usr/bin/bwrap";
const SHELL: &str = "/bin/sh";
/// Where commands are looked for.
const PATH: &str = "/usr/bin:/bin";
/// Where a program finds its folder inside bubblewrap.
const INSIDE: &str = "/job";
/// The first process inside bubblewrap. Bubblewrap's own tells an exit and a kill by the same number, and is left as a
/// zombie that counts among the processes of its user. What a client says reaches this shell as arguments only, and it
/// reads none of them. Its standard input is a socket on which it tells how the program fares ([`super::account`]): that
/// it is about to begin, what the shell has to say of a signal that ended it, and its status.
const FIRST: &str = "echo begun >&0; exec 3>&2 2>&0; (exec \"$@\" </dev/null 2>&3 3>&-); code=$?; echo \"$code\" >&0; \
                     exit \"$code\"";
/// The same for a session, whose program has the standard input.
const FIRST_IN_SESSION: &str = "(exec \"$@\"); exit \"$?\"";
/// Processes of bubblewrap itself: the outer one, the first one inside, and that on its way to be the program.
const WRAPPING: u64 = 3;
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
    bubblewrap: bool,
    limits_by: Setter,
}

/// Where and as whom a program runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site<'a> {
    pub folder: &'a Path,
    pub uid: Option<u32>,
    /// The longest time it may have, in seconds; nothing for an interactive one.
    pub seconds_max: Option<u64>,
}

impl Isolation {
    /// Tries what works here.
    pub async fn probe(wanted: &config::Isolation) -> Self {
        let root = rustix::process::geteuid().is_root();
        let first_uid = root.then_some(wanted.first_uid);
        let mut this = Isolation { first_uid, bubblewrap: false, limits_by: Setter::installed() };
        if wanted.bubblewrap && Path::new(BUBBLEWRAP).exists() {
            this.bubblewrap = this.inside("exit 0").await.is_some();
        }
        if this.bubblewrap {
            let trial = Rlimits::trial();
            let script = format!("{}exec cat /proc/self/limits", trial.script());
            if this.inside(&script).await.is_some_and(|limits| trial.are_set(&limits)) {
                this.limits_by = Setter::Shell;
            }
        }
        this
    }

    /// What a script inside bubblewrap writes, if it ends well.
    async fn inside(&self, script: &str) -> Option<String> {
        let mut trial = Command::new(BUBBLEWRAP);
        trial.args(walls(&[])).args(["--", SHELL, "-c", script]).env_clear();
        trial.env("PATH", PATH).stdin(Stdio::null()).stderr(Stdio::null());
        self.dress(&mut trial, self.first_uid);
        let output = tokio::process::Command::from(trial).output().await.ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// What is not kept apart, a sentence for each; nothing when all is.
    pub fn gaps(&self) -> Vec<String> {
        let mut gaps = Vec::new();
        if !self.bubblewrap {
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
        if self.limits_by == Setter::Nobody {
            gaps.push("memory, files and processor time have no limits: prlimit is missing".into());
        }
        gaps
    }

    /// The first user that programs run under, if they have users of their own.
    pub fn first_uid(&self) -> Option<u32> {
        self.first_uid
    }

    /// Other pools have those before this one.
    pub(super) fn set_first_uid(&mut self, first: u32) {
        self.first_uid = Some(first);
    }

    /// Whether bubblewrap is used.
    pub fn has_bubblewrap(&self) -> bool {
        self.bubblewrap
    }

    /// The command that runs a task: no shell, nothing of the pool's environment, all limits set.
    pub(crate) fn command(&self, plan: &Plan, site: Site<'_>, limits: &Limits) -> Command {
        let mut words: Vec<String> = Vec::new();
        let limits = self.limits(site, limits);
        if self.limits_by == Setter::Prlimit {
            words.extend(limits.prlimit());
        }
        if self.bubblewrap {
            words.push(BUBBLEWRAP.into());
            words.extend(walls(&plan.program.read));
            let folder = site.folder.display().to_string();
            words.extend(["--bind".into(), folder, INSIDE.into()]);
            // The root is a folder in memory that nobody may fill.
            words.extend(["--remount-ro", "/", "--chdir", INSIDE, "--"].map(String::from));
            let first = if plan.interactive { FIRST_IN_SESSION } else { FIRST };
            let by_shell = self.limits_by == Setter::Shell;
            let script = if by_shell { limits.script() + first } else { first.into() };
            words.extend([SHELL.into(), "-c".into(), script]);
            // Its name is the mark by which it is found should it be left alone.
            words.push(site.folder.display().to_string());
        }
        words.extend(plan.command.iter().cloned());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(site.folder).env_clear();
        let home = if self.bubblewrap { Path::new(INSIDE) } else { site.folder };
        command.env("PATH", PATH).env("LANG", "C.UTF-8").env("HOME", home);
        command.env("TMPDIR", if self.bubblewrap { Path::new("/tmp") } else { site.folder });
        command.envs(&plan.program.environment);
        self.dress(&mut command, site.uid);
        command
    }

    fn dress(&self, command: &mut Command, uid: Option<u32>) {
        command.process_group(0);
        if let Some(uid) = uid {
            // The groups of the pool's user are given up with it.
            command.uid(uid).gid(uid);
        }
    }

    fn limits(&self, site: Site<'_>, limits: &Limits) -> Rlimits {
        let wrapping = if self.bubblewrap { WRAPPING } else { 0 };
        let processes = site.uid.map(|_| limits.processes_max.saturating_add(wrapping));
        // Each processor may be used all the time.
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get()) as u64;
        let cpu = site.seconds_max.map(|seconds| (seconds + CPU_SPARE).saturating_mul(processors));
        Rlimits::new(limits, processes, cpu)
    }
}

/// What bubblewrap is told: nothing of the machine but programs and what they read, no network, no
/// other processes, and an end together with the pool.
fn walls(read: &[PathBuf]) -> Vec<String> {
    let mut args: Vec<String> = Vec::new();
    let mut add = |words: &[&str]| args.extend(words.iter().map(|word| word.to_string()));
    add(&["--unshare-all", "--die-with-parent", "--new-session", "--as-pid-1"]);
    add(&["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]);
    let size = MEMORY_FOLDER_BYTES_MAX.to_string();
    for folder in ["/dev/shm", "/tmp"] {
        add(&["--size", &size, "--tmpfs", folder]);
    }
    // The folder around the devices is in memory too, and has no size.
    add(&["--remount-ro", "/dev"]);
    for place in READ.iter().map(Path::new).chain(read.iter().map(PathBuf::as_path)) {
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
        let isolation =
            Isolation { first_uid: None, bubblewrap: false, limits_by: Setter::Prlimit };
        let site = Site { folder: Path::new("/"), uid: None, seconds_max: Some(30) };
        let args = isolation.limits(site, &Limits::default()).prlimit();
        let cpu = args.iter().find_map(|arg| arg.strip_prefix("--cpu=")).unwrap();
        let (soft, hard) = cpu.split_once(':').unwrap();
        let processors = std::thread::available_parallelism().unwrap().get() as u64;
        assert!(soft.parse::<u64>().unwrap() > 30 * processors, "{cpu}");
        assert!(hard.parse::<u64>().unwrap() > soft.parse().unwrap(), "{cpu}");
    }
}

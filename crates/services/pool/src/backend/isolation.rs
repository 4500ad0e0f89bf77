//! Builds the commands that isolate programs, and reports which kinds of isolation are missing.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use super::control_group::{ControlGroup, ControlGroups};
use super::memory_sample::MEMORY_FOLDERS;
use super::rlimits::Rlimits;
use super::run_request::RunRequest;
use super::sandbox::SandboxSpec;
use super::sandbox_probe::SandboxUnavailable;
use super::task_folder::TaskFolders;
use super::{TaskSpec, sandbox_init, sandbox_probe, seccomp};
use crate::config::{Config, Limits, SandboxKind};

/// The `PATH` of programs.
const PATH: &str = "/usr/bin:/bin";
/// The folder of the task inside the sandbox.
const FOLDER_INSIDE: &str = "/job";
/// Processes and threads beside the program: the outer process of bubblewrap, the init process with the thread that
/// watches the pool, and a forked process that becomes the program.
const SANDBOX_PROCESSES: u64 = 4;
/// System folders that programs may read, if they exist.
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
/// Size of `/tmp` and of `/dev/shm` inside the sandbox, in bytes: where a control group counts them, and where they are
/// only checked from time to time. Both are in memory.
const MEMORY_FOLDER_BYTES_MAX: u64 = 64 << 20;
const MEMORY_FOLDER_BYTES_MAX_SAMPLED: u64 = 32 << 20;
/// Seconds of processor time beyond the time limit of a task.
const CPU_SECONDS_SPARE: u64 = 2;

/// The isolation of programs.
#[derive(Clone, Debug)]
pub struct Isolation {
    first_uid: Option<u32>,
    /// The executable of the init process, which also starts programs without a sandbox.
    init: Arc<File>,
    /// None if the configuration wants no sandbox.
    sandbox: Option<Bubblewrap>,
    /// The control groups of tasks, or why there are none.
    groups: Result<Arc<ControlGroups>, String>,
}

/// How sandboxes are started.
#[derive(Clone, Debug)]
struct Bubblewrap {
    path: PathBuf,
    /// Whether it refuses nested user namespaces, or why it cannot: versions before 0.8 have no such option.
    userns_disabled: Result<(), String>,
}

/// The folder and the user of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramContext<'a> {
    pub folder: &'a Path,
    pub uid: Option<u32>,
}

impl Isolation {
    /// Tests that a program runs in a sandbox, unless the configuration wants none, with the first of the users of
    /// programs, if there are some: this pool must have claimed them already, because another pool kills all
    /// processes of its users.
    pub(super) async fn probe(
        config: &Config,
        first_uid: Option<u32>,
        folders: &TaskFolders,
    ) -> Result<Self, SandboxUnavailable> {
        let init = sandbox_init::open();
        let init = init.map_err(|error| SandboxUnavailable::Failed(error.to_string()))?;
        let groups = ControlGroups::open(&config.limits, processes_max(&config.limits));
        let groups = groups.map(Arc::new);
        let mut this = Isolation { first_uid, init: Arc::new(init), sandbox: None, groups };
        if config.sandbox == SandboxKind::None {
            return Ok(this);
        }
        let path = config.isolation.bubblewrap.clone();
        if !path.exists() {
            return Err(SandboxUnavailable::Missing(path));
        }
        this.sandbox = Some(Bubblewrap { path: path.clone(), userns_disabled: Ok(()) });
        let Err(why) = sandbox_probe::probe(&this, folders).await else { return Ok(this) };
        // The filter of system calls refuses them as well, so that this is a gap and not a reason not to start.
        this.sandbox = Some(Bubblewrap { path, userns_disabled: Err(why) });
        let probed = sandbox_probe::probe(&this, folders).await;
        probed.map(|()| this).map_err(SandboxUnavailable::Failed)
    }

    /// Describes each missing kind of isolation in a sentence; empty if nothing is missing.
    pub fn gaps(&self) -> Vec<String> {
        let mut gaps = Vec::new();
        if !self.has_bubblewrap() {
            gaps.push(
                "programs can access the files and the network of this machine: the file of the pool says \
                 `sandbox: none`"
                    .into(),
            );
        }
        if let Some(Bubblewrap { userns_disabled: Err(why), .. }) = &self.sandbox {
            gaps.push(format!(
                "nested user namespaces are refused by the filter of system calls only, not by bubblewrap: with \
                 --disable-userns, {why}; install bubblewrap 0.8 or later, and make /proc/sys/user writable in a \
                 container"
            ));
        }
        if self.first_uid.is_none() {
            gaps.push(
                "programs run as the user of the pool: only root can give them users of their own"
                    .into(),
            );
            if !self.has_control_groups() {
                gaps.push("the number of processes is not limited: the pool is not root and has no control groups".into());
            }
        }
        if !seccomp::is_supported() {
            gaps.push(
                "programs may make every system call: there is no filter for this processor architecture".into(),
            );
        }
        gaps
    }

    /// How the memory of tasks is limited, in a sentence.
    pub fn memory_accounting(&self) -> String {
        match &self.groups {
            Ok(_) => "memory and processors of each task are limited by a control group".into(),
            Err(why) => format!("memory of each task is checked four times a second: {why}"),
        }
    }

    /// Whether each task has a control group.
    pub fn has_control_groups(&self) -> bool {
        self.groups.is_ok()
    }

    /// A control group for a task, where there are some.
    pub(super) fn new_control_group(&self) -> io::Result<Option<ControlGroup>> {
        self.groups.as_ref().ok().map(|groups| groups.create()).transpose()
    }

    /// Size of each folder in memory, in bytes, in a sandbox.
    pub(super) fn memory_folder_bytes(&self) -> Option<u64> {
        let bytes = match self.has_control_groups() {
            true => MEMORY_FOLDER_BYTES_MAX,
            false => MEMORY_FOLDER_BYTES_MAX_SAMPLED,
        };
        self.has_bubblewrap().then_some(bytes)
    }

    /// The first arguments of the init process.
    fn init_args(&self) -> [&'static str; 2] {
        let memory_files = match self.has_control_groups() {
            true => sandbox_init::MEMORY_FILES,
            false => sandbox_init::NO_MEMORY_FILES,
        };
        [sandbox_init::ARGUMENT, memory_files]
    }

    /// The first user of programs, if they have users of their own.
    pub fn first_uid(&self) -> Option<u32> {
        self.first_uid
    }

    /// Whether bubblewrap is used.
    pub fn has_bubblewrap(&self) -> bool {
        self.sandbox.is_some()
    }

    /// The command that starts a sandbox around a folder, with the init process in it. It uses the standard input.
    pub(super) fn sandbox_command(
        &self,
        spec: &SandboxSpec,
        site: ProgramContext<'_>,
    ) -> io::Result<Command> {
        let sandbox = self.sandbox.as_ref();
        let sandbox = sandbox.ok_or_else(|| io::Error::other("programs have no sandbox"))?;
        let mut command = Command::new(&sandbox.path);
        command
            .args(self.sandbox_args(sandbox, &spec.read))
            .arg("--bind")
            .args([site.folder, Path::new(FOLDER_INSIDE)]);
        // The root is in memory and must not be filled.
        command.args([
            "--remount-ro",
            "/",
            "--chdir",
            FOLDER_INSIDE,
            "--",
            sandbox_init::EXECUTABLE_INSIDE,
        ]);
        command.args(self.init_args());
        // The argument by which its processes are found if the pool is killed.
        command.arg(site.folder).current_dir(site.folder).stdin(self.init.try_clone()?);
        self.set_environment(
            &mut command,
            &spec.environment,
            Path::new(FOLDER_INSIDE),
            Path::new("/tmp"),
        );
        self.set_user(&mut command, site.uid);
        Ok(command)
    }

    /// The arguments for bubblewrap: nothing of the machine but programs and the configured paths, no network, no other
    /// processes.
    ///
    /// `--die-with-parent` is not used: it ends the outer process of bubblewrap at once, and the inner one, which has not
    /// requested it yet, would wait forever for the message that its mappings are written. So the outer process
    /// continues, the init process ends with the pool (see `sandbox_init`), and bubblewrap ends with it.
    fn sandbox_args(&self, sandbox: &Bubblewrap, read: &[PathBuf]) -> Vec<String> {
        let mut args: Vec<String> = Vec::new();
        let mut add = |parts: &[&str]| args.extend(parts.iter().map(|part| part.to_string()));
        add(&["--unshare-all", "--new-session", "--as-pid-1"]);
        if sandbox.userns_disabled.is_ok() {
            add(&["--unshare-user", "--disable-userns"]);
        }
        add(&["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]);
        let size = self.memory_folder_bytes().unwrap_or_default().to_string();
        for folder in MEMORY_FOLDERS {
            add(&["--size", &size, "--tmpfs", folder]);
        }
        // The folder around the devices is also in memory, without a size limit.
        add(&["--remount-ro", "/dev"]);
        for path in visible_paths(read) {
            let text = path.display().to_string();
            match std::fs::read_link(path) {
                // `/bin` is usually a link into `/usr`.
                Ok(target) => args.extend(["--symlink".into(), target.display().to_string(), text]),
                Err(_) => args.extend(["--ro-bind-try".into(), text.clone(), text]),
            }
        }
        args
    }

    /// The command that runs a task without a sandbox: no shell, an empty environment, all limits set.
    pub(super) fn unsandboxed_command(
        &self,
        task: &TaskSpec,
        site: ProgramContext<'_>,
        limits: Rlimits,
    ) -> io::Result<Command> {
        let request = RunRequest { command: task.command.clone(), limits };
        // The descriptor is open until the executable is.
        let mut command = Command::new(format!("/proc/self/fd/{}", self.init.as_raw_fd()));
        command.args(self.init_args()).arg(sandbox_init::UNSANDBOXED);
        command.arg(serde_json::to_string(&request)?).current_dir(site.folder);
        self.set_environment(&mut command, &task.program.environment, site.folder, site.folder);
        self.set_user(&mut command, site.uid);
        Ok(command)
    }

    fn set_environment(
        &self,
        command: &mut Command,
        environment: &BTreeMap<String, String>,
        home: &Path,
        temporary: &Path,
    ) {
        command.env_clear().env("PATH", PATH).env("LANG", "C.UTF-8");
        command.env("HOME", home).env("TMPDIR", temporary).envs(environment);
    }

    fn set_user(&self, command: &mut Command, uid: Option<u32>) {
        command.process_group(0);
        if let Some(uid) = uid {
            // Supplementary groups of the pool's user are dropped as well.
            command.uid(uid).gid(uid);
        }
    }

    /// Limits of each process of a program. `seconds_max` is the longest time it may get; an interactive one has
    /// none.
    pub(super) fn limits(
        &self,
        uid: Option<u32>,
        seconds_max: Option<u64>,
        limits: &Limits,
    ) -> Rlimits {
        let processes = uid.map(|_| match self.has_bubblewrap() {
            true => processes_max(limits),
            false => limits.processes_max,
        });
        // All processors may be used all the time.
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get()) as u64;
        let cpu =
            seconds_max.map(|seconds| (seconds + CPU_SECONDS_SPARE).saturating_mul(processors));
        Rlimits::new(limits, processes, cpu)
    }
}

/// Processes and threads of a task together with those of its sandbox.
fn processes_max(limits: &Limits) -> u64 {
    limits.processes_max.saturating_add(SANDBOX_PROCESSES)
}

/// What exists at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PathState {
    Link(PathBuf),
    /// Its device and inode.
    Inode(u64, u64),
    Missing,
}

/// The paths that a sandbox started now shows: one that is replaced later is still the old one inside.
pub(super) fn path_states(read: &[PathBuf]) -> Vec<PathState> {
    let state_of = |path: &Path| match (std::fs::read_link(path), std::fs::metadata(path)) {
        (Ok(target), _) => PathState::Link(target),
        (_, Ok(metadata)) => PathState::Inode(metadata.dev(), metadata.ino()),
        _ => PathState::Missing,
    };
    visible_paths(read).map(state_of).collect()
}

fn visible_paths(read: &[PathBuf]) -> impl Iterator<Item = &Path> {
    READ.iter().map(Path::new).chain(read.iter().map(PathBuf::as_path))
}

#[cfg(test)]
mod tests {
    use taskyard_testkit::skipped::skip;

    use super::*;

    fn isolation(sandbox: Option<Bubblewrap>) -> Isolation {
        let init = Arc::new(File::open("/dev/null").unwrap());
        Isolation { first_uid: None, init, sandbox, groups: Err(String::new()) }
    }

    /// Tries to make a user namespace in a sandbox without the filter of system calls; returns what was printed if that failed.
    fn nested_namespace(userns_disabled: Result<(), String>) -> Option<String> {
        let path = PathBuf::from("/usr/bin/bwrap");
        let sandbox = Bubblewrap { path, userns_disabled };
        let mut command = Command::new(&sandbox.path);
        command.args(isolation(Some(sandbox.clone())).sandbox_args(&sandbox, &[]));
        command.args(["--", "/usr/bin/unshare", "--user", "/bin/true"]);
        let ended = command.output().ok()?;
        (!ended.status.success()).then(|| String::from_utf8_lossy(&ended.stderr).into_owned())
    }

    // The filter hides whether bubblewrap itself refuses them.
    #[test]
    fn bubblewrap_refuses_nested_user_namespaces() {
        let is_missing = |path: &&str| !Path::new(path).exists();
        let needed = ["/usr/bin/bwrap", "/usr/bin/unshare"];
        let missing = needed.iter().find(|path| is_missing(path)).map(|path| path.to_string());
        if let Some(why) = missing.or_else(|| nested_namespace(Err("not asked for".into()))) {
            return skip(format_args!("no user namespace can be made in a sandbox here: {why}"));
        }
        let refused = nested_namespace(Ok(())).expect("it is refused");
        if refused.contains("Unknown option") {
            return skip(format_args!("this bubblewrap cannot refuse them: {refused}"));
        }
        assert!(refused.contains("unshare failed: No space left on device"), "{refused}");
    }

    // A program with two busy threads was killed after half of the time its client had asked for, and was run again
    // twice: processor time counts for all threads together.
    #[test]
    fn a_program_may_use_every_processor_all_its_time() {
        let (soft, hard) = isolation(None).limits(None, Some(30), &Limits::default()).cpu.unwrap();
        let processors = std::thread::available_parallelism().unwrap().get() as u64;
        assert!(soft > 30 * processors && hard > soft, "{soft} {hard}");
    }
}

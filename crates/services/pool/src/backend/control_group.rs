//! A control group (version 2) for each task: limits its memory, whatever form that has, and its processes, and shares
//! the processors between tasks.
//!
//! The pool needs a group of its own in which it may create others, such as that of a systemd service with
//! `Delegate=yes`. A group that has controllers for its children must not contain processes, so the pool moves itself
//! into a child of that group.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::process_group::children;
use crate::config::Limits;

/// The group of the pool itself, a sibling of those of its tasks.
const POOL_GROUP: &str = "taskyard-pool";
/// The beginning of the name of the group that contains those of the tasks; its process follows.
const TASKS_GROUP_PREFIX: &str = "taskyard-pool-tasks-";
/// The controllers of tasks: the first is required.
const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];
/// How long killed processes may take to end.
const EXIT_MAX: Duration = Duration::from_secs(5);
/// Delay between two attempts to remove a group.
const PAUSE: Duration = Duration::from_millis(2);
/// Distinguishes the groups of several pools in one process.
static NEXT_POOL: AtomicU64 = AtomicU64::new(0);
/// Held while a pool of this process looks for its group and moves the process.
static MOVING: Mutex<()> = Mutex::new(());

/// The group that contains the groups of tasks.
#[derive(Debug)]
pub(super) struct ControlGroups {
    parent: Arc<TasksGroup>,
    next: AtomicU64,
    settings: Vec<(&'static str, String)>,
}

/// The group of one task. Its processes are killed and it is removed when this is dropped.
#[derive(Debug)]
pub(super) struct ControlGroup {
    folder: PathBuf,
    _parent: Arc<TasksGroup>,
}

/// The folder of the group that contains the groups of tasks; removed when this is dropped, after all of them.
#[derive(Debug)]
struct TasksGroup(PathBuf);

impl ControlGroups {
    /// Creates the group of a pool whose tasks have these limits and at most this many processes; the error says why
    /// that is not possible here.
    pub fn open(limits: &Limits, processes_max: u64) -> Result<Self, String> {
        let _moving = MOVING.lock().unwrap_or_else(PoisonError::into_inner);
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = own_group(&mounts, &own).ok_or("control groups of version 2 are not mounted")?;
        ControlGroups::open_in(&own, limits, processes_max)
    }

    fn open_in(own: &Path, limits: &Limits, processes_max: u64) -> Result<Self, String> {
        let parent = parent_of_tasks(own);
        let controllers = fs::read_to_string(parent.join("cgroup.controllers"));
        if !has_word(&controllers.unwrap_or_default(), CONTROLLERS[0]) {
            return Err("the control group of the pool has no memory controller".into());
        }
        enable_controllers(own, parent)?;
        remove_leftovers(parent);
        let number = NEXT_POOL.fetch_add(1, Ordering::Relaxed);
        let name = format!("{TASKS_GROUP_PREFIX}{}-{number}", std::process::id());
        let folder = parent.join(name);
        let failed = |error: io::Error| format!("a control group cannot be created: {error}");
        fs::create_dir(&folder).map_err(failed)?;
        let settings = settings(limits, processes_max);
        let parent = Arc::new(TasksGroup(folder));
        let groups = ControlGroups { parent, next: AtomicU64::new(0), settings };
        for controller in CONTROLLERS {
            let enabled =
                write(&groups.parent.0, "cgroup.subtree_control", &format!("+{controller}"));
            if controller == CONTROLLERS[0] {
                enabled.map_err(failed)?;
            }
        }
        groups.try_out().map_err(failed)?;
        Ok(groups)
    }

    /// Creates the group of a task.
    pub fn create(&self) -> io::Result<ControlGroup> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let folder = self.parent.0.join(number.to_string());
        fs::create_dir(&folder)?;
        let group = ControlGroup { folder, _parent: self.parent.clone() };
        for (file, value) in &self.settings {
            // Without swap, or without its controller, the file does not exist.
            match write(&group.folder, file, value) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && *file != "memory.max" => {}
                written => written?,
            }
        }
        Ok(group)
    }

    /// Tests that a process can be moved into a group and ends with it.
    fn try_out(&self) -> io::Result<()> {
        let group = self.create()?;
        // It waits for input that never comes.
        let mut child =
            Command::new("/bin/cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        let added = group.add(child.id());
        let listed = fs::read_to_string(group.folder.join("cgroup.procs"));
        let _ = child.kill();
        child.wait()?;
        added?;
        match has_word(&listed?, &child.id().to_string()) {
            true => Ok(()),
            false => Err(io::Error::other("a process is not in the group that it was moved into")),
        }
    }
}

impl Drop for TasksGroup {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

impl ControlGroup {
    /// Moves a process that was just started, and its children, into the group. A child that is started later is in
    /// it from the beginning.
    pub fn add(&self, leader: u32) -> io::Result<()> {
        write(&self.folder, "cgroup.procs", &leader.to_string())?;
        let mut parents = vec![leader];
        while let Some(parent) = parents.pop() {
            for child in children(parent, parent) {
                let child = child.as_raw_nonzero().get().unsigned_abs();
                match write(&self.folder, "cgroup.procs", &child.to_string()) {
                    // It has ended.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    moved => moved.map(|()| parents.push(child))?,
                }
            }
        }
        Ok(())
    }

    /// The folder of the group.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether the kernel has killed its processes because they had used all their memory.
    pub fn is_out_of_memory(&self) -> bool {
        let events = fs::read_to_string(self.folder.join("memory.events")).unwrap_or_default();
        number_of(&events, "oom_kill") > 0
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // Kernels before 5.14 do not have the file; then the end of the task has killed the processes.
        let _ = write(&self.folder, "cgroup.kill", "1");
        remove(&self.folder);
    }
}

/// The memory of a group that cannot be freed by removing it from caches: of processes, shared memory, files in memory
/// and the kernel on behalf of the task.
pub(super) fn memory_of(group: &Path) -> u64 {
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    ["anon", "shmem", "kernel"].iter().map(|name| number_of(&stat, name)).sum()
}

/// The files of a group and what to write into them.
fn settings(limits: &Limits, processes_max: u64) -> Vec<(&'static str, String)> {
    vec![
        ("memory.max", limits.task_memory_bytes_max.to_string()),
        ("memory.swap.max", "0".into()),
        ("memory.zswap.max", "0".into()),
        ("memory.oom.group", "1".into()),
        ("pids.max", processes_max.to_string()),
        ("cpu.weight", limits.cpu_weight.to_string()),
    ]
}

/// The folder of the group of this process, from the lists of mounts and of groups in `/proc/self`.
fn own_group(mounts: &str, own: &str) -> Option<PathBuf> {
    let own = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        kind.starts_with("cgroup2 ").then_some(())?;
        let mut fields = mount.split(' ').skip(3);
        let (root, at) = (fields.next()?, fields.next()?);
        let below = Path::new(own).strip_prefix(root).ok()?;
        Some(Path::new(at).join(below))
    })
}

/// The group in which groups of tasks are created: an earlier pool of this process may have moved it already.
fn parent_of_tasks(own: &Path) -> &Path {
    match own.parent() {
        Some(parent) if own.ends_with(POOL_GROUP) => parent,
        _ => own,
    }
}

/// Makes the controllers available to children of the parent, and moves this process out of it if it has to be empty.
fn enable_controllers(own: &Path, parent: &Path) -> Result<(), String> {
    let enabled = fs::read_to_string(parent.join("cgroup.subtree_control"));
    if has_word(&enabled.unwrap_or_default(), CONTROLLERS[0]) {
        return Ok(());
    }
    let id = std::process::id().to_string();
    let pool_group = parent.join(POOL_GROUP);
    let enable = || {
        if own == parent {
            match fs::create_dir(&pool_group) {
                // A pool that was killed has left it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => created?,
            }
            write(&pool_group, "cgroup.procs", &id)?;
        }
        write(parent, "cgroup.subtree_control", "+memory")
    };
    if let Err(error) = enable() {
        if own == parent {
            let _ = write(parent, "cgroup.procs", &id);
            let _ = fs::remove_dir(&pool_group);
        }
        return Err(match error.raw_os_error() {
            Some(libc::EBUSY) => "other processes are in the control group of the pool".into(),
            _ => format!("the control group of the pool cannot be changed: {error}"),
        });
    }
    for controller in &CONTROLLERS[1..] {
        let _ = write(parent, "cgroup.subtree_control", &format!("+{controller}"));
    }
    Ok(())
}

/// Removes the groups of pools that were killed, with their processes.
fn remove_leftovers(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(TASKS_GROUP_PREFIX));
        let process = process.and_then(|rest| rest.split_once('-')).map(|(process, _)| process);
        let Some(process) = process else { continue };
        if Path::new("/proc").join(process).exists() {
            continue;
        }
        let _ = write(&entry.path(), "cgroup.kill", "1");
        let groups = fs::read_dir(entry.path()).into_iter().flatten().flatten();
        groups.filter(|group| group.path().is_dir()).for_each(|group| remove(&group.path()));
        remove(&entry.path());
    }
}

fn write(group: &Path, file: &str, value: &str) -> io::Result<()> {
    // The file must exist: otherwise this is not a control group.
    let mut file = fs::OpenOptions::new().write(true).open(group.join(file))?;
    io::Write::write_all(&mut file, value.as_bytes())
}

/// Removes a group, once its processes have ended.
fn remove(folder: &Path) {
    let given_up = Instant::now() + EXIT_MAX;
    while let Err(error) = fs::remove_dir(folder) {
        if error.kind() == io::ErrorKind::NotFound {
            return;
        }
        if Instant::now() > given_up {
            tracing::error!(?folder, %error, "a control group cannot be removed");
            return;
        }
        sleep(PAUSE);
    }
}

fn has_word(text: &str, word: &str) -> bool {
    text.split_whitespace().any(|one| one == word)
}

/// The number after a name, in lines of the form `NAME NUMBER`.
fn number_of(text: &str, name: &str) -> u64 {
    let of_line = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
    text.lines().find_map(of_line).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str =
        "anon 4096\nfile 9000000\nkernel 8192\nkernel_stack 16384\nshmem 100\nanon_thp 7\n";

    #[test]
    fn the_own_group_is_found_in_a_hybrid_tree_and_in_a_container() {
        let hybrid = "30 24 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n\
                      31 30 0:27 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n\
                      32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let own = "4:memory:/a/b\n0::/system.slice/taskyard.service\n";
        let found = own_group(hybrid, own).unwrap();
        assert_eq!(found, Path::new("/sys/fs/cgroup/unified/system.slice/taskyard.service"));
        let part = "31 30 0:27 /pods/7 /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
        assert_eq!(own_group(part, "0::/pods/7/x\n").unwrap(), Path::new("/sys/fs/cgroup/x"));
        // A group outside the mounted part cannot be used.
        assert_eq!(own_group(part, "0::/pods/8\n"), None);
        assert_eq!(own_group("", own), None);
        assert_eq!(own_group(hybrid, "4:memory:/a/b\n"), None);
    }

    #[test]
    fn memory_of_every_kind_is_counted_and_caches_are_not() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(memory_of(folder.path()), 0);
        fs::write(folder.path().join("memory.stat"), STAT).unwrap();
        assert_eq!(memory_of(folder.path()), 4096 + 8192 + 100);
        assert_eq!(number_of("oom 3\noom_kill 1\noom_group_kill 0\n", "oom_kill"), 1);
    }

    #[test]
    fn a_group_without_a_memory_controller_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let open = || ControlGroups::open_in(folder.path(), &Limits::default(), 7).unwrap_err();
        assert!(open().contains("no memory controller"));
        fs::write(folder.path().join("cgroup.controllers"), "cpu pids\n").unwrap();
        assert!(open().contains("no memory controller"));
        // Without the files of a control group nothing is left behind.
        fs::write(folder.path().join("cgroup.controllers"), "cpu memory\n").unwrap();
        assert!(open().contains("cannot be changed"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_limits_of_a_task_are_those_of_its_group() {
        let limits = Limits { task_memory_bytes_max: 5, cpu_weight: 70, ..Limits::default() };
        let settings = settings(&limits, 9);
        for (file, value) in [
            ("memory.max", "5"),
            ("memory.swap.max", "0"),
            ("memory.oom.group", "1"),
            ("pids.max", "9"),
            ("cpu.weight", "70"),
        ] {
            assert!(settings.contains(&(file, value.into())), "{file}: {settings:?}");
        }
    }

    #[test]
    fn groups_of_killed_pools_are_removed_and_those_of_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let living = format!("{TASKS_GROUP_PREFIX}{}-0", std::process::id());
        let killed = format!("{TASKS_GROUP_PREFIX}4294967295-0");
        for name in [&living, &killed, &format!("{killed}/3"), &"other".to_owned()] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        remove_leftovers(folder.path());
        let left = ["other", &living, &killed].map(|name| folder.path().join(name).exists());
        assert_eq!(left, [true, true, false]);
    }

    /// Runs where this process may create control groups.
    #[test]
    fn a_real_group_limits_kills_and_disappears() {
        let groups = match ControlGroups::open(&Limits::default(), 50) {
            Ok(groups) => groups,
            Err(why) => return taskyard_testkit::skipped::skip(why),
        };
        let folder = groups.parent.0.clone();
        let group = groups.create().unwrap();
        let read = |file: &str| fs::read_to_string(group.folder.join(file)).unwrap();
        assert_eq!(read("memory.max").trim(), Limits::default().task_memory_bytes_max.to_string());
        let mut child = Command::new("/bin/sh");
        let child = child.args(["-c", "sleep 1000 & sleep 1000"]).stdin(Stdio::piped()).spawn();
        let mut child = child.unwrap();
        group.add(child.id()).unwrap();
        assert!(!group.is_out_of_memory());
        drop(group);
        assert!(!child.wait().unwrap().success());
        drop(groups);
        assert!(!folder.exists());
    }
}

//! Monitors the total memory and disk usage of tasks. The kernel limits each process and each file separately.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::control_group::memory_of;
use super::memory_sample::{memory_of_folders, memory_of_processes};
use crate::config::Limits;
use crate::units::size;

/// Interval between two checks: within this time a task may exceed its limits.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Unit of the disk usage of a file, in bytes.
const BLOCK: u64 = 512;

/// Monitors all tasks of this process.
#[derive(Debug)]
pub(crate) struct ResourceMonitor {
    limits: Limits,
    monitored: Mutex<MonitoredTasks>,
}

#[derive(Debug, Default)]
struct MonitoredTasks {
    next: u64,
    tasks: HashMap<u64, (MonitoredTask, oneshot::Sender<String>)>,
}

/// The folder and the processes of a task.
#[derive(Clone, Debug)]
pub(crate) struct MonitoredTask {
    /// Its folder.
    pub folder: PathBuf,
    /// Its user, if it has one of its own.
    pub uid: Option<u32>,
    /// The ancestor of all its processes.
    pub leader: u32,
    /// The folder of its control group, if it has one.
    pub control_group: Option<PathBuf>,
    /// Size of its folders in memory, if it has a sandbox.
    pub memory_folder_bytes: Option<u64>,
}

/// A task that is monitored until this is dropped.
#[derive(Debug)]
pub(crate) struct MonitorGuard {
    number: u64,
    monitor: Arc<ResourceMonitor>,
    limit_exceeded: oneshot::Receiver<String>,
}

/// What a task uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usage {
    memory: u64,
    disk: u64,
    files: usize,
}

impl ResourceMonitor {
    /// Starts the checks; they end when the last handle is dropped.
    pub fn start(limits: Limits) -> Arc<Self> {
        let monitor = Arc::new(ResourceMonitor { limits, monitored: Mutex::default() });
        tokio::spawn(check_periodically(Arc::downgrade(&monitor)));
        monitor
    }

    /// Monitors a task from now on.
    pub fn watch(self: &Arc<Self>, task: MonitoredTask) -> MonitorGuard {
        let (sender, limit_exceeded) = oneshot::channel();
        let mut monitored = self.lock();
        let number = monitored.next;
        monitored.next += 1;
        monitored.tasks.insert(number, (task, sender));
        MonitorGuard { number, monitor: self.clone(), limit_exceeded }
    }

    /// Checks all tasks once.
    fn check(&self) {
        let tasks: Vec<(u64, MonitoredTask)> =
            self.lock().tasks.iter().map(|(number, (task, _))| (*number, task.clone())).collect();
        let all_processes = all_processes();
        let usages: Vec<(u64, Usage)> = tasks
            .iter()
            .map(|(number, task)| {
                let (disk, files) = disk(&task.folder, self.limits.task_files_max);
                let usage = Usage { memory: memory(&all_processes, task), disk, files };
                (*number, usage)
            })
            .collect();
        for (number, limit_exceeded) in over_limit(&usages, &self.limits) {
            if let Some((_, sender)) = self.lock().tasks.remove(&number) {
                let _ = sender.send(limit_exceeded);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, MonitoredTasks> {
        self.monitored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MonitorGuard {
    /// Completes when the task exceeds a limit, with the error for its client.
    pub async fn limit_exceeded(&mut self) -> String {
        match (&mut self.limit_exceeded).await {
            Ok(limit_exceeded) => limit_exceeded,
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for MonitorGuard {
    fn drop(&mut self) {
        self.monitor.lock().tasks.remove(&self.number);
    }
}

async fn check_periodically(monitor: Weak<ResourceMonitor>) {
    loop {
        sleep(CHECK_INTERVAL).await;
        let Some(monitor) = monitor.upgrade() else { return };
        if !monitor.lock().tasks.is_empty() {
            let _ = spawn_blocking(move || monitor.check()).await;
        }
    }
}

/// The tasks that have to end, with the error: those over their own limit, and the largest if the total is over its
/// limit.
fn over_limit(usages: &[(u64, Usage)], limits: &Limits) -> Vec<(u64, String)> {
    let mut exceeded: Vec<(u64, String)> = Vec::new();
    for (number, usage) in usages {
        let (memory, disk) = (limits.task_memory_bytes_max, limits.task_disk_bytes_max);
        if usage.memory > memory {
            exceeded.push((*number, memory_limit(memory)));
        } else if usage.disk > disk {
            exceeded.push((*number, format!("disk limit ({})", size(disk))));
        } else if usage.files > limits.task_files_max {
            exceeded.push((*number, format!("too many files ({})", limits.task_files_max)));
        }
    }
    type Of = fn(&Usage) -> u64;
    let totals: [(&str, Option<u64>, Of); 2] = [
        ("memory", limits.pool_memory_bytes_max, |usage| usage.memory),
        ("disk", limits.pool_disk_bytes_max, |usage| usage.disk),
    ];
    for (what, max, of) in totals {
        let is_stopping = |number: &u64| exceeded.iter().any(|(stopping, _)| stopping == number);
        let left = || usages.iter().filter(|(number, _)| !is_stopping(number));
        let sum: u64 = left().map(|(_, usage)| of(usage)).sum();
        let largest = left().max_by_key(|(number, usage)| (of(usage), *number));
        if let (Some(max), Some((number, _))) = (max, largest)
            && sum > max
        {
            let why =
                format!("{what} limit of all tasks together ({}): it used the most", size(max));
            exceeded.push((*number, why));
        }
    }
    exceeded
}

/// The error of a task that used more memory than this.
pub(super) fn memory_limit(bytes: u64) -> String {
    format!("memory limit ({})", size(bytes))
}

/// A process: its id, its parent and its user.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessInfo {
    pub id: u32,
    pub parent: u32,
    uid: u32,
}

/// All processes of this machine.
pub(super) fn all_processes() -> Vec<ProcessInfo> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| process(&entry.path())).collect()
}

fn process(folder: &Path) -> Option<ProcessInfo> {
    let id = folder.file_name()?.to_str()?.parse().ok()?;
    let uid = fs::metadata(folder).ok()?.uid();
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    // The process name before it may contain anything, including parentheses and spaces.
    let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
    Some(ProcessInfo { id, parent, uid })
}

/// Memory of a task.
fn memory(all_processes: &[ProcessInfo], task: &MonitoredTask) -> u64 {
    if let Some(group) = &task.control_group {
        return memory_of(group);
    }
    let processes = processes_of(all_processes, task);
    // The init process of the sandbox, or bubblewrap while it builds it.
    let inside = processes.iter().find(|process| process.parent == task.leader);
    let folders = match (inside, task.memory_folder_bytes) {
        (Some(inside), Some(bytes)) => memory_of_folders(inside.id, bytes),
        _ => 0,
    };
    memory_of_processes(processes.iter().map(|process| process.id)) + folders
}

/// The processes of a task: those of its user, and the descendants of its leader.
fn processes_of(all_processes: &[ProcessInfo], task: &MonitoredTask) -> Vec<ProcessInfo> {
    let parents: HashMap<u32, u32> = all_processes.iter().map(|one| (one.id, one.parent)).collect();
    let descends = |process: &ProcessInfo| {
        let mut at = process.id;
        // Process ids are reused, so there might be a short cycle.
        for _ in 0..64 {
            if at == task.leader {
                return true;
            }
            match parents.get(&at) {
                Some(parent) => at = *parent,
                None => return false,
            }
        }
        false
    };
    let of_task = |process: &&ProcessInfo| Some(process.uid) == task.uid || descends(process);
    all_processes.iter().filter(of_task).copied().collect()
}

/// Disk usage of a folder and number of files in it; at most `files_max` plus one are counted.
fn disk(folder: &Path, files_max: usize) -> (u64, usize) {
    let (mut bytes, mut files) = (0, 0);
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(folder);
        if entries.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::InvalidFilename) {
            // Nested deeper than a path can be long: it cannot be counted.
            return (bytes, files_max.saturating_add(1));
        }
        for entry in entries.into_iter().flatten().flatten() {
            // Links are not followed.
            let Ok(metadata) = entry.metadata() else { continue };
            bytes += metadata.blocks() * BLOCK;
            files += 1;
            if files > files_max {
                return (bytes, files);
            }
            if metadata.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    (bytes, files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(memory: u64, disk: u64, files: usize) -> Usage {
        Usage { memory, disk, files }
    }

    fn limits() -> Limits {
        Limits {
            task_memory_bytes_max: 100,
            task_disk_bytes_max: 100,
            task_files_max: 10,
            pool_memory_bytes_max: Some(150),
            pool_disk_bytes_max: Some(150),
            ..Limits::default()
        }
    }

    fn checked(usages: &[Usage]) -> Vec<(u64, String)> {
        let numbered: Vec<_> = (0..).zip(usages.iter().copied()).collect();
        over_limit(&numbered, &limits())
    }

    #[test]
    fn a_task_over_its_limit_ends() {
        assert_eq!(checked(&[usage(100, 50, 10), usage(50, 100, 10)]), []);
        let ends = checked(&[usage(101, 0, 0), usage(0, 101, 0), usage(0, 0, 11), usage(1, 1, 1)]);
        let texts: Vec<_> = ends.iter().map(|(number, why)| (*number, why.as_str())).collect();
        let wanted = [
            (0, "memory limit (100 bytes)"),
            (1, "disk limit (100 bytes)"),
            (2, "too many files (10)"),
        ];
        assert_eq!(texts, wanted);
    }

    #[test]
    fn the_largest_task_ends_if_the_total_is_over_the_limit() {
        let ends = checked(&[usage(60, 0, 0), usage(70, 0, 0), usage(30, 0, 0)]);
        assert_eq!(ends.len(), 1);
        assert_eq!(ends[0].0, 1);
        assert!(ends[0].1.starts_with("memory limit of all tasks together"), "{ends:?}");
        // It is enough that one ends for its own limit.
        assert_eq!(checked(&[usage(120, 0, 0), usage(60, 0, 0)]).len(), 1);
    }

    #[test]
    fn a_folder_is_counted_without_following_links() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("inner")).unwrap();
        fs::write(folder.path().join("inner/file"), vec![1; 100_000]).unwrap();
        std::os::unix::fs::symlink("/usr", folder.path().join("link")).unwrap();
        let (bytes, files) = disk(folder.path(), 100);
        assert_eq!(files, 3);
        assert!((100_000..150_000).contains(&bytes), "{bytes}");
        assert_eq!(disk(folder.path(), 1).1, 2);
    }

    #[test]
    fn processes_belong_to_a_task_by_leader_or_by_user() {
        let process = |id, parent, uid| ProcessInfo { id, parent, uid };
        let all = [
            process(1, 0, 0),
            process(2, 1, 7),
            process(3, 2, 7),
            process(4, 1, 7),
            process(5, 1, 0),
        ];
        let of = |uid, leader| {
            let (folder, control_group) = (PathBuf::new(), None);
            let memory_folder_bytes = None;
            let task = MonitoredTask { folder, uid, leader, control_group, memory_folder_bytes };
            processes_of(&all, &task).iter().map(|process| process.id).collect::<Vec<_>>()
        };
        assert_eq!(of(None, 2), [2, 3]);
        assert_eq!(of(Some(7), 2), [2, 3, 4]);
    }
}

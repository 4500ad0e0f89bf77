//! Looks at what tasks use together: memory of all their processes, and disk. The system limits each process and
//! each file alone.

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

use crate::config::Limits;
use crate::units::size;

/// How often tasks are looked at: within this time one may go beyond its limits.
const LOOK: Duration = Duration::from_millis(250);
/// The size of a page of memory, in bytes; larger ones are counted too low.
const PAGE: u64 = 4096;
/// The size in which the system counts what a file takes on disk, in bytes.
const BLOCK: u64 = 512;

/// Watches all tasks of this process.
#[derive(Debug)]
pub(crate) struct Warden {
    limits: Limits,
    watched: Mutex<Watched>,
}

#[derive(Debug, Default)]
struct Watched {
    next: u64,
    tasks: HashMap<u64, (Place, oneshot::Sender<String>)>,
}

/// Where a task is.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Its folder.
    pub folder: PathBuf,
    /// Its user, if it has one of its own.
    pub uid: Option<u32>,
    /// The process that all others come from.
    pub leader: u32,
}

/// A task that is watched until this is dropped.
#[derive(Debug)]
pub(crate) struct Watching {
    number: u64,
    warden: Arc<Warden>,
    verdict: oneshot::Receiver<String>,
}

/// What a task uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usage {
    memory: u64,
    disk: u64,
    files: usize,
}

impl Warden {
    /// Starts to look; it ends when the last of its handles is gone.
    pub fn start(limits: Limits) -> Arc<Self> {
        let warden = Arc::new(Warden { limits, watched: Mutex::default() });
        tokio::spawn(look_again_and_again(Arc::downgrade(&warden)));
        warden
    }

    /// Watches a task from now on.
    pub fn watch(self: &Arc<Self>, place: Place) -> Watching {
        let (sender, verdict) = oneshot::channel();
        let mut watched = self.lock();
        let number = watched.next;
        watched.next += 1;
        watched.tasks.insert(number, (place, sender));
        Watching { number, warden: self.clone(), verdict }
    }

    /// Looks at everybody once.
    fn look(&self) {
        let places: Vec<(u64, Place)> =
            self.lock().tasks.iter().map(|(number, (place, _))| (*number, place.clone())).collect();
        let processes = processes();
        let usages: Vec<(u64, Usage)> = places
            .iter()
            .map(|(number, place)| {
                let (disk, files) = disk(&place.folder, self.limits.task_files_max);
                let usage = Usage { memory: memory(&processes, place), disk, files };
                (*number, usage)
            })
            .collect();
        for (number, verdict) in judge(&usages, &self.limits) {
            if let Some((_, sender)) = self.lock().tasks.remove(&number) {
                let _ = sender.send(verdict);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watching {
    /// Ready when the task uses more than it may, with what to tell its client.
    pub async fn verdict(&mut self) -> String {
        match (&mut self.verdict).await {
            Ok(verdict) => verdict,
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.warden.lock().tasks.remove(&self.number);
    }
}

async fn look_again_and_again(warden: Weak<Warden>) {
    loop {
        sleep(LOOK).await;
        let Some(warden) = warden.upgrade() else { return };
        if !warden.lock().tasks.is_empty() {
            let _ = spawn_blocking(move || warden.look()).await;
        }
    }
}

/// Who has to end, and why: whoever uses more than a task may, and the largest where all together do.
fn judge(usages: &[(u64, Usage)], limits: &Limits) -> Vec<(u64, String)> {
    let mut verdicts: Vec<(u64, String)> = Vec::new();
    for (number, usage) in usages {
        let (memory, disk) = (limits.task_memory_bytes_max, limits.task_disk_bytes_max);
        if usage.memory > memory {
            verdicts.push((*number, format!("memory limit ({})", size(memory))));
        } else if usage.disk > disk {
            verdicts.push((*number, format!("disk limit ({})", size(disk))));
        } else if usage.files > limits.task_files_max {
            verdicts.push((*number, format!("too many files ({})", limits.task_files_max)));
        }
    }
    type Of = fn(&Usage) -> u64;
    let together: [(&str, Option<u64>, Of); 2] = [
        ("memory", limits.pool_memory_bytes_max, |usage| usage.memory),
        ("disk", limits.pool_disk_bytes_max, |usage| usage.disk),
    ];
    for (what, most, of) in together {
        let going = |number: &u64| verdicts.iter().any(|(gone, _)| gone == number);
        let left = || usages.iter().filter(|(number, _)| !going(number));
        let sum: u64 = left().map(|(_, usage)| of(usage)).sum();
        let largest = left().max_by_key(|(number, usage)| (of(usage), *number));
        if let (Some(most), Some((number, _))) = (most, largest)
            && sum > most
        {
            let why =
                format!("{what} limit of all tasks together ({}): it used the most", size(most));
            verdicts.push((*number, why));
        }
    }
    verdicts
}

/// A process: its number, its parent, its user, and the memory it has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Process {
    pub id: u32,
    pub parent: u32,
    uid: u32,
    memory: u64,
}

/// All processes of this machine.
pub(super) fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| process(&entry.path())).collect()
}

fn process(folder: &Path) -> Option<Process> {
    let id = folder.file_name()?.to_str()?.parse().ok()?;
    let uid = fs::metadata(folder).ok()?.uid();
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    // The name before it may contain anything, brackets and spaces too.
    let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
    let pages = fs::read_to_string(folder.join("statm")).ok()?;
    let pages: u64 = pages.split_whitespace().nth(1)?.parse().ok()?;
    Some(Process { id, parent, uid, memory: pages * PAGE })
}

/// The memory of all processes of a task: those of its user, and those that come from its first one.
fn memory(processes: &[Process], place: &Place) -> u64 {
    let parents: HashMap<u32, u32> = processes.iter().map(|one| (one.id, one.parent)).collect();
    let descends = |process: &Process| {
        let mut at = process.id;
        // Numbers are used again, so that there might be a ring; it would be a short one.
        for _ in 0..64 {
            if at == place.leader {
                return true;
            }
            match parents.get(&at) {
                Some(parent) => at = *parent,
                None => return false,
            }
        }
        false
    };
    let of_task = |process: &&Process| Some(process.uid) == place.uid || descends(process);
    processes.iter().filter(of_task).map(|process| process.memory).sum()
}

/// What a folder takes on disk, and how many files are in it; no more than `files_max` and one are counted.
fn disk(folder: &Path, files_max: usize) -> (u64, usize) {
    let (mut bytes, mut files) = (0, 0);
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(folder);
        if entries.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::InvalidFilename) {
            // Deeper than a path can say: what is there cannot be counted.
            return (bytes, files_max.saturating_add(1));
        }
        for entry in entries.into_iter().flatten().flatten() {
            // Not what a link leads to, but the link itself.
            let Ok(about) = entry.metadata() else { continue };
            bytes += about.blocks() * BLOCK;
            files += 1;
            if files > files_max {
                return (bytes, files);
            }
            if about.is_dir() {
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

    fn judged(usages: &[Usage]) -> Vec<(u64, String)> {
        let numbered: Vec<_> = (0..).zip(usages.iter().copied()).collect();
        judge(&numbered, &limits())
    }

    #[test]
    fn who_uses_more_than_a_task_may_ends() {
        assert_eq!(judged(&[usage(100, 50, 10), usage(50, 100, 10)]), []);
        let ends = judged(&[usage(101, 0, 0), usage(0, 101, 0), usage(0, 0, 11), usage(1, 1, 1)]);
        let words: Vec<_> = ends.iter().map(|(number, why)| (*number, why.as_str())).collect();
        let wanted = [
            (0, "memory limit (100 bytes)"),
            (1, "disk limit (100 bytes)"),
            (2, "too many files (10)"),
        ];
        assert_eq!(words, wanted);
    }

    #[test]
    fn where_all_together_use_too_much_the_largest_ends() {
        let ends = judged(&[usage(60, 0, 0), usage(70, 0, 0), usage(30, 0, 0)]);
        assert_eq!(ends.len(), 1);
        assert_eq!(ends[0].0, 1);
        assert!(ends[0].1.starts_with("memory limit of all tasks together"), "{ends:?}");
        // One that ends for itself is enough.
        assert_eq!(judged(&[usage(120, 0, 0), usage(60, 0, 0)]).len(), 1);
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
    fn processes_belong_to_the_first_one_or_to_the_user() {
        let process = |id, parent, uid| Process { id, parent, uid, memory: 1 << id };
        let all = [
            process(1, 0, 0),
            process(2, 1, 7),
            process(3, 2, 7),
            process(4, 1, 7),
            process(5, 1, 0),
        ];
        let place = |uid, leader| Place { folder: PathBuf::new(), uid, leader };
        assert_eq!(memory(&all, &place(None, 2)), 0b1100);
        assert_eq!(memory(&all, &place(Some(7), 2)), 0b11100);
    }
}

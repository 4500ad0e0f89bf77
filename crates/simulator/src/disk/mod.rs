//! Simulates a disk and the threads of a store on it.
//!
//! [`Disk`] keeps for each file what the process sees and what would survive a power failure. `platform` gives it to the embedded
//! store, `sqlite_files` to SQLite, `threads` runs the background work of the store.

mod content;
mod platform;
mod sqlite_files;
mod threads;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::effects::{FaultName, count_effect};
use content::FileContent;
pub use platform::SimulatedPlatform;
use sqlite_files::SharedDatabase;

/// The bytes that a disk writes whole.
const SECTOR: u64 = 512;

/// A disk, its page cache and the locks on its files.
#[derive(Clone, Debug)]
pub struct Disk(Arc<Mutex<DiskState>>);

/// The probability of each fault, and the size of the disk.
#[derive(Clone, Copy, Debug)]
pub struct DiskFaults {
    /// A write fails, perhaps after a part of it.
    pub write_error: f64,
    /// A sync fails: nothing says which pages are durable, and the next sync succeeds.
    pub sync_error: f64,
    /// A read fails.
    pub read_error: f64,
    /// Writes fail when all files together have this many bytes.
    pub bytes_max: u64,
    /// Writes fail when so many more bytes are written, also over others: the file system copies what it changes.
    pub bytes_left: u64,
    /// Nothing can be changed.
    pub is_read_only: bool,
    /// What an operation takes at most.
    pub delay_max: Duration,
    /// What syncs do not do, for planted faults.
    pub missing_sync: Option<MissingSync>,
    /// Changes what is read of a file at a start, for planted faults.
    pub change_read: Option<fn(&Path, &mut [u8])>,
}

/// A sync that the store is believed to make and does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingSync {
    /// Of files with this in their name.
    File(&'static str),
    /// The latest one of files with this in their name, when the process ends.
    Latest(&'static str),
    /// Of the names in the folder.
    Folder,
    /// Of all files, if it fails: the error is not noticed.
    Failed,
    /// Of all files, while the disk is slow: nothing waits for it.
    Slow,
    /// Of the latest page of files with this in their name: its write is swapped with the sync after it.
    Swapped(&'static str),
}

impl Default for DiskFaults {
    fn default() -> Self {
        let none = 0.0;
        DiskFaults {
            write_error: none,
            sync_error: none,
            read_error: none,
            bytes_max: u64::MAX,
            bytes_left: u64::MAX,
            is_read_only: false,
            delay_max: Duration::ZERO,
            missing_sync: None,
            change_read: None,
        }
    }
}

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessEnd {
    /// It is killed: the page cache stays.
    Kill,
    /// The machine loses power: unsynced pages are written, lost or torn, each by itself.
    PowerFailure,
}

#[derive(Debug)]
struct DiskState {
    random: fastrand::Rng,
    faults: DiskFaults,
    /// Counts the processes that used the disk; files of earlier ones cannot be used.
    process: u64,
    /// Whether there is a process; what a dead one still tries fails.
    is_running: bool,
    /// How many more writes and syncs there are before the process ends, and how it ends.
    planned_end: Option<(u32, ProcessEnd)>,
    /// Writes and syncs so far.
    operations: u64,
    /// Pages that power failures lost, or of which they left a part.
    lost_pages: usize,
    /// Notified when the process ends.
    ended: Arc<Notify>,
    files: BTreeMap<u64, FileContent>,
    names: BTreeMap<PathBuf, u64>,
    /// The names as of the last sync of the folder.
    durable_names: BTreeMap<PathBuf, u64>,
    next_inode: u64,
    /// Who has locked a file.
    locks: BTreeMap<u64, u64>,
    /// What SQLite's connections of the current process share, by file.
    databases: BTreeMap<u64, SharedDatabase>,
    /// The number of SQLite's files that were opened.
    next_handle: u64,
    /// The bytes of all files.
    bytes: u64,
    /// Where SQLite finds it.
    folder: Option<PathBuf>,
}

/// Refers to an open file.
#[derive(Clone, Debug)]
struct OpenFile {
    disk: Disk,
    path: PathBuf,
    inode: u64,
    process: u64,
}

impl DiskFaults {
    /// These faults and others at the same time.
    pub fn with(self, other: &DiskFaults) -> DiskFaults {
        DiskFaults {
            write_error: self.write_error.max(other.write_error),
            sync_error: self.sync_error.max(other.sync_error),
            read_error: self.read_error.max(other.read_error),
            bytes_max: self.bytes_max.min(other.bytes_max),
            bytes_left: self.bytes_left.min(other.bytes_left),
            is_read_only: self.is_read_only || other.is_read_only,
            delay_max: self.delay_max.max(other.delay_max),
            missing_sync: self.missing_sync.or(other.missing_sync),
            change_read: self.change_read.or(other.change_read),
        }
    }

    fn is_too_slow(&self) -> bool {
        self.missing_sync == Some(MissingSync::Slow) && !self.delay_max.is_zero()
    }

    fn is_skipped(&self, path: &Path) -> bool {
        matches!(self.missing_sync, Some(MissingSync::File(name)) if path.to_string_lossy().contains(name))
    }

    fn is_swapped(&self, path: &Path) -> bool {
        matches!(self.missing_sync, Some(MissingSync::Swapped(name)) if path.to_string_lossy().contains(name))
    }

    fn is_undone(&self, path: &Path) -> bool {
        matches!(self.missing_sync, Some(MissingSync::Latest(name)) if path.to_string_lossy().contains(name))
    }
}

impl Disk {
    /// An empty disk. What survives a power failure follows from the seed.
    pub fn new(seed: u64) -> Disk {
        Disk(Arc::new(Mutex::new(DiskState {
            random: fastrand::Rng::with_seed(seed),
            faults: DiskFaults::default(),
            process: 0,
            is_running: false,
            planned_end: None,
            operations: 0,
            lost_pages: 0,
            ended: Arc::new(Notify::new()),
            files: BTreeMap::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            next_inode: 1,
            locks: BTreeMap::new(),
            databases: BTreeMap::new(),
            next_handle: 0,
            bytes: 0,
            folder: None,
        })))
    }

    /// Sets the faults from now on.
    pub fn set_faults(&self, faults: DiskFaults) {
        self.state().faults = faults;
    }

    /// Ends the process that uses the disk. Its open files cannot be used any more.
    pub fn end_process(&self, how: ProcessEnd) {
        self.state().end_process(how);
    }

    /// Ends the process in the middle of its work: after so many writes and syncs.
    pub fn end_process_after(&self, operations: u32, how: ProcessEnd) {
        self.state().planned_end = Some((operations, how));
    }

    /// Takes back what was planned; false if it has happened.
    pub fn cancel_planned_end(&self) -> bool {
        self.state().planned_end.take().is_some()
    }

    /// Starts the next process.
    pub fn start_process(&self) {
        self.state().is_running = true;
    }

    /// Whether there is a process.
    pub fn is_running(&self) -> bool {
        self.state().is_running
    }

    /// The number of the current process.
    pub fn process(&self) -> u64 {
        self.state().process
    }

    /// Resolves when a process ends.
    pub async fn process_ended(&self) {
        let ended = self.state().ended.clone();
        ended.notified().await;
    }

    /// The bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.state().bytes
    }

    /// How many pages power failures lost, or left a part of.
    pub fn lost_pages(&self) -> usize {
        self.state().lost_pages
    }

    /// Writes and syncs so far.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// How long the operations of a caller take; zero unless the disk is slow.
    pub fn delay(&self) -> Duration {
        let state = &mut *self.state();
        let most = state.faults.delay_max.as_micros() as u64;
        if most == 0 {
            return Duration::ZERO;
        }
        count_effect(FaultName::SlowDisk);
        Duration::from_micros(state.random.u64(1..=most))
    }

    /// A random number of this disk.
    pub fn random(&self, most: u32) -> u32 {
        self.state().random.u32(..most)
    }

    /// The folder of the store.
    fn folder(&self) -> PathBuf {
        let known = self.state().folder.clone();
        known.unwrap_or_else(|| {
            let folder = sqlite_files::mount(self);
            self.state().folder.insert(folder).clone()
        })
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, path: &Path, create: bool, must_be_new: bool) -> io::Result<OpenFile> {
        let mut state = self.state();
        state.check_running()?;
        let found = state.names.get(path).copied();
        let inode = match found {
            Some(_) if must_be_new => return Err(io::ErrorKind::AlreadyExists.into()),
            Some(inode) => inode,
            None if create => state.create(path)?,
            None => return Err(io::ErrorKind::NotFound.into()),
        };
        Ok(OpenFile { disk: self.clone(), path: path.to_owned(), inode, process: state.process })
    }

    fn inode(&self, path: &Path) -> Option<u64> {
        self.state().names.get(path).copied()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.check_running()?;
        state.check_writable()?;
        let inode = state.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.names.insert(to.to_owned(), inode);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.check_running()?;
        state.check_writable()?;
        state.names.remove(path).map(|_| ()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn sync_names(&self) -> io::Result<()> {
        let state = &mut *self.state();
        state.note_operation();
        state.check_running()?;
        state.fail(state.faults.sync_error)?;
        if state.faults.missing_sync == Some(MissingSync::Folder) {
            return Ok(());
        }
        state.durable_names.clone_from(&state.names);
        Ok(())
    }
}

impl DiskState {
    fn create(&mut self, path: &Path) -> io::Result<u64> {
        self.check_writable()?;
        let inode = self.next_inode;
        self.next_inode += 1;
        self.files.insert(inode, FileContent::default());
        self.names.insert(path.to_owned(), inode);
        Ok(inode)
    }

    fn check_running(&self) -> io::Result<()> {
        if self.is_running { Ok(()) } else { Err(io::Error::other("the process has ended")) }
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.faults.is_read_only {
            count_effect(FaultName::ReadOnlyDisk);
            Err(io::ErrorKind::ReadOnlyFilesystem.into())
        } else {
            Ok(())
        }
    }

    fn end_process(&mut self, how: ProcessEnd) {
        self.process += 1;
        self.is_running = false;
        self.planned_end = None;
        self.locks.clear();
        self.databases.clear();
        self.files.values_mut().for_each(FileContent::undo_sync);
        if how == ProcessEnd::PowerFailure {
            self.lose_power();
        }
        self.ended.notify_one();
    }

    /// Counts an operation, which may be the last one of the process.
    fn note_operation(&mut self) {
        self.operations += 1;
        match &mut self.planned_end {
            Some((0, how)) => {
                let how = *how;
                self.end_process(how);
            }
            Some((left, _)) => *left -= 1,
            None => {}
        }
    }

    /// Fails with this probability.
    fn fail(&mut self, probability: f64) -> io::Result<()> {
        if probability > 0.0 && self.random.f64() < probability {
            count_effect(FaultName::DiskErrors);
            return Err(io::Error::other("a simulated error of the disk"));
        }
        Ok(())
    }

    /// Each name and each page that was not synced survives or not.
    fn lose_power(&mut self) {
        let DiskState { random, lost_pages, files, names, durable_names, .. } = self;
        // Changes of names become durable in their order; a prefix of them survives, here all or none.
        if names != durable_names && random.bool() {
            names.clone_from(durable_names);
        }
        durable_names.clone_from(names);
        files.retain(|inode, _| names.values().any(|named| named == inode));
        for content in files.values_mut() {
            *lost_pages += content.lose_power(random);
        }
        self.bytes = self.files.values().map(FileContent::length).sum();
    }
}

impl OpenFile {
    /// Runs an operation on the content, unless the process of this file has ended.
    fn with<T>(
        &self,
        run: impl FnOnce(&mut DiskState, &mut FileContent) -> io::Result<T>,
    ) -> io::Result<T> {
        let state = &mut *self.disk.state();
        if state.process != self.process {
            return Err(io::Error::other("the process of this file has ended"));
        }
        let Some(mut content) = state.files.remove(&self.inode) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let done = run(state, &mut content);
        state.files.insert(self.inode, content);
        done
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let written = self.write(bytes, offset);
        if written.is_ok() {
            self.disk.state().note_operation();
        }
        written
    }

    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.with(|state, content| {
            state.check_writable()?;
            let end = offset + bytes.len() as u64;
            let growth = end.saturating_sub(content.length());
            let left = state.faults.bytes_left.checked_sub(bytes.len() as u64);
            if growth > 0 && state.bytes + growth > state.faults.bytes_max || left.is_none() {
                count_effect(FaultName::FullDisk);
                return Err(io::ErrorKind::StorageFull.into());
            }
            if let Some(left) = left.filter(|_| state.faults.bytes_left < u64::MAX) {
                state.faults.bytes_left = left;
            }
            if let Err(error) = state.fail(state.faults.write_error) {
                // A sector is written whole or not at all.
                let end = offset + state.random.u64(..=bytes.len() as u64);
                let part = (end / SECTOR * SECTOR).saturating_sub(offset) as usize;
                state.bytes += content.write(&bytes[..part], offset);
                return Err(error);
            }
            state.bytes += content.write(bytes, offset);
            Ok(())
        })
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.with(|state, content| {
            state.fail(state.faults.read_error)?;
            content.read(buffer, offset)
        })
    }

    fn length(&self) -> io::Result<u64> {
        self.with(|_, content| Ok(content.length()))
    }

    fn set_length(&self, bytes: u64) -> io::Result<()> {
        self.with(|state, content| {
            state.check_writable()?;
            state.bytes = state.bytes - content.length() + bytes;
            content.set_length(bytes);
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.state().note_operation();
        self.with(|state, content| {
            if state.faults.is_skipped(&self.path) || state.faults.is_too_slow() {
                return Ok(());
            }
            if let Err(error) = state.fail(state.faults.sync_error) {
                content.fail_sync(&mut state.random);
                let is_noticed = state.faults.missing_sync != Some(MissingSync::Failed);
                return if is_noticed { Err(error) } else { Ok(()) };
            }
            if state.faults.is_undone(&self.path) {
                content.note_undo();
            }
            if state.faults.is_swapped(&self.path) {
                content.sync_before_latest();
            } else {
                content.sync();
            }
            Ok(())
        })
    }

    /// Locks the file for this holder; false if another one has it.
    fn try_lock(&self) -> io::Result<bool> {
        let process = self.process;
        let state = &mut *self.disk.state();
        Ok(*state.locks.entry(self.inode).or_insert(process) == process)
    }

    fn unlock(&self) {
        self.disk.state().locks.remove(&self.inode);
    }
}

//! Gives simulated disks to SQLite, as one virtual file system for the whole process.
//!
//! SQLite finds the disk of a file by the folder in its path. All connections to a database are used by one thread, one after the
//! other, so locks are counters, and the index of the write-ahead log is plain memory. Both end with the simulated process.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use sqlite_vfs::wip::{WalIndex, WalIndexLock};
use sqlite_vfs::{DatabaseHandle, LockKind, OpenAccess, OpenOptions, Vfs, register};

use super::{Disk, DiskState, OpenFile};

/// The name of the file system in SQLite.
pub(super) const VFS_NAME: &str = "taskyard-simulated";

/// The size of a part of the index of a log.
const REGION: usize = 32768;

/// The number of the next temporary file.
static NEXT_NAME: AtomicU64 = AtomicU64::new(0);

/// The disks of this process by number.
static DISKS: Mutex<BTreeMap<u64, Weak<Mutex<DiskState>>>> = Mutex::new(BTreeMap::new());

/// Makes a disk known to SQLite; returns the folder with its files.
pub(super) fn mount(disk: &Disk) -> PathBuf {
    static REGISTERED: OnceLock<()> = OnceLock::new();
    REGISTERED.get_or_init(|| {
        let registered = register(VFS_NAME, SimulatedVfs, false);
        registered.expect("SQLite accepts another file system");
    });
    let mut disks = disks();
    disks.retain(|_, disk| disk.strong_count() > 0);
    let number = disks.last_key_value().map_or(0, |last| last.0 + 1);
    disks.insert(number, Arc::downgrade(&disk.0));
    PathBuf::from(format!("/{number}"))
}

fn disks() -> MutexGuard<'static, BTreeMap<u64, Weak<Mutex<DiskState>>>> {
    DISKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The disk that has a file.
fn disk_of(path: &str) -> io::Result<Disk> {
    let mut parts = path.split('/').skip(1);
    let number = parts.next().and_then(|number| number.parse().ok());
    let found = number.and_then(|number: u64| disks().get(&number)?.upgrade());
    found.map(Disk).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// What the connections to a database share.
#[derive(Debug, Default)]
pub(super) struct SharedDatabase {
    /// How many connections can read.
    readers: usize,
    /// A connection that can write, and its lock.
    writer: Option<(u64, LockKind)>,
    regions: BTreeMap<u32, IndexRegion>,
    /// The locks of the index of the log, and who has them.
    index_locks: [IndexLock; 8],
}

/// A part of the index of a log.
#[derive(Debug)]
struct IndexRegion {
    bytes: Box<[u8; REGION]>,
    /// How often it was changed.
    version: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct IndexLock {
    readers: usize,
    writer: Option<u64>,
}

struct SimulatedVfs;

impl Vfs for SimulatedVfs {
    type Handle = SqliteFile;

    fn open(&self, path: &str, options: OpenOptions) -> io::Result<SqliteFile> {
        let create = matches!(options.access, OpenAccess::Create | OpenAccess::CreateNew);
        let must_be_new = options.access == OpenAccess::CreateNew;
        let disk = disk_of(path)?;
        let file = disk.open(Path::new(path), create, must_be_new)?;
        let mut state = disk.state();
        state.next_handle += 1;
        Ok(SqliteFile { file, handle: state.next_handle, held: LockKind::None })
    }

    fn delete(&self, path: &str) -> io::Result<()> {
        disk_of(path)?.remove(Path::new(path))
    }

    fn exists(&self, path: &str) -> io::Result<bool> {
        Ok(disk_of(path)?.inode(Path::new(path)).is_some())
    }

    fn temporary_name(&self) -> String {
        let number = disks().first_key_value().map_or(0, |disk| *disk.0);
        format!("/{number}/temporary-{}", NEXT_NAME.fetch_add(1, Ordering::Relaxed))
    }

    fn random(&self, buffer: &mut [i8]) {
        // Not the generator of the thread: SQLite asks once, at a time that differs from run to run.
        buffer.fill(7);
    }

    fn sleep(&self, duration: Duration) -> Duration {
        duration
    }
}

/// A file of SQLite.
pub(super) struct SqliteFile {
    file: OpenFile,
    handle: u64,
    held: LockKind,
}

impl SqliteFile {
    fn shared<T>(&self, run: impl FnOnce(&mut SharedDatabase) -> T) -> io::Result<T> {
        shared(&self.file, run)
    }
}

/// Uses what the connections to a database share, unless its process has ended.
fn shared<T>(file: &OpenFile, run: impl FnOnce(&mut SharedDatabase) -> T) -> io::Result<T> {
    let mut state = file.disk.state();
    if state.process != file.process {
        return Err(io::Error::other("the process of this file has ended"));
    }
    Ok(run(state.databases.entry(file.inode).or_default()))
}

impl DatabaseHandle for SqliteFile {
    type WalIndex = LogIndex;

    fn size(&self) -> io::Result<u64> {
        self.file.length()
    }

    fn read_exact_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn write_all_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let written = self.file.write_all_at(bytes, offset);
        // SQLite knows a full disk by this error.
        written.map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull => io::ErrorKind::WriteZero.into(),
            _ => error,
        })
    }

    fn sync(&mut self, _data_only: bool) -> io::Result<()> {
        self.file.sync()
    }

    fn set_len(&mut self, bytes: u64) -> io::Result<()> {
        self.file.set_length(bytes)
    }

    fn lock(&mut self, wanted: LockKind) -> io::Result<bool> {
        let (handle, held) = (self.handle, self.held);
        let is_granted = self.shared(|shared| shared.lock(handle, held, wanted))?;
        if is_granted {
            self.held = wanted;
        }
        Ok(is_granted)
    }

    fn reserved(&mut self) -> io::Result<bool> {
        self.shared(|shared| shared.writer.is_some())
    }

    fn current_lock(&self) -> io::Result<LockKind> {
        Ok(self.held)
    }

    fn wal_index(&self, _readonly: bool) -> io::Result<LogIndex> {
        Ok(LogIndex {
            file: self.file.clone(),
            handle: self.handle,
            held: BTreeMap::new(),
            versions: BTreeMap::new(),
        })
    }
}

impl Drop for SqliteFile {
    fn drop(&mut self) {
        _ = self.lock(LockKind::None);
    }
}

impl SharedDatabase {
    /// Changes the lock of a connection; false if others prevent it.
    fn lock(&mut self, handle: u64, held: LockKind, wanted: LockKind) -> bool {
        let is_mine = self.writer.is_some_and(|(writer, _)| writer == handle);
        let other = self.writer.filter(|(writer, _)| *writer != handle);
        match wanted {
            LockKind::None | LockKind::Shared => {
                if is_mine {
                    self.writer = None;
                }
                let reads = held != LockKind::None;
                if wanted == LockKind::Shared && !reads {
                    if other.is_some_and(|(_, lock)| lock == LockKind::Exclusive) {
                        return false;
                    }
                    self.readers += 1;
                } else if wanted == LockKind::None && reads {
                    self.readers -= 1;
                }
            }
            LockKind::Reserved | LockKind::Pending => {
                if other.is_some() {
                    return false;
                }
                self.writer = Some((handle, wanted));
            }
            LockKind::Exclusive => {
                if other.is_some() || self.readers > 1 {
                    return false;
                }
                self.writer = Some((handle, wanted));
            }
        }
        true
    }
}

/// The index of a log, as one connection sees it.
pub(super) struct LogIndex {
    file: OpenFile,
    handle: u64,
    held: BTreeMap<u8, WalIndexLock>,
    /// The version of each region that the connection has. It changes its copy only under a lock after which it pushes it.
    versions: BTreeMap<u32, u64>,
}

impl WalIndex for LogIndex {
    fn map(&mut self, region: u32) -> io::Result<[u8; REGION]> {
        let mut bytes = [0; REGION];
        self.pull(region, &mut bytes)?;
        Ok(bytes)
    }

    fn lock(&mut self, locks: Range<u8>, wanted: WalIndexLock) -> io::Result<bool> {
        let (handle, held) = (self.handle, &self.held);
        let is_granted = shared(&self.file, |shared| {
            let all =
                locks.clone().all(|lock| shared.index_locks[lock as usize].may(handle, wanted));
            if all {
                for lock in locks.clone() {
                    let before = held.get(&lock).copied().unwrap_or(WalIndexLock::None);
                    shared.index_locks[lock as usize].change(handle, before, wanted);
                }
            }
            all
        })?;
        if is_granted {
            self.held.extend(locks.map(|lock| (lock, wanted)));
        }
        Ok(is_granted)
    }

    fn delete(self) -> io::Result<()> {
        shared(&self.file, |shared| shared.regions.clear())
    }

    fn pull(&mut self, region: u32, bytes: &mut [u8; REGION]) -> io::Result<()> {
        let known = self.versions.get(&region).copied();
        let version = shared(&self.file, |shared| match shared.regions.get(&region) {
            Some(found) if known == Some(found.version) => found.version,
            Some(found) => {
                bytes.copy_from_slice(&*found.bytes);
                found.version
            }
            None => {
                bytes.fill(0);
                0
            }
        })?;
        self.versions.insert(region, version);
        Ok(())
    }

    fn push(&mut self, region: u32, bytes: &[u8; REGION]) -> io::Result<()> {
        let version = shared(&self.file, |shared| {
            let empty = || IndexRegion { bytes: Box::new([0; REGION]), version: 0 };
            let kept = shared.regions.entry(region).or_insert_with(empty);
            kept.bytes.copy_from_slice(bytes);
            kept.version += 1;
            kept.version
        })?;
        self.versions.insert(region, version);
        Ok(())
    }
}

impl Drop for LogIndex {
    fn drop(&mut self) {
        let held: Vec<u8> = self.held.keys().copied().collect();
        for lock in held {
            _ = self.lock(lock..lock + 1, WalIndexLock::None);
        }
    }
}

impl IndexLock {
    fn may(&self, handle: u64, wanted: WalIndexLock) -> bool {
        let other = self.writer.is_some_and(|writer| writer != handle);
        match wanted {
            WalIndexLock::None => true,
            WalIndexLock::Shared => !other,
            WalIndexLock::Exclusive => !other && self.readers == 0,
        }
    }

    fn change(&mut self, handle: u64, before: WalIndexLock, wanted: WalIndexLock) {
        match before {
            WalIndexLock::Shared => self.readers -= 1,
            WalIndexLock::Exclusive => self.writer = None,
            WalIndexLock::None => {}
        }
        match wanted {
            WalIndexLock::Shared => self.readers += 1,
            WalIndexLock::Exclusive => self.writer = Some(handle),
            WalIndexLock::None => {}
        }
    }
}

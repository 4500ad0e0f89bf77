//! Gives a simulated disk, clock and threads to the embedded store.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use taskyard_store::OpenError;
use taskyard_store_sqlite::platform::{Access, FileIdentity, Platform, PlatformFile};
use taskyard_store_sqlite::{BackgroundThread, BackgroundWork};

use super::sqlite_files::VFS_NAME;
use super::threads::Threads;
use super::{Disk, OpenFile};

/// Tells the time since the start of the simulation.
pub type Elapsed = Arc<dyn Fn() -> Duration + Send + Sync>;

/// What one process sees of a machine: its disk, its clock and its own threads.
pub struct SimulatedPlatform {
    disk: Disk,
    elapsed: Elapsed,
    threads: Threads,
    folder: PathBuf,
}

impl SimulatedPlatform {
    /// The platform of a process that starts now.
    pub fn new(disk: Disk, elapsed: Elapsed) -> SimulatedPlatform {
        let folder = disk.folder();
        disk.start_process();
        SimulatedPlatform { disk, elapsed, threads: Threads::default(), folder }
    }

    /// The folder of the store.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Steps every background thread that has something to do. Returns when the next one has.
    pub fn step_threads(&self) -> Option<Duration> {
        self.threads.step((self.elapsed)(), || self.disk.delay())
    }

    /// Ends every background thread, because the process has ended.
    pub fn end_threads(&self) {
        self.threads.end();
    }

    /// Resolves when a background thread has something to do at once.
    pub async fn thread_signaled(&self) {
        self.threads.signaled().await;
    }
}

impl std::fmt::Debug for SimulatedPlatform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulatedPlatform").finish_non_exhaustive()
    }
}

impl Platform for SimulatedPlatform {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn PlatformFile>> {
        let (create, must_be_new) = match access {
            Access::Read | Access::Write | Access::ReadWrite => (false, false),
            Access::Create => (true, false),
            Access::CreateNew => (true, true),
        };
        Ok(Box::new(self.disk.open(path, create, must_be_new)?))
    }

    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        match self.disk.open(path, false, false) {
            Ok(file) => file
                .with(|state, content| {
                    state.fail(state.faults.read_error)?;
                    let mut bytes = content.start(bytes_max);
                    if let Some(change) = state.faults.change_read {
                        change(path, &mut bytes);
                    }
                    Ok(bytes)
                })
                .map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn identity(&self, path: &Path) -> io::Result<Option<FileIdentity>> {
        Ok(self.disk.inode(path).map(identity))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn sync_folder(&self, _folder: &Path) -> io::Result<()> {
        self.disk.sync_names()
    }

    fn make_private(&self, _folder: &Path) -> Result<(), OpenError> {
        Ok(())
    }

    fn sqlite_vfs(&self) -> Option<&str> {
        Some(VFS_NAME)
    }

    fn elapsed(&self) -> Duration {
        (self.elapsed)()
    }

    fn random(&self) -> u64 {
        self.disk.state().random.u64(..)
    }

    fn spawn(
        &self,
        name: &str,
        work: Box<dyn BackgroundWork>,
    ) -> io::Result<Box<dyn BackgroundThread>> {
        Ok(self.threads.spawn(name, work))
    }
}

impl PlatformFile for OpenFile {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        OpenFile::write_all_at(self, bytes, offset)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        OpenFile::read_exact_at(self, buffer, offset)
    }

    fn length(&self) -> io::Result<u64> {
        OpenFile::length(self)
    }

    fn set_length(&self, bytes: u64) -> io::Result<()> {
        OpenFile::set_length(self, bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync()
    }

    fn identity(&self) -> io::Result<FileIdentity> {
        Ok(identity(self.inode))
    }

    fn try_lock(&self) -> io::Result<bool> {
        OpenFile::try_lock(self)
    }

    fn unlock(&self) -> io::Result<()> {
        OpenFile::unlock(self);
        Ok(())
    }
}

fn identity(inode: u64) -> FileIdentity {
    FileIdentity { device: 1, inode }
}

//! Reads the pages of a damaged database without SQLite, which refuses the whole file for one damaged page.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::log;

/// Size of a page.
pub const PAGE: usize = 4096;

/// The content of a page.
pub type Page = [u8; PAGE];

/// A database file and the newer pages in its log, as of the last valid commit.
///
/// Reads are counted and limited, so that no damage causes an endless loop.
#[derive(Debug)]
pub struct Pages {
    database: Option<File>,
    in_database: u32,
    log: Option<File>,
    /// Offset in the log of the newest content of a page.
    frames: HashMap<u32, u64>,
    steps: Cell<u64>,
}

impl Pages {
    /// Opens both files; each may be missing.
    pub fn open(database: &Path, log: &Path) -> io::Result<Pages> {
        let (database, log) = (open(database)?, open(log)?);
        let bytes =
            database.as_ref().map_or(Ok(0), |file| file.metadata().map(|data| data.len()))?;
        Ok(Pages {
            in_database: u32::try_from(bytes.div_ceil(PAGE as u64)).unwrap_or(u32::MAX - 1),
            frames: log.as_ref().map(log::frames).unwrap_or_default(),
            database,
            log,
            steps: Cell::new(0),
        })
    }

    /// The database file alone.
    pub fn without_log(&self) -> io::Result<Pages> {
        Ok(Pages {
            database: self.database.as_ref().map(File::try_clone).transpose()?,
            in_database: self.in_database,
            log: None,
            frames: HashMap::new(),
            steps: Cell::new(0),
        })
    }

    /// The highest number that a page can have. A database has no gaps, so the log can add at most as many
    /// pages as it has, whatever their numbers.
    pub fn last(&self) -> u32 {
        let frames = u32::try_from(self.frames.len()).unwrap_or(u32::MAX);
        self.in_database.saturating_add(frames)
    }

    /// Reads a page by its number, from 1; the missing end of a truncated file is zeros. `None` if there is
    /// no such page, if the disk cannot read it, or if too many pages were read.
    pub fn read(&self, number: u32) -> Option<Page> {
        self.steps.set(self.steps.get() + 1);
        if number == 0 || self.steps.get() > self.steps_max() {
            return None;
        }
        if let (Some(at), Some(log)) = (self.frames.get(&number), &self.log) {
            return read_at(log, *at);
        }
        let database = self.database.as_ref().filter(|_| number <= self.in_database)?;
        read_at(database, u64::from(number - 1) * PAGE as u64)
    }

    /// Number of pages that were requested.
    pub fn steps(&self) -> u64 {
        self.steps.get()
    }

    /// Maximum number of requests. An intact page is requested by the list of free pages, by each of the
    /// trees or a row, and by each of the searches for lost pages; the rest is a reserve for damage.
    pub fn steps_max(&self) -> u64 {
        64 + 8 * u64::from(self.last())
    }
}

fn open(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        file => file.map(Some),
    }
}

fn read_at(file: &File, at: u64) -> Option<Page> {
    let mut page = [0; PAGE];
    let mut filled = 0;
    while filled < PAGE {
        match file.read_at(&mut page[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    (filled > 0).then_some(page)
}

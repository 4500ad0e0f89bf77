//! The pages of a damaged database, read without SQLite, which refuses a whole file for one of them.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::log;

/// How long a page of our databases is.
pub const PAGE: usize = 4096;

/// What a page holds.
pub type Page = [u8; PAGE];

/// A database file, and over its pages those of its log, as of the last commit that can be trusted.
///
/// Reading is counted and limited, so that no damage makes it go on for ever.
#[derive(Debug)]
pub struct Pages {
    database: Option<File>,
    in_database: u32,
    log: Option<File>,
    /// Where in the log the newest content of a page is.
    frames: HashMap<u32, u64>,
    steps: Cell<u64>,
}

impl Pages {
    /// Opens both files, of which either may be missing.
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

    /// The highest number a page can have. A database has no holes, so the log can add no more than
    /// it has pages, whatever numbers it gives them.
    pub fn last(&self) -> u32 {
        let frames = u32::try_from(self.frames.len()).unwrap_or(u32::MAX);
        self.in_database.saturating_add(frames)
    }

    /// One page, by its number from 1; what is missing at the end of a file that was cut is zeroes.
    /// None if there is no such page, if the disk cannot read it, or if too many were read already.
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

    /// How many pages were asked for.
    pub fn steps(&self) -> u64 {
        self.steps.get()
    }

    /// How many may be. A sound page is asked for by the list of free pages, by each of the trees or
    /// a row, and by each of the searches for pages that were lost: the rest is room for damage.
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

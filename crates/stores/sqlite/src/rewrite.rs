//! Makes the write-ahead log durable before SQLite reads it.

use std::io;

use super::folder::log;
use super::platform::{Access, DataFolder};
use super::salvage::{LOG_FRAME_BYTES, LOG_HEADER_BYTES, log_salts};

/// The log is written again in parts of so many frames.
const PART_FRAMES: usize = 32;

/// Writes the content of the log again and syncs it, before SQLite reads it. After a failed sync the system treats pages as written
/// that are not. SQLite would copy the log into the database, and after a power failure the older pages of what is left of the log
/// would hide the newer ones of the database.
///
/// What follows the frames since the latest reset stays as it is: older frames, and the zeros ahead of the writer. SQLite ignores it, and
/// the disk cannot have a newer frame there, because frames are only replaced by newer ones. Returns how many bytes it wrote.
pub(super) fn rewrite_log(folder: &DataFolder) -> io::Result<u64> {
    let path = log(folder);
    // An error must not look like an empty log, after which rows are read from the database file alone.
    if folder.platform().identity(&path)?.is_none() {
        return Ok(0);
    }
    let file = folder.platform().open(&path, Access::ReadWrite)?;
    let length = file.length()?;
    let mut bytes = vec![0; LOG_HEADER_BYTES + PART_FRAMES * LOG_FRAME_BYTES];
    let (mut at, mut salts) = (0, None);
    while at < length {
        let frames = if at == 0 { LOG_HEADER_BYTES } else { 0 };
        let size = (length - at).min((frames + PART_FRAMES * LOG_FRAME_BYTES) as u64) as usize;
        let part = &mut bytes[..size];
        file.read_exact_at(part, at)?;
        if at == 0 {
            salts = log_salts(part);
        }
        // Without its header nothing is known about the rest.
        let used = salts.map_or(size, |salts| frames + current_bytes(&part[frames..], salts));
        file.write_all_at(&part[..used], at)?;
        at += used as u64;
        if used < size {
            break;
        }
    }
    if length > 0 {
        file.sync_data()?;
    }
    Ok(at)
}

/// The length of the first frames that have these salts.
fn current_bytes(frames: &[u8], salts: [u8; 8]) -> usize {
    let is_current = |frame: &&[u8]| frame[8..16] == salts;
    frames.chunks_exact(LOG_FRAME_BYTES).take_while(is_current).count() * LOG_FRAME_BYTES
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;
    use taskyard_store::OpenOptions;

    use super::*;
    use crate::folder;

    fn change(db: &Connection, version: u32) {
        db.pragma_update(None, "user_version", version).expect("a commit");
    }

    /// Every opening wrote the whole file again, with the frames from before the latest reset and a mebibyte of zeros.
    #[test]
    fn only_the_frames_since_the_latest_reset_are_written_again() {
        let guard = tempfile::tempdir().expect("a folder");
        let folder = DataFolder::of_system(guard.path());
        let opened = folder::open(&folder, &OpenOptions::default()).expect("the folder opens");
        let db = &opened.db;
        let frame = LOG_FRAME_BYTES as u64;
        let frames = |count: u64| LOG_HEADER_BYTES as u64 + count * frame;
        let rewritten = || rewrite_log(&folder).expect("the log can be written");
        // More than one part.
        (1..=70).for_each(|version| change(db, version));
        let before = std::fs::read(log(&folder)).expect("the log");
        assert_eq!(rewritten(), frames(70));
        db.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(())).expect("a reset");
        (71..=73).for_each(|version| change(db, version));
        let content = std::fs::read(log(&folder)).expect("the log");
        assert_eq!(content.len(), before.len(), "the older frames are still there");
        assert_eq!(rewritten(), frames(3));
        let longer = [&content[..], &[0; 10_000]].concat();
        std::fs::write(log(&folder), &longer).expect("a longer log");
        assert_eq!(rewritten(), frames(3));
        // A header that SQLite does not accept says nothing about the frames.
        let damaged = [&[0; 8], &longer[8..]].concat();
        std::fs::write(log(&folder), &damaged).expect("a damaged log");
        assert_eq!(rewritten(), damaged.len() as u64);
        assert_eq!(std::fs::read(log(&folder)).expect("the log"), damaged);
    }

    #[test]
    fn a_log_may_be_missing_or_shorter_than_its_header() {
        let guard = tempfile::tempdir().expect("a folder");
        let folder = DataFolder::of_system(guard.path());
        assert_eq!(rewrite_log(&folder).expect("no log"), 0);
        for content in [&b""[..], b"abc", &[0; 40]] {
            std::fs::write(log(&folder), content).expect("a log");
            assert_eq!(rewrite_log(&folder).expect("it is written"), content.len() as u64);
        }
    }
}

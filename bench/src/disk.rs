//! Measures the disk alone: the limit of every durable store.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::report::{Report, Row};

/// A task of 100 bytes with its metadata.
const RECORD_BYTES: usize = 150;

/// The file is this long and written round and round, so that its length never changes.
const FILE_BYTES: u64 = 64 << 20;

/// How often a second a block of `bytes` can be written and synced, one after the other.
pub fn sync_rate(folder: &Path, bytes: usize, time: Duration) -> io::Result<f64> {
    let path = folder.join("disk-probe");
    let file = File::create(&path)?;
    fill(&file)?;
    let block = vec![0x5A_u8; bytes];
    let (mut offset, mut syncs) = (0, 0_u64);
    let begin = Instant::now();
    while begin.elapsed() < time {
        file.write_all_at(&block, offset)?;
        file.sync_data()?;
        offset = (offset + block.len() as u64) % (FILE_BYTES - block.len() as u64);
        syncs += 1;
    }
    let rate = syncs as f64 / begin.elapsed().as_secs_f64();
    std::fs::remove_file(path)?;
    Ok(rate)
}

/// Writes the file once, so that the measured writes need no new space.
fn fill(file: &File) -> io::Result<()> {
    let chunk = vec![0_u8; 1 << 20];
    for offset in (0..FILE_BYTES).step_by(chunk.len()) {
        file.write_all_at(&chunk, offset)?;
    }
    file.sync_all()
}

/// Measures the disk alone: syncs of one page, and a plain log that syncs groups of records.
pub fn measure(report: &mut Report, folder: &Path, time: Duration) -> io::Result<()> {
    report.add(Row {
        what: "disk: fdatasync".into(),
        figure: sync_rate(folder, 4096, time)?,
        unit: "syncs/s",
        target: None,
        note: "4 KiB write + fdatasync, one after the other".into(),
    });
    for group in [1, 256] {
        let rate = sync_rate(folder, RECORD_BYTES * group, time)?;
        report.add(Row {
            what: format!("plain log, {group} in a group"),
            figure: rate * group as f64,
            unit: "records/s",
            target: None,
            note: format!("{RECORD_BYTES} bytes a record, one fdatasync a group: the limit"),
        });
    }
    Ok(())
}

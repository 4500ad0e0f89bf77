//! Finds the valid pages of SQLite's write-ahead log.
//!
//! The log is a header and then frames: a page, and before it the number of the page, the length of the
//! database if a commit ends here, two numbers that change when the log is reset, and a checksum over
//! everything up to this frame. So the first wrong bit ends the valid part of the log.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};

use super::pages::PAGE;

/// The size of the header.
pub const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;
/// The size of a frame.
pub const FRAME: usize = FRAME_HEADER + PAGE;

/// Returns the offset in the log of the newest committed content of each page.
pub fn frames(log: &File) -> HashMap<u32, u64> {
    let mut committed = HashMap::new();
    let mut log = BufReader::with_capacity(64 << 10, log);
    let mut header = [0; HEADER];
    if log.read_exact(&mut header).is_err() {
        return committed;
    }
    let Some(mut sum) = LogChecksum::of_header(&header) else { return committed };
    let mut uncommitted = Vec::new();
    let mut frame = [0; FRAME];
    let mut at = HEADER as u64;
    while log.read_exact(&mut frame).is_ok() {
        sum.add(&frame[..8]);
        sum.add(&frame[FRAME_HEADER..]);
        if frame[8..16] != header[16..24] || !sum.equals(&frame[16..24]) {
            break;
        }
        uncommitted.push((number(&frame, 0), at + FRAME_HEADER as u64));
        if number(&frame, 4) != 0 {
            committed.extend(uncommitted.drain(..));
        }
        at += frame.len() as u64;
    }
    committed
}

/// The numbers that the frames since the latest reset have, if the header of this log is valid.
pub fn salts(log: &[u8]) -> Option<[u8; 8]> {
    let header = log.first_chunk::<HEADER>()?;
    LogChecksum::of_header(header)?;
    header[16..24].try_into().ok()
}

/// The checksum of the log, which continues from frame to frame.
struct LogChecksum {
    halves: [u32; 2],
    word: fn([u8; 4]) -> u32,
}

impl LogChecksum {
    /// The checksum over the header, if the header is valid.
    fn of_header(header: &[u8; HEADER]) -> Option<LogChecksum> {
        let word = match number(header, 0) {
            0x377F_0682 => u32::from_le_bytes,
            0x377F_0683 => u32::from_be_bytes,
            _ => return None,
        };
        let mut sum = LogChecksum { halves: [0, 0], word };
        sum.add(&header[..24]);
        (sum.equals(&header[24..]) && number(header, 8) == PAGE as u32).then_some(sum)
    }

    fn add(&mut self, bytes: &[u8]) {
        let [mut first, mut second] = self.halves;
        for &[a, b, c, d, e, f, g, h] in bytes.as_chunks().0 {
            first = first.wrapping_add((self.word)([a, b, c, d])).wrapping_add(second);
            second = second.wrapping_add((self.word)([e, f, g, h])).wrapping_add(first);
        }
        self.halves = [first, second];
    }

    fn equals(&self, bytes: &[u8]) -> bool {
        self.halves == [number(bytes, 0), number(bytes, 4)]
    }
}

/// The number in the four bytes at `at`, big-endian.
pub fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([0, 1, 2, 3].map(|i| bytes[at + i]))
}

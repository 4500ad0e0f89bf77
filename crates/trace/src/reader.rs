//! Reads the file of a trace into memory, block by block.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use taskyard_core::limits::{TRACE_BUFFER_BYTES, TRACE_TASKS_MAX, TUBES_MAX};

use crate::file::{BLOCK_EXTRA_BYTES, BLOCK_HEADER_BYTES, HEADER_BYTES, MAGIC};
use crate::tasks::Trace;
use crate::trace_builder::TraceBuilder;

/// The most tasks, tubes, deliveries and other changes that are read.
#[derive(Clone, Copy, Debug)]
pub struct ReadLimits {
    /// The most tasks. As many changes of tubes, deletes and kicks are read at most, and as many deliveries beside those of tasks
    /// that were acknowledged at the first one.
    pub tasks: usize,
    /// The most tubes.
    pub tubes: usize,
}

impl Default for ReadLimits {
    fn default() -> Self {
        ReadLimits { tasks: TRACE_TASKS_MAX, tubes: TUBES_MAX }
    }
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The system refused to read it.
    #[error("cannot read the trace")]
    Io(#[from] io::Error),
    /// The system refused to open it.
    #[error("cannot open the trace {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// It is another file.
    #[error("this is not a trace of this version; record one with: taskyard serve --record FILE")]
    NotTrace,
    /// It is damaged.
    #[error(
        "the trace is damaged at byte {offset}: {what}; use a copy that is not, or record another"
    )]
    Damaged {
        /// Where, in bytes from the beginning of the file.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// It has too many tasks, tubes, deliveries or changes.
    #[error("the trace has more than {limit} {what}; record a shorter time (--record-max)")]
    TooLarge {
        /// What there are too many of.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

/// Reads a file; `progress` gets the number of bytes that are read, from time to time.
pub fn read_file(
    path: &Path,
    limits: ReadLimits,
    progress: impl FnMut(u64),
) -> Result<Trace, ReadError> {
    let file = File::open(path).map_err(|source| ReadError::Open { path: path.into(), source })?;
    read(file, limits, progress)
}

/// Reads a trace; a part of a block at its end is ignored.
pub fn read(
    mut from: impl Read,
    limits: ReadLimits,
    mut progress: impl FnMut(u64),
) -> Result<Trace, ReadError> {
    let mut header = [0; HEADER_BYTES];
    if fill(&mut from, &mut header)? < HEADER_BYTES || !header.starts_with(MAGIC) {
        return Err(ReadError::NotTrace);
    }
    let wall = header[MAGIC.len()..].try_into().map_or(0, u64::from_le_bytes);
    let mut builder = TraceBuilder::new(limits, wall);
    let (mut offset, mut block) = (HEADER_BYTES as u64, Vec::new());
    loop {
        let mut head = [0; BLOCK_HEADER_BYTES];
        match fill(&mut from, &mut head)? {
            0 => break,
            BLOCK_HEADER_BYTES => {}
            _ => {
                builder.trace.is_torn = true;
                break;
            }
        }
        let [length, checksum] =
            [&head[..4], &head[4..]].map(|part| part.try_into().map_or(0, u32::from_le_bytes));
        let length = length as usize;
        if length == 0 || length > TRACE_BUFFER_BYTES + BLOCK_EXTRA_BYTES {
            return Err(ReadError::Damaged { offset, what: "the length of a block is wrong" });
        }
        block.resize(length, 0);
        let count = fill(&mut from, &mut block)?;
        if count < length {
            builder.trace.is_torn = true;
            break;
        }
        offset += BLOCK_HEADER_BYTES as u64;
        if crc32fast::hash(&block) != checksum {
            // A machine that failed may have written the length of the last block without its bytes.
            if fill(&mut from, &mut [0])? == 0 {
                builder.trace.is_torn = true;
                break;
            }
            return Err(ReadError::Damaged { offset, what: "the checksum of a block is wrong" });
        }
        builder.add_block(&block, offset)?;
        offset += length as u64;
        progress(offset);
    }
    builder.finish()
}

/// Reads until the buffer is full or the file ends; returns how many bytes.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match from.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskyard_core::Span;

    use crate::event::{Ending, Event, PutFacts, TakeFacts};
    use crate::file::TraceWriter;
    use crate::tasks::ChangeKind;

    fn bytes(tasks: u64) -> Vec<u8> {
        let mut writer = TraceWriter::in_memory(7);
        let tube = Event::Tube { tube: 0, name: "mail".into(), options: None };
        writer.append([(0, tube)]);
        for id in 0..tasks {
            let (facts, taken) = (PutFacts::default(), TakeFacts::default());
            writer.append([
                (id * 10, Event::Put { tube: 0, id, facts }),
                (id * 10, Event::Take { tube: 0, id, facts: taken }),
                (id * 10 + 5, Event::Finish { tube: 0, id, ending: Ending::Acked }),
            ]);
        }
        writer.into_bytes()
    }

    fn read_all(bytes: &[u8]) -> Result<Trace, ReadError> {
        read(bytes, ReadLimits::default(), |_| ())
    }

    // A server that is killed leaves a part of a block.
    #[test]
    fn every_prefix_of_a_trace_is_readable() {
        let bytes = bytes(10);
        let (mut most, mut torn) = (0, 0);
        for end in 0..=bytes.len() {
            match read_all(&bytes[..end]) {
                Ok(trace) => {
                    assert!(trace.len() >= most && trace.wall_start == 7);
                    most = trace.len();
                    torn += usize::from(trace.is_torn);
                }
                Err(error) => assert!(end < HEADER_BYTES, "{end}: {error}"),
            }
        }
        assert_eq!(most, 10);
        assert!(torn > 100);
    }

    #[test]
    fn damage_is_reported_with_its_place() {
        let good = bytes(4);
        for place in HEADER_BYTES..good.len() {
            let mut damaged = good.clone();
            damaged[place] ^= 0x10;
            match read_all(&damaged) {
                // The length of a block now reaches behind the end, or the last one is wrong.
                Ok(trace) => assert!(trace.is_torn, "{place}"),
                Err(ReadError::Damaged { offset, .. }) => assert!(offset <= place as u64 + 8),
                Err(error) => panic!("{place}: {error}"),
            }
        }
        assert!(matches!(read_all(b"hello"), Err(ReadError::NotTrace)));
        assert!(matches!(read_all(b""), Err(ReadError::NotTrace)));
        let mut writer = TraceWriter::in_memory(0);
        let put = |tube| Event::Put { tube, id: 0, facts: PutFacts::default() };
        writer.append([(0, put(3))]);
        let error = read_all(&writer.into_bytes()).unwrap_err().to_string();
        assert!(error.contains("damaged at byte 33: an event names an unknown tube"), "{error}");
        let mut writer = TraceWriter::in_memory(0);
        writer.append([(0, Event::Dropped { count: 1 }), (0, put(3))]);
        assert_eq!(read_all(&writer.into_bytes()).unwrap().dropped, 1);
    }

    // A delivery that ends before it begins would last less than nothing.
    #[test]
    fn a_block_that_goes_back_in_time_is_refused() {
        let mut writer = TraceWriter::in_memory(0);
        let tube = Event::Tube { tube: 0, name: "mail".into(), options: None };
        let take = Event::Take { tube: 0, id: 0, facts: TakeFacts::default() };
        writer.append([(0, tube), (10, take)]);
        let good = writer.into_bytes();
        let finish = |at| (at, Event::Finish { tube: 0, id: 0, ending: Ending::Acked });
        let with_block = |events: Vec<(u64, Event)>| {
            let mut writer = TraceWriter::in_memory(0);
            writer.append(events);
            [&good[..], &writer.into_bytes()[HEADER_BYTES..]].concat()
        };
        let error = read_all(&with_block(vec![finish(9)])).unwrap_err();
        let place = (good.len() + BLOCK_HEADER_BYTES) as u64;
        assert!(matches!(error, ReadError::Damaged { offset, .. } if offset == place), "{error}");
        assert!(error.to_string().contains("a block begins before the end"), "{error}");
        assert!(read_all(&with_block(vec![finish(10)])).is_ok());
        let dropped = (0, Event::Dropped { count: 1 });
        assert!(read_all(&with_block(vec![dropped, finish(10)])).is_ok());
    }

    #[test]
    fn tasks_tubes_deliveries_and_changes_are_limited() {
        let limited = |bytes: &[u8], tasks, tubes| {
            read(bytes, ReadLimits { tasks, tubes }, |_| ())
                .map(drop)
                .map_err(|error| error.to_string())
        };
        assert_eq!(limited(&bytes(20), 20, 1), Ok(()));
        let refused = limited(&bytes(21), 20, 1).unwrap_err();
        assert!(refused.contains("more than 20 tasks; record a shorter time"), "{refused}");
        assert!(limited(&bytes(1), 20, 0).unwrap_err().contains("more than 0 tubes"));
        let mut writer = TraceWriter::in_memory(0);
        let tube = Event::Tube { tube: 0, name: "mail".into(), options: None };
        writer.append([(0, tube)]);
        writer.append((0..3).map(|at| (at, Event::Kick { tube: 0, count: 1 })));
        assert!(limited(&writer.into_bytes(), 2, 1).unwrap_err().contains("more than 2 changes"));
        let mut writer = TraceWriter::in_memory(0);
        let tube = Event::Tube { tube: 0, name: "mail".into(), options: None };
        let take = Event::Take { tube: 0, id: 0, facts: TakeFacts::default() };
        let ending = Ending::Released { delay: Span::ZERO, counted: true };
        let release = Event::Finish { tube: 0, id: 0, ending };
        writer.append([(0, tube)]);
        (0..3).for_each(|at| writer.append([(at, take.clone()), (at, release.clone())]));
        let bytes = writer.into_bytes();
        assert_eq!(limited(&bytes, 3, 1), Ok(()));
        assert!(limited(&bytes, 2, 1).unwrap_err().contains("more than 2 deliveries"));
        let huge = Event::Tube { tube: u32::MAX, name: "mail".into(), options: None };
        let mut writer = TraceWriter::in_memory(0);
        writer.append([(0, huge)]);
        assert!(limited(&writer.into_bytes(), 2, 10_000).is_err());
    }

    #[test]
    fn a_task_whose_put_was_not_seen_comes_before_later_ones() {
        let mut writer = TraceWriter::in_memory(0);
        let tube = Event::Tube { tube: 0, name: "mail".into(), options: None };
        let put = |id| Event::Put { tube: 0, id, facts: PutFacts::default() };
        let wait = Span::from_micros(60);
        let facts = TakeFacts { wait, age: Span::from_micros(80), ..TakeFacts::default() };
        let take = Event::Take { tube: 0, id: 1, facts };
        let delete = Event::Delete { tube: 0, id: 7 };
        writer.append([(0, tube), (10, put(7)), (50, put(8)), (100, take), (101, delete)]);
        let trace = read_all(&writer.into_bytes()).unwrap();
        let puts: Vec<i64> = trace.rows.iter().map(|row| row.put).collect();
        assert_eq!(puts, [10, 20, 50]);
        let details = trace.rows[1].details(&trace).unwrap();
        assert_eq!(details.delay, Some(Span::from_micros(20)));
        assert!(matches!(trace.changes[0].kind, ChangeKind::Delete { row: 0 }));
    }
}

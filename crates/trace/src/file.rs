//! The file of a trace: a header and blocks of events, each with its length and checksum.
//!
//! A thread of its own appends a block with one call of the system. A process that is killed leaves whole blocks and perhaps a
//! part of one, which a reader ignores. A block that cannot be written is counted in the next one.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{SystemTime, UNIX_EPOCH};

use taskyard_core::limits::TUBES_MAX;

use crate::buffer::{Block, EventBuffer, PendingEvents};
use crate::codec::put_event;
use crate::event::{EndReason, Event};
use crate::recorder::Recorder;

/// The first bytes of a file; the number is the version of its layout.
pub(crate) const MAGIC: &[u8] = b"taskyard-trace 1\n";
/// Beside them the start in wall time, in microseconds since 1970.
pub(crate) const HEADER_BYTES: usize = MAGIC.len() + 8;
/// The length and the checksum before a block.
pub(crate) const BLOCK_HEADER_BYTES: usize = 8;
/// What a block may have beside the events of the buffer.
pub(crate) const BLOCK_EXTRA_BYTES: usize = 64;
/// Space that is kept for the last block, which says why the recording ended.
const END_BYTES: u64 = (BLOCK_HEADER_BYTES + BLOCK_EXTRA_BYTES) as u64;
/// The mode of a file: it shows names of tubes.
const MODE: u32 = 0o600;

/// Why a file cannot be recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// The system refused to create it.
    #[error("cannot create the trace {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A trace is never overwritten.
    #[error("the trace {} exists already; remove it, or name another file", .0.display())]
    Exists(PathBuf),
}

/// A file that is being recorded.
#[derive(Debug)]
pub struct TraceFile {
    thread: JoinHandle<()>,
}

impl TraceFile {
    /// Creates a file of at most so many bytes for its owner alone. The recorder feeds it; the file is complete when
    /// [`TraceFile::join`] returns after that was dropped.
    pub fn create(path: &Path, bytes_max: u64) -> Result<(TraceFile, Recorder), CreateError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AlreadyExists => CreateError::Exists(path.into()),
            _ => CreateError::Io { path: path.into(), source },
        };
        let file = OpenOptions::new().append(true).create_new(true).mode(MODE).open(path);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall = u64::try_from(since.as_micros()).unwrap_or_default();
        let mut writer = TraceWriter::new(file.map_err(failed)?, wall).map_err(failed)?;
        writer.bytes_max = bytes_max;
        let buffer = Arc::<EventBuffer>::default();
        let (events, shown) = (buffer.clone(), path.display().to_string());
        let thread = thread::Builder::new().name("trace".into());
        let thread = thread.spawn(move || writer.run(&events, &shown)).map_err(failed)?;
        Ok((TraceFile { thread }, Recorder::new(buffer)))
    }

    /// Waits until everything is written.
    pub fn join(self) {
        if self.thread.join().is_err() {
            tracing::error!("the thread that writes the trace ended unexpectedly");
        }
    }
}

/// Where a trace is written.
pub trait TraceOutput: Write {
    /// Removes what is behind this length.
    fn truncate(&mut self, length: u64) -> io::Result<()>;
}

impl TraceOutput for File {
    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }
}

impl TraceOutput for Vec<u8> {
    fn truncate(&mut self, length: u64) -> io::Result<()> {
        Vec::truncate(self, usize::try_from(length).unwrap_or(usize::MAX));
        Ok(())
    }
}

/// Writes the header and blocks of a trace.
#[derive(Debug)]
pub struct TraceWriter<W> {
    out: W,
    written: u64,
    bytes_max: u64,
    /// Events that are missing since the latest block.
    dropped: u64,
    /// Whether the latest block could not be written.
    is_failing: bool,
    /// Whether a part of a block is at the end and could not be removed.
    is_torn: bool,
    /// Whether events of tubes without a number were logged.
    has_unnumbered: bool,
}

impl TraceWriter<Vec<u8>> {
    /// A trace in memory that begins at this wall time, in microseconds since 1970.
    pub fn in_memory(wall: u64) -> Self {
        TraceWriter::new(Vec::new(), wall).expect("memory can be written")
    }

    /// Appends events with their times, in microseconds since the start, and in this order.
    pub fn append(&mut self, events: impl IntoIterator<Item = (u64, Event)>) {
        let mut pending = PendingEvents::default();
        for (time, event) in events {
            pending.push(time, &event);
            if pending.len() >= BATCH_BYTES {
                self.write_block(pending.take(Vec::new()));
            }
        }
        if pending.len() > 0 {
            self.write_block(pending.take(Vec::new()));
        }
    }

    /// Appends a block of events that are encoded already, or of any bytes, for tests of the reader.
    pub fn append_encoded(&mut self, events: &[u8]) {
        self.write(events).expect("memory can be written");
    }

    /// The bytes of the trace.
    pub fn into_bytes(self) -> Vec<u8> {
        self.out
    }
}

/// The size of blocks in memory.
const BATCH_BYTES: usize = 256 << 10;

impl<W: TraceOutput> TraceWriter<W> {
    fn new(mut out: W, wall: u64) -> io::Result<Self> {
        out.write_all(&[MAGIC, &wall.to_le_bytes()].concat())?;
        let written = HEADER_BYTES as u64;
        Ok(TraceWriter {
            out,
            written,
            bytes_max: u64::MAX,
            dropped: 0,
            is_failing: false,
            is_torn: false,
            has_unnumbered: false,
        })
    }

    /// Writes blocks until the recording ends.
    fn run(mut self, events: &EventBuffer, path: &str) {
        let mut spare = Some(Vec::new());
        while let Some(memory) = spare {
            spare = self.write_next(events.take(memory), events, path);
        }
    }

    /// Writes the next block, and the end of the trace after the last one. Returns its memory if the recording goes on.
    fn write_next(&mut self, block: Block, events: &EventBuffer, path: &str) -> Option<Vec<u8>> {
        let (time, ended) = (block.time, block.ended);
        if !self.fits(&block) {
            let bytes = self.bytes_max;
            tracing::warn!(
                path,
                bytes,
                "the trace has its maximum size (--record-max); recording ends, the server continues"
            );
            events.end(EndReason::SizeLimit);
            self.write_end(time, EndReason::SizeLimit);
            return None;
        }
        let spare = self.write_block_logged(block, path);
        if self.is_torn {
            // The reader ignores the part of a block if nothing is behind it.
            events.end(EndReason::Stopped);
            return None;
        }
        if self.is_failing {
            events.lock().lose_tubes();
        }
        if let Some(reason) = ended {
            self.write_end(time, reason);
            return None;
        }
        Some(spare)
    }

    fn fits(&self, block: &Block) -> bool {
        let bytes = (BLOCK_HEADER_BYTES + block.bytes.len() + BLOCK_EXTRA_BYTES) as u64 + END_BYTES;
        self.written.saturating_add(bytes) <= self.bytes_max
    }

    /// Writes a block and logs missing events: when they begin, and when writing works again.
    fn write_block_logged(&mut self, block: Block, path: &str) -> Vec<u8> {
        if block.dropped > 0 {
            let dropped = block.dropped;
            tracing::warn!(
                path,
                dropped,
                "the disk is too slow for the trace; events are missing in it"
            );
        }
        if block.unnumbered > 0 && !std::mem::replace(&mut self.has_unnumbered, true) {
            tracing::warn!(
                path,
                tubes = TUBES_MAX,
                "the trace has its maximum number of tubes; events of further ones are missing in it"
            );
        }
        let (was_failing, spare) = (self.is_failing, self.write_block(block));
        if was_failing && !self.is_failing {
            tracing::info!(path, "the trace is written again; it says how many events are missing");
        }
        spare
    }

    /// Writes a block. One that cannot be written is counted as dropped. Returns its memory.
    pub(crate) fn write_block(&mut self, block: Block) -> Vec<u8> {
        let Block { mut bytes, count, dropped, unnumbered, time, .. } = block;
        self.dropped += dropped + unnumbered;
        self.put_dropped(&mut bytes, time);
        if bytes.is_empty() {
            return bytes;
        }
        match self.write(&bytes) {
            Ok(()) => (self.dropped, self.is_failing) = (0, false),
            Err(error) => {
                if !std::mem::replace(&mut self.is_failing, true) && !self.is_torn {
                    tracing::error!(%error, "cannot write the trace; events are missing in it until this works again");
                }
                self.dropped += count;
            }
        }
        bytes.clear();
        bytes
    }

    /// Puts the number of missing events before those of a block: what these refer to may be among them.
    fn put_dropped(&self, bytes: &mut Vec<u8>, time: u64) {
        if self.dropped > 0 {
            // The first time of a block counts from the start of the trace, so this event takes none of it.
            let elapsed = if bytes.is_empty() { time } else { 0 };
            let mut first = Vec::new();
            put_event(&mut first, elapsed, &Event::Dropped { count: self.dropped });
            bytes.splice(0..0, first);
        }
    }

    fn write_end(&mut self, time: u64, reason: EndReason) {
        let mut bytes = Vec::new();
        put_event(&mut bytes, time, &Event::End { reason });
        self.put_dropped(&mut bytes, time);
        if let Err(error) = self.write(&bytes) {
            tracing::error!(%error, "cannot write the end of the trace; its other events are complete");
        }
    }

    fn write(&mut self, events: &[u8]) -> io::Result<()> {
        let mut block = Vec::with_capacity(BLOCK_HEADER_BYTES + events.len());
        block.extend_from_slice(&(events.len() as u32).to_le_bytes());
        block.extend_from_slice(&crc32fast::hash(events).to_le_bytes());
        block.extend_from_slice(events);
        if let Err(error) = self.out.write_all(&block) {
            // A part of a block would hide those behind it.
            if let Err(removal) = self.out.truncate(self.written) {
                self.is_torn = true;
                tracing::error!(
                    %error,
                    %removal,
                    "cannot write a block of the trace, nor remove the part of it that was written; recording ends, the server \
                     continues"
                );
            }
            return Err(error);
        }
        self.written += block.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use taskyard_core::{Kind, Timestamp, TubeName, TubeOptions};

    use super::*;
    use crate::event::PutFacts;
    use crate::reader::{ReadLimits, read};

    fn put(id: u64) -> Event {
        Event::Put { tube: 0, id, facts: PutFacts::default() }
    }

    fn record(recorder: &mut Recorder, ids: std::ops::Range<u64>) {
        let tube = TubeName::new("mail").unwrap();
        for id in ids {
            let mut sink = recorder.sink(Timestamp::from_micros(id as i64));
            sink.put(&tube, id, PutFacts::default());
        }
    }

    #[test]
    fn a_file_is_for_its_owner_and_never_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        let (file, mut recorder) = TraceFile::create(&path, u64::MAX).unwrap();
        record(&mut recorder, 0..100);
        drop(recorder);
        file.join();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let bytes = fs::read(&path).unwrap();
        let trace = read(&bytes[..], ReadLimits::default(), |_| ()).unwrap();
        assert_eq!((trace.len(), trace.end_reason), (100, Some(EndReason::Stopped)));
        let refused = TraceFile::create(&path, u64::MAX).map(drop).unwrap_err().to_string();
        assert!(refused.contains("exists already; remove it"), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), bytes);
        let refused = TraceFile::create(&path.join("x"), 9).map(drop).unwrap_err().to_string();
        assert!(refused.contains("cannot create the trace"), "{refused}");
    }

    #[test]
    fn a_file_ends_at_its_maximum_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        let most = 100_000;
        let (file, mut recorder) = TraceFile::create(&path, most).unwrap();
        record(&mut recorder, 0..1_000);
        // A block that is larger than the rest of the file is not written.
        while fs::metadata(&path).unwrap().len() < 1_000 {
            std::thread::yield_now();
        }
        let mut id = 1_000;
        while recorder.is_open() {
            record(&mut recorder, id..id + 1_000);
            id += 1_000;
        }
        drop(recorder);
        file.join();
        let bytes = fs::read(&path).unwrap();
        assert!(bytes.len() as u64 <= most && bytes.len() > 1_000, "{}", bytes.len());
        let trace = read(&bytes[..], ReadLimits::default(), |_| ()).unwrap();
        assert_eq!(trace.end_reason, Some(EndReason::SizeLimit));
    }

    /// A disk with space for this many bytes, which may refuse to remove any.
    struct SmallDisk {
        bytes: Vec<u8>,
        space: usize,
        keeps_all: bool,
    }

    impl SmallDisk {
        fn writer(space: usize) -> TraceWriter<SmallDisk> {
            let disk = SmallDisk { bytes: Vec::new(), space, keeps_all: false };
            TraceWriter::new(disk, 0).unwrap()
        }
    }

    impl Write for SmallDisk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.space - self.bytes.len());
            self.bytes.extend_from_slice(&bytes[..count]);
            if count == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(count) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl TraceOutput for SmallDisk {
        fn truncate(&mut self, length: u64) -> io::Result<()> {
            if self.keeps_all {
                return Err(io::ErrorKind::ReadOnlyFilesystem.into());
            }
            self.bytes.truncate(length as usize);
            Ok(())
        }
    }

    fn block(ids: std::ops::Range<u64>) -> Block {
        let buffer = EventBuffer::default();
        ids.for_each(|id| _ = buffer.lock().push(id, &put(id)));
        buffer.end(EndReason::Stopped);
        buffer.take(Vec::new())
    }

    // A full disk left a part of a block, which hid all later ones.
    #[test]
    fn a_block_that_is_not_written_is_counted_in_the_next_one() {
        let mut writer = SmallDisk::writer(80);
        let tube = Event::Tube { tube: 0, name: "mail".into(), options: None };
        let mut first = Vec::new();
        put_event(&mut first, 0, &tube);
        writer.write(&first).unwrap();
        writer.write_block(block(0..100));
        writer.write_block(block(100..150));
        assert!(writer.is_failing && writer.dropped == 150);
        writer.out.space = 1 << 20;
        writer.write_block(block(150..160));
        assert!(!writer.is_failing && writer.dropped == 0);
        let trace = read(&writer.out.bytes[..], ReadLimits::default(), |_| ()).unwrap();
        assert_eq!((trace.len(), trace.dropped), (10, 150));
    }

    // The introductions of tubes were lost with a block, and the trace was refused as damaged.
    #[test]
    fn tubes_are_introduced_again_after_a_block_that_is_not_written() {
        let mut writer = SmallDisk::writer(30);
        let events = Arc::<EventBuffer>::default();
        let mut recorder = Recorder::new(events.clone());
        let options = TubeOptions { pri: 7, ..TubeOptions::new(Kind::FifoTtl) };
        let tubes = ["jobs", "mail"].map(|name| TubeName::new(name).unwrap());
        let record = |recorder: &mut Recorder, at: i64| {
            for tube in &tubes {
                let mut sink = recorder.sink(Timestamp::from_micros(at));
                sink.put(tube, at as u64, PutFacts::default());
                sink.show(tube, &options);
            }
        };
        for at in 1..=4 {
            writer.out.space = if at <= 2 { 30 } else { 1 << 20 };
            record(&mut recorder, at);
            let block = events.lock().take(Vec::new());
            assert!(writer.write_next(block, &events, "trace").is_some());
            assert_eq!(writer.is_failing, at <= 2);
        }
        drop(recorder);
        assert!(writer.write_next(events.take(Vec::new()), &events, "trace").is_none());
        let trace = read(&writer.out.bytes[..], ReadLimits::default(), |_| ()).unwrap();
        // Two introductions, twice two puts and two options; repeated introductions do not count.
        assert_eq!((trace.len(), trace.dropped, trace.changes.len()), (4, 8, 0));
        assert_eq!(trace.end_reason, Some(EndReason::Stopped));
        for (tube, name) in trace.tubes.iter().zip(["jobs", "mail"]) {
            assert_eq!((tube.name.as_str(), tube.options.as_deref()), (name, Some(&options)));
        }
    }

    // What is missing at the end was not in the trace.
    #[test]
    fn missing_events_are_counted_before_the_end() {
        let mut writer = SmallDisk::writer(80);
        writer.write_block(block(0..100));
        writer.out.space = 1 << 20;
        writer.write_end(100, EndReason::Stopped);
        let trace = read(&writer.out.bytes[..], ReadLimits::default(), |_| ()).unwrap();
        assert_eq!((trace.dropped, trace.end), (100, 100));
        assert_eq!(trace.end_reason, Some(EndReason::Stopped));
    }

    // Blocks behind a part of one were written, and the trace was refused as damaged.
    #[test]
    fn a_part_of_a_block_that_cannot_be_removed_ends_the_recording() {
        let mut writer = SmallDisk::writer(80);
        writer.out.keeps_all = true;
        let events = EventBuffer::default();
        assert!(writer.write_next(block(0..100), &events, "trace").is_none());
        assert!(!events.lock().is_open());
        assert_eq!(writer.out.bytes.len(), 80, "nothing follows");
        let trace = read(&writer.out.bytes[..], ReadLimits::default(), |_| ()).unwrap();
        assert!(trace.is_torn && trace.is_empty());
    }
}

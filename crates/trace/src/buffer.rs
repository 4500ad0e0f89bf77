//! The events between the event loop and the thread that writes the file: a bounded buffer of encoded events.
//!
//! The event loop never waits for the disk: events that do not fit are dropped and counted.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use taskyard_core::limits::TRACE_BUFFER_BYTES;

use crate::codec::{EVENT_BYTES_MAX, put_event};
use crate::event::{EndReason, Event};

/// From this many bytes on they are written at once.
const WRITE_BYTES: usize = 64 << 10;
/// Otherwise after this time.
const GATHER: Duration = Duration::from_millis(200);

/// A bounded buffer of encoded events.
#[derive(Debug, Default)]
pub(crate) struct EventBuffer {
    pending: Mutex<PendingEvents>,
    changed: Condvar,
}

/// The events that are not written yet.
#[derive(Debug, Default)]
pub(crate) struct PendingEvents {
    bytes: Vec<u8>,
    count: u64,
    /// The time of the latest event among them, in microseconds since the start of the trace.
    time: u64,
    /// Events that did not fit.
    dropped: u64,
    /// Why there will be no more.
    ended: Option<EndReason>,
}

/// Events to be written as one block.
#[derive(Debug, Default)]
pub(crate) struct Block {
    pub bytes: Vec<u8>,
    /// How many events it has.
    pub count: u64,
    /// Events before the end of it that are missing.
    pub dropped: u64,
    /// The time of its latest event.
    pub time: u64,
    /// Why it is the last one.
    pub ended: Option<EndReason>,
}

impl EventBuffer {
    /// Locks the buffer for the events of a batch.
    pub fn lock(&self) -> MutexGuard<'_, PendingEvents> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the writer if it has something to do; `before` is the size before the batch.
    pub fn notify(&self, before: usize, pending: &PendingEvents) {
        let crossed = |limit: usize| before < limit && pending.bytes.len() >= limit;
        if crossed(1) || crossed(WRITE_BYTES) {
            self.changed.notify_one();
        }
    }

    /// No event will follow. The first reason stays.
    pub fn end(&self, reason: EndReason) {
        self.lock().ended.get_or_insert(reason);
        self.changed.notify_one();
    }

    /// Waits for events and takes them. `spare` is the emptied memory of an earlier block.
    pub fn take(&self, spare: Vec<u8>) -> Block {
        let mut pending = self.lock();
        while pending.bytes.is_empty() && pending.ended.is_none() {
            pending = self.changed.wait(pending).unwrap_or_else(PoisonError::into_inner);
        }
        let is_small = |pending: &mut PendingEvents| {
            pending.ended.is_none() && pending.bytes.len() < WRITE_BYTES
        };
        let gathered = self.changed.wait_timeout_while(pending, GATHER, is_small);
        gathered.unwrap_or_else(PoisonError::into_inner).0.take(spare)
    }
}

impl PendingEvents {
    /// How many bytes wait to be written.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether events are accepted.
    pub fn is_open(&self) -> bool {
        self.ended.is_none()
    }

    /// Adds an event at this time; false if there is no space for it.
    pub fn push(&mut self, time: u64, event: &Event) -> bool {
        if self.ended.is_some() {
            return false;
        }
        if self.bytes.len() + EVENT_BYTES_MAX > TRACE_BUFFER_BYTES {
            self.dropped += 1;
            return false;
        }
        // A block begins at the start of the trace, so that it can be read alone.
        let before = if self.bytes.is_empty() { 0 } else { self.time };
        let time = time.max(before);
        put_event(&mut self.bytes, time - before, event);
        self.time = time;
        self.count += 1;
        true
    }

    /// Takes the events without waiting for more.
    pub fn take(&mut self, spare: Vec<u8>) -> Block {
        Block {
            bytes: std::mem::replace(&mut self.bytes, spare),
            count: std::mem::take(&mut self.count),
            dropped: std::mem::take(&mut self.dropped),
            time: self.time,
            ended: self.ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::PutFacts;

    // A disk that does not answer must neither use up the memory nor delay the server.
    #[test]
    fn events_without_space_are_counted() {
        let buffer = EventBuffer::default();
        let put = Event::Put { tube: 0, id: 0, facts: PutFacts::default() };
        let mut sent = 0;
        while buffer.lock().dropped < 10 {
            buffer.lock().push(sent, &put);
            sent += 1;
        }
        let block = buffer.take(Vec::new());
        assert!(block.bytes.len() <= TRACE_BUFFER_BYTES);
        assert_eq!((block.count, block.dropped), (sent - 10, 10));
        buffer.lock().push(sent, &put);
        buffer.end(EndReason::Stopped);
        let block = buffer.take(Vec::new());
        assert_eq!((block.count, block.dropped, block.time), (1, 0, sent));
        assert_eq!(block.ended, Some(EndReason::Stopped));
    }
}

//! Feeds a trace: gives tubes their numbers, hides names of sub-queues, and appends events to the buffer.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, MutexGuard};

use taskyard_core::limits::TUBES_MAX;
use taskyard_core::{Span, Timestamp, TubeName, TubeOptions};

use crate::buffer::{EventBuffer, PendingEvents};
use crate::event::{EndReason, Ending, Event, PutFacts, TakeFacts};

/// After this time options that could not be read are read again.
const READ_RETRY: Span = Span::from_secs(1);

/// The side of a trace that the event loop uses. When it is dropped, the trace ends.
#[derive(Debug)]
pub struct Recorder {
    buffer: Arc<EventBuffer>,
    /// The moment of the first event.
    start: Option<Timestamp>,
    tubes: HashMap<TubeName, SeenTube>,
    next_number: u32,
    /// Tubes whose options are to be read.
    unread: BTreeSet<TubeName>,
    /// Not before this moment, because the store failed.
    read_after: Option<Timestamp>,
    /// Its keys are random and stored nowhere, so that a hash does not tell the name.
    hasher: RandomState,
}

#[derive(Debug)]
struct SeenTube {
    number: u32,
    options: Option<Box<TubeOptions>>,
}

impl Recorder {
    pub(crate) fn new(buffer: Arc<EventBuffer>) -> Self {
        Recorder {
            buffer,
            start: None,
            tubes: HashMap::new(),
            next_number: 0,
            unread: BTreeSet::new(),
            read_after: None,
            hasher: RandomState::new(),
        }
    }

    /// The hash of the name of a sub-queue.
    pub fn hash(&self, subqueue: &str) -> u64 {
        self.hasher.hash_one(subqueue)
    }

    /// Whether the trace still accepts events.
    pub fn is_open(&self) -> bool {
        self.buffer.lock().is_open()
    }

    /// When the options of tubes are to be read; `None` if all were.
    pub fn next_read(&self, now: Timestamp) -> Option<Timestamp> {
        (!self.unread.is_empty()).then(|| self.read_after.unwrap_or(now))
    }

    /// The tubes whose options are to be read now, each once.
    pub fn take_unread(&mut self, now: Timestamp) -> BTreeSet<TubeName> {
        if self.read_after.is_some_and(|moment| now < moment) {
            return BTreeSet::new();
        }
        self.read_after = None;
        std::mem::take(&mut self.unread)
    }

    /// The options of a tube could not be read: they are to be read later, unless they are known.
    pub fn read_later(&mut self, now: Timestamp, tube: &TubeName) {
        let is_unknown = self.tubes.get(tube).is_some_and(|seen| seen.options.is_none());
        if is_unknown && self.unread.insert(tube.clone()) {
            self.read_after = Some(now + READ_RETRY);
        }
    }

    /// Begins the events of a batch that ran at this moment.
    pub fn sink(&mut self, now: Timestamp) -> EventSink<'_> {
        let start = *self.start.get_or_insert(now);
        let time = now.since(start).as_micros().unsigned_abs();
        let Recorder { buffer, tubes, next_number, unread, read_after, .. } = self;
        let pending = buffer.lock();
        let before = pending.len();
        let mut sink = EventSink {
            buffer,
            pending,
            before,
            now,
            time,
            tubes,
            next_number,
            unread,
            read_after,
        };
        if sink.pending.take_lost_tubes() {
            sink.introduce_again();
        }
        sink
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.buffer.end(EndReason::Stopped);
    }
}

/// Appends the events of one batch. Internal tubes are left out.
#[derive(Debug)]
pub struct EventSink<'a> {
    buffer: &'a EventBuffer,
    pending: MutexGuard<'a, PendingEvents>,
    before: usize,
    now: Timestamp,
    time: u64,
    tubes: &'a mut HashMap<TubeName, SeenTube>,
    next_number: &'a mut u32,
    unread: &'a mut BTreeSet<TubeName>,
    read_after: &'a mut Option<Timestamp>,
}

impl EventSink<'_> {
    /// A task was added.
    pub fn put(&mut self, tube: &TubeName, id: u64, facts: PutFacts) {
        self.push(tube, |tube| Event::Put { tube, id, facts });
    }

    /// A task was delivered.
    pub fn take(&mut self, tube: &TubeName, id: u64, facts: TakeFacts) {
        self.push(tube, |tube| Event::Take { tube, id, facts });
    }

    /// A delivery ended.
    pub fn finish(&mut self, tube: &TubeName, id: u64, ending: Ending) {
        self.push(tube, |tube| Event::Finish { tube, id, ending });
    }

    /// A task was removed by command.
    pub fn delete(&mut self, tube: &TubeName, id: u64) {
        self.push(tube, |tube| Event::Delete { tube, id });
    }

    /// Buried tasks became ready.
    pub fn kick(&mut self, tube: &TubeName, count: u64) {
        self.push(tube, |tube| Event::Kick { tube, count });
    }

    /// Deliveries ended because a lease expired or a session ended.
    pub fn lose(&mut self, tube: &TubeName, count: u64) {
        self.push(tube, |tube| Event::Lost { tube, count });
    }

    /// All tasks of a tube were removed.
    pub fn clear(&mut self, tube: &TubeName) {
        self.push(tube, |tube| Event::Clear { tube });
    }

    /// A tube was removed; a later one of this name is another.
    pub fn drop_tube(&mut self, tube: &TubeName) {
        if self.tubes.contains_key(tube) {
            self.clear(tube);
            self.tubes.remove(tube);
        }
    }

    /// A tube has another name.
    pub fn rename(&mut self, from: &TubeName, to: &TubeName) {
        if from == to {
            return;
        }
        if let Some(SeenTube { number, options }) = self.tubes.remove(from) {
            self.introduce(to, number, options);
        }
    }

    /// The options of a tube, which are recorded if they are new and the tube was used.
    pub fn show(&mut self, tube: &TubeName, options: &TubeOptions) {
        let Some(seen) = self.tubes.get(tube) else { return };
        if seen.options.as_deref() == Some(options) {
            return;
        }
        if !self.introduce(tube, seen.number, Some(Box::new(options.clone()))) {
            self.unread.insert(tube.clone());
            *self.read_after = Some(self.now + READ_RETRY);
        }
    }

    /// Records the name and the options of a tube; false if there was no space, so that it must be tried again.
    fn introduce(
        &mut self,
        tube: &TubeName,
        number: u32,
        options: Option<Box<TubeOptions>>,
    ) -> bool {
        let (name, recorded) = (tube.as_str().to_owned(), options.clone());
        let event = Event::Tube { tube: number, name, options: recorded };
        if !self.pending.push(self.time, &event) {
            return false;
        }
        self.tubes.insert(tube.clone(), SeenTube { number, options });
        true
    }

    /// Records all tubes again with their numbers, after a block could not be written.
    fn introduce_again(&mut self) {
        let mut tubes: Vec<(&TubeName, &SeenTube)> = self.tubes.iter().collect();
        tubes.sort_unstable_by_key(|(_, seen)| seen.number);
        for (name, SeenTube { number, options }) in tubes {
            let (name, options) = (name.as_str().to_owned(), options.clone());
            if !self.pending.repeat(self.time, &Event::Tube { tube: *number, name, options }) {
                return self.pending.lose_tubes();
            }
        }
    }

    fn push(&mut self, tube: &TubeName, event: impl FnOnce(u32) -> Event) {
        if let Some(number) = self.number(tube) {
            self.pending.push(self.time, &event(number));
        }
    }

    fn number(&mut self, tube: &TubeName) -> Option<u32> {
        if let Some(seen) = self.tubes.get(tube) {
            return Some(seen.number);
        }
        if tube.is_internal() || !self.pending.is_open() {
            return None;
        }
        let number = *self.next_number;
        // Tubes that are removed and created again get further numbers, and the reader accepts so many.
        if number as usize >= TUBES_MAX {
            self.pending.count_unnumbered();
            return None;
        }
        if !self.introduce(tube, number, None) {
            return None;
        }
        *self.next_number = number + 1;
        self.unread.insert(tube.clone());
        Some(number)
    }
}

impl Drop for EventSink<'_> {
    fn drop(&mut self) {
        self.buffer.notify(self.before, &self.pending);
    }
}

#[cfg(test)]
mod tests {
    use taskyard_core::Kind;

    use super::*;
    use crate::codec::EventReader;
    use crate::file::TraceWriter;
    use crate::reader::{ReadLimits, read};

    fn tube(name: &str) -> TubeName {
        TubeName::new(name).unwrap()
    }

    fn events(buffer: &EventBuffer) -> Vec<Event> {
        buffer.end(EndReason::Stopped);
        let block = buffer.take(Vec::new());
        let mut reader = EventReader::new(&block.bytes);
        std::iter::from_fn(|| reader.next_event().unwrap().map(|(_, event)| event)).collect()
    }

    #[test]
    fn tubes_are_introduced_once_and_their_options_when_they_change() {
        let buffer = Arc::<EventBuffer>::default();
        let mut recorder = Recorder::new(buffer.clone());
        let (mail, jobs) = (tube("mail"), tube("jobs"));
        let options = TubeOptions::new(Kind::FifoTtl);
        let mut sink = recorder.sink(Timestamp::from_micros(5));
        sink.show(&mail, &options);
        for id in 0..2 {
            sink.put(&mail, id, PutFacts::default());
        }
        sink.put(&tube("taskyard.manager.seat"), 0, PutFacts::default());
        sink.show(&mail, &options);
        sink.show(&mail, &options);
        sink.rename(&mail, &jobs);
        sink.drop_tube(&jobs);
        sink.delete(&jobs, 3);
        drop(sink);
        let now = Timestamp::from_micros(5);
        assert_eq!(recorder.next_read(now), Some(now));
        assert_eq!(recorder.take_unread(now), BTreeSet::from([mail.clone(), jobs.clone()]));
        assert_eq!(recorder.next_read(now), None);
        recorder.read_later(now, &mail);
        assert_eq!(recorder.next_read(now), None, "it has another name");
        recorder.read_later(now, &jobs);
        let later = now + READ_RETRY;
        assert_eq!(recorder.next_read(now), Some(later));
        assert_eq!(recorder.take_unread(now), BTreeSet::new());
        assert_eq!(recorder.take_unread(later), BTreeSet::from([jobs]));
        let names = |event: &Event| match event {
            Event::Tube { tube, name, options } => format!("{name} {tube} {}", options.is_some()),
            Event::Put { tube, .. } => format!("put {tube}"),
            Event::Clear { tube } => format!("clear {tube}"),
            Event::Delete { tube, .. } => format!("delete {tube}"),
            other => panic!("{other:?}"),
        };
        let shown: Vec<String> = events(&buffer).iter().map(names).collect();
        let expected = [
            "mail 0 false",
            "put 0",
            "put 0",
            "mail 0 true",
            "jobs 0 true",
            "clear 0",
            "jobs 1 false",
            "delete 1",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn options_without_space_are_read_later() {
        let buffer = Arc::<EventBuffer>::default();
        let mut recorder = Recorder::new(buffer.clone());
        let (now, mail) = (Timestamp::from_micros(5), tube("mail"));
        recorder.sink(now).put(&mail, 0, PutFacts::default());
        assert_eq!(recorder.take_unread(now), BTreeSet::from([mail.clone()]));
        while buffer.lock().push(0, &Event::Clear { tube: 0 }) {}
        let options = TubeOptions::new(Kind::FifoTtl);
        recorder.sink(now).show(&mail, &options);
        assert_eq!(recorder.next_read(now), Some(now + READ_RETRY));
        assert_eq!(recorder.take_unread(now + READ_RETRY), BTreeSet::from([mail.clone()]));
        buffer.lock().take(Vec::new());
        recorder.sink(now).show(&mail, &options);
        assert_eq!(recorder.next_read(now), None);
    }

    // A tube that was removed and created again too often made the trace unreadable.
    #[test]
    fn events_of_too_many_tubes_are_counted_as_missing() {
        let mut writer = TraceWriter::in_memory(0);
        let buffer = Arc::<EventBuffer>::default();
        let mut recorder = Recorder::new(buffer.clone());
        let mail = tube("mail");
        for id in 0..TUBES_MAX as u64 + 5 {
            let mut sink = recorder.sink(Timestamp::from_micros(5));
            sink.put(&mail, id, PutFacts::default());
            sink.drop_tube(&mail);
        }
        drop(recorder);
        writer.write_block(buffer.take(Vec::new()));
        let trace = read(&writer.into_bytes()[..], ReadLimits::default(), |_| ()).unwrap();
        assert_eq!((trace.tubes.len(), trace.len(), trace.dropped), (TUBES_MAX, TUBES_MAX, 5));
    }

    #[test]
    fn hashes_differ_from_trace_to_trace() {
        let recorders = [0, 1].map(|_| Recorder::new(Arc::default()));
        let [one, two] = recorders.map(|recorder| {
            assert_eq!(recorder.hash("ann"), recorder.hash("ann"));
            recorder.hash("ann")
        });
        assert_ne!(one, two);
    }
}

//! Makes a trace of its events: finds the deliveries of each task.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use taskyard_core::{Span, TubeName, TubeOptions};

use crate::codec::{EventReader, Malformed};
use crate::event::{Ending, Event, PutFacts, TakeFacts};
use crate::reader::{ReadError, ReadLimits};
use crate::tasks::{
    Change, ChangeKind, NO_DELIVERY, RecordedDelivery, RecordedTube, TaskDetails, TaskRow, Trace,
};

/// The tube of an event, which must have been introduced.
fn tube_of(event: &Event) -> Option<u32> {
    match event {
        Event::Put { tube, .. }
        | Event::Take { tube, .. }
        | Event::Finish { tube, .. }
        | Event::Delete { tube, .. }
        | Event::Kick { tube, .. }
        | Event::Clear { tube }
        | Event::Lost { tube, .. } => Some(*tube),
        Event::Tube { .. } | Event::Dropped { .. } | Event::End { .. } => None,
    }
}

/// A task that has not ended.
#[derive(Clone, Copy, Debug)]
struct LiveTask {
    row: u32,
    /// When its delivery began, and after which wait.
    taken: Option<(i64, i64)>,
}

/// Mixes the bits of an id.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, id: u64) {
        let mixed = (self.0 ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

type LiveTasks = HashMap<u64, LiveTask, BuildHasherDefault<IdHasher>>;

/// Makes a trace of its events.
pub struct TraceBuilder {
    pub trace: Trace,
    limits: ReadLimits,
    live: Vec<LiveTasks>,
    /// The latest options of tubes that changed them.
    changed: HashMap<u32, Box<TubeOptions>>,
    /// How many deliveries are in the details of tasks.
    deliveries: usize,
    /// Whether a task was put before one that comes before it.
    is_unsorted: bool,
}

impl TraceBuilder {
    pub fn new(limits: ReadLimits, wall_start: u64) -> Self {
        let trace = Trace { wall_start, ..Trace::default() };
        let (live, changed) = (Vec::new(), HashMap::new());
        TraceBuilder { trace, limits, live, changed, deliveries: 0, is_unsorted: false }
    }

    /// Adds the events of a block that begins at this byte of the file.
    pub fn add_block(&mut self, bytes: &[u8], offset: u64) -> Result<(), ReadError> {
        let mut reader = EventReader::new(bytes);
        loop {
            let at = offset + reader.position() as u64;
            let damaged = |Malformed(what)| ReadError::Damaged { offset: at, what };
            let Some((time, event)) = reader.next_event().map_err(damaged)? else { return Ok(()) };
            // A block has its missing events at its beginning, without a time.
            if time < self.trace.end && !matches!(event, Event::Dropped { .. }) {
                let what = "a block begins before the end of the one before it";
                return Err(ReadError::Damaged { offset: at, what });
            }
            self.trace.end = self.trace.end.max(time);
            self.add(time as i64, event, at)?;
        }
    }

    fn add(&mut self, now: i64, event: Event, offset: u64) -> Result<(), ReadError> {
        if let Some(tube) = tube_of(&event)
            && tube as usize >= self.trace.tubes.len()
        {
            // Its introduction may be among the missing events.
            let what = "an event names an unknown tube";
            let is_expected = self.trace.dropped > 0;
            return if is_expected { Ok(()) } else { Err(ReadError::Damaged { offset, what }) };
        }
        match event {
            Event::Tube { tube, name, options } => {
                self.add_tube(now, tube, name, options, offset)?
            }
            Event::Put { tube, id, facts } => self.put(now, tube, id, &facts)?,
            Event::Take { tube, id, facts } => self.take(now, tube, id, &facts)?,
            Event::Finish { tube, id, ending } => self.end_delivery(now, tube, id, ending)?,
            Event::Delete { tube, id } => self.delete(now, tube, id)?,
            Event::Kick { tube, count } => self.change(now, tube, ChangeKind::Kick { count })?,
            Event::Clear { tube } => self.clear(now, tube)?,
            Event::Lost { tube, count } => {
                let lost = &mut self.trace.tubes[tube as usize].lost;
                *lost = lost.saturating_add(count);
            }
            Event::Dropped { count } => {
                self.trace.dropped = self.trace.dropped.saturating_add(count);
            }
            Event::End { reason } => self.trace.end_reason = Some(reason),
        }
        Ok(())
    }

    fn add_tube(
        &mut self,
        now: i64,
        tube: u32,
        name: String,
        options: Option<Box<TubeOptions>>,
        offset: u64,
    ) -> Result<(), ReadError> {
        if TubeName::new(&name).is_err() {
            return Err(ReadError::Damaged { offset, what: "the name of a tube is invalid" });
        }
        let number = tube as usize;
        if number >= self.limits.tubes {
            return Err(ReadError::TooLarge { what: "tubes", limit: self.limits.tubes });
        }
        if number >= self.trace.tubes.len() {
            self.trace.tubes.resize_with(number + 1, RecordedTube::default);
            self.live.resize_with(number + 1, LiveTasks::default);
        }
        let known = &mut self.trace.tubes[number];
        known.name = name;
        let latest = self.changed.get(&tube).or(known.options.as_ref());
        match options {
            // It is introduced again because events are missing.
            Some(options) if latest == Some(&options) => Ok(()),
            Some(options) if latest.is_some() => {
                known.consumers.forget_free();
                self.changed.insert(tube, options.clone());
                self.change(now, tube, ChangeKind::Options(options))
            }
            Some(options) => {
                known.options = Some(options);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn change(&mut self, at: i64, tube: u32, kind: ChangeKind) -> Result<(), ReadError> {
        if self.trace.changes.len() >= self.limits.tasks {
            return Err(ReadError::TooLarge { what: "changes", limit: self.limits.tasks });
        }
        self.trace.changes.push(Change { at, tube, kind });
        Ok(())
    }

    fn put(&mut self, now: i64, tube: u32, id: u64, facts: &PutFacts) -> Result<(), ReadError> {
        // Deliveries last as long as they did, so the time to run is not needed.
        let PutFacts { bytes, pri, delay, ttl, subqueue, attempts_max, .. } = *facts;
        let details = TaskDetails { delay, ttl, subqueue, attempts_max, deliveries: Vec::new() };
        let has_details = delay.or(ttl).is_some() || subqueue.is_some() || attempts_max.is_some();
        let row = self.add_row(now, tube, pri, has_details.then_some(details))?;
        let known = &mut self.trace.tubes[tube as usize];
        known.last_put = known.last_put.max(now.unsigned_abs());
        known.bytes = known.bytes.saturating_add(u64::from(bytes));
        self.live[tube as usize].insert(id, LiveTask { row, taken: None });
        Ok(())
    }

    fn add_row(
        &mut self,
        put: i64,
        tube: u32,
        pri: Option<u64>,
        details: Option<TaskDetails>,
    ) -> Result<u32, ReadError> {
        let rows = &mut self.trace.rows;
        if rows.len() >= self.limits.tasks.min(u32::MAX as usize) {
            return Err(ReadError::TooLarge { what: "tasks", limit: self.limits.tasks });
        }
        self.is_unsorted |= rows.last().is_some_and(|last| last.put > put);
        let details = match details {
            None => 0,
            Some(details) => {
                self.trace.details.push(details);
                self.trace.details.len() as u32
            }
        };
        let (run, wait) = (NO_DELIVERY, NO_DELIVERY);
        let (has_pri, pri) = (pri.is_some(), pri.unwrap_or(0));
        rows.push(TaskRow { put, run, wait, pri, tube, details, has_pri });
        Ok(rows.len() as u32 - 1)
    }

    fn take(&mut self, now: i64, tube: u32, id: u64, facts: &TakeFacts) -> Result<(), ReadError> {
        // What was before the recording does not count.
        let wait = facts.wait.as_micros().min(now);
        let live = match self.live[tube as usize].get(&id) {
            Some(live) => *live,
            None => LiveTask { row: self.add_earlier(now, tube, facts)?, taken: None },
        };
        if let Some((start, waited)) = live.taken {
            // The end was not seen: a lease expired, or a session ended. It was ready again from then on.
            let ended = (now - wait).max(start);
            let ending = Ending::Released { delay: Span::ZERO, counted: true };
            let delivery = RecordedDelivery { run: ended - start, wait: waited, ending };
            self.add_delivery(live.row, delivery)?;
            self.trace.tubes[tube as usize].consumers.end(now.unsigned_abs());
        }
        let taken = Some((now, wait));
        self.live[tube as usize].insert(id, LiveTask { taken, ..live });
        self.trace.tubes[tube as usize].consumers.begin(now.unsigned_abs(), wait.unsigned_abs());
        Ok(())
    }

    /// A task whose put was not seen: before the recording, by another server, or by a schedule.
    fn add_earlier(&mut self, now: i64, tube: u32, facts: &TakeFacts) -> Result<u32, ReadError> {
        let put = (now - facts.age.as_micros()).max(0);
        let ready = (now - facts.wait.as_micros()).max(put);
        let delay = (ready > put).then(|| Span::from_micros(ready - put));
        let details = TaskDetails { delay, subqueue: facts.subqueue, ..TaskDetails::default() };
        let has_details = delay.is_some() || facts.subqueue.is_some();
        self.add_row(put, tube, Some(facts.pri), has_details.then_some(details))
    }

    fn end_delivery(
        &mut self,
        now: i64,
        tube: u32,
        id: u64,
        ending: Ending,
    ) -> Result<(), ReadError> {
        let Some(live) = self.live[tube as usize].get_mut(&id) else { return Ok(()) };
        let row = live.row;
        let Some((start, wait)) = live.taken.take() else {
            // An operator buries a task that waits.
            return self.change(now, tube, ChangeKind::Delete { row });
        };
        if ending == Ending::Acked {
            self.live[tube as usize].remove(&id);
        }
        self.add_delivery(row, RecordedDelivery { run: now - start, wait, ending })?;
        let known = &mut self.trace.tubes[tube as usize];
        known.samples.add(now - start);
        known.consumers.end(now.unsigned_abs());
        known.last_end = known.last_end.max(now.unsigned_abs());
        Ok(())
    }

    fn add_delivery(&mut self, row: u32, delivery: RecordedDelivery) -> Result<(), ReadError> {
        let Trace { rows, details, .. } = &mut self.trace;
        let row = &mut rows[row as usize];
        let known = row.details.checked_sub(1).map(|index| &mut details[index as usize]);
        let is_first =
            row.run == NO_DELIVERY && known.as_ref().is_none_or(|d| d.deliveries.is_empty());
        if is_first && delivery.ending == Ending::Acked {
            (row.run, row.wait) = (delivery.run, delivery.wait);
            return Ok(());
        }
        if self.deliveries >= self.limits.tasks {
            return Err(ReadError::TooLarge { what: "deliveries", limit: self.limits.tasks });
        }
        self.deliveries += 1;
        match known {
            Some(known) => known.deliveries.push(delivery),
            None => {
                details.push(TaskDetails { deliveries: vec![delivery], ..TaskDetails::default() });
                row.details = details.len() as u32;
            }
        }
        Ok(())
    }

    fn delete(&mut self, now: i64, tube: u32, id: u64) -> Result<(), ReadError> {
        let Some(live) = self.live[tube as usize].get(&id).copied() else { return Ok(()) };
        if live.taken.is_some() {
            self.end_delivery(now, tube, id, Ending::Acked)
        } else {
            self.live[tube as usize].remove(&id);
            self.change(now, tube, ChangeKind::Delete { row: live.row })
        }
    }

    fn clear(&mut self, now: i64, tube: u32) -> Result<(), ReadError> {
        let mut live: Vec<_> = std::mem::take(&mut self.live[tube as usize]).into_iter().collect();
        live.sort_unstable_by_key(|(id, _)| *id);
        for (_, task) in live {
            self.end_unfinished(now, tube, &task)?;
        }
        self.change(now, tube, ChangeKind::Clear)
    }

    /// A delivery without an end lasted until now.
    fn end_unfinished(&mut self, now: i64, tube: u32, task: &LiveTask) -> Result<(), ReadError> {
        if let Some((start, wait)) = task.taken {
            let ending = Ending::Acked;
            self.add_delivery(task.row, RecordedDelivery { run: now - start, wait, ending })?;
            self.trace.tubes[tube as usize].consumers.end(now.unsigned_abs());
        }
        Ok(())
    }

    pub fn finish(mut self) -> Result<Trace, ReadError> {
        let end = self.trace.end;
        for tube in 0..self.live.len() {
            let mut live: Vec<_> = std::mem::take(&mut self.live[tube]).into_values().collect();
            live.sort_unstable_by_key(|task| task.row);
            for task in &live {
                self.end_unfinished(end as i64, tube as u32, task)?;
                if task.taken.is_none() {
                    let row = &self.trace.rows[task.row as usize];
                    let delay = row.details(&self.trace).and_then(|details| details.delay);
                    let ready = row.put + delay.unwrap_or(Span::ZERO).as_micros();
                    let has_run = self.trace.delivery(row, 0).is_some();
                    if (ready as u64) < end && !has_run {
                        self.trace.tubes[tube].consumers.mark_waiting(ready as u64, end);
                    }
                }
            }
        }
        if self.is_unsorted {
            self.sort();
        }
        Ok(self.trace)
    }

    /// Brings tasks into the order of their puts.
    fn sort(&mut self) {
        let Trace { rows, changes, .. } = &mut self.trace;
        let mut order: Vec<u32> = (0..rows.len() as u32).collect();
        order.sort_by_key(|row| rows[*row as usize].put);
        let sorted = order.iter().map(|row| rows[*row as usize]).collect();
        let mut places = vec![0; rows.len()];
        for (place, row) in order.iter().enumerate() {
            places[*row as usize] = place as u32;
        }
        *rows = sorted;
        for change in changes {
            if let ChangeKind::Delete { row } = &mut change.kind {
                *row = places[*row as usize];
            }
        }
    }
}

//! Exports and imports semaphores with their entries and events, when a store is copied.

use std::collections::HashMap;

use taskyard_core::semaphore::{EntryState, HeldGrant, QueueEntry, SemaphoreRecord, Status};
use taskyard_core::transfer::{EventCopy, QueueEntryCopy, SemaphoreCopy};
use taskyard_core::{Error, EventKind, Grant, Priority, SemaphoreKey, TaskId, Timestamp};
use taskyard_redis::{Failure, Value};

use super::super::Redis;
use super::super::codec::{ByteReader, Unreadable, moment, short_text};
use super::super::execute::Batch;
use super::super::tubes::{status, unreadable};
use super::{TOO_MANY, codec};

impl Redis {
    fn semaphore_key(&self, key: &SemaphoreKey) -> String {
        format!("{{{}:/{key}}}", self.connector.url.prefix)
    }
}

impl Batch<'_> {
    pub async fn export_semaphores(&mut self) -> Result<Vec<SemaphoreCopy>, Failure> {
        let mut copies = Vec::new();
        for (number, key) in self.all_semaphores().await? {
            let at = self.shared.semaphore_key(&key);
            let head = self.shown(at.clone(), vec![b"S".to_vec()]).await?;
            let mut head = head.into_iter().filter_map(Value::text);
            // A listed semaphore may not exist yet.
            let (Some(rules), Some(numbers)) = (head.next(), head.next()) else { continue };
            let record = read_record(key, &rules, &numbers).map_err(unreadable)?;
            let (mut places, mut events) = (HashMap::new(), HashMap::new());
            for text in self.shown_all(&at, b'P').await? {
                read_places(ByteReader(&text), &mut places).map_err(unreadable)?;
            }
            for text in self.shown_all(&at, b'E').await? {
                read_events(number, ByteReader(&text), &mut events).map_err(unreadable)?;
            }
            let mut places: Vec<QueueEntryCopy> = places.into_values().collect();
            places.sort_unstable_by_key(|copy| copy.entry.seq);
            let mut events: Vec<EventCopy> = events.into_values().collect();
            events.sort_unstable_by_key(|copy| copy.id);
            copies.push(SemaphoreCopy { record, entries: places, events });
        }
        copies.sort_unstable_by(|a, b| a.record.key.cmp(&b.record.key));
        Ok(copies)
    }

    /// Imports a semaphore that no tube uses.
    pub async fn import_semaphore(
        &mut self,
        copy: &SemaphoreCopy,
    ) -> Result<Result<(), Error>, Failure> {
        let key = &copy.record.key;
        let words = vec![key.as_str().as_bytes().to_vec()];
        let (found, number) = status(&self.registry_with_retry("semaphore", words).await?)?;
        if found == TOO_MANY {
            return Ok(Err(Error::TooManySemaphores(number as usize)));
        }
        let mut words = vec![b"S".to_vec(), number.to_string().into_bytes()];
        words.extend(encode(std::slice::from_ref(copy), &HashMap::new()));
        let at = self.shared.semaphore_key(key);
        let call = self.shared.transfer_call("import", at, words);
        self.import_call(call).await
    }
}

/// The semaphores, then all entries, then all events, as `import.lua` reads them. `tubes` has the positions of the imported tubes by
/// their numbers in the other store.
pub(in super::super) fn encode(
    semaphores: &[SemaphoreCopy],
    tubes: &HashMap<u32, u32>,
) -> Vec<Vec<u8>> {
    let mut words: Vec<Vec<u8>> =
        semaphores.iter().map(|copy| encode_record(&copy.record)).collect();
    let (mut places, mut events) = (Vec::new(), Vec::new());
    for (at, copy) in (1_u32..).zip(semaphores) {
        places.extend(copy.entries.iter().map(|place| (at, place)));
        events.extend(copy.events.iter().map(|event| (at, event)));
    }
    // Events of all semaphores in their order.
    places.sort_by_key(|(_, copy)| copy.entry.seq);
    events.sort_by_key(|(_, copy)| copy.id);
    // Entries of tubes that are not imported are left out.
    let here = |tube: Option<u32>| match tube {
        Some(tube) => tubes.get(&tube).copied(),
        None => Some(0),
    };
    let mut word = Vec::new();
    for (at, copy) in places {
        if let Some(tube) = here(copy.tube) {
            encode_place(&mut word, (at, tube), copy);
        }
    }
    words.push(word);
    let mut word = Vec::new();
    for (at, copy) in events {
        if let Some(tube) = here(copy.tube) {
            encode_event(&mut word, (at, tube), copy);
        }
    }
    words.push(word);
    words
}

fn encode_record(record: &SemaphoreRecord) -> Vec<u8> {
    let rules = codec::config(&record.options);
    let mut word = short_text(record.key.as_str());
    word.extend((rules.len() as u16).to_le_bytes());
    word.extend(rules);
    word.extend((record.grant_seq as f64).to_le_bytes());
    word.extend(moment(record.recheck_at.unwrap_or(Timestamp::NEVER)));
    word
}

fn encode_place(word: &mut Vec<u8>, (at, tube): (u32, u32), copy: &QueueEntryCopy) {
    let (place, hold) = (&copy.entry, copy.entry.hold());
    let status = Status::ALL.iter().position(|status| *status == place.status());
    word.extend(at.to_le_bytes());
    word.extend(tube.to_le_bytes());
    word.extend(copy.task.0.to_be_bytes());
    word.push(status.unwrap_or(0) as u8);
    word.push(u8::from(hold.is_some_and(|hold| hold.pinned)));
    word.extend(place.priority.value().to_le_bytes());
    word.extend(moment(place.enqueued));
    let until =
        if let EntryState::Delayed(until) = &place.state { *until } else { Timestamp::EPOCH };
    word.extend(moment(until));
    let grant = hold.map_or(0, |hold| hold.grant.0);
    word.extend((grant as f64).to_le_bytes());
    word.extend(moment(hold.map_or(Timestamp::EPOCH, |hold| hold.granted)));
    for at in [
        hold.map(|hold| hold.lease_until),
        hold.map(|hold| hold.ack_by),
        hold.and_then(|hold| hold.revoke_at),
    ] {
        word.extend(moment(at.unwrap_or(Timestamp::NEVER)));
    }
}

fn encode_event(word: &mut Vec<u8>, (at, tube): (u32, u32), copy: &EventCopy) {
    let kind = EventKind::ALL.iter().position(|kind| *kind == copy.kind);
    word.extend(at.to_le_bytes());
    word.extend(tube.to_le_bytes());
    word.extend(copy.task.0.to_be_bytes());
    word.push(kind.unwrap_or(0) as u8);
    word.extend(copy.attempts.to_le_bytes());
    word.extend(moment(copy.next_at));
    word.extend((copy.grant.0 as f64).to_le_bytes());
}

fn read_record(
    key: SemaphoreKey,
    rules: &[u8],
    numbers: &[u8],
) -> Result<SemaphoreRecord, Unreadable> {
    let (options, mut numbers) = (codec::read_config(&mut ByteReader(rules))?, ByteReader(numbers));
    let grant_seq = numbers.count()?;
    let recheck_at = numbers.maybe_moment()?.map(Timestamp::from_micros);
    Ok(SemaphoreRecord { key, options, grant_seq, recheck_at })
}

/// A task of a caller is its number; a task of a tube has a mark and the number of its tube before it.
fn read_task(bytes: &mut ByteReader<'_>) -> Result<(Option<u32>, TaskId), Unreadable> {
    let size = u16::from_le_bytes(bytes.array()?);
    let tube = match size {
        8 => None,
        13 => {
            bytes.byte()?;
            Some(u32::from_be_bytes(bytes.array()?))
        }
        _ => return Err(Unreadable("an entry of a semaphore is not a task")),
    };
    Ok((tube, TaskId(bytes.big()?)))
}

type Found<T> = HashMap<(Option<u32>, TaskId), T>;

fn read_places(
    mut bytes: ByteReader<'_>,
    found: &mut Found<QueueEntryCopy>,
) -> Result<(), Unreadable> {
    while bytes.has_more() {
        let (tube, task) = read_task(&mut bytes)?;
        let (status, pinned) = (bytes.byte()?, bytes.byte()? == 1);
        let priority = Priority::new(bytes.number()?);
        let priority = priority.map_err(|_| Unreadable("a priority is no number"))?;
        let (seq, enqueued) = (bytes.count()?, bytes.moment()?);
        let (until, grant) = (bytes.moment()?, Grant(bytes.count()?));
        let (granted, lease_until) = (bytes.moment()?, bytes.moment()?);
        let (ack_by, revoke_at) = (bytes.moment()?, bytes.moment()?);
        let hold = |revoke_at| {
            EntryState::Held(Box::new(HeldGrant {
                grant,
                granted,
                lease_until,
                ack_by,
                revoke_at,
                pinned,
            }))
        };
        let state = match Status::ALL.get(usize::from(status)) {
            Some(Status::Wait) => EntryState::Wait,
            Some(Status::Delayed) => EntryState::Delayed(until),
            Some(Status::Acquired) => hold(None),
            Some(Status::TryRelease) => hold(Some(revoke_at)),
            None => return Err(Unreadable("a task of a semaphore has an unknown state")),
        };
        let place = QueueEntry { priority, seq, enqueued, state };
        found.insert((tube, task), QueueEntryCopy { tube, task, entry: place });
    }
    Ok(())
}

fn read_events(
    semaphore: u32,
    mut bytes: ByteReader<'_>,
    found: &mut HashMap<u64, EventCopy>,
) -> Result<(), Unreadable> {
    while bytes.has_more() {
        let (tube, task) = read_task(&mut bytes)?;
        let (kind, attempts, next_at) = (bytes.byte()?, bytes.small()?, bytes.moment()?);
        let (grant, _) = (Grant(bytes.count()?), bytes.number()?);
        let number = bytes.big()?;
        let kind = EventKind::ALL.get(usize::from(kind)).copied();
        let kind = kind.ok_or(Unreadable("an event has an unknown kind"))?;
        let id = codec::event_id(semaphore, number);
        found.insert(number, EventCopy { id, tube, task, grant, kind, attempts, next_at });
    }
    Ok(())
}

//! Encodes a batch as a journal record and decodes it.
//!
//! `salt, length, checksum, head, changes`, all numbers little-endian, padded to eight bytes. The checksum
//! covers the length and everything behind itself.

use taskyard_core::record::{Record, StoredState};
use taskyard_core::{
    Body, Bucket, Failures, Finished, Key, KeyChange, KeyRecord, Priority, ScheduleName, Span,
    TaskId, Timestamp,
};

use super::super::codec::{self, Head};
use super::super::pace::PaceRows;
use super::super::rows::{Batch, Rows};

/// Size of the salt, the length and the checksum.
const PREFIX_BYTES: usize = 16;
const HEAD_BYTES: usize = 40;
/// Records begin at multiples of this.
pub(super) const ALIGN: usize = 8;

const INSERT: u8 = 1;
const UPDATE: u8 = 2;
const REMOVE: u8 = 3;
const NEXT_ID: u8 = 4;
/// An update with the body.
const REPLACE: u8 = 5;
const INSERT_KEY: u8 = 6;
const UPDATE_KEY: u8 = 7;
const REMOVE_KEY: u8 = 8;
const BUCKET: u8 = 16;
const SCHEDULE: u8 = 17;
const REMOVE_SCHEDULE: u8 = 18;

/// Flags of the optional fields that follow.
const DUE: u8 = 1;
const EXPIRES: u8 = 2;
const TTR: u8 = 4;
const PREVIOUS: u8 = 8;
const SUBQUEUE: u8 = 16;
const PRIORITY: u8 = 32;
const META: u8 = 64;
const FAILURES: u8 = 128;

/// Flags of the optional fields of a key.
const UNIQUE_FOR: u8 = 1;
const UNTIL: u8 = 2;

/// The state of a done task, which is followed by its end.
const DONE: u8 = 5;
/// A bit of the state: the task's own maximum number of attempts follows the number of its attempts.
const ATTEMPTS_MAX: u8 = 64;

/// Encodes a batch into the buffer, which is cleared first.
pub(super) fn encode(bytes: &mut Vec<u8>, salt: u64, head: &Head, rows: &Rows) {
    bytes.clear();
    bytes.extend_from_slice(&salt.to_le_bytes());
    bytes.extend_from_slice(&[0; PREFIX_BYTES - 8]);
    for number in [head.batch, head.lease_ceiling, head.tubes, head.tasks, head.task_keys] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    for (number, next_id) in &rows.next_ids {
        bytes.push(NEXT_ID);
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.extend_from_slice(&next_id.to_le_bytes());
    }
    for (key, record) in &rows.inserts {
        encode_task(bytes, INSERT, *key, record);
    }
    for (key, record) in &rows.updates {
        encode_task(bytes, UPDATE, *key, record);
    }
    for (key, record) in &rows.replaced {
        encode_task(bytes, REPLACE, *key, record);
    }
    for key in &rows.removed {
        bytes.push(REMOVE);
        bytes.extend_from_slice(&key.to_le_bytes());
    }
    for (key, change) in &rows.keys {
        encode_key(bytes, *key, change);
    }
    encode_pace(bytes, &rows.pace);
    let length = bytes.len() as u32;
    bytes[8..12].copy_from_slice(&length.to_le_bytes());
    let sum = checksum(bytes);
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
}

/// Approximate size of a batch in bytes.
pub(super) fn estimate(rows: &Rows) -> usize {
    const TASK_BYTES: usize = 80;
    const KEY_BYTES: usize = 32;
    let with_bodies = rows.inserts.iter().chain(&rows.replaced);
    let bodies: usize = with_bodies.clone().map(|(_, record)| record.body_bytes as usize).sum();
    let named = with_bodies.chain(&rows.updates);
    let texts = |record: &Record| {
        let failures = record.failures.as_ref().map_or(0, |failures| failures.as_bytes().len());
        let finished = record.finished.as_ref().map_or(0, |finished| finished.as_bytes().len());
        record.subqueue.as_ref().map_or(0, |name| name.len()) + failures + finished
    };
    let names: usize = named.map(|(_, record)| texts(record)).sum();
    let changed = rows.inserts.len() + rows.updates.len() + rows.replaced.len();
    let tasks = changed + rows.removed.len() + rows.next_ids.len() + rows.pace.len();
    let keys = rows.keys.iter().map(|(_, change)| match change {
        KeyChange::Insert(record) | KeyChange::Update(record) => record.key.as_bytes().len(),
        KeyChange::Remove => 0,
    });
    let keys: usize = keys.map(|bytes| bytes + KEY_BYTES).sum();
    bodies + names + keys + rows.pace.bytes() + tasks * TASK_BYTES
}

fn checksum(record: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&record[8..12]);
    hasher.update(&record[PREFIX_BYTES..]);
    hasher.finalize()
}

fn encode_task(bytes: &mut Vec<u8>, kind: u8, key: i64, record: &Record) {
    let (state, due) = match record.state {
        StoredState::Ready(since) => (0, codec::ready_since(record, since)),
        StoredState::Delayed(due) => (1, Some(due.as_micros())),
        StoredState::Buried => (2, None),
        StoredState::DeadLetter => (3, None),
        StoredState::Scheduled(due) => (4, Some(due.as_micros())),
        StoredState::Done => (DONE, None),
    };
    let with_body = kind != UPDATE;
    let body = record.body.as_ref().filter(|_| with_body);
    let meta = body.and_then(Body::meta);
    let fields = [
        (DUE, due),
        (EXPIRES, (record.expires != Timestamp::NEVER).then(|| record.expires.as_micros())),
        (TTR, (record.ttr != Span::FOREVER).then(|| record.ttr.as_micros())),
        (PREVIOUS, record.previous_start.map(Timestamp::as_micros)),
        (PRIORITY, record.semaphore_priority.map(|priority| priority.value().to_bits() as i64)),
    ];
    let given = |set: bool, flag: u8| if set { flag } else { 0 };
    let mut flags =
        fields.iter().fold(0, |flags, (flag, field)| flags | given(field.is_some(), *flag));
    flags |= given(record.subqueue.is_some(), SUBQUEUE) | given(meta.is_some(), META);
    flags |= given(record.failures.is_some(), FAILURES);
    let own = given(record.attempts_max.is_some(), ATTEMPTS_MAX);
    bytes.extend_from_slice(&[kind, flags, state | own]);
    bytes.extend_from_slice(&key.to_le_bytes());
    bytes.extend_from_slice(&record.pri.to_le_bytes());
    bytes.extend_from_slice(&record.created.as_micros().to_le_bytes());
    bytes.extend_from_slice(&record.attempts.to_le_bytes());
    if let Some(own) = record.attempts_max {
        bytes.extend_from_slice(&own.to_le_bytes());
    }
    for (_, field) in fields {
        if let Some(field) = field {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
    }
    if let Some(subqueue) = &record.subqueue {
        encode_bytes(bytes, subqueue.as_bytes());
    }
    if let Some(meta) = meta {
        encode_bytes(bytes, meta);
    }
    if let Some(failures) = &record.failures {
        encode_bytes(bytes, failures.as_bytes());
    }
    if let (DONE, Some(finished)) = (state, &record.finished) {
        encode_bytes(bytes, finished.as_bytes());
    }
    if with_body {
        encode_bytes(bytes, body.map_or(&[], Body::payload));
    }
}

fn encode_key(bytes: &mut Vec<u8>, key: i64, change: &KeyChange) {
    let (kind, record) = match change {
        KeyChange::Insert(record) => (INSERT_KEY, Some(record)),
        KeyChange::Update(record) => (UPDATE_KEY, Some(record)),
        KeyChange::Remove => (REMOVE_KEY, None),
    };
    bytes.push(kind);
    bytes.extend_from_slice(&key.to_le_bytes());
    let Some(KeyRecord { key, unique_for, until }) = record else { return };
    let unique_for = unique_for.map(|span| (UNIQUE_FOR, span.as_micros()));
    let until = until.map(|until| (UNTIL, until.as_micros()));
    let given = unique_for.into_iter().chain(until);
    bytes.push(given.clone().fold(0, |flags, (flag, _)| flags | flag));
    given.for_each(|(_, number)| bytes.extend_from_slice(&number.to_le_bytes()));
    encode_bytes(bytes, key.as_bytes());
}

fn encode_pace(bytes: &mut Vec<u8>, rows: &PaceRows) {
    for (number, bucket) in &rows.buckets {
        bytes.push(BUCKET);
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.extend_from_slice(&bucket.level.to_le_bytes());
        bytes.extend_from_slice(&bucket.at.as_micros().to_le_bytes());
    }
    for (name, data) in &rows.schedules {
        bytes.push(if data.is_some() { SCHEDULE } else { REMOVE_SCHEDULE });
        encode_bytes(bytes, name.as_str().as_bytes());
        if let Some(data) = data {
            encode_bytes(bytes, data);
        }
    }
}

fn encode_bytes(bytes: &mut Vec<u8>, text: &[u8]) {
    bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
    bytes.extend_from_slice(text);
}

/// Decodes the batch at the beginning of the bytes, and returns it with its size; `None` if there is no
/// intact one.
pub(super) fn decode(bytes: &[u8], salt: u64) -> Option<(Batch, usize)> {
    let length = u32::from_le_bytes(bytes.get(8..12)?.try_into().ok()?) as usize;
    let (found, sum) = (bytes.get(..8)?, bytes.get(12..16)?);
    if found != salt.to_le_bytes() || length < PREFIX_BYTES + HEAD_BYTES {
        return None;
    }
    let record = bytes.get(..length)?;
    if sum != checksum(record).to_le_bytes() {
        return None;
    }
    let mut reader = RecordReader(&record[PREFIX_BYTES..]);
    let head = Head {
        batch: reader.number()?,
        lease_ceiling: reader.number()?,
        tubes: reader.number()?,
        tasks: reader.number()?,
        task_keys: reader.number()?,
    };
    let mut rows = Rows::default();
    while let Some(kind) = reader.byte() {
        match kind {
            INSERT => rows.inserts.push(reader.task(true)?),
            UPDATE => rows.updates.push(reader.task(false)?),
            REMOVE => rows.removed.push(reader.number()? as i64),
            NEXT_ID => rows.next_ids.push((reader.small()?, reader.number()?)),
            REPLACE => rows.replaced.push(reader.task(true)?),
            INSERT_KEY | UPDATE_KEY | REMOVE_KEY => rows.keys.push(reader.key(kind)?),
            BUCKET => rows.pace.buckets.push(reader.bucket()?),
            SCHEDULE => rows.pace.schedules.push((reader.name()?, Some(reader.bytes()?.into()))),
            REMOVE_SCHEDULE => rows.pace.schedules.push((reader.name()?, None)),
            _ => return None,
        }
    }
    Some((Batch { head, rows }, length.next_multiple_of(ALIGN)))
}

struct RecordReader<'a>(&'a [u8]);

impl<'a> RecordReader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn small(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn number(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn optional(&mut self, flags: u8, flag: u8) -> Option<Option<i64>> {
        if flags & flag == 0 { Some(None) } else { Some(Some(self.number()? as i64)) }
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.small()?;
        self.take(length as usize)
    }

    fn key(&mut self, kind: u8) -> Option<(i64, KeyChange)> {
        let key = self.number()? as i64;
        if kind == REMOVE_KEY {
            return Some((key, KeyChange::Remove));
        }
        let flags = self.byte()?;
        let unique_for = self.optional(flags, UNIQUE_FOR)?.map(Span::from_micros);
        let until = self.optional(flags, UNTIL)?.map(Timestamp::from_micros);
        let name = Key::new(std::str::from_utf8(self.bytes()?).ok()?).ok()?;
        let record = KeyRecord { key: name, unique_for, until };
        let change =
            if kind == INSERT_KEY { KeyChange::Insert(record) } else { KeyChange::Update(record) };
        Some((key, change))
    }

    fn bucket(&mut self) -> Option<(u32, Bucket)> {
        let (number, level) = (self.small()?, self.number()?);
        Some((number, Bucket { level, at: Timestamp::from_micros(self.number()? as i64) }))
    }

    fn name(&mut self) -> Option<ScheduleName> {
        ScheduleName::new(std::str::from_utf8(self.bytes()?).ok()?).ok()
    }

    fn task(&mut self, with_body: bool) -> Option<(i64, Record)> {
        let (flags, state) = (self.byte()?, self.byte()?);
        let key = self.number()? as i64;
        let (pri, created) = (self.number()?, self.number()? as i64);
        let attempts = self.small()?;
        let attempts_max = if state & ATTEMPTS_MAX == 0 { None } else { Some(self.small()?) };
        let state = state & !ATTEMPTS_MAX;
        let due = self.optional(flags, DUE)?;
        let expires = self.optional(flags, EXPIRES)?;
        let ttr = self.optional(flags, TTR)?;
        let previous = self.optional(flags, PREVIOUS)?;
        let priority = self.optional(flags, PRIORITY)?;
        let subqueue = if flags & SUBQUEUE == 0 { None } else { Some(self.bytes()?) };
        let meta = if flags & META == 0 { &[][..] } else { self.bytes()? };
        let failures =
            if flags & FAILURES == 0 { None } else { Some(Failures::from_bytes(self.bytes()?)?) };
        let finished =
            if state == DONE { Some(Finished::from_bytes(self.bytes()?)?) } else { None };
        let body = if with_body { Some(Body::with_meta(self.bytes()?, meta)) } else { None };
        let (_, id) = codec::split_key(key);
        let record = Record {
            id: TaskId(id.0),
            state: match (state, due) {
                (0, since) => StoredState::Ready(Timestamp::from_micros(since.unwrap_or(created))),
                (1, Some(due)) => StoredState::Delayed(Timestamp::from_micros(due)),
                (2, None) => StoredState::Buried,
                (3, None) => StoredState::DeadLetter,
                (4, Some(due)) => StoredState::Scheduled(Timestamp::from_micros(due)),
                (DONE, None) => StoredState::Done,
                _ => return None,
            },
            pri,
            created: Timestamp::from_micros(created),
            expires: expires.map_or(Timestamp::NEVER, Timestamp::from_micros),
            ttr: ttr.map_or(Span::FOREVER, Span::from_micros),
            attempts,
            previous_start: previous.map(Timestamp::from_micros),
            subqueue: subqueue
                .map(|name| std::str::from_utf8(name).map(Into::into))
                .transpose()
                .ok()?,
            semaphore_priority: priority
                .map(|bits| Priority::new(f64::from_bits(bits as u64)))
                .transpose()
                .ok()?,
            attempts_max,
            failures,
            finished,
            key: None,
            body_bytes: body.as_ref().map_or(0, Body::bytes),
            body,
        };
        Some((key, record))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use taskyard_core::Failure;

    use super::super::super::pace::schedule::tests::random_schedule;
    use super::*;

    const SALT: u64 = 0x1234_5678_9abc_def0;

    #[test]
    fn a_batch_comes_back_as_it_was() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..300 {
            let batch = batch(&mut random);
            let mut bytes = Vec::new();
            encode(&mut bytes, SALT, &batch.head, &batch.rows);
            let length = bytes.len();
            // Bytes behind the record do not matter.
            bytes.extend((0..random.usize(..50)).map(|_| random.u8(..)));
            assert_eq!(decode(&bytes, SALT), Some((batch, length)));
            assert_eq!(length % ALIGN, 0);
            assert_eq!(decode(&bytes, SALT + 1), None, "it belongs to another journal");
        }
    }

    #[test]
    fn a_damaged_batch_is_not_decoded() {
        let mut random = fastrand::Rng::with_seed(8);
        for _ in 0..50 {
            let batch = batch(&mut random);
            let mut whole = Vec::new();
            encode(&mut whole, SALT, &batch.head, &batch.rows);
            let length = u32::from_le_bytes([whole[8], whole[9], whole[10], whole[11]]) as usize;
            for _ in 0..200 {
                let bit = random.usize(..length * 8);
                let mut bytes = whole.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(decode(&bytes, SALT), None, "bit {bit}");
                assert_eq!(decode(&whole[..random.usize(..length)], SALT), None);
            }
        }
    }

    /// Bytes with a valid checksum may still not be a batch.
    #[test]
    fn an_invalid_batch_with_a_valid_checksum_does_no_harm() {
        let mut random = fastrand::Rng::with_seed(9);
        for _ in 0..5000 {
            let length = PREFIX_BYTES + HEAD_BYTES + random.usize(..60);
            let mut bytes: Vec<u8> = (0..length).map(|_| random.u8(..8)).collect();
            bytes[..8].copy_from_slice(&SALT.to_le_bytes());
            bytes[8..12].copy_from_slice(&(length as u32).to_le_bytes());
            let sum = checksum(&bytes);
            bytes[12..16].copy_from_slice(&sum.to_le_bytes());
            // It terminates and uses no more memory than there are bytes.
            _ = decode(&bytes, SALT);
        }
    }

    fn batch(random: &mut fastrand::Rng) -> Batch {
        let mut number = || random.u64(..);
        let head = Head {
            batch: number(),
            lease_ceiling: number(),
            tubes: number(),
            tasks: number(),
            task_keys: number(),
        };
        let mut rows = Rows::default();
        for _ in 0..random.usize(..5) {
            rows.inserts.push(task(random, true));
            rows.updates.push(task(random, false));
            rows.replaced.push(task(random, true));
            rows.keys.push((random.i64(0..), key_change(random)));
            rows.removed.push(random.i64(0..));
            rows.next_ids.push((random.u32(..), random.u64(..)));
            let at = Timestamp::from_micros(random.i64(0..1 << 50));
            rows.pace.buckets.push((random.u32(..), Bucket { level: random.u64(..), at }));
            let schedule = random_schedule(random);
            let schedule = (schedule.name.clone(), random.bool().then_some(schedule));
            rows.pace.schedules.extend(PaceRows::new(Vec::new(), vec![schedule]).schedules);
        }
        Batch { head, rows }
    }

    fn key_change(random: &mut fastrand::Rng) -> KeyChange {
        let mut number = || random.bool().then(|| random.i64(0..1 << 50));
        let (unique_for, until) =
            (number().map(Span::from_micros), number().map(Timestamp::from_micros));
        let key = Key::new(["k", "заказ 17"][random.usize(..2)]).expect("a good key");
        let record = KeyRecord { key, unique_for, until };
        match random.u8(..3) {
            0 => KeyChange::Insert(record),
            1 => KeyChange::Update(record),
            _ => KeyChange::Remove,
        }
    }

    fn failures(random: &mut fastrand::Rng) -> Failures {
        let failure = Failure {
            at: Timestamp::from_micros(random.i64(0..1 << 50)),
            attempt: random.u32(..),
            run: Span::from_micros(random.i64(0..1 << 50)),
            worker: random.bool().then(|| "host:1:mail".into()),
            error: ["", "no route", "нет"][random.usize(..3)].into(),
        };
        Failures::with(None, &failure)
    }

    fn task(random: &mut fastrand::Rng, with_body: bool) -> (i64, Record) {
        let key = random.i64(0..);
        let time = |random: &mut fastrand::Rng| Timestamp::from_micros(random.i64(0..1 << 50));
        let text = |random: &mut fastrand::Rng| -> Vec<u8> {
            (0..random.usize(..30)).map(|_| random.u8(..)).collect()
        };
        let body = with_body.then(|| Body::with_meta(&text(random), &text(random)));
        let is_done = random.u8(..5) == 0;
        let finished = is_done.then(|| {
            let (at, run) = (time(random), Span::from_micros(random.i64(0..1 << 50)));
            Finished::new(at, run, random.bool().then_some("host:1:mail"), &text(random))
        });
        let record = Record {
            id: codec::split_key(key).1,
            state: match random.u8(..5) {
                _ if is_done => StoredState::Done,
                0 => StoredState::Ready(time(random)),
                1 => StoredState::Delayed(time(random)),
                2 => StoredState::Buried,
                3 => StoredState::Scheduled(time(random)),
                _ => StoredState::DeadLetter,
            },
            pri: random.u64(..),
            created: time(random),
            expires: if random.bool() { Timestamp::NEVER } else { time(random) },
            ttr: if random.bool() {
                Span::FOREVER
            } else {
                Span::from_micros(random.i64(0..1 << 50))
            },
            attempts: random.u32(..),
            previous_start: random.bool().then(|| time(random)),
            subqueue: random.bool().then(|| Arc::from(["", "red", "зелёный"][random.usize(..3)])),
            semaphore_priority: random
                .bool()
                .then(|| Priority::new(random.f64()).expect("a number")),
            attempts_max: random.bool().then(|| random.u32(1..)),
            failures: random.bool().then(|| failures(random)),
            finished,
            key: None,
            body_bytes: body.as_ref().map_or(0, Body::bytes),
            body,
        };
        (key, record)
    }
}

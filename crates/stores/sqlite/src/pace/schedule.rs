//! Encodes schedules, and reads and writes their rows.
//!
//! A schedule is a sequence of fields: a tag, the length in four bytes, and the value; all numbers are
//! little-endian. A field without a value is left out.

use rusqlite::{Connection, Row, params};
use taskyard_core::{
    Body, CatchUp, HeldKey, Key, KeyRequest, NewTask, OnConflict, Overlap, Priority, ScheduleName,
    Span, StoredSchedule, Timestamp, TubeName,
};

use super::super::codec::{RowChecksum, RowError};
use super::super::write_error::WriteError;

/// Number of columns of a row.
pub(super) const COLUMNS: usize = 4;

const TUBE: u8 = 0;
const TIMING: u8 = 1;
const CATCH_UP: u8 = 2;
const OVERLAP: u8 = 3;
const UNTIL: u8 = 4;
const PAUSED: u8 = 5;
const NEXT: u8 = 6;
const LAST: u8 = 7;
const FIRED: u8 = 8;
const SKIPPED: u8 = 9;
const PAYLOAD: u8 = 10;
const META: u8 = 11;
const PRI: u8 = 12;
const TTL: u8 = 13;
const TTR: u8 = 14;
const DELAY: u8 = 15;
const AT: u8 = 16;
const SUBQUEUE: u8 = 17;
const SEMAPHORE_PRIORITY: u8 = 18;
const ATTEMPTS_MAX: u8 = 19;
const KEY: u8 = 20;
const UNIQUE_FOR: u8 = 21;
const REPLACE: u8 = 22;
/// Number of tags.
const TAGS: usize = 23;

/// Encodes everything but the name.
pub(super) fn encode(schedule: &StoredSchedule) -> Box<[u8]> {
    let StoredSchedule {
        name: _,
        tube,
        template,
        timing,
        catch_up,
        overlap,
        until,
        paused,
        next,
        last,
        fired,
        skipped,
    } = schedule;
    let moment = |moment: &Option<Timestamp>| moment.map(|moment| moment.as_micros() as u64);
    let catch_up = match catch_up {
        CatchUp::None => 0,
        CatchUp::Last => 1,
        CatchUp::All => 2,
    };
    let mut fields = FieldWriter(Vec::new());
    fields.bytes(TUBE, tube.as_str().as_bytes());
    fields.bytes(TIMING, timing.as_bytes());
    fields.number(CATCH_UP, Some(catch_up));
    fields.number(OVERLAP, Some(u64::from(*overlap == Overlap::Skip)));
    fields.number(UNTIL, moment(until));
    fields.number(PAUSED, Some(u64::from(*paused)));
    fields.number(NEXT, moment(next));
    fields.number(LAST, moment(last));
    fields.number(FIRED, Some(*fired));
    fields.number(SKIPPED, Some(*skipped));
    encode_template(&mut fields, template);
    fields.0.into()
}

fn encode_template(fields: &mut FieldWriter, template: &NewTask) {
    let NewTask { body, pri, ttl, ttr, delay, at, subqueue, .. } = template;
    let NewTask { semaphore_priority, attempts_max, key, .. } = template;
    let span = |span: &Option<Span>| span.map(|span| span.as_micros() as u64);
    fields.bytes(PAYLOAD, body.payload());
    if let Some(meta) = body.meta() {
        fields.bytes(META, meta);
    }
    fields.number(PRI, *pri);
    fields.number(TTL, span(ttl));
    fields.number(TTR, span(ttr));
    fields.number(DELAY, span(delay));
    fields.number(AT, at.map(|at| at.as_micros() as u64));
    if let Some(subqueue) = subqueue {
        fields.bytes(SUBQUEUE, subqueue.as_bytes());
    }
    fields.number(SEMAPHORE_PRIORITY, semaphore_priority.map(|own| own.value().to_bits()));
    fields.number(ATTEMPTS_MAX, attempts_max.map(u64::from));
    if let Some(KeyRequest { held, on_conflict }) = key.as_deref() {
        fields.bytes(KEY, held.key.as_str().as_bytes());
        fields.number(UNIQUE_FOR, Some(held.unique_for.as_micros() as u64));
        fields.number(REPLACE, Some(u64::from(*on_conflict == OnConflict::Replace)));
    }
}

/// Decodes a schedule of this name; `None` if it is damaged.
pub(super) fn decode(name: ScheduleName, bytes: &[u8]) -> Option<StoredSchedule> {
    let fields = FieldReader::new(bytes)?;
    let moment =
        |tag| Some(fields.number(tag)?.map(|micros| Timestamp::from_micros(micros as i64)));
    Some(StoredSchedule {
        name,
        tube: TubeName::new(fields.text(TUBE)??).ok()?,
        template: decode_template(&fields)?,
        timing: fields.text(TIMING)??.into(),
        catch_up: match fields.number(CATCH_UP)?? {
            0 => CatchUp::None,
            1 => CatchUp::Last,
            2 => CatchUp::All,
            _ => return None,
        },
        overlap: if fields.flag(OVERLAP)? { Overlap::Skip } else { Overlap::Allow },
        until: moment(UNTIL)?,
        paused: fields.flag(PAUSED)?,
        next: moment(NEXT)?,
        last: moment(LAST)?,
        fired: fields.number(FIRED)??,
        skipped: fields.number(SKIPPED)??,
    })
}

fn decode_template(fields: &FieldReader<'_>) -> Option<NewTask> {
    let span = |tag| Some(fields.number(tag)?.map(|micros| Span::from_micros(micros as i64)));
    let own = fields.number(SEMAPHORE_PRIORITY)?.map(f64::from_bits);
    Some(NewTask {
        body: Body::with_meta(fields.get(PAYLOAD)?, fields.get(META).unwrap_or(&[])),
        pri: fields.number(PRI)?,
        ttl: span(TTL)?,
        ttr: span(TTR)?,
        delay: span(DELAY)?,
        at: fields.number(AT)?.map(|micros| Timestamp::from_micros(micros as i64)),
        subqueue: fields.text(SUBQUEUE)?.map(Into::into),
        semaphore_priority: own.map(Priority::new).transpose().ok()?,
        attempts_max: fields.number(ATTEMPTS_MAX)?.map(u32::try_from).transpose().ok()?,
        key: match fields.text(KEY)? {
            Some(key) => Some(Box::new(decode_key(fields, key)?)),
            None => None,
        },
    })
}

fn decode_key(fields: &FieldReader<'_>, key: &str) -> Option<KeyRequest> {
    let unique_for = Span::from_micros(fields.number(UNIQUE_FOR)?? as i64);
    let held = HeldKey { key: Key::new(key).ok()?, unique_for };
    let replaces = fields.flag(REPLACE)?;
    let on_conflict = if replaces { OnConflict::Replace } else { OnConflict::Keep };
    Some(KeyRequest { held, on_conflict })
}

struct FieldWriter(Vec<u8>);

impl FieldWriter {
    fn bytes(&mut self, tag: u8, bytes: &[u8]) {
        self.0.push(tag);
        self.0.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        self.0.extend_from_slice(bytes);
    }

    fn number(&mut self, tag: u8, number: Option<u64>) {
        if let Some(number) = number {
            self.bytes(tag, &number.to_le_bytes());
        }
    }
}

/// The values of all fields. The inner `None` of its functions is a missing field, the outer one a damaged one.
struct FieldReader<'a>([Option<&'a [u8]>; TAGS]);

impl<'a> FieldReader<'a> {
    fn new(mut bytes: &'a [u8]) -> Option<Self> {
        let mut fields = [None; TAGS];
        while let Some((tag, rest)) = bytes.split_first() {
            let (length, rest) = rest.split_first_chunk()?;
            let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            if fields.get_mut(usize::from(*tag))?.replace(value).is_some() {
                return None;
            }
            bytes = rest;
        }
        Some(FieldReader(fields))
    }

    fn get(&self, tag: u8) -> Option<&'a [u8]> {
        self.0[usize::from(tag)]
    }

    fn text(&self, tag: u8) -> Option<Option<&'a str>> {
        self.get(tag).map(std::str::from_utf8).transpose().ok()
    }

    fn number(&self, tag: u8) -> Option<Option<u64>> {
        let bytes = self.get(tag).map(<[u8; 8]>::try_from).transpose().ok()?;
        Some(bytes.map(u64::from_le_bytes))
    }

    fn flag(&self, tag: u8) -> Option<bool> {
        self.number(tag)?.map(|number| number != 0)
    }
}

/// Writes an encoded schedule; returns whether it is new.
pub(super) fn write(db: &Connection, name: &ScheduleName, data: &[u8]) -> Result<bool, WriteError> {
    let sum = sum(name.as_str(), data);
    let sql = "UPDATE schedule SET data = ?, sum = ? WHERE name = ?";
    let changed = db.prepare_cached(sql)?.execute(params![data, sum, name.as_str()])?;
    if changed == 0 {
        let sql = "INSERT INTO schedule (name, data, sum) VALUES (?,?,?)";
        db.prepare_cached(sql)?.execute(params![name.as_str(), data, sum])?;
    }
    Ok(changed == 0)
}

/// Removes a schedule; returns whether there was one.
pub(super) fn remove(db: &Connection, name: &ScheduleName) -> Result<bool, WriteError> {
    let sql = "DELETE FROM schedule WHERE name = ?";
    Ok(db.prepare_cached(sql)?.execute([name.as_str()])? > 0)
}

/// Decodes a row and verifies it.
pub(super) fn read_row(row: &Row<'_>) -> Result<StoredSchedule, RowError> {
    let number: i64 = row.get(0)?;
    let bad = || RowError::Damaged(format!("schedule number {number}: its row is damaged"));
    let name: String = row.get(1)?;
    let data = row.get_ref(2)?.as_blob().map_err(|_| bad())?;
    if row.get::<_, i64>(3)? != sum(&name, data) {
        return Err(bad());
    }
    let name = ScheduleName::new(&name).map_err(|_| bad())?;
    decode(name, data).ok_or_else(bad)
}

/// The checksum of a row. It does not cover the number, which SQLite chooses.
fn sum(name: &str, data: &[u8]) -> i64 {
    RowChecksum::new(0).bytes(name.as_bytes()).bytes(data).finish()
}

#[cfg(test)]
pub(in super::super) mod tests {
    use super::*;

    /// A random schedule.
    pub fn random_schedule(random: &mut fastrand::Rng) -> StoredSchedule {
        let mut number = || random.bool().then(|| random.i64(0..1 << 50));
        let [until, next, last, at] = [(); 4].map(|()| number().map(Timestamp::from_micros));
        let [ttl, ttr, delay] = [(); 3].map(|()| number().map(Span::from_micros));
        let meta: &[u8] = if random.bool() { b"\x80" } else { b"" };
        let template = NewTask {
            pri: random.bool().then(|| random.u64(..)),
            ttl,
            ttr,
            delay,
            at,
            subqueue: random.bool().then(|| ["", "зелёный"][random.usize(..2)].into()),
            semaphore_priority: random.bool().then(|| Priority::new(random.f64()).expect("good")),
            attempts_max: random.bool().then(|| random.u32(1..)),
            key: random.bool().then(|| {
                let key = Key::new("зелёный").expect("a good key");
                let held = HeldKey { key, unique_for: Span::from_micros(random.i64(0..1 << 40)) };
                let on_conflict = [OnConflict::Keep, OnConflict::Replace][random.usize(..2)];
                Box::new(KeyRequest { held, on_conflict })
            }),
            ..NewTask::new(Body::with_meta(&vec![7; random.usize(..50)], meta))
        };
        StoredSchedule {
            name: ScheduleName::new(&format!("s{}", random.u16(..))).expect("a good name"),
            tube: TubeName::new("mail").expect("a good name"),
            template,
            timing: "every 5m".into(),
            catch_up: [CatchUp::None, CatchUp::Last, CatchUp::All][random.usize(..3)],
            overlap: [Overlap::Allow, Overlap::Skip][random.usize(..2)],
            until,
            paused: random.bool(),
            next,
            last,
            fired: random.u64(..),
            skipped: random.u64(..),
        }
    }

    #[test]
    fn a_schedule_comes_back_as_it_was() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..300 {
            let schedule = random_schedule(&mut random);
            let bytes = encode(&schedule);
            let name = || schedule.name.clone();
            assert_eq!(decode(name(), &bytes).as_ref(), Some(&schedule));
            let short = random.usize(..bytes.len());
            assert_ne!(decode(name(), &bytes[..short]).as_ref(), Some(&schedule));
            let twice = [&bytes[..], &bytes[..]].concat();
            assert_eq!(decode(name(), &twice), None);
            assert_eq!(decode(name(), &[&bytes[..], &[99, 0, 0, 0, 0]].concat()), None);
        }
    }
}

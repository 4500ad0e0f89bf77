//! Encodes events as bytes and reads them back.
//!
//! An event is a byte for its kind, the time since the event before it, and its fields. Numbers are LEB128: seven bits per
//! byte, the lowest first, and the eighth bit says that more follow. Times are microseconds. docs/estimates.md describes
//! the layout.

use taskyard_core::{Span, TubeOptions};

use crate::event::{EndReason, Ending, Event, PutFacts, TakeFacts};
use crate::tube_codec::{put_options, read_options};

/// More bytes than any event needs: names are limited to 128 bytes each.
pub(crate) const EVENT_BYTES_MAX: usize = 1_024;

const TUBE: u8 = 1;
const PUT: u8 = 2;
const TAKE: u8 = 3;
const FINISH: u8 = 4;
const DELETE: u8 = 5;
const KICK: u8 = 6;
const CLEAR: u8 = 7;
const LOST: u8 = 8;
const DROPPED: u8 = 9;
const END: u8 = 10;

/// Which fields of a put follow.
const HAS_PRI: u8 = 1;
const HAS_DELAY: u8 = 2;
const HAS_TTL: u8 = 4;
const HAS_TTR: u8 = 8;
const HAS_SUBQUEUE: u8 = 16;
const HAS_ATTEMPTS: u8 = 32;
/// In a take: the age differs from the wait.
const HAS_AGE: u8 = 64;

/// Bytes that are not an event; the text says what is wrong with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub &'static str);

type Decoded<T> = Result<T, Malformed>;

/// Appends an event. `elapsed` is the time since the event before it, in microseconds.
pub(crate) fn put_event(out: &mut Vec<u8>, elapsed: u64, event: &Event) {
    let mut begin = |kind| {
        out.push(kind);
        put_number(out, elapsed);
    };
    match event {
        Event::Tube { tube, name, options } => {
            begin(TUBE);
            put_tube(out, *tube, name, options.as_deref());
        }
        Event::Put { tube, id, facts } => {
            begin(PUT);
            put_put(out, *tube, *id, facts);
        }
        Event::Take { tube, id, facts } => {
            begin(TAKE);
            put_take(out, *tube, *id, facts);
        }
        Event::Finish { tube, id, ending } => {
            begin(FINISH);
            put_numbers(out, [u64::from(*tube), *id]);
            put_ending(out, *ending);
        }
        Event::Delete { tube, id } => {
            begin(DELETE);
            put_numbers(out, [u64::from(*tube), *id]);
        }
        Event::Kick { tube, count } => {
            begin(KICK);
            put_numbers(out, [u64::from(*tube), *count]);
        }
        Event::Clear { tube } => {
            begin(CLEAR);
            put_number(out, u64::from(*tube));
        }
        Event::Lost { tube, count } => {
            begin(LOST);
            put_numbers(out, [u64::from(*tube), *count]);
        }
        Event::Dropped { count } => {
            begin(DROPPED);
            put_number(out, *count);
        }
        Event::End { reason } => {
            begin(END);
            out.push(u8::from(*reason == EndReason::SizeLimit));
        }
    }
}

fn put_tube(out: &mut Vec<u8>, tube: u32, name: &str, options: Option<&TubeOptions>) {
    put_number(out, u64::from(tube));
    put_text(out, name);
    out.push(u8::from(options.is_some()));
    if let Some(options) = options {
        put_options(out, options);
    }
}

fn put_put(out: &mut Vec<u8>, tube: u32, id: u64, facts: &PutFacts) {
    let PutFacts { bytes, pri, delay, ttl, ttr, subqueue, attempts_max } = *facts;
    let flags = [
        (HAS_PRI, pri.is_some()),
        (HAS_DELAY, delay.is_some()),
        (HAS_TTL, ttl.is_some()),
        (HAS_TTR, ttr.is_some()),
        (HAS_SUBQUEUE, subqueue.is_some()),
        (HAS_ATTEMPTS, attempts_max.is_some()),
    ];
    out.push(flags_of(&flags));
    put_numbers(out, [u64::from(tube), id, u64::from(bytes)]);
    put_some(out, pri);
    [delay, ttl, ttr].into_iter().for_each(|span| put_some(out, span.map(micros)));
    put_hash(out, subqueue);
    put_some(out, attempts_max.map(u64::from));
}

fn put_take(out: &mut Vec<u8>, tube: u32, id: u64, facts: &TakeFacts) {
    let TakeFacts { wait, age, pri, attempts, subqueue } = *facts;
    let flags = [
        (HAS_PRI, pri != 0),
        (HAS_SUBQUEUE, subqueue.is_some()),
        (HAS_ATTEMPTS, attempts != 0),
        (HAS_AGE, age != wait),
    ];
    out.push(flags_of(&flags));
    put_numbers(out, [u64::from(tube), id, micros(wait)]);
    put_some(out, (pri != 0).then_some(pri));
    put_hash(out, subqueue);
    put_some(out, (attempts != 0).then_some(u64::from(attempts)));
    put_some(out, (age != wait).then(|| micros(age)));
}

fn put_ending(out: &mut Vec<u8>, ending: Ending) {
    let (code, delay) = match ending {
        Ending::Acked => (0, None),
        Ending::Released { delay, counted: true } => (1, Some(delay)),
        Ending::Released { delay, counted: false } => (2, Some(delay)),
        Ending::Buried => (3, None),
        Ending::FailedRetry(delay) => (4, Some(delay)),
        Ending::FailedBuried => (5, None),
        Ending::FailedPolicy(delay) => (6, Some(delay)),
    };
    out.push(code);
    put_some(out, delay.map(micros));
}

/// The flags of the fields that are present.
pub(crate) fn flags_of(fields: &[(u8, bool)]) -> u8 {
    fields.iter().filter(|field| field.1).fold(0, |flags, field| flags | field.0)
}

pub(crate) fn micros(span: Span) -> u64 {
    span.as_micros().unsigned_abs()
}

pub(crate) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_numbers<const N: usize>(out: &mut Vec<u8>, numbers: [u64; N]) {
    numbers.into_iter().for_each(|number| put_number(out, number));
}

pub(crate) fn put_some(out: &mut Vec<u8>, number: Option<u64>) {
    if let Some(number) = number {
        put_number(out, number);
    }
}

fn put_hash(out: &mut Vec<u8>, hash: Option<u64>) {
    if let Some(hash) = hash {
        out.extend_from_slice(&hash.to_le_bytes());
    }
}

pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_number(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// Reads events from the bytes of a block.
pub(crate) struct EventReader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The time of the latest event since the start of the trace, in microseconds.
    time: u64,
}

impl<'a> EventReader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        EventReader { bytes, at: 0, time: 0 }
    }

    /// How many bytes are read.
    pub fn position(&self) -> usize {
        self.at
    }

    /// The next event with its time, in microseconds since the start of the trace; `None` at the end.
    pub fn next_event(&mut self) -> Decoded<Option<(u64, Event)>> {
        if self.at == self.bytes.len() {
            return Ok(None);
        }
        let kind = self.byte()?;
        let elapsed = self.number()?;
        self.time = self.time.checked_add(elapsed).ok_or(Malformed("a time is too large"))?;
        if self.time > micros(Span::FOREVER) {
            return Err(Malformed("a time is too large"));
        }
        let event = match kind {
            TUBE => self.tube()?,
            PUT => self.put()?,
            TAKE => self.take()?,
            FINISH => {
                Event::Finish { tube: self.small()?, id: self.number()?, ending: self.ending()? }
            }
            DELETE => Event::Delete { tube: self.small()?, id: self.number()? },
            KICK => Event::Kick { tube: self.small()?, count: self.number()? },
            CLEAR => Event::Clear { tube: self.small()? },
            LOST => Event::Lost { tube: self.small()?, count: self.number()? },
            DROPPED => Event::Dropped { count: self.number()? },
            END => match self.byte()? {
                0 => Event::End { reason: EndReason::Stopped },
                1 => Event::End { reason: EndReason::SizeLimit },
                _ => return Err(Malformed("unknown reason of an end")),
            },
            _ => return Err(Malformed("unknown kind of event")),
        };
        Ok(Some((self.time, event)))
    }

    fn tube(&mut self) -> Decoded<Event> {
        let (tube, name) = (self.small()?, self.text()?.to_owned());
        let options = match self.byte()? {
            0 => None,
            1 => Some(Box::new(read_options(self)?)),
            _ => return Err(Malformed("unknown layout of a tube")),
        };
        Ok(Event::Tube { tube, name, options })
    }

    fn put(&mut self) -> Decoded<Event> {
        let flags = self.byte()?;
        let (tube, id, bytes) = (self.small()?, self.number()?, self.small()?);
        let facts = PutFacts {
            bytes,
            pri: self.number_if(flags & HAS_PRI)?,
            delay: self.span_if(flags & HAS_DELAY)?,
            ttl: self.span_if(flags & HAS_TTL)?,
            ttr: self.span_if(flags & HAS_TTR)?,
            subqueue: self.hash_if(flags & HAS_SUBQUEUE)?,
            attempts_max: self.small_if(flags & HAS_ATTEMPTS)?,
        };
        if facts.attempts_max == Some(0) {
            return Err(Malformed("a put without any attempt"));
        }
        Ok(Event::Put { tube, id, facts })
    }

    fn take(&mut self) -> Decoded<Event> {
        let flags = self.byte()?;
        let (tube, id, wait) = (self.small()?, self.number()?, self.span()?);
        let pri = self.number_if(flags & HAS_PRI)?.unwrap_or(0);
        let subqueue = self.hash_if(flags & HAS_SUBQUEUE)?;
        let attempts = self.small_if(flags & HAS_ATTEMPTS)?.unwrap_or(0);
        let age = self.span_if(flags & HAS_AGE)?.unwrap_or(wait);
        Ok(Event::Take { tube, id, facts: TakeFacts { wait, age, pri, attempts, subqueue } })
    }

    fn ending(&mut self) -> Decoded<Ending> {
        Ok(match self.byte()? {
            0 => Ending::Acked,
            1 => Ending::Released { delay: self.span()?, counted: true },
            2 => Ending::Released { delay: self.span()?, counted: false },
            3 => Ending::Buried,
            4 => Ending::FailedRetry(self.span()?),
            5 => Ending::FailedBuried,
            6 => Ending::FailedPolicy(self.span()?),
            _ => return Err(Malformed("unknown end of a delivery")),
        })
    }

    pub fn byte(&mut self) -> Decoded<u8> {
        let byte = self.bytes.get(self.at).ok_or(Malformed("an event is cut off"))?;
        self.at += 1;
        Ok(*byte)
    }

    pub fn number(&mut self) -> Decoded<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                // The tenth byte has one bit.
                return if shift == 63 && byte > 1 { Err(TOO_LARGE) } else { Ok(number) };
            }
        }
        Err(TOO_LARGE)
    }

    pub fn small(&mut self) -> Decoded<u32> {
        u32::try_from(self.number()?).map_err(|_| TOO_LARGE)
    }

    pub fn span(&mut self) -> Decoded<Span> {
        let micros = i64::try_from(self.number()?).map_err(|_| TOO_LARGE)?;
        Ok(Span::from_micros(micros))
    }

    pub fn number_if(&mut self, flag: u8) -> Decoded<Option<u64>> {
        if flag == 0 { Ok(None) } else { self.number().map(Some) }
    }

    pub fn small_if(&mut self, flag: u8) -> Decoded<Option<u32>> {
        if flag == 0 { Ok(None) } else { self.small().map(Some) }
    }

    pub fn span_if(&mut self, flag: u8) -> Decoded<Option<Span>> {
        if flag == 0 { Ok(None) } else { self.span().map(Some) }
    }

    fn hash_if(&mut self, flag: u8) -> Decoded<Option<u64>> {
        if flag == 0 {
            return Ok(None);
        }
        let bytes = self.slice(8)?.try_into().map_err(|_| Malformed("an event is cut off"))?;
        Ok(Some(u64::from_le_bytes(bytes)))
    }

    pub fn text(&mut self) -> Decoded<&'a str> {
        let length = usize::try_from(self.number()?).map_err(|_| TOO_LARGE)?;
        str::from_utf8(self.slice(length)?).map_err(|_| Malformed("a name is no text"))
    }

    fn slice(&mut self, length: usize) -> Decoded<&'a [u8]> {
        let end = self.at.checked_add(length).ok_or(TOO_LARGE)?;
        let slice = self.bytes.get(self.at..end).ok_or(Malformed("an event is cut off"))?;
        self.at = end;
        Ok(slice)
    }
}

const TOO_LARGE: Malformed = Malformed("a number is too large");

#[cfg(test)]
mod tests {
    use taskyard_core::{Kind, RateLimit, RetryPolicy, SemaphoreKey};

    use super::*;

    const SECOND: Span = Span::from_secs(1);

    fn events() -> Vec<Event> {
        let options = TubeOptions {
            ttl: Some(Span::from_secs(60)),
            pri: 7,
            attempts_max: Some(3),
            retry: Some(Box::new(RetryPolicy { retry_lost: true, ..RetryPolicy::DEFAULT })),
            rate: Some(Box::new(RateLimit { count: 100, per: SECOND, burst: 5 })),
            paused: true,
            semaphore: Some(SemaphoreKey::new("license").unwrap()),
            ..TubeOptions::new(Kind::UtubeTtl)
        };
        let facts = PutFacts {
            bytes: 300,
            pri: Some(u64::MAX),
            delay: Some(SECOND),
            ttl: Some(Span::FOREVER),
            ttr: Some(Span::ZERO),
            subqueue: Some(u64::MAX),
            attempts_max: Some(1),
        };
        let took = TakeFacts { wait: SECOND, age: SECOND, ..TakeFacts::default() };
        let again = TakeFacts { attempts: 2, pri: 9, subqueue: Some(1), wait: Span::ZERO, ..took };
        let mut events = vec![
            Event::Tube { tube: 0, name: "mail".into(), options: None },
            Event::Tube { tube: 0, name: "mail".into(), options: Some(Box::new(options)) },
            Event::Put { tube: 0, id: 1 << 40, facts },
            Event::Put { tube: 0, id: 0, facts: PutFacts::default() },
            Event::Take { tube: 0, id: 0, facts: took },
            Event::Take { tube: 0, id: 0, facts: again },
            Event::Delete { tube: 3, id: 4 },
            Event::Kick { tube: 3, count: 4 },
            Event::Clear { tube: u32::MAX },
            Event::Lost { tube: 3, count: 4 },
            Event::Dropped { count: 17 },
            Event::End { reason: EndReason::SizeLimit },
            Event::End { reason: EndReason::Stopped },
        ];
        let endings = [
            Ending::Acked,
            Ending::Released { delay: SECOND, counted: true },
            Ending::Released { delay: SECOND, counted: false },
            Ending::Buried,
            Ending::FailedRetry(SECOND),
            Ending::FailedBuried,
            Ending::FailedPolicy(SECOND),
        ];
        events.extend(endings.map(|ending| Event::Finish { tube: 1, id: 2, ending }));
        events
    }

    fn encoded() -> Vec<u8> {
        let mut bytes = Vec::new();
        for (elapsed, event) in events().iter().enumerate() {
            let before = bytes.len();
            put_event(&mut bytes, elapsed as u64 * 1_000, event);
            assert!(bytes.len() - before < EVENT_BYTES_MAX);
        }
        bytes
    }

    #[test]
    fn every_event_is_read_back() {
        let (bytes, mut read, mut time) = (encoded(), Vec::new(), 0);
        let mut reader = EventReader::new(&bytes);
        while let Some((at, event)) = reader.next_event().unwrap() {
            time += read.len() as u64 * 1_000;
            assert_eq!(at, time);
            read.push(event);
        }
        assert_eq!(read, events());
    }

    #[test]
    fn a_longest_name_fits() {
        let mut bytes = Vec::new();
        let name = "x".repeat(taskyard_core::limits::TUBE_NAME_BYTES_MAX);
        let key = "y".repeat(taskyard_core::limits::SEMAPHORE_KEY_BYTES_MAX);
        let options = TubeOptions {
            semaphore: Some(SemaphoreKey::new(&key).unwrap()),
            ..TubeOptions::new(Kind::FifoTtl)
        };
        let options = Some(Box::new(options));
        put_event(&mut bytes, u64::MAX, &Event::Tube { tube: u32::MAX, name, options });
        assert!(bytes.len() < EVENT_BYTES_MAX / 2, "{}", bytes.len());
    }

    // A damaged file must not end the program: neither cut nor changed bytes.
    #[test]
    fn damaged_events_are_refused_or_read_but_never_panic() {
        let bytes = encoded();
        let read_all = |bytes: &[u8]| {
            let mut reader = EventReader::new(bytes);
            while let Ok(Some(_)) = reader.next_event() {}
        };
        (0..bytes.len()).for_each(|end| read_all(&bytes[..end]));
        for place in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[place] ^= 1 << bit;
                read_all(&damaged);
            }
        }
        assert_eq!(
            EventReader::new(&[99, 0]).next_event(),
            Err(Malformed("unknown kind of event"))
        );
        let long = [&[PUT][..], &[0xff; 10]].concat();
        assert_eq!(EventReader::new(&long).next_event(), Err(TOO_LARGE));
    }
}

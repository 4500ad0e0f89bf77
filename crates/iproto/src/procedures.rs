//! Calls of Taskyard's own procedures in Tarantool. They answer in the layouts of `native`, and
//! list beside the replies what other clients may be waiting for.

use taskyard_core::{Command, Effects, Error, NewEvents, Reply, SemaphoreKey, Timestamp, TubeName};

use super::IprotoError;
use super::native::{encode_commands, read_procedure_replies};
use super::pack;
use super::reader::{Malformed, Value, ValueReader};
use super::request::write_call;

/// Writes the arguments of a call, one after the other.
pub struct ArgumentWriter<'a> {
    out: &'a mut Vec<u8>,
    count: u32,
}

/// Writes a call; `write` writes its arguments.
pub fn encode_call(
    out: &mut Vec<u8>,
    sync: u64,
    name: &str,
    write: impl FnOnce(&mut ArgumentWriter<'_>),
) {
    write_call(out, sync, name, |out| encode_args(out, write));
}

/// Writes arguments as the list of a request.
pub fn encode_args(out: &mut Vec<u8>, write: impl FnOnce(&mut ArgumentWriter<'_>)) {
    let start = out.len();
    pack::array32(out, 0);
    let mut args = ArgumentWriter { out, count: 0 };
    write(&mut args);
    let count = args.count.to_be_bytes();
    out[start + 1..start + 5].copy_from_slice(&count);
}

impl ArgumentWriter<'_> {
    /// A text.
    pub fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    /// Bytes as Lua has them: a string that need not be UTF-8.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        pack::str_bytes(self.out, bytes);
        self.count += 1;
        self
    }

    /// A whole number that is not negative.
    pub fn uint(&mut self, number: u64) -> &mut Self {
        pack::uint(self.out, number);
        self.count += 1;
        self
    }

    /// A number, or nil.
    pub fn optional(&mut self, number: Option<i64>) -> &mut Self {
        match number {
            Some(number) => pack::int(self.out, number),
            None => pack::nil(self.out),
        }
        self.count += 1;
        self
    }

    /// A boolean.
    pub fn flag(&mut self, flag: bool) -> &mut Self {
        pack::bool(self.out, flag);
        self.count += 1;
        self
    }

    /// Any number.
    pub fn float(&mut self, number: f64) -> &mut Self {
        pack::float(self.out, number);
        self.count += 1;
        self
    }

    /// One argument that `write` writes, or nil.
    pub fn maybe<T>(
        &mut self,
        value: Option<T>,
        write: impl FnOnce(&mut Self, T) -> &mut Self,
    ) -> &mut Self {
        match value {
            Some(value) => write(self, value),
            None => self.optional(None),
        }
    }

    /// A list.
    pub fn list(&mut self, write: impl FnOnce(&mut ArgumentWriter<'_>)) -> &mut Self {
        encode_args(self.out, write);
        self.count += 1;
        self
    }

    /// A list, each item of which is a list itself.
    pub fn rows<T>(
        &mut self,
        rows: &[T],
        mut write: impl FnMut(&mut ArgumentWriter<'_>, &T),
    ) -> &mut Self {
        pack::array(self.out, rows.len());
        for row in rows {
            encode_args(self.out, |args| write(args, row));
        }
        self.count += 1;
        self
    }

    /// Commands.
    pub fn commands(&mut self, commands: &[Command]) -> &mut Self {
        encode_commands(self.out, commands);
        self.count += 1;
        self
    }
}

/// A value that a procedure returned.
#[derive(Clone, Debug, PartialEq)]
pub enum LuaValue {
    /// Nil.
    Nil,
    /// True or false.
    Bool(bool),
    /// A whole number.
    Int(i128),
    /// Any other number.
    Float(f64),
    /// A text, or bytes.
    Bytes(Vec<u8>),
    /// A list.
    List(Vec<LuaValue>),
}

impl LuaValue {
    /// The number, if it is whole and not negative.
    pub fn uint(&self) -> Option<u64> {
        if let LuaValue::Int(number) = self { u64::try_from(*number).ok() } else { None }
    }

    /// The number, if it is whole: a timestamp or a duration.
    pub fn int(&self) -> Option<i64> {
        if let LuaValue::Int(number) = self { i64::try_from(*number).ok() } else { None }
    }

    /// Any number. Lua writes whole ones without a fraction.
    pub fn number(&self) -> Option<f64> {
        match self {
            LuaValue::Int(number) => Some(*number as f64),
            LuaValue::Float(number) => Some(*number),
            _ => None,
        }
    }

    /// The bytes of a text or of binary data.
    pub fn bytes(&self) -> Option<&[u8]> {
        if let LuaValue::Bytes(bytes) = self { Some(bytes) } else { None }
    }

    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        if let LuaValue::Bytes(bytes) = self { std::str::from_utf8(bytes).ok() } else { None }
    }

    /// The items, if it is a list.
    pub fn list(&self) -> &[LuaValue] {
        if let LuaValue::List(values) = self { values } else { &[] }
    }

    /// Whether it is true.
    pub fn is_true(&self) -> bool {
        *self == LuaValue::Bool(true)
    }
}

/// Deepest nesting of an answer.
const DEPTH_MAX: usize = 8;

/// The first result of a call.
pub fn decode_value(data: &[u8]) -> Result<LuaValue, IprotoError> {
    let mut reader = ValueReader::new(data);
    let wrong = |_| IprotoError::Malformed("not the answer of a procedure");
    match reader.array().map_err(wrong)? {
        0 => Ok(LuaValue::Nil),
        _ => read_lua_value(&mut reader, DEPTH_MAX).map_err(wrong),
    }
}

fn read_lua_value(reader: &mut ValueReader<'_>, depth: usize) -> Result<LuaValue, Malformed> {
    Ok(match reader.value()? {
        Value::Nil => LuaValue::Nil,
        Value::Bool(value) => LuaValue::Bool(value),
        Value::Uint(value) => LuaValue::Int(value.into()),
        Value::Int(value) => LuaValue::Int(value.into()),
        Value::Float(value) => LuaValue::Float(value),
        Value::Str(bytes) | Value::Bin(bytes) => LuaValue::Bytes(bytes.to_vec()),
        Value::Array(count) if depth > 0 => {
            // Each item takes at least one byte.
            if count as usize > reader.rest().len() {
                return Err(Malformed);
            }
            let values = (0..count).map(|_| read_lua_value(reader, depth - 1));
            LuaValue::List(values.collect::<Result<_, _>>()?)
        }
        Value::Array(_) | Value::Map(_) | Value::Ext => return Err(Malformed),
    })
}

/// The answer to a batch.
#[derive(Debug)]
pub struct ExecutedBatch {
    /// A reply for each command.
    pub replies: Vec<Result<Reply, Error>>,
    /// The time of the database at which the batch ran.
    pub clock: Timestamp,
    /// What other clients may be waiting for, by that time.
    pub effects: Effects,
}

/// What happened to a batch.
#[derive(Debug)]
pub enum BatchReply {
    /// It was executed.
    Executed(Box<ExecutedBatch>),
    /// It was cancelled, and nothing was done.
    Cancelled,
    /// It was executed, but too few replicas confirmed it in time.
    Unreplicated,
}

/// Parses the answer to a batch.
pub fn decode_batch(data: &[u8]) -> Result<BatchReply, IprotoError> {
    let wrong = |_| IprotoError::Malformed("not the answer of a batch");
    let mut reader = ValueReader::new(data);
    if reader.array().map_err(wrong)? != 1 {
        return Err(IprotoError::Malformed("not one result"));
    }
    let count = match reader.array().map_err(wrong)? {
        0 => return Ok(BatchReply::Cancelled),
        1 => return Ok(BatchReply::Unreplicated),
        count => count,
    };
    let replies = read_procedure_replies(&mut reader)?;
    let (clock, mut effects) = read_effects(&mut reader).map_err(wrong)?;
    // An existing queue has no schedules and keys.
    if count > 7 {
        effects.next_schedule = read_moment(&mut reader).map_err(wrong)?;
        effects.keys_freed_early = reader.uint().map_err(wrong)?;
    }
    // Neither does it count failures.
    if count > 8 {
        effects.failed = read_counts(&mut reader).map_err(wrong)?;
    }
    Ok(BatchReply::Executed(Box::new(ExecutedBatch { replies, clock, effects })))
}

fn read_effects(reader: &mut ValueReader<'_>) -> Result<(Timestamp, Effects), Malformed> {
    let clock = read_moment(reader)?.ok_or(Malformed)?;
    let effects = Effects {
        next_wakeup: read_moment(reader)?,
        ready: read_counts(reader)?,
        room: read_counts(reader)?,
        events: read_news(reader)?,
        failed: Vec::new(),
        next_schedule: None,
        keys_freed_early: 0,
    };
    Ok((clock, effects))
}

/// The keys of semaphores with events, or that any may have some.
fn read_news(reader: &mut ValueReader<'_>) -> Result<NewEvents, Malformed> {
    let count = match reader.value()? {
        Value::Bool(true) => return Ok(NewEvents::All),
        Value::Bool(false) => return Ok(NewEvents::Nothing),
        Value::Array(count) => count,
        _ => return Err(Malformed),
    };
    let mut news = NewEvents::Nothing;
    for _ in 0..count {
        let key = std::str::from_utf8(reader.bytes()?).map_err(|_| Malformed)?;
        news.add_key(&SemaphoreKey::new(key).map_err(|_| Malformed)?);
    }
    Ok(news)
}

fn read_moment(reader: &mut ValueReader<'_>) -> Result<Option<Timestamp>, Malformed> {
    let micros = match reader.value()? {
        Value::Nil => return Ok(None),
        Value::Uint(value) => i64::try_from(value).map_err(|_| Malformed)?,
        Value::Int(value) => value,
        _ => return Err(Malformed),
    };
    Ok(Some(Timestamp::from_micros(micros)))
}

/// Tubes, each with a number.
fn read_counts(reader: &mut ValueReader<'_>) -> Result<Vec<(TubeName, u64)>, Malformed> {
    let count = reader.array()?;
    let mut counts = Vec::new();
    for _ in 0..count {
        if reader.array()? != 2 {
            return Err(Malformed);
        }
        let name = std::str::from_utf8(reader.bytes()?).map_err(|_| Malformed)?;
        let name = TubeName::new(name).map_err(|_| Malformed)?;
        counts.push((name, reader.uint()?));
    }
    counts.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_a_list() {
        let mut out = Vec::new();
        encode_args(&mut out, |args| {
            args.text("a").uint(7).optional(None).optional(Some(-1)).rows(&[1, 2], |args, row| {
                args.uint(*row);
            });
            args.flag(true)
                .float(0.5)
                .maybe(Some(3), ArgumentWriter::uint)
                .maybe(None, ArgumentWriter::uint);
            args.list(|args| _ = args.uint(1));
        });
        let list = |values: &[LuaValue]| LuaValue::List(values.to_vec());
        let rows = list(&[list(&[LuaValue::Int(1)]), list(&[LuaValue::Int(2)])]);
        let values = [
            LuaValue::Bytes(b"a".to_vec()),
            LuaValue::Int(7),
            LuaValue::Nil,
            LuaValue::Int(-1),
            rows,
        ];
        let more = [LuaValue::Bool(true), LuaValue::Float(0.5), LuaValue::Int(3), LuaValue::Nil];
        let values = [&values[..], &more, &[list(&[LuaValue::Int(1)])]].concat();
        let mut wrapped = vec![0x91];
        wrapped.extend(&out);
        assert_eq!(decode_value(&wrapped), Ok(list(&values)));
    }

    #[test]
    fn a_cancelled_batch_has_no_replies() {
        assert!(matches!(decode_batch(&[0x91, 0x90]), Ok(BatchReply::Cancelled)));
        assert!(matches!(decode_batch(&[0x91, 0x91, 0x05]), Ok(BatchReply::Unreplicated)));
        // No replies, a time, no wakeup, one tube, no capacity, no events.
        let data = [0x91, 0x96, 0x90, 0x05, 0xc0, 0x91, 0x92, 0xa1, b'q', 0x02, 0x90, 0xc2];
        let Ok(BatchReply::Executed(executed)) = decode_batch(&data) else {
            panic!("it was executed")
        };
        assert_eq!(executed.clock, Timestamp::from_micros(5));
        assert_eq!(executed.effects.ready, [(TubeName::new("q").unwrap(), 2)]);
        assert_eq!(executed.effects.next_schedule, None);
        // The same with the moment of the next schedule and the number of freed keys.
        let data = [0x91, 0x98, 0x90, 0x05, 0xc0, 0x90, 0x90, 0xc2, 0x07, 0x03];
        let Ok(BatchReply::Executed(executed)) = decode_batch(&data) else {
            panic!("it was executed")
        };
        assert_eq!(executed.effects.next_schedule, Some(Timestamp::from_micros(7)));
        assert_eq!((executed.effects.keys_freed_early, executed.effects.failed), (3, vec![]));
        // The same with failures of one tube.
        let data =
            [0x91, 0x99, 0x90, 0x05, 0xc0, 0x90, 0x90, 0xc2, 0xc0, 0x00, 0x91, 0x92, 0xa1, b'q', 3];
        let Ok(BatchReply::Executed(executed)) = decode_batch(&data) else {
            panic!("it was executed")
        };
        assert_eq!(executed.effects.failed, [(TubeName::new("q").unwrap(), 3)]);
    }

    #[test]
    fn news_are_of_some_semaphores_or_of_any() {
        let news = |bytes: &[u8]| {
            let data = [&[0x91, 0x96, 0x90, 0x05, 0xc0, 0x90, 0x90][..], bytes].concat();
            match decode_batch(&data) {
                Ok(BatchReply::Executed(executed)) => Some(executed.effects.events),
                _ => None,
            }
        };
        assert_eq!(news(&[0xc2]), Some(NewEvents::Nothing));
        assert_eq!(news(&[0x90]), Some(NewEvents::Nothing));
        assert_eq!(news(&[0xc3]), Some(NewEvents::All));
        let key = SemaphoreKey::new("k").unwrap();
        assert_eq!(news(&[0x92, 0xa1, b'k', 0xa1, b'k']), Some(NewEvents::of(key)));
        for bad in [&[0xc0][..], &[0x91, 0xa0], &[0x91, 0x05], &[0x92, 0xa1, b'k']] {
            assert_eq!(news(bad), None, "{bad:?}");
        }
    }

    /// The data of a batch with this one reply.
    fn with_reply(reply: &[u8]) -> Result<Reply, IprotoError> {
        let data = [&[0x91, 0x96, 0x91][..], reply, &[0x05, 0xc0, 0x90, 0x90, 0xc2]].concat();
        match decode_batch(&data)? {
            BatchReply::Executed(mut executed) => {
                Ok(executed.replies.remove(0).expect("no refusal"))
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn runs_are_short_for_many() {
        let Ok(Reply::Put(placed)) = with_reply(&[0x93, 12, 5, 3]) else { panic!("a put") };
        assert_eq!(placed.iter().map(|placed| placed.id.0).collect::<Vec<_>>(), [5, 6, 7]);
        let Ok(Reply::Finished(outcomes)) = with_reply(&[0x92, 13, 2]) else { panic!("acks") };
        assert_eq!(outcomes.len(), 2);
        // Ten thousand and one.
        assert!(with_reply(&[0x93, 12, 5, 0xcd, 0x27, 0x11]).is_err());
        assert!(with_reply(&[0x92, 13, 0xcd, 0x27, 0x11]).is_err());
        // Beyond the last number.
        let last = [0x93, 12, 0xcf, 255, 255, 255, 255, 255, 255, 255, 255, 1];
        assert!(with_reply(&last).is_err());
        // Runs are only accepted from Taskyard's own procedures.
        assert!(crate::decode_replies(&[0x91, 0x92, 13, 2]).is_err());
    }

    #[test]
    fn a_task_lies_beside_its_delivery() {
        // Id 4, ready, pri 0, created 1, expires 2, ttr 3, no attempts, no reason, a text as its body; lease 7 until 9 since 8.
        let task = [0x99, 4, 0, 0, 1, 2, 3, 0, 0x91, 0, 0xa1, b'x'];
        let delivery = [0x93, 7, 9, 8];
        let reply =
            |items: &[&[u8]]| [&[0x92, 11, 0x90 | items.len() as u8][..], &items.concat()].concat();
        let Ok(Reply::Taken(tasks)) = with_reply(&reply(&[&task, &delivery])) else {
            panic!("a take")
        };
        let task_seen = &tasks[0];
        assert_eq!(task_seen.state, taskyard_core::State::Taken);
        assert_eq!(task_seen.reason, taskyard_core::Reason::Running);
        assert_eq!(task_seen.lease, Some(taskyard_core::Lease(7)));
        assert_eq!(task_seen.body.as_ref().map(|body| body.payload()), Some(&b"x"[..]));
        assert!(with_reply(&reply(&[&task, &task])).is_err(), "a delivery is missing");
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [&[][..], &[0x07], &[0x91, 0x07], &[0x91, 0x96, 0x90, 0xc0], &[0x92, 0x90, 0x90]]
        {
            assert!(decode_batch(bad).is_err(), "{bad:?}");
        }
        for bad in
            [&[][..], &[0x91], &[0x91, 0x81, 0x00, 0x00], &[0x91, 0xdd, 0xff, 0xff, 0xff, 0xff]]
        {
            assert!(decode_value(bad).is_err(), "{bad:?}");
        }
        let deep = [[0x91; 20].as_slice(), &[0x00]].concat();
        assert!(decode_value(&deep).is_err());
    }
}

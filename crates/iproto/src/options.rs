//! Reads tables of options: which are checked and which are ignored.

use std::sync::Arc;

use taskyard_core::failure::is_client_version;
use taskyard_core::limits::CLIENT_VERSION_BYTES_MAX;
use taskyard_core::{
    Key, KeyRequest, Kind, ListOrder, NewTask, OnConflict, Priority, SemaphoreKey, Span, StateSet,
    TaskId, TubeOptions,
};

use super::args::{delay, seconds};
use super::faults::{lua, malformed, shortened, wrong_option, wrong_pri};
use super::reader::{Value, ValueReader};
use super::reply::Fault;

/// The number of tasks in a list unless the call says another one.
const LIST_LIMIT_DEFAULT: usize = 100;

/// Calls `each` for the pairs of a table whose keys are names. A missing table, nil and a list have
/// none: an empty table of PHP arrives as an empty list.
pub(super) fn pairs<'a>(
    table: Option<&'a [u8]>,
    each: impl FnMut(&'a [u8], Value<'a>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    pairs_unless(table, |_| false, each)
}

/// Calls `each` for the pairs of a table; a value of another type has none if `passes` accepts it.
fn pairs_unless<'a>(
    table: Option<&'a [u8]>,
    passes: impl FnOnce(&Value<'a>) -> bool,
    mut each: impl FnMut(&'a [u8], Value<'a>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let Some(table) = table else { return Ok(()) };
    let mut reader = ValueReader::new(table);
    let count = match reader.value().map_err(|_| malformed())? {
        Value::Nil | Value::Array(_) => return Ok(()),
        Value::Map(count) => count,
        other if passes(&other) => return Ok(()),
        other => {
            let kind = other.lua_type();
            return Err(lua(format!("attempt to index local 'opts' (a {kind} value)")));
        }
    };
    for _ in 0..count {
        let key = reader.raw().map_err(|_| malformed())?;
        let value = reader.raw().map_err(|_| malformed())?;
        let key = ValueReader::new(key).value().map_err(|_| malformed())?;
        let value = ValueReader::new(value).value().map_err(|_| malformed())?;
        if let Value::Str(name) | Value::Bin(name) = key {
            // In Lua a pair with nil does not exist.
            if value != Value::Nil {
                each(name, value)?;
            }
        }
    }
    Ok(())
}

/// Lua indexes a string without an error, and finds no options.
const fn is_text(value: &Value<'_>) -> bool {
    matches!(value, Value::Str(_) | Value::Bin(_))
}

/// Reads the options of a put into the task; returns how long to wait for free capacity. An option
/// that a tube of this kind ignores may have any value; while the kind is not known, the options of
/// every kind are checked.
pub(super) fn read_put(
    table: Option<&[u8]>,
    kind: Option<Kind>,
    task: &mut NewTask,
) -> Result<Span, Fault> {
    let times = kind.is_none_or(Kind::has_times);
    let subqueues = kind.is_none_or(Kind::has_subqueues);
    let mut wait = Span::ZERO;
    let mut key = KeyOptions::default();
    let passes = |value: &Value<'_>| is_text(value) || kind == Some(Kind::Fifo);
    pairs_unless(table, passes, |name, value| {
        match name {
            b"pri" if times => task.pri = Some(value.unsigned().ok_or_else(wrong_pri)?),
            b"ttl" if times => task.ttl = seconds(&value)?,
            b"ttr" if times => task.ttr = seconds(&value)?,
            b"delay" if times => task.delay = delay(&value)?,
            b"utube" if subqueues => task.subqueue = Some(to_text(&value)?),
            b"semaphore_priority" => task.semaphore_priority = Some(priority(&value)?),
            b"key" => key.key = Some(key_of(&value)?),
            b"unique_for" => key.unique_for = Some(unique_for(&value)?),
            b"on_conflict" => key.on_conflict = Some(on_conflict(&value)?),
            // Upstream checks it only when the tube is full.
            b"timeout" if kind.is_none() => wait = seconds(&value)?.unwrap_or_default(),
            b"timeout" => wait = seconds(&value).ok().flatten().unwrap_or_default(),
            _ => {}
        }
        Ok(())
    })?;
    task.key = key.into_request()?.map(Box::new);
    Ok(wait)
}

/// The options of a put about its key.
#[derive(Default)]
struct KeyOptions {
    key: Option<Key>,
    unique_for: Option<Span>,
    on_conflict: Option<OnConflict>,
}

impl KeyOptions {
    fn into_request(self) -> Result<Option<KeyRequest>, Fault> {
        let Some(key) = self.key else {
            let option = match (self.unique_for, self.on_conflict) {
                (None, None) => return Ok(None),
                (Some(_), _) => "unique_for",
                (None, Some(_)) => "on_conflict",
            };
            return Err(lua(format!("{option} needs a key; give one, or leave it out")));
        };
        let mut request = KeyRequest::new(key);
        request.held.unique_for = self.unique_for.unwrap_or_default();
        request.on_conflict = self.on_conflict.unwrap_or_default();
        Ok(Some(request))
    }
}

/// The key of a task: a text or a number.
fn key_of(value: &Value<'_>) -> Result<Key, Fault> {
    let text = match value {
        Value::Str(_) | Value::Bin(_) | Value::Uint(_) | Value::Int(_) => to_text(value),
        _ => Err(invalid_value("key", value)),
    };
    let text = text.map_err(|_| invalid_value("key", value))?;
    Key::new(&text).map_err(|error| lua(format!("Invalid value of key: {error}")))
}

fn unique_for(value: &Value<'_>) -> Result<Span, Fault> {
    let seconds = value.number().filter(|seconds| *seconds >= 0.0);
    let span = seconds.and_then(Span::from_secs_f64);
    span.ok_or_else(|| invalid_value("unique_for", value))
}

fn on_conflict(value: &Value<'_>) -> Result<OnConflict, Fault> {
    match value {
        Value::Str(b"keep") | Value::Bin(b"keep") => Ok(OnConflict::Keep),
        Value::Str(b"replace") | Value::Bin(b"replace") => Ok(OnConflict::Replace),
        _ => {
            let fault = invalid_value("on_conflict", value);
            Err(lua(format!("{}; use keep or replace", fault.text)))
        }
    }
}

/// Reads the delay of a release in a tube of this kind. Other options are ignored, as upstream
/// does.
pub(super) fn read_release(table: Option<&[u8]>, kind: Option<Kind>) -> Result<Span, Fault> {
    if kind.is_some_and(|kind| !kind.has_times()) {
        return Ok(Span::ZERO);
    }
    let mut later = Span::ZERO;
    pairs_unless(table, is_text, |name, value| {
        if name == b"delay" {
            later = delay(&value)?.unwrap_or_default();
        }
        Ok(())
    })?;
    Ok(later)
}

/// Reads the version of a client. Other options are ignored.
pub(super) fn read_worker_version(table: Option<&[u8]>) -> Result<Option<Box<str>>, Fault> {
    let mut version = None;
    pairs(table, |name, value| {
        if name == b"version" {
            let text = match value {
                Value::Str(bytes) | Value::Bin(bytes) => std::str::from_utf8(bytes).ok(),
                _ => None,
            };
            let given = text.filter(|text| is_client_version(text)).ok_or_else(|| {
                lua(format!(
                    "the version of a client is a text of 1 to {CLIENT_VERSION_BYTES_MAX} letters, \
                     digits, '.', '-' and '+'"
                ))
            })?;
            version = Some(given.into());
        }
        Ok(())
    })?;
    Ok(version)
}

/// Reads the result of an ack, as the bytes that arrived. Other options are ignored, as is everything
/// that upstream's ack ignores.
pub(super) fn read_result(table: Option<&[u8]>) -> Option<&[u8]> {
    let mut reader = ValueReader::new(table?);
    let Ok(Value::Map(count)) = reader.value() else { return None };
    let mut result = None;
    for _ in 0..count {
        let (key, value) = (reader.raw().ok()?, reader.raw().ok()?);
        if matches!(
            ValueReader::new(key).value(),
            Ok(Value::Str(b"result") | Value::Bin(b"result"))
        ) {
            result = Some(value);
        }
    }
    result.filter(|value| ValueReader::new(value).value() != Ok(Value::Nil))
}

/// Reads the error and the delay of a failed delivery. Other options are ignored.
pub(super) fn read_failure(table: Option<&[u8]>) -> Result<(Option<String>, Option<Span>), Fault> {
    let (mut error, mut later) = (None, None);
    pairs_unless(table, is_text, |name, value| {
        match (name, &value) {
            (b"error", Value::Str(text) | Value::Bin(text)) => {
                error = Some(String::from_utf8_lossy(text).into_owned());
            }
            (b"delay", _) => later = delay(&value)?,
            _ => {}
        }
        Ok(())
    })?;
    Ok((error, later))
}

/// Reads which tasks a list has, and at most how many.
pub(super) fn read_list(table: Option<&[u8]>) -> Result<(ListOrder, usize), Fault> {
    let (mut states, mut after, mut limit) = (StateSet::UNFINISHED, None, LIST_LIMIT_DEFAULT);
    pairs(table, |name, value| {
        match name {
            b"state" => states = state_set(&value)?,
            b"after" => {
                let id = value.unsigned().ok_or_else(|| invalid_value("after", &value))?;
                after = Some(TaskId(id));
            }
            b"limit" => {
                let count = value.unsigned().and_then(|count| usize::try_from(count).ok());
                limit = count.ok_or_else(|| invalid_value("limit", &value))?;
            }
            _ => {
                let name = String::from_utf8_lossy(name);
                let name = shortened(&name);
                return Err(lua(format!("Unknown option {name}; use state, limit and after")));
            }
        }
        Ok(())
    })?;
    Ok((ListOrder::Id { states, after }, limit))
}

/// Names of states, separated by commas.
fn state_set(value: &Value<'_>) -> Result<StateSet, Fault> {
    let text = match *value {
        Value::Str(bytes) | Value::Bin(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    };
    let state = |name: &str| StateSet::STATES.into_iter().find(|state| state.name() == name.trim());
    let wrong = || {
        let fault = invalid_value("state", value);
        lua(format!("{}; use ready, taken, delayed, buried, done", fault.text))
    };
    let mut names = text.ok_or_else(wrong)?.split(',');
    names.try_fold(StateSet::EMPTY, |set, name| Some(set.with(state(name)?))).ok_or_else(wrong)
}

/// Reads the options of a new tube; returns also whether an existing tube is accepted.
///
/// Upstream tubes have no `delay`; it is ignored like all unknown options and all that the kind
/// does not use.
pub(super) fn read_create(
    table: Option<&[u8]>,
    kind: Kind,
    tube: &str,
) -> Result<(TubeOptions, bool), Fault> {
    let mut options = TubeOptions::new(kind);
    let mut if_not_exists = false;
    let (mut vinyl, mut buffered) = (false, false);
    let times = kind.has_times();
    pairs(table, |name, value| {
        match name {
            b"temporary" => options.temporary = flag("temporary", &value)?,
            b"if_not_exists" => if_not_exists = is_true(&value),
            b"engine" => vinyl = is_vinyl(&value)?,
            b"storage_mode" => buffered = matches!(value, Value::Str(b"ready_buffer")),
            b"ttl" if times => options.ttl = seconds(&value)?,
            b"ttr" if times => options.ttr = seconds(&value)?,
            b"pri" if times => options.pri = value.unsigned().ok_or_else(wrong_pri)?,
            b"capacity" if kind == Kind::LimFifoTtl => options.capacity = capacity(&value)?,
            b"ttl_kills_taken" => options.ttl_kills_taken = is_true(&value),
            b"attempts_max" => options.attempts_max = attempts_max(&value)?,
            b"keep_done" => options.keep_done = seconds(&value)?,
            b"keep_done_max" => {
                let max = value.unsigned();
                options.keep_done_max =
                    max.ok_or_else(|| invalid_value("keep_done_max", &value))?;
            }
            b"semaphore" => options.semaphore = Some(semaphore(&value)?),
            _ => {}
        }
        Ok(())
    })?;
    if vinyl {
        refuse_vinyl(&options, buffered, tube)?;
    }
    Ok((options, if_not_exists))
}

/// Checks the storage engine. The operator chooses where tasks are stored, so the option changes
/// nothing, but an unknown name is refused. Returns whether it is the engine on disk, which does
/// not support everything.
fn is_vinyl(value: &Value<'_>) -> Result<bool, Fault> {
    match *value {
        Value::Str(b"memtx") => Ok(false),
        Value::Str(b"vinyl") => Ok(true),
        Value::Str(name) => {
            let name = String::from_utf8_lossy(name);
            Err(Fault::new(57, format!("Space engine '{}' does not exist", shortened(&name))))
        }
        _ => Err(wrong_option("engine", "string")),
    }
}

/// Refuses what upstream's engine on disk does not support.
fn refuse_vinyl(options: &TubeOptions, buffered: bool, tube: &str) -> Result<(), Fault> {
    if options.kind == Kind::LimFifoTtl {
        return Err(lua("limfifottl queue does not support vinyl engine"));
    }
    if buffered && options.kind.has_subqueues() {
        return Err(lua("\"ready_buffer\" storage mode cannot be used with vinyl engine"));
    }
    if options.temporary {
        let text = format!(
            "Can't modify space '{}': engine does not support temporary flag",
            shortened(tube)
        );
        return Err(Fault::new(12, text));
    }
    Ok(())
}

/// A boolean option of a space.
fn flag(name: &str, value: &Value<'_>) -> Result<bool, Fault> {
    match value {
        Value::Bool(flag) => Ok(*flag),
        _ => Err(wrong_option(name, "boolean")),
    }
}

/// Reads the settings of `cfg`: how long a session without connections keeps its tasks.
pub(super) fn read_cfg(table: Option<&[u8]>) -> Result<Option<Span>, Fault> {
    let mut ttr = None;
    pairs(table, |name, value| {
        match name {
            b"ttr" => {
                let good = value.number().filter(|seconds| *seconds >= 0.0);
                let Some(seconds) = good else { return Err(invalid_value("ttr", &value)) };
                ttr = Span::from_secs_f64(seconds);
            }
            // A single server counts as its own replica set.
            b"in_replicaset" if matches!(value, Value::Bool(_)) => {}
            b"in_replicaset" => return Err(invalid_value("in_replicaset", &value)),
            _ => {
                let name = String::from_utf8_lossy(name);
                return Err(lua(format!("Unknown option {}", shortened(&name))));
            }
        }
        Ok(())
    })?;
    Ok(ttr)
}

pub(super) fn invalid_value(name: &str, value: &Value<'_>) -> Fault {
    let value = to_text(value).unwrap_or_else(|_| value.lua_type().into());
    lua(format!("Invalid value of {name}: {}", shortened(&value)))
}

/// What Lua treats as true: everything but false and nil.
pub(super) fn is_true(value: &Value<'_>) -> bool {
    !matches!(value, Value::Bool(false) | Value::Nil)
}

/// The capacity of a tube: 0 is no limit, and a tube with less than 0 accepts nothing, which is a
/// capacity of 0 here.
fn capacity(value: &Value<'_>) -> Result<Option<u64>, Fault> {
    let count = value
        .number()
        .ok_or_else(|| lua(format!("attempt to compare number with {}", value.lua_type())))?;
    // A tube accepts tasks as long as it has fewer than this. The conversion makes 0 of what is
    // negative or not a number.
    Ok((count != 0.0).then_some(count.ceil() as u64))
}

fn attempts_max(value: &Value<'_>) -> Result<Option<u32>, Fault> {
    let count = value.unsigned().and_then(|count| u32::try_from(count).ok());
    let count = count.ok_or_else(|| invalid_value("attempts_max", value))?;
    Ok((count > 0).then_some(count))
}

/// The key of the semaphore of a tube.
fn semaphore(value: &Value<'_>) -> Result<SemaphoreKey, Fault> {
    let text = match *value {
        Value::Str(bytes) | Value::Bin(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    };
    let key = text.and_then(|text| SemaphoreKey::new(text).ok());
    key.ok_or_else(|| invalid_value("semaphore", value))
}

/// The priority of a task in the semaphore of its tube.
fn priority(value: &Value<'_>) -> Result<Priority, Fault> {
    let priority = value.number().and_then(|number| Priority::new(number).ok());
    priority.ok_or_else(|| invalid_value("semaphore_priority", value))
}

/// The value as Lua's `tostring` writes it.
fn to_text(value: &Value<'_>) -> Result<Arc<str>, Fault> {
    Ok(match *value {
        Value::Nil => "nil".into(),
        Value::Bool(value) => value.to_string().into(),
        Value::Uint(value) => value.to_string().into(),
        Value::Int(value) => value.to_string().into(),
        Value::Float(value) => float_text(value).into(),
        Value::Str(bytes) | Value::Bin(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => text.into(),
            Err(_) => return Err(lua("the name of a sub-queue must be UTF-8")),
        },
        Value::Ext | Value::Array(_) | Value::Map(_) => {
            return Err(lua(format!("a {} cannot name a sub-queue", value.lua_type())));
        }
    })
}

/// Whole numbers without a point, very large and very small ones with an exponent.
fn float_text(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        if value.is_nan() { "nan".into() } else { format!("{value}") }
    } else if size != 0.0 && !(1e-4..1e15).contains(&size) {
        format!("{value:e}")
    } else {
        format!("{value}")
    }
}

//! The keys of a simulated Redis, and the commands that the library of the pool uses.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use taskyard_redis::Value;

/// A key, a field or a value.
pub type Bytes = Vec<u8>;

/// All keys.
#[derive(Clone, Debug, Default)]
pub struct Data {
    keys: BTreeMap<Bytes, Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    stored: Stored,
    /// When it expires, in milliseconds.
    expires: Option<i64>,
}

#[derive(Clone, Debug)]
enum Stored {
    Text(Bytes),
    Hash(BTreeMap<Bytes, Bytes>),
    List(VecDeque<Bytes>),
    Set(BTreeSet<Bytes>),
    Sorted(BTreeMap<Bytes, f64>),
    Stream(StreamData),
}

type EntryId = (u64, u64);

#[derive(Clone, Debug, Default)]
struct StreamData {
    entries: BTreeMap<EntryId, Vec<Bytes>>,
    last: EntryId,
    /// The last entry that each group has read.
    groups: BTreeMap<Bytes, EntryId>,
}

/// One command with its words.
pub struct Command<'a> {
    /// The words after the name and the key.
    rest: &'a [Bytes],
    key: &'a [u8],
    now_ms: i64,
}

fn wrong(text: &str) -> Value {
    Value::Error(format!("ERR {text}"))
}

fn wrong_type() -> Value {
    Value::Error("WRONGTYPE Operation against a key holding the wrong kind of value".into())
}

fn flag(flag: bool) -> Value {
    Value::Int(flag.into())
}

fn number<T: std::str::FromStr>(bytes: &[u8]) -> Option<T> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

fn optional(found: Option<&Bytes>) -> Value {
    found.map_or(Value::Nil, |bytes| Value::Text(bytes.clone()))
}

fn texts<'a>(all: impl IntoIterator<Item = &'a Bytes>) -> Value {
    Value::List(all.into_iter().map(|bytes| Value::Text(bytes.clone())).collect())
}

/// Finds a value of one kind, or creates it; another kind is refused.
macro_rules! of_kind {
    ($data:expr, $command:expr, $kind:ident, $default:expr) => {
        match &mut $data.entry($command.key, || Stored::$kind($default)).stored {
            Stored::$kind(found) => found,
            _ => return wrong_type(),
        }
    };
}

/// Finds a value of one kind; `$none` is the answer if there is none.
macro_rules! existing {
    ($data:expr, $command:expr, $kind:ident, $none:expr) => {
        match $data.keys.get_mut($command.key).map(|entry| &mut entry.stored) {
            Some(Stored::$kind(found)) => found,
            Some(_) => return wrong_type(),
            None => return $none,
        }
    };
}

impl Data {
    /// The fields of a hash, for judges.
    pub fn hash(&self, key: &str) -> BTreeMap<String, String> {
        match self.keys.get(key.as_bytes()).map(|entry| &entry.stored) {
            Some(Stored::Hash(fields)) => fields
                .iter()
                .map(|(name, value)| {
                    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                    (text(name), text(value))
                })
                .collect(),
            _ => BTreeMap::new(),
        }
    }

    /// How many members a set has, for judges.
    pub fn set_size(&self, key: &str) -> usize {
        match self.keys.get(key.as_bytes()).map(|entry| &entry.stored) {
            Some(Stored::Set(members)) => members.len(),
            _ => 0,
        }
    }

    /// A text, for judges.
    pub fn text(&self, key: &str, now_ms: i64) -> Option<String> {
        let entry = self.keys.get(key.as_bytes())?;
        if entry.expires.is_some_and(|at| at <= now_ms) {
            return None;
        }
        match &entry.stored {
            Stored::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
            _ => None,
        }
    }

    /// The keys that exist and begin with this text, for judges.
    pub fn keys_with(&self, start: &str, now_ms: i64) -> Vec<String> {
        let exists = |entry: &Entry| entry.expires.is_none_or(|at| at > now_ms);
        self.keys
            .iter()
            .filter(|(key, entry)| key.starts_with(start.as_bytes()) && exists(entry))
            .map(|(key, _)| String::from_utf8_lossy(key).into_owned())
            .collect()
    }

    /// Executes a command.
    pub fn execute(&mut self, name: &str, words: &[Bytes], now_ms: i64) -> Value {
        let Some(key) = words.first() else { return wrong("wrong number of arguments") };
        if matches!(name, "DEL" | "UNLINK" | "EXISTS") {
            return self.many(name, words, now_ms);
        }
        self.expire(key, now_ms);
        let command = Command { key, rest: &words[1..], now_ms };
        let reply = match name {
            "GET" | "SET" | "INCR" => self.text_command(name, &command),
            "PEXPIRE" | "PTTL" => self.expiry_command(name, &command),
            _ if name.starts_with('H') => self.hash_command(name, &command),
            _ if name.starts_with('S') => self.set_command(name, &command),
            _ if name.starts_with('Z') => self.sorted_command(name, &command),
            _ => self.list_command(name, &command),
        };
        self.drop_empty(key);
        reply
    }

    fn expire(&mut self, key: &[u8], now_ms: i64) {
        if self.keys.get(key).and_then(|entry| entry.expires).is_some_and(|at| at <= now_ms) {
            self.keys.remove(key);
        }
    }

    /// Empty collections do not exist; streams do.
    fn drop_empty(&mut self, key: &[u8]) {
        let is_empty = self.keys.get(key).is_some_and(|entry| match &entry.stored {
            Stored::Hash(fields) => fields.is_empty(),
            Stored::List(items) => items.is_empty(),
            Stored::Set(members) => members.is_empty(),
            Stored::Sorted(members) => members.is_empty(),
            Stored::Text(_) | Stored::Stream(_) => false,
        });
        if is_empty {
            self.keys.remove(key);
        }
    }

    fn entry(&mut self, key: &[u8], new: impl FnOnce() -> Stored) -> &mut Entry {
        let entry = self.keys.entry(key.to_vec());
        entry.or_insert_with(|| Entry { stored: new(), expires: None })
    }

    fn many(&mut self, name: &str, keys: &[Bytes], now_ms: i64) -> Value {
        let mut count = 0;
        for key in keys {
            self.expire(key, now_ms);
            count += match name {
                "EXISTS" => i64::from(self.keys.contains_key(key)),
                _ => i64::from(self.keys.remove(key).is_some()),
            };
        }
        Value::Int(count)
    }

    fn text_command(&mut self, name: &str, command: &Command<'_>) -> Value {
        match (name, command.rest) {
            ("GET", []) => {
                let text = existing!(self, command, Text, Value::Nil);
                Value::Text(text.clone())
            }
            ("SET", [value, options @ ..]) => {
                let lasts = match options {
                    [] => None,
                    [px, lasts] if px.eq_ignore_ascii_case(b"PX") => number::<i64>(lasts),
                    _ => return wrong("syntax error"),
                };
                let expires = lasts.map(|lasts| command.now_ms + lasts);
                let entry = Entry { stored: Stored::Text(value.clone()), expires };
                self.keys.insert(command.key.to_vec(), entry);
                Value::Text(b"OK".into())
            }
            ("INCR", []) => {
                let text = of_kind!(self, command, Text, b"0".to_vec());
                let Some(next) = number::<i64>(text).map(|number| number + 1) else {
                    return wrong("value is not an integer or out of range");
                };
                *text = next.to_string().into_bytes();
                Value::Int(next)
            }
            _ => wrong("syntax error"),
        }
    }

    fn expiry_command(&mut self, name: &str, command: &Command<'_>) -> Value {
        let Some(entry) = self.keys.get_mut(command.key) else {
            return Value::Int(if name == "PTTL" { -2 } else { 0 });
        };
        match (name, command.rest) {
            ("PTTL", []) => Value::Int(entry.expires.map_or(-1, |at| at - command.now_ms)),
            ("PEXPIRE", [lasts]) => {
                let Some(lasts) = number::<i64>(lasts) else {
                    return wrong("value is not an integer or out of range");
                };
                entry.expires = Some(command.now_ms + lasts);
                Value::Int(1)
            }
            _ => wrong("syntax error"),
        }
    }

    fn hash_command(&mut self, name: &str, command: &Command<'_>) -> Value {
        match (name, command.rest) {
            ("HSET", pairs) if !pairs.is_empty() && pairs.len().is_multiple_of(2) => {
                let fields = of_kind!(self, command, Hash, BTreeMap::new());
                let mut added = 0;
                for pair in pairs.chunks(2) {
                    added += i64::from(fields.insert(pair[0].clone(), pair[1].clone()).is_none());
                }
                Value::Int(added)
            }
            ("HGET", [field]) => optional(existing!(self, command, Hash, Value::Nil).get(field)),
            ("HMGET", names) => {
                let none = Value::List(vec![Value::Nil; names.len()]);
                let fields = existing!(self, command, Hash, none);
                Value::List(names.iter().map(|name| optional(fields.get(name))).collect())
            }
            ("HGETALL", []) => {
                let fields = existing!(self, command, Hash, Value::List(Vec::new()));
                texts(fields.iter().flat_map(|(name, value)| [name, value]))
            }
            ("HKEYS", []) => texts(existing!(self, command, Hash, Value::List(Vec::new())).keys()),
            ("HLEN", []) => Value::Int(existing!(self, command, Hash, Value::Int(0)).len() as i64),
            ("HEXISTS", [field]) => {
                flag(existing!(self, command, Hash, Value::Int(0)).contains_key(field))
            }
            ("HDEL", names) => {
                let fields = existing!(self, command, Hash, Value::Int(0));
                let removed = names.iter().filter(|name| fields.remove(*name).is_some()).count();
                Value::Int(removed as i64)
            }
            ("HINCRBY", [field, by]) => {
                let fields = of_kind!(self, command, Hash, BTreeMap::new());
                let value = fields.entry(field.clone()).or_insert_with(|| b"0".to_vec());
                let (Some(old), Some(by)) = (number::<i64>(value), number::<i64>(by)) else {
                    return wrong("hash value is not an integer");
                };
                *value = (old + by).to_string().into_bytes();
                Value::Int(old + by)
            }
            _ => wrong(&format!("unknown command '{name}'")),
        }
    }

    fn set_command(&mut self, name: &str, command: &Command<'_>) -> Value {
        match (name, command.rest) {
            ("SADD", [member]) => {
                flag(of_kind!(self, command, Set, BTreeSet::new()).insert(member.clone()))
            }
            ("SREM", [member]) => flag(existing!(self, command, Set, Value::Int(0)).remove(member)),
            ("SISMEMBER", [member]) => {
                flag(existing!(self, command, Set, Value::Int(0)).contains(member))
            }
            ("SMEMBERS", []) => {
                texts(existing!(self, command, Set, Value::List(Vec::new())).iter())
            }
            _ => wrong(&format!("unknown command '{name}'")),
        }
    }

    fn sorted_command(&mut self, name: &str, command: &Command<'_>) -> Value {
        match (name, command.rest) {
            ("ZADD", [options @ .., score, member]) => {
                let Some(score) = number::<f64>(score) else {
                    return wrong("value is not a valid float");
                };
                let members = of_kind!(self, command, Sorted, BTreeMap::new());
                let is_new = !members.contains_key(member);
                if is_new || options.is_empty() {
                    members.insert(member.clone(), score);
                }
                flag(is_new)
            }
            ("ZREM", [member]) => {
                let members = existing!(self, command, Sorted, Value::Int(0));
                flag(members.remove(member).is_some())
            }
            ("ZSCORE", [member]) => {
                let members = existing!(self, command, Sorted, Value::Nil);
                let score = members.get(member);
                score.map_or(Value::Nil, |score| Value::Text(score.to_string().into_bytes()))
            }
            ("ZCARD", []) => {
                Value::Int(existing!(self, command, Sorted, Value::Int(0)).len() as i64)
            }
            ("ZRANGEBYSCORE", [from, to, limit, offset, count])
                if to == b"+inf" && limit == b"LIMIT" && offset == b"0" =>
            {
                let after = from.strip_prefix(b"(").and_then(number::<f64>);
                let (Some(after), Some(count)) = (after, number::<usize>(count)) else {
                    return wrong("min or max is not a float");
                };
                let members = existing!(self, command, Sorted, Value::List(Vec::new()));
                let mut found: Vec<(f64, &Bytes)> =
                    members.iter().map(|(member, score)| (*score, member)).collect();
                found.retain(|(score, _)| *score > after);
                found.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(other.1)));
                texts(found.into_iter().take(count).map(|(_, member)| member))
            }
            _ => wrong(&format!("unknown command '{name}'")),
        }
    }

    fn list_command(&mut self, name: &str, command: &Command<'_>) -> Value {
        match (name, command.rest) {
            ("RPUSH", values) if !values.is_empty() => {
                let items = of_kind!(self, command, List, VecDeque::new());
                items.extend(values.iter().cloned());
                Value::Int(items.len() as i64)
            }
            ("LPOP", [count]) => {
                let items = existing!(self, command, List, Value::Nil);
                let count = number::<usize>(count).unwrap_or_default().min(items.len());
                Value::List(items.drain(..count).map(Value::Text).collect())
            }
            ("LLEN", []) => Value::Int(existing!(self, command, List, Value::Int(0)).len() as i64),
            ("LINDEX", [index]) if index == b"-1" => {
                optional(existing!(self, command, List, Value::Nil).back())
            }
            ("LPOS", [wanted]) => {
                let items = existing!(self, command, List, Value::Nil);
                let index = items.iter().position(|item| item == wanted);
                index.map_or(Value::Nil, |index| Value::Int(index as i64))
            }
            _ => wrong(&format!("unknown command '{name}'")),
        }
    }

    /// Executes a command about streams.
    pub fn stream_command(&mut self, name: &str, words: &[Bytes], now_ms: i64) -> Value {
        let text = |at: usize| words.get(at).map(Vec::as_slice).unwrap_or_default();
        let (key, rest): (&[u8], &[Bytes]) = match name {
            "XGROUP" => (text(1), words.get(2..).unwrap_or_default()),
            // GROUP name consumer COUNT 1 STREAMS key >
            "XREADGROUP" => (text(6), words.get(1..2).unwrap_or_default()),
            _ => (text(0), words.get(1..).unwrap_or_default()),
        };
        self.expire(key, now_ms);
        let command = Command { key, rest, now_ms };
        match (name, text(0)) {
            ("XGROUP", b"CREATE") => self.create_group(&command),
            ("XGROUP", b"DELCONSUMER") => Value::Int(0),
            ("XREADGROUP", _) => self.read_group(&command),
            ("XADD", _) => self.add_entry(&command),
            // Nothing reads what was claimed and not acknowledged.
            ("XACK", _) => Value::Int(1),
            ("XDEL", _) => {
                let [id] = rest else { return wrong("one entry is expected") };
                let Some(id) = entry_id(id) else { return wrong("Invalid stream ID") };
                flag(existing!(self, command, Stream, Value::Int(0)).entries.remove(&id).is_some())
            }
            // + - COUNT 1
            ("XREVRANGE", _) => {
                let stream = existing!(self, command, Stream, Value::List(Vec::new()));
                let last = stream.entries.iter().next_back();
                Value::List(last.into_iter().map(|(id, fields)| shown(*id, fields)).collect())
            }
            _ => wrong(&format!("unknown command '{name}'")),
        }
    }

    fn create_group(&mut self, command: &Command<'_>) -> Value {
        let Some(group) = command.rest.first() else { return wrong("no group") };
        let stream = of_kind!(self, command, Stream, StreamData::default());
        if stream.groups.contains_key(group) {
            return Value::Error("BUSYGROUP Consumer Group name already exists".into());
        }
        stream.groups.insert(group.clone(), (0, 0));
        Value::Text(b"OK".into())
    }

    fn read_group(&mut self, command: &Command<'_>) -> Value {
        let missing = || Value::Error("NOGROUP No such key or consumer group in XREADGROUP".into());
        let Some(group) = command.rest.first() else { return missing() };
        let stream = existing!(self, command, Stream, missing());
        let Some(last) = stream.groups.get_mut(group) else { return missing() };
        let after = (last.0, last.1 + 1);
        let Some((id, fields)) = stream.entries.range(after..).next() else { return Value::Nil };
        *last = *id;
        let entries = Value::List(vec![shown(*id, fields)]);
        Value::List(vec![Value::List(vec![Value::Text(command.key.to_vec()), entries])])
    }

    fn add_entry(&mut self, command: &Command<'_>) -> Value {
        let (most, fields) = match command.rest {
            [maxlen, most, id, fields @ ..] if maxlen == b"MAXLEN" && id == b"*" => {
                (number::<usize>(most), fields)
            }
            [id, fields @ ..] if id == b"*" => (None, fields),
            _ => return wrong("syntax error"),
        };
        let now = command.now_ms.unsigned_abs();
        let stream = of_kind!(self, command, Stream, StreamData::default());
        let id = if now > stream.last.0 { (now, 0) } else { (stream.last.0, stream.last.1 + 1) };
        stream.last = id;
        stream.entries.insert(id, fields.to_vec());
        while most.is_some_and(|most| stream.entries.len() > most) {
            stream.entries.pop_first();
        }
        Value::Text(format!("{}-{}", id.0, id.1).into_bytes())
    }
}

fn entry_id(text: &[u8]) -> Option<EntryId> {
    let (first, second) = std::str::from_utf8(text).ok()?.split_once('-')?;
    Some((first.parse().ok()?, second.parse().ok()?))
}

fn shown(id: EntryId, fields: &[Bytes]) -> Value {
    let name = Value::Text(format!("{}-{}", id.0, id.1).into_bytes());
    Value::List(vec![name, texts(fields)])
}

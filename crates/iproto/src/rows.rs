//! The spaces that SELECT can read: the schema, the tubes, waiting consumers and taken tasks.

use std::cmp::Ordering;
use std::ops::Range;

use taskyard_core::command::TubeInfo;
use taskyard_core::{SessionId, TaskId, Timestamp, TubeOptions};

use super::faults::{malformed, no_iterator, unsupported_iterator, wrong_key};
use super::pack::{self, Out};
use super::reader::{Value, ValueReader};
use super::reply::Fault;
use super::schema::{self, SPACES};

/// A space that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// `_vcollation`: the collations. Always empty.
    Collations,
    /// `_vspace`: the spaces that can be read.
    Spaces,
    /// `_vindex`: their indexes.
    Indexes,
    /// `_queue`: the tubes.
    Tubes,
    /// `_queue_consumers`: the waiting consumers.
    Consumers,
    /// `_queue_taken`: the taken tasks.
    Taken,
}

impl Space {
    /// The space of this number.
    pub fn from_id(id: u64) -> Option<Space> {
        SPACES.iter().find(|definition| u64::from(definition.id) == id).map(|found| found.space)
    }

    /// Its number.
    pub fn id(self) -> u32 {
        schema::of(self).id
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        schema::of(self).name
    }
}

/// A consumer that waits for a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerRow {
    /// Its session, if it has one.
    pub session: Option<SessionId>,
    /// The number that the server gave its request.
    pub fid: u64,
    /// The number of the tube it waits for.
    pub tube_id: u32,
    /// When it stops waiting.
    pub timeout: Timestamp,
    /// When it began to wait.
    pub time: Timestamp,
}

/// A taken task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenRow {
    /// The session that took it, if one did.
    pub session: Option<SessionId>,
    /// The number of its tube.
    pub tube_id: u32,
    /// Its id.
    pub task_id: TaskId,
    /// When it was taken.
    pub time: Timestamp,
}

/// The parameters of a SELECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query<'a> {
    /// The index that the key belongs to.
    pub index: u64,
    /// At most how many rows.
    pub limit: u64,
    /// How many rows to skip first.
    pub offset: u64,
    /// The iterator type: 0 is equal and 1 the same backwards, 2 is all, 3 less, 4 less or equal, 5
    /// greater or equal, 6 greater.
    pub iterator: u64,
    /// The key, a MessagePack list; it may be shorter than the index.
    pub key: &'a [u8],
}

/// The content of a space.
#[derive(Clone, Copy, Debug)]
pub enum Rows<'a> {
    /// Content that is known here: collations, spaces and indexes.
    Schema {
        /// Whether the spaces of the queue are listed: only for users that may read them.
        queue: bool,
    },
    /// The tubes.
    Tubes(&'a [TubeInfo]),
    /// The waiting consumers.
    Consumers(&'a [ConsumerRow]),
    /// The taken tasks.
    Taken(&'a [TakenRow]),
}

/// Writes the rows that match the query as one list, and returns their number. Nothing is written
/// for a query that is refused.
pub fn write_rows(
    out: &mut Vec<u8>,
    space: Space,
    query: &Query<'_>,
    rows: Rows<'_>,
) -> Result<u64, Fault> {
    let mut page = Page::begin(out, space, query)?;
    match rows {
        Rows::Schema { queue } => {
            let shown = SPACES.iter().filter(|one| queue || one.is_schema());
            match space {
                Space::Spaces => shown.for_each(|one| page.row(|out| one.write_space(out))),
                Space::Indexes => shown.for_each(|one| {
                    (0..one.indexes.len()).for_each(|at| page.row(|out| one.write_index(out, at)));
                }),
                _ => {}
            }
        }
        Rows::Tubes(tubes) => tubes.iter().for_each(|tube| page.row(|out| write_tube(out, tube))),
        Rows::Consumers(all) => all.iter().for_each(|one| page.row(|out| write_consumer(out, one))),
        Rows::Taken(all) => all.iter().for_each(|one| page.row(|out| write_taken(out, one))),
    }
    Ok(page.end())
}

/// The content of a key of `_queue_taken`, with which fewer tasks need to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakenKey {
    /// Whether the key restricts the rows.
    pub narrows: bool,
    /// The number of the tube.
    pub tube_id: Option<u64>,
    /// The number of the task in it.
    pub task_id: Option<TaskId>,
}

impl TakenKey {
    /// Parses the key of this query.
    pub fn of(query: &Query<'_>) -> Result<Self, Fault> {
        let wanted = Wanted::new(Space::Taken, query)?;
        // With a key, or in descending order, the first rows are not the ones to return.
        let narrows = !wanted.key.is_empty() || wanted.backwards;
        let mut found = TakenKey { narrows, ..TakenKey::default() };
        if wanted.relation == Relation::Equal {
            for (field, value) in wanted.key {
                match field {
                    1 => found.tube_id = value.unsigned(),
                    2 => found.task_id = value.unsigned().map(TaskId),
                    _ => {}
                }
            }
        }
        Ok(found)
    }
}

/// How matching rows compare to the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Equal,
    Less,
    AtMost,
    AtLeast,
    Greater,
}

impl Relation {
    /// Whether a row that compares like this to the key matches.
    fn holds(self, found: Ordering) -> bool {
        match self {
            Relation::Equal => found.is_eq(),
            Relation::Less => found.is_lt(),
            Relation::AtMost => found.is_le(),
            Relation::AtLeast => found.is_ge(),
            Relation::Greater => found.is_gt(),
        }
    }
}

/// A query that was checked against the index.
struct Wanted<'q> {
    /// The values of the key, and in which field each; it may be shorter than the index.
    key: Vec<(usize, Value<'q>)>,
    relation: Relation,
    /// Whether the largest row comes first.
    backwards: bool,
    /// The fields that the rows are ordered by.
    order: &'static [usize],
}

impl<'q> Wanted<'q> {
    fn new(space: Space, query: &Query<'q>) -> Result<Self, Fault> {
        let definition = schema::of(space);
        let mut reader = ValueReader::new(query.key);
        let parts = reader.array().map_err(|_| malformed())?;
        let index = definition.indexes.iter().find(|index| u64::from(index.id) == query.index);
        let Some(index) = index else {
            let text =
                format!("No index #{} is defined in space '{}'", query.index, definition.name);
            return Err(Fault::new(35, text));
        };
        let (relation, backwards) = match query.iterator {
            0 => (Relation::Equal, false),
            1 => (Relation::Equal, true),
            2 | 5 => (Relation::AtLeast, false),
            3 => (Relation::Less, true),
            4 => (Relation::AtMost, true),
            6 => (Relation::Greater, false),
            7..=11 => return Err(unsupported_iterator(index.name, definition.name)),
            _ => return Err(no_iterator()),
        };
        if parts as usize > index.parts.len() {
            let most = index.parts.len();
            let text = format!("Invalid key part count (expected [0..{most}], got {parts})");
            return Err(Fault::new(31, text));
        }
        let mut key = Vec::with_capacity(parts as usize);
        for (part, field) in (0..parts).zip(index.parts) {
            let value = reader.value().map_err(|_| malformed())?;
            let expected = definition.fields[*field].1;
            let fits = match value {
                Value::Uint(_) => expected == "unsigned",
                Value::Str(_) => expected == "string",
                _ => false,
            };
            if !fits {
                return Err(wrong_key(part, expected));
            }
            key.push((*field, value));
        }
        Ok(Wanted { key, relation, backwards, order: index.parts })
    }

    /// Whether this row matches. Without a key all rows do.
    fn is(&self, row: &[u8]) -> bool {
        let mut parts =
            self.key.iter().map(|(field, wanted)| compare(&value_of(row, *field), wanted));
        let found = parts.find(|order| order.is_ne()).unwrap_or(Ordering::Equal);
        self.key.is_empty() || self.relation.holds(found)
    }

    /// Which of two rows comes first.
    fn first(&self, one: &[u8], other: &[u8]) -> Ordering {
        let fields = self.order.iter();
        let mut parts = fields.map(|at| compare(&value_of(one, *at), &value_of(other, *at)));
        let order = parts.find(|order| order.is_ne()).unwrap_or(Ordering::Equal);
        if self.backwards { order.reverse() } else { order }
    }
}

/// The value of a field in a row.
fn value_of(row: &[u8], field: usize) -> Value<'_> {
    let mut reader = ValueReader::new(row);
    let value = reader.array().and_then(|_| {
        (0..field).try_for_each(|_| reader.skip())?;
        reader.value()
    });
    value.unwrap_or(Value::Nil)
}

/// Fields of an index are numbers or text, and all rows have them.
fn compare(one: &Value<'_>, other: &Value<'_>) -> Ordering {
    match (one, other) {
        (Value::Uint(one), Value::Uint(other)) => one.cmp(other),
        (Value::Str(one), Value::Str(other)) => one.cmp(other),
        _ => Ordering::Equal,
    }
}

/// The rows written so far.
struct Page<'p> {
    out: &'p mut Out,
    start: usize,
    wanted: Wanted<'p>,
    offset: u64,
    limit: u64,
    /// The positions of the matching rows, after the start.
    rows: Vec<Range<usize>>,
}

impl<'p> Page<'p> {
    fn begin(out: &'p mut Out, space: Space, query: &Query<'p>) -> Result<Self, Fault> {
        let wanted = Wanted::new(space, query)?;
        let (offset, limit) = (query.offset, query.limit);
        Ok(Page { start: out.len(), out, wanted, offset, limit, rows: Vec::new() })
    }

    /// Writes a row, and removes it if it does not match.
    fn row(&mut self, write: impl FnOnce(&mut Out)) {
        let start = self.out.len();
        write(self.out);
        if self.wanted.is(&self.out[start..]) {
            self.rows.push(start - self.start..self.out.len() - self.start);
        } else {
            self.out.truncate(start);
        }
    }

    /// Keeps the rows of the page, in their order, and returns their number.
    fn end(self) -> u64 {
        let Page { out, start, wanted, offset, limit, mut rows } = self;
        let written = out.split_off(start);
        let first = |one: &Range<usize>, other: &Range<usize>| {
            wanted.first(&written[one.clone()], &written[other.clone()])
        };
        // Most rows arrive in order.
        if !rows.is_sorted_by(|one, other| first(one, other).is_le()) {
            rows.sort_by(first);
        }
        let place = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        let page = rows.into_iter().skip(place(offset)).take(place(limit));
        let count_at = out.len() + 1;
        pack::array32(out, 0);
        let mut count = 0_u32;
        for row in page {
            out.extend_from_slice(&written[row]);
            count += 1;
        }
        out[count_at..count_at + 4].copy_from_slice(&count.to_be_bytes());
        count.into()
    }
}

fn write_tube(out: &mut Out, tube: &TubeInfo) {
    pack::array(out, 5);
    pack::str(out, tube.name.as_str());
    pack::uint(out, tube.number.into());
    pack::str(out, tube.name.as_str());
    pack::str(out, tube.options.kind.name());
    write_options(out, &tube.options);
}

/// The options of a tube as a client would give them, without those with default values.
fn write_options(out: &mut Out, options: &TubeOptions) {
    let numbers = [
        ("capacity", options.capacity),
        ("pri", Some(options.pri).filter(|pri| *pri > 0)),
        ("attempts_max", options.attempts_max.map(u64::from)),
        ("keep_done_max", options.keep_done.map(|_| options.keep_done_max)),
    ];
    let times = [
        ("ttl", options.ttl),
        ("ttr", options.ttr),
        ("delay", options.delay),
        ("keep_done", options.keep_done),
    ];
    let flags = [("ttl_kills_taken", options.ttl_kills_taken), ("paused", options.paused)];
    let count = 1
        + numbers.iter().filter(|pair| pair.1.is_some()).count()
        + times.iter().filter(|pair| pair.1.is_some()).count()
        + flags.iter().filter(|pair| pair.1).count()
        + usize::from(options.semaphore.is_some());
    pack::map(out, count);
    pack::str(out, "temporary");
    pack::bool(out, options.temporary);
    for (name, value) in numbers.iter().filter_map(|(name, value)| Some((name, (*value)?))) {
        pack::str(out, name);
        match (*name, value) {
            // Here 0 would be no limit.
            ("capacity", 0) => pack::int(out, -1),
            _ => pack::uint(out, value),
        }
    }
    for (name, span) in times.iter().filter_map(|(name, span)| Some((name, (*span)?))) {
        pack::str(out, name);
        pack::float(out, span.as_secs_f64());
    }
    for (name, _) in flags.iter().filter(|flag| flag.1) {
        pack::str(out, name);
        pack::bool(out, true);
    }
    if let Some(key) = &options.semaphore {
        pack::str(out, "semaphore");
        pack::str(out, key.as_str());
    }
}

fn write_consumer(out: &mut Out, row: &ConsumerRow) {
    pack::array(out, 5);
    write_session(out, row.session);
    pack::uint(out, row.fid);
    pack::uint(out, row.tube_id.into());
    write_time(out, row.timeout);
    write_time(out, row.time);
}

fn write_taken(out: &mut Out, row: &TakenRow) {
    pack::array(out, 4);
    write_session(out, row.session);
    pack::uint(out, row.tube_id.into());
    pack::uint(out, row.task_id.0);
    write_time(out, row.time);
}

/// The session as text; empty for a delivery that has only a lease.
fn write_session(out: &mut Out, session: Option<SessionId>) {
    pack::str(out, &session.map(|session| session.to_string()).unwrap_or_default());
}

/// Microseconds since the epoch, as upstream stores them.
fn write_time(out: &mut Out, time: Timestamp) {
    pack::uint(out, u64::try_from(time.as_micros()).unwrap_or_default());
}

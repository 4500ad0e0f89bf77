//! The spaces that can be read: the schema, the tubes, who waits and who holds what.

use taskyard_core::command::TubeInfo;
use taskyard_core::{SessionId, TaskId, Timestamp, TubeOptions};

use super::faults::{lua, malformed};
use super::pack::{self, Out};
use super::reader::{Reader, Value};
use super::reply::Fault;
use super::schema::{self, SPACES};

/// A space that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// `_vcollation`: how text is compared. Always empty.
    Collations,
    /// `_vspace`: the spaces that can be read.
    Spaces,
    /// `_vindex`: their indexes.
    Indexes,
    /// `_queue`: the tubes.
    Tubes,
    /// `_queue_consumers`: who waits for tasks.
    Consumers,
    /// `_queue_taken`: who holds which task.
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
    /// The session it came in, if it has one.
    pub session: Option<SessionId>,
    /// The number of its request, as the server counts them.
    pub fid: u64,
    /// The number of the tube it waits for.
    pub tube_id: u32,
    /// When its patience ends.
    pub timeout: Timestamp,
    /// When it began to wait.
    pub time: Timestamp,
}

/// A task that somebody holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenRow {
    /// The session that took it, if one did.
    pub session: Option<SessionId>,
    /// The number of its tube.
    pub tube_id: u32,
    /// Its own number.
    pub task_id: TaskId,
    /// When it was taken.
    pub time: Timestamp,
}

/// Which rows are wanted, and how many: the fields of a SELECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query<'a> {
    /// The index that the key belongs to.
    pub index: u64,
    /// At most how many rows.
    pub limit: u64,
    /// How many to leave out first.
    pub offset: u64,
    /// Which way to walk: 0 and 1 are equal, 2 is all.
    pub iterator: u64,
    /// The key, a MessagePack list; it may be shorter than the index.
    pub key: &'a [u8],
}

/// What there is to show.
#[derive(Clone, Copy, Debug)]
pub enum Rows<'a> {
    /// What is known here already: collations, spaces and indexes.
    Schema,
    /// The tubes.
    Tubes(&'a [TubeInfo]),
    /// The waiting consumers.
    Consumers(&'a [ConsumerRow]),
    /// The taken tasks.
    Taken(&'a [TakenRow]),
}

/// Writes the rows that the query wants, as one list, and answers how many these are. Nothing is written
/// for a query that is refused.
pub fn write_rows(
    out: &mut Vec<u8>,
    space: Space,
    query: &Query<'_>,
    rows: Rows<'_>,
) -> Result<u64, Fault> {
    let mut page = Page::begin(out, space, query)?;
    match rows {
        Rows::Schema => match space {
            Space::Spaces => SPACES.iter().for_each(|one| page.row(|out| one.write_space(out))),
            Space::Indexes => {
                for one in SPACES {
                    (0..one.indexes.len()).for_each(|at| page.row(|out| one.write_index(out, at)));
                }
            }
            _ => {}
        },
        Rows::Tubes(tubes) => tubes.iter().for_each(|tube| page.row(|out| write_tube(out, tube))),
        Rows::Consumers(all) => all.iter().for_each(|one| page.row(|out| write_consumer(out, one))),
        Rows::Taken(all) => all.iter().for_each(|one| page.row(|out| write_taken(out, one))),
    }
    Ok(page.end())
}

/// What a key of `_queue_taken` says, so that not every task must be looked at to find its rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakenKey {
    /// Whether it says anything at all.
    pub narrows: bool,
    /// The number of the tube.
    pub tube_id: Option<u64>,
    /// The number of the task in it.
    pub task_id: Option<TaskId>,
}

impl TakenKey {
    /// What the key of this query says.
    pub fn of(query: &Query<'_>) -> Result<Self, Fault> {
        let mut found = TakenKey::default();
        for (field, value) in read_key(Space::Taken, query)? {
            found.narrows = true;
            match field {
                1 => found.tube_id = value.unsigned(),
                2 => found.task_id = value.unsigned().map(TaskId),
                _ => {}
            }
        }
        Ok(found)
    }
}

/// The rows that were written so far.
struct Page<'p> {
    out: &'p mut Out,
    start: usize,
    /// The values to look for, and in which field each.
    key: Vec<(usize, Value<'p>)>,
    offset: u64,
    limit: u64,
    count: u32,
}

impl<'p> Page<'p> {
    fn begin(out: &'p mut Out, space: Space, query: &Query<'p>) -> Result<Self, Fault> {
        let key = read_key(space, query)?;
        let start = out.len();
        pack::array32(out, 0);
        Ok(Page { out, start, key, offset: query.offset, limit: query.limit, count: 0 })
    }

    /// Writes a row, and takes it back when it is not wanted.
    fn row(&mut self, write: impl FnOnce(&mut Out)) {
        if u64::from(self.count) >= self.limit {
            return;
        }
        let start = self.out.len();
        write(self.out);
        if !self.matches(start) {
            self.out.truncate(start);
        } else if self.offset > 0 {
            self.offset -= 1;
            self.out.truncate(start);
        } else {
            self.count += 1;
        }
    }

    fn matches(&self, start: usize) -> bool {
        self.key.iter().all(|(field, wanted)| {
            let mut reader = Reader::new(&self.out[start..]);
            let found = reader.array().and_then(|_| {
                (0..*field).try_for_each(|_| reader.skip())?;
                reader.value()
            });
            found.as_ref() == Ok(wanted)
        })
    }

    fn end(self) -> u64 {
        let count = self.count.to_be_bytes();
        self.out[self.start + 1..self.start + 5].copy_from_slice(&count);
        self.count.into()
    }
}

/// The key's values with the fields of the index they belong to.
fn read_key<'q>(space: Space, query: &Query<'q>) -> Result<Vec<(usize, Value<'q>)>, Fault> {
    let definition = schema::of(space);
    let index = definition.indexes.iter().find(|index| u64::from(index.id) == query.index);
    let mut reader = Reader::new(query.key);
    let parts = reader.array().map_err(|_| malformed())?;
    let Some(index) = index else {
        let text = format!("No index #{} is defined in space '{}'", query.index, definition.name);
        return Err(Fault::new(35, text));
    };
    if parts as usize > index.parts.len() {
        let most = index.parts.len();
        let text = format!("Invalid key part count (expected [0..{most}], got {parts})");
        return Err(Fault::new(31, text));
    }
    if parts > 0 && query.iterator > 2 {
        return Err(lua("only rows equal to a key can be selected; leave the key out for all"));
    }
    // With the iterator for all rows a key says nothing.
    let parts = if query.iterator == 2 { 0 } else { parts as usize };
    let fields = index.parts.iter().take(parts);
    fields.map(|field| Ok((*field, reader.value().map_err(|_| malformed())?))).collect()
}

fn write_tube(out: &mut Out, tube: &TubeInfo) {
    pack::array(out, 5);
    pack::str(out, tube.name.as_str());
    pack::uint(out, tube.number.into());
    pack::str(out, tube.name.as_str());
    pack::str(out, tube.options.kind.name());
    write_options(out, &tube.options);
}

/// The options as they would be given at creation, those with other values than the default.
fn write_options(out: &mut Out, options: &TubeOptions) {
    let numbers = [
        ("capacity", options.capacity),
        ("pri", Some(options.pri).filter(|pri| *pri > 0)),
        ("attempts_max", options.attempts_max.map(u64::from)),
    ];
    let times = [("ttl", options.ttl), ("ttr", options.ttr), ("delay", options.delay)];
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
        pack::uint(out, value);
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

/// As people write it; empty for a delivery that only its lease guards.
fn write_session(out: &mut Out, session: Option<SessionId>) {
    pack::str(out, &session.map(|session| session.to_string()).unwrap_or_default());
}

/// Microseconds since the epoch, as upstream keeps them.
fn write_time(out: &mut Out, time: Timestamp) {
    pack::uint(out, u64::try_from(time.as_micros()).unwrap_or_default());
}

//! Encodes and decodes replies.

use taskyard_core::limits::BATCH_TASKS_MAX;
use taskyard_core::{Error, Found, ListedTask, Outcome, Placed, Reply, State, TaskId};

use super::row::{RowError, RowReader, RowResult, RowWriter};
use super::{error, position, schedule, semaphore, task, tube};
use crate::pack::{self, Out};
use crate::reader::Value;

const NOTHING: u64 = 0;
const CREATED: u64 = 1;
const TUBES: u64 = 2;
const PUT: u64 = 3;
const TAKEN: u64 = 4;
const FINISHED: u64 = 5;
const KICKED: u64 = 6;
const TASKS: u64 = 7;
const SESSION: u64 = 8;
const TICKED: u64 = 9;
const SEMAPHORE: u64 = 10;
/// Forms that only Tarantool's procedures use: tasks with their deliveries, a run of tasks that are
/// ready, and the number of items that were all done.
const DELIVERED: u64 = 11;
const RUN: u64 = 12;
const ALL_DONE: u64 = 13;
/// A page of a list.
const LISTED: u64 = 14;
/// The reply of a command for schedules.
const SCHEDULE: u64 = 16;
/// Positions of tasks.
const POSITIONS: u64 = 17;
/// Tasks that a search found.
const FOUND: u64 = 18;
/// An error instead of a reply.
pub(super) const REFUSED: u64 = 15;

pub(super) fn write(out: &mut Out, reply: &Reply) {
    let mut row = RowWriter::begin(out);
    match reply {
        Reply::Nothing => row.uint(NOTHING),
        Reply::Created(new) => row.uint(CREATED).bool(*new),
        Reply::Tubes(tubes) => row.uint(TUBES).list(tubes, tube::write_info),
        Reply::Put(placed) => row.uint(PUT).list(placed, write_placed),
        Reply::Taken(tasks) => row.uint(TAKEN).list(tasks, task::write),
        Reply::Finished(outcomes) => row.uint(FINISHED).list(outcomes, write_outcome),
        Reply::Kicked(count) => row.uint(KICKED).uint(*count),
        Reply::Tasks(tasks) => row.uint(TASKS).list(tasks, task::write),
        Reply::Listed(tasks) => row.uint(LISTED).list(tasks, write_listed),
        Reply::Found(found) => write_found(row.uint(FOUND), found),
        Reply::Positions(all) => row.uint(POSITIONS).list(all, position::write),
        Reply::Session(session) => row.uint(SESSION).session(*session),
        Reply::Semaphore(reply) => {
            row.uint(SEMAPHORE).field(|out| semaphore::write_reply(out, reply))
        }
        Reply::Schedule(reply) => row.uint(SCHEDULE).field(|out| schedule::write_reply(out, reply)),
        Reply::Ticked(count) => row.uint(TICKED).uint(*count as u64),
    };
    row.end();
}

pub(super) fn read(row: &mut RowReader<'_, '_>) -> RowResult<Result<Reply, Error>> {
    let number = row.uint()?;
    read_number(row, number)
}

/// Decodes a reply of Tarantool's procedures. A few bytes may stand for ten thousand tasks, so
/// these forms are accepted only from Taskyard's own database.
pub(super) fn read_procedure_replies(
    row: &mut RowReader<'_, '_>,
) -> RowResult<Result<Reply, Error>> {
    Ok(Ok(match row.uint()? {
        DELIVERED => Reply::Taken(task::read_delivered(row)?),
        RUN => Reply::Put(read_run(row)?),
        ALL_DONE => match row.usize()? {
            count @ ..=BATCH_TASKS_MAX => Reply::Finished(vec![Outcome::Done(None); count]),
            _ => return Err(RowError("more items than can be asked for")),
        },
        number => return read_number(row, number),
    }))
}

fn read_number(row: &mut RowReader<'_, '_>, number: u64) -> RowResult<Result<Reply, Error>> {
    Ok(Ok(match number {
        NOTHING => Reply::Nothing,
        CREATED => Reply::Created(row.bool()?),
        TUBES => Reply::Tubes(row.rows(tube::read_info)?),
        PUT => Reply::Put(row.rows(read_placed)?),
        TAKEN => Reply::Taken(row.rows(task::read)?),
        FINISHED => Reply::Finished(row.rows(read_outcome)?),
        KICKED => Reply::Kicked(row.uint()?),
        TASKS => Reply::Tasks(row.rows(task::read)?),
        LISTED => Reply::Listed(row.rows(read_listed)?),
        FOUND => Reply::Found(read_found(row)?),
        POSITIONS => Reply::Positions(row.rows(position::read)?),
        SESSION => Reply::Session(row.session()?),
        TICKED => Reply::Ticked(row.usize()?),
        SEMAPHORE => Reply::Semaphore(row.row(semaphore::read_reply)?),
        SCHEDULE => Reply::Schedule(row.row(schedule::read_reply)?),
        REFUSED => return error::read(row).map(Err),
        _ => return Err(RowError("a reply that this version does not know")),
    }))
}

pub(super) fn write_placed(out: &mut Out, placed: &Placed) {
    let state = |out: &mut Out| task::write_state(out, placed.state);
    let existing = placed.existing.then_some(true);
    RowWriter::begin(out).uint(placed.id.0).field(state).optional(existing, pack::bool).end();
}

pub(super) fn read_placed(row: &mut RowReader<'_, '_>) -> RowResult<Placed> {
    let (id, state) = (TaskId(row.uint()?), task::read_state(row)?);
    // Left out for a task that was added.
    Ok(Placed { id, state, existing: row.value()? == Value::Bool(true) })
}

fn write_listed(out: &mut Out, task: &ListedTask) {
    RowWriter::begin(out).uint(task.id.0).uint(task.pri).end();
}

fn read_listed(row: &mut RowReader<'_, '_>) -> RowResult<ListedTask> {
    Ok(ListedTask { id: TaskId(row.uint()?), pri: row.uint()? })
}

fn write_found<'r, 'o>(row: &'r mut RowWriter<'o>, found: &Found) -> &'r mut RowWriter<'o> {
    row.list(&found.tasks, task::write)
        .list(&found.ranks, |out, rank| pack::uint(out, *rank))
        .uint(found.compared)
        .optional(found.last.map(|id| id.0), pack::uint)
        .uint(found.bytes)
}

fn read_found(row: &mut RowReader<'_, '_>) -> RowResult<Found> {
    let found = Found {
        tasks: row.rows(task::read)?,
        ranks: row.values(|row| row.uint())?,
        compared: row.uint()?,
        last: row.optional_uint()?.map(TaskId),
        bytes: row.uint()?,
    };
    if found.ranks.len() != found.tasks.len() {
        return Err(RowError("tasks of a search without their ranks"));
    }
    Ok(found)
}

fn read_run(row: &mut RowReader<'_, '_>) -> RowResult<Vec<Placed>> {
    let (first, count) = (row.uint()?, row.uint()?);
    if count > BATCH_TASKS_MAX as u64 || first.checked_add(count).is_none() {
        return Err(RowError("a run of tasks is too long"));
    }
    let placed = |id| Placed { id: TaskId(id), state: State::Ready, existing: false };
    Ok((first..first + count).map(placed).collect())
}

fn write_outcome(out: &mut Out, outcome: &Outcome) {
    let mut row = RowWriter::begin(out);
    match outcome {
        Outcome::Done(shown) => {
            row.uint(0).optional(shown.as_deref(), task::write);
        }
        Outcome::Stale => {
            row.uint(1);
        }
        Outcome::Missing => {
            row.uint(2);
        }
    }
    row.end();
}

fn read_outcome(row: &mut RowReader<'_, '_>) -> RowResult<Outcome> {
    Ok(match row.uint()? {
        0 => Outcome::Done(row.optional_row(task::read)?.map(Box::new)),
        1 => Outcome::Stale,
        2 => Outcome::Missing,
        _ => return Err(RowError("an outcome that this version does not know")),
    })
}

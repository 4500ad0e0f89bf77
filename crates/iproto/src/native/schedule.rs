//! Encodes and decodes commands and replies of schedules.

use taskyard_core::{
    CatchUp, NewTask, Overlap, ScheduleCommand, ScheduleName, ScheduleReply, StoredSchedule,
};

use super::reply::{read_placed, write_placed};
use super::row::{RowError, RowReader, RowResult, RowWriter, write_time};
use super::task;
use crate::pack::{self, Out};

const SET: u64 = 0;
const GET: u64 = 1;
const LIST: u64 = 2;
const DUE: u64 = 3;
const REMOVE: u64 = 4;
const PAUSE: u64 = 5;
const FIRE: u64 = 6;

pub(super) fn write(out: &mut Out, command: &ScheduleCommand) {
    let mut row = RowWriter::begin(out);
    match command {
        ScheduleCommand::Set { schedule, only_new, keep_paused } => row
            .uint(SET)
            .field(|out| write_schedule(out, schedule))
            .bool(*only_new)
            .bool(*keep_paused),
        ScheduleCommand::Get { name } => row.uint(GET).text(name.as_str()),
        ScheduleCommand::List { after, limit } => {
            let after = after.as_ref().map(ScheduleName::as_str);
            row.uint(LIST).uint(*limit as u64).optional(after, pack::str)
        }
        ScheduleCommand::Due { skip, limit } => {
            row.uint(DUE).uint(*limit as u64).uint(*skip as u64)
        }
        ScheduleCommand::Remove { name } => row.uint(REMOVE).text(name.as_str()),
        ScheduleCommand::Pause { name, paused } => {
            row.uint(PAUSE).text(name.as_str()).bool(*paused)
        }
        ScheduleCommand::Fire { name, expected, next, puts, skipped } => row
            .uint(FIRE)
            .text(name.as_str())
            .time(*expected)
            .list(puts, task::write_new)
            .uint(*skipped)
            .optional(*next, write_time),
    };
    row.end();
}

pub(super) fn read(row: &mut RowReader<'_, '_>) -> RowResult<ScheduleCommand> {
    Ok(match row.uint()? {
        SET => {
            let schedule = row.row(|row| read_schedule(row, task::read_new))?;
            ScheduleCommand::Set { schedule, only_new: row.bool()?, keep_paused: row.bool()? }
        }
        GET => ScheduleCommand::Get { name: read_name(row)? },
        LIST => {
            let limit = row.usize()?;
            let after = row.optional_text()?.map(name_of).transpose()?;
            ScheduleCommand::List { after, limit }
        }
        DUE => {
            let limit = row.usize()?;
            ScheduleCommand::Due { skip: row.usize()?, limit }
        }
        REMOVE => ScheduleCommand::Remove { name: read_name(row)? },
        PAUSE => ScheduleCommand::Pause { name: read_name(row)?, paused: row.bool()? },
        FIRE => ScheduleCommand::Fire {
            name: read_name(row)?,
            expected: row.time()?,
            puts: row.rows(task::read_new)?,
            skipped: row.uint()?,
            next: row.optional_time()?,
        },
        _ => return Err(RowError("a command of schedules that this version does not know")),
    })
}

const REPLY_SET: u64 = 0;
const REPLY_SCHEDULES: u64 = 1;
const REPLY_REMOVED: u64 = 2;
const REPLY_FIRED: u64 = 3;
/// Another time is next, or the schedule is paused.
const REPLY_NOT_FIRED: u64 = 4;
const REPLY_DUE: u64 = 5;

pub(super) fn write_reply(out: &mut Out, reply: &ScheduleReply) {
    let mut row = RowWriter::begin(out);
    match reply {
        ScheduleReply::Set(is_new) => row.uint(REPLY_SET).bool(*is_new),
        ScheduleReply::Schedules(all) => row.uint(REPLY_SCHEDULES).list(all, write_schedule),
        ScheduleReply::Due { now, schedules, next } => row
            .uint(REPLY_DUE)
            .time(*now)
            .list(schedules, write_schedule)
            .optional(*next, write_time),
        ScheduleReply::Removed => row.uint(REPLY_REMOVED),
        ScheduleReply::Fired(Some(placed)) => row.uint(REPLY_FIRED).list(placed, write_placed),
        ScheduleReply::Fired(None) => row.uint(REPLY_NOT_FIRED),
    };
    row.end();
}

pub(super) fn read_reply(row: &mut RowReader<'_, '_>) -> RowResult<ScheduleReply> {
    Ok(match row.uint()? {
        REPLY_SET => ScheduleReply::Set(row.bool()?),
        REPLY_SCHEDULES => ScheduleReply::Schedules(row.rows(read_stored)?),
        REPLY_DUE => ScheduleReply::Due {
            now: row.time()?,
            schedules: row.rows(read_stored)?,
            next: row.optional_time()?,
        },
        REPLY_REMOVED => ScheduleReply::Removed,
        REPLY_FIRED => ScheduleReply::Fired(Some(row.rows(read_placed)?)),
        REPLY_NOT_FIRED => ScheduleReply::Fired(None),
        _ => return Err(RowError("a reply of schedules that this version does not know")),
    })
}

pub(super) fn read_name(row: &mut RowReader<'_, '_>) -> RowResult<ScheduleName> {
    name_of(row.text()?)
}

fn name_of(text: &str) -> RowResult<ScheduleName> {
    ScheduleName::new(text).map_err(|_| RowError("not a good name for a schedule"))
}

fn write_schedule(out: &mut Out, schedule: &StoredSchedule) {
    let catch_up = match schedule.catch_up {
        CatchUp::None => 0,
        CatchUp::Last => 1,
        CatchUp::All => 2,
    };
    let overlap = match schedule.overlap {
        Overlap::Allow => 0,
        Overlap::Skip => 1,
    };
    RowWriter::begin(out)
        .text(schedule.name.as_str())
        .tube(&schedule.tube)
        .field(|out| task::write_new(out, &schedule.template))
        .text(&schedule.timing)
        .uint(catch_up)
        .uint(overlap)
        .bool(schedule.paused)
        .uint(schedule.fired)
        .uint(schedule.skipped)
        .optional(schedule.next, write_time)
        .optional(schedule.last, write_time)
        .optional(schedule.until, write_time)
        .end();
}

fn read_stored(row: &mut RowReader<'_, '_>) -> RowResult<StoredSchedule> {
    read_schedule(row, task::read_stored_new)
}

fn read_schedule(
    row: &mut RowReader<'_, '_>,
    read_template: fn(&mut RowReader<'_, '_>) -> RowResult<NewTask>,
) -> RowResult<StoredSchedule> {
    Ok(StoredSchedule {
        name: read_name(row)?,
        tube: row.tube()?,
        template: row.row(read_template)?,
        timing: row.text()?.into(),
        catch_up: match row.uint()? {
            0 => CatchUp::None,
            1 => CatchUp::Last,
            2 => CatchUp::All,
            _ => return Err(RowError("a way to catch up that this version does not know")),
        },
        overlap: match row.uint()? {
            0 => Overlap::Allow,
            1 => Overlap::Skip,
            _ => return Err(RowError("a kind of overlap that this version does not know")),
        },
        paused: row.bool()?,
        fired: row.uint()?,
        skipped: row.uint()?,
        next: row.optional_time()?,
        last: row.optional_time()?,
        until: row.optional_time()?,
    })
}

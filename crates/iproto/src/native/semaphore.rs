//! Encodes and decodes commands and replies of semaphores.

use taskyard_core::{
    EnqueueItem, EventId, EventKind, Grant, GrantFinish, GrantItem, GrantOutcome, Member,
    MemberCursor, MemberGroup, MemberInfo, MembersPage, Priority, SemaphoreChange,
    SemaphoreCommand, SemaphoreEvent, SemaphoreInfo, SemaphoreKey, SemaphoreOptions,
    SemaphoreReply, Span, Status, TaskId, TubeName,
};

use super::row::{RowError, RowReader, RowResult, RowWriter, write_span, write_time};
use crate::pack::{self, Out};
use crate::reader::Value;

const CONFIGURE: u64 = 0;
const ENQUEUE: u64 = 1;
const FINISH: u64 = 2;
const LOOK: u64 = 3;
const LIST: u64 = 4;
const EVENTS: u64 = 5;
const ACKNOWLEDGE: u64 = 6;
const MEMBERS: u64 = 7;
const DROP: u64 = 8;

pub(super) fn write(out: &mut Out, command: &SemaphoreCommand) {
    let mut row = RowWriter::begin(out);
    match command {
        SemaphoreCommand::Configure { key, change, only_new } => {
            row.uint(CONFIGURE).text(key.as_str()).bool(*only_new);
            row.field(|out| write_change(out, change))
        }
        SemaphoreCommand::Enqueue { key, entries } => {
            row.uint(ENQUEUE).text(key.as_str()).list(entries, write_wish)
        }
        SemaphoreCommand::Finish { key, items } => {
            row.uint(FINISH).text(key.as_str()).list(items, write_item)
        }
        SemaphoreCommand::Peek { key, tasks } => {
            row.uint(LOOK).text(key.as_str()).list(tasks, |out, task| pack::uint(out, task.0))
        }
        SemaphoreCommand::Members { key, part, after, count } => row
            .uint(MEMBERS)
            .text(key.as_str())
            .uint(*part as u64)
            .uint(*count as u64)
            .optional(after.as_ref(), write_cursor),
        SemaphoreCommand::Drop { key, force } => row.uint(DROP).text(key.as_str()).bool(*force),
        SemaphoreCommand::List { key } => row.uint(LIST).optional(key.as_ref(), write_key),
        SemaphoreCommand::Events { key, count, wait } => {
            row.uint(EVENTS).uint(*count as u64).span(*wait).optional(key.as_ref(), write_key)
        }
        SemaphoreCommand::Acknowledge { events } => {
            row.uint(ACKNOWLEDGE).list(events, |out, event| pack::uint(out, event.0))
        }
    };
    row.end();
}

pub(super) fn read(row: &mut RowReader<'_, '_>) -> RowResult<SemaphoreCommand> {
    Ok(match row.uint()? {
        CONFIGURE => {
            let (key, only_new) = (read_key(row)?, row.bool()?);
            let change = Box::new(row.row(read_change)?);
            SemaphoreCommand::Configure { key, change, only_new }
        }
        ENQUEUE => SemaphoreCommand::Enqueue { key: read_key(row)?, entries: row.rows(read_wish)? },
        FINISH => SemaphoreCommand::Finish { key: read_key(row)?, items: row.rows(read_item)? },
        LOOK => {
            let key = read_key(row)?;
            SemaphoreCommand::Peek { key, tasks: row.values(|row| row.uint().map(TaskId))? }
        }
        MEMBERS => {
            let (key, part, count) = (read_key(row)?, read_part(row)?, row.usize()?);
            SemaphoreCommand::Members { key, part, after: row.optional_row(read_cursor)?, count }
        }
        DROP => SemaphoreCommand::Drop { key: read_key(row)?, force: row.bool()? },
        LIST => SemaphoreCommand::List { key: optional_key(row)? },
        EVENTS => {
            let (count, wait) = (row.usize()?, row.span()?);
            SemaphoreCommand::Events { key: optional_key(row)?, count, wait }
        }
        ACKNOWLEDGE => {
            let events = row.values(|row| row.uint().map(EventId))?;
            SemaphoreCommand::Acknowledge { events }
        }
        _ => return Err(RowError("something that this version cannot ask of a semaphore")),
    })
}

fn write_cursor(out: &mut Out, cursor: &MemberCursor) {
    let priority = |out: &mut Out| pack::float(out, cursor.priority.value());
    RowWriter::begin(out).field(priority).uint(cursor.seq).end();
}

fn read_cursor(row: &mut RowReader<'_, '_>) -> RowResult<MemberCursor> {
    Ok(MemberCursor { priority: priority(row)?, seq: row.uint()? })
}

fn read_part(row: &mut RowReader<'_, '_>) -> RowResult<MemberGroup> {
    let part = MemberGroup::ALL.get(row.usize()?).copied();
    part.ok_or(RowError("a part of a line that this version does not know"))
}

fn write_key(out: &mut Out, key: &SemaphoreKey) {
    pack::str(out, key.as_str());
}

pub(super) fn key_of(text: &str) -> RowResult<SemaphoreKey> {
    SemaphoreKey::new(text).map_err(|_| RowError("not the key of a semaphore"))
}

pub(super) fn read_key(row: &mut RowReader<'_, '_>) -> RowResult<SemaphoreKey> {
    key_of(row.text()?)
}

fn optional_key(row: &mut RowReader<'_, '_>) -> RowResult<Option<SemaphoreKey>> {
    row.optional_text()?.map(key_of).transpose()
}

/// Any number, whole ones too.
fn number(row: &mut RowReader<'_, '_>) -> RowResult<f64> {
    row.value()?.number().ok_or(RowError("not a number"))
}

fn optional<T>(
    row: &mut RowReader<'_, '_>,
    read: impl FnOnce(Value<'_>) -> Option<T>,
) -> RowResult<Option<T>> {
    match row.value()? {
        Value::Nil => Ok(None),
        value => read(value).map(Some).ok_or(RowError("a value of another type than expected")),
    }
}

fn integer(value: Value<'_>) -> Option<i64> {
    match value {
        Value::Uint(number) => i64::try_from(number).ok(),
        Value::Int(number) => Some(number),
        _ => None,
    }
}

fn flag(value: Value<'_>) -> Option<bool> {
    if let Value::Bool(value) = value { Some(value) } else { None }
}

/// False removes the option.
fn settable(value: Value<'_>) -> Option<Option<i64>> {
    if let Value::Bool(false) = value { Some(None) } else { integer(value).map(Some) }
}

fn write_settable(out: &mut Out, value: Option<i64>) {
    match value {
        Some(value) => pack::int(out, value),
        None => pack::bool(out, false),
    }
}

fn write_change(out: &mut Out, change: &SemaphoreChange) {
    let micros = |span: Option<Option<Span>>| span.map(|span| span.map(Span::as_micros));
    RowWriter::begin(out)
        .optional(change.active, pack::int)
        .optional(change.try_release, pack::int)
        .optional(change.margin, pack::float)
        .optional(change.min_hold, write_span)
        .optional(change.cool_down, write_span)
        .optional(change.max_revoking, write_settable)
        .optional(change.revoke_grace, write_span)
        .optional(change.force, pack::bool)
        .optional(micros(change.lease), write_settable)
        .optional(micros(change.ack_timeout), write_settable)
        .optional(change.shed, pack::bool)
        .optional(change.drop_expired, pack::bool)
        .end();
}

fn read_change(row: &mut RowReader<'_, '_>) -> RowResult<SemaphoreChange> {
    let spans = |value: Option<Option<i64>>| value.map(|value| value.map(Span::from_micros));
    Ok(SemaphoreChange {
        active: optional(row, integer)?,
        try_release: optional(row, integer)?,
        margin: optional(row, |value| value.number())?,
        min_hold: row.optional_span()?,
        cool_down: row.optional_span()?,
        max_revoking: optional(row, settable)?,
        revoke_grace: row.optional_span()?,
        force: optional(row, flag)?,
        lease: spans(optional(row, settable)?),
        ack_timeout: spans(optional(row, settable)?),
        shed: optional(row, flag)?,
        drop_expired: optional(row, flag)?,
    })
}

fn write_wish(out: &mut Out, wish: &EnqueueItem) {
    let priority = |out: &mut Out| pack::float(out, wish.priority);
    RowWriter::begin(out).uint(wish.task.0).field(priority).end();
}

fn read_wish(row: &mut RowReader<'_, '_>) -> RowResult<EnqueueItem> {
    Ok(EnqueueItem { task: TaskId(row.uint()?), priority: number(row)? })
}

const FINISHES: [&str; 4] = ["release", "yield", "decline", "extend"];

fn write_item(out: &mut Out, item: &GrantItem) {
    let place = FINISHES.iter().position(|name| *name == item.finish.name());
    let span = if let GrantFinish::Extend(span) = item.finish { Some(span) } else { None };
    RowWriter::begin(out)
        .uint(item.task.0)
        .uint(place.unwrap_or(0) as u64)
        .optional(item.grant.map(|grant| grant.0), pack::uint)
        .optional(span, write_span)
        .end();
}

fn read_item(row: &mut RowReader<'_, '_>) -> RowResult<GrantItem> {
    let (task, finish) = (TaskId(row.uint()?), row.uint()?);
    let grant = row.optional_uint()?.map(Grant);
    let finish = match finish {
        0 => GrantFinish::Release,
        1 => GrantFinish::Yield,
        2 => GrantFinish::Decline,
        3 => GrantFinish::Extend(row.span()?),
        _ => return Err(RowError("a way to finish that this version does not know")),
    };
    Ok(GrantItem { task, grant, finish })
}

const SEMAPHORES: u64 = 0;
const MEMBER_INFOS: u64 = 1;
const FINISHED: u64 = 2;
const FETCHED: u64 = 3;
const ACKNOWLEDGED: u64 = 4;
const MEMBERS_SHOWN: u64 = 5;
const DROPPED: u64 = 6;

pub(super) fn write_reply(out: &mut Out, reply: &SemaphoreReply) {
    let mut row = RowWriter::begin(out);
    match reply {
        SemaphoreReply::Semaphores(infos) => row.uint(SEMAPHORES).list(infos, write_info),
        SemaphoreReply::MemberInfos(infos) => row.uint(MEMBER_INFOS).list(infos, write_member_info),
        SemaphoreReply::Finished(outcomes) => {
            row.uint(FINISHED).list(outcomes, |out, outcome| pack::uint(out, *outcome as u64))
        }
        SemaphoreReply::Events(events) => row.uint(FETCHED).list(events, write_event),
        SemaphoreReply::Members(page) => row
            .uint(MEMBERS_SHOWN)
            .list(&page.members, write_member)
            .optional(page.next.as_ref(), write_cursor),
        SemaphoreReply::Dropped => row.uint(DROPPED),
        SemaphoreReply::Acknowledged(count) => row.uint(ACKNOWLEDGED).uint(*count),
    };
    row.end();
}

pub(super) fn read_reply(row: &mut RowReader<'_, '_>) -> RowResult<SemaphoreReply> {
    Ok(match row.uint()? {
        SEMAPHORES => SemaphoreReply::Semaphores(row.rows(read_info)?),
        MEMBER_INFOS => SemaphoreReply::MemberInfos(row.rows(read_member_info)?),
        FINISHED => SemaphoreReply::Finished(row.values(read_outcome)?),
        FETCHED => SemaphoreReply::Events(row.rows(read_event)?),
        ACKNOWLEDGED => SemaphoreReply::Acknowledged(row.uint()?),
        MEMBERS_SHOWN => {
            let members = row.rows(read_member)?;
            SemaphoreReply::Members(MembersPage { members, next: row.optional_row(read_cursor)? })
        }
        DROPPED => SemaphoreReply::Dropped,
        _ => return Err(RowError("an answer of a semaphore that this version does not know")),
    })
}

fn read_outcome(row: &mut RowReader<'_, '_>) -> RowResult<GrantOutcome> {
    Ok(match row.uint()? {
        0 => GrantOutcome::Done,
        1 => GrantOutcome::Stale,
        2 => GrantOutcome::Missing,
        3 => GrantOutcome::NotAsked,
        _ => return Err(RowError("an outcome that this version does not know")),
    })
}

fn write_info(out: &mut Out, info: &SemaphoreInfo) {
    RowWriter::begin(out)
        .text(info.key.as_str())
        .field(|out| write_options(out, &info.options))
        .uint(info.waiting)
        .uint(info.delayed)
        .uint(info.acquired)
        .uint(info.revoking)
        .uint(info.events)
        .optional(info.next_event, write_time)
        .end();
}

fn read_info(row: &mut RowReader<'_, '_>) -> RowResult<SemaphoreInfo> {
    Ok(SemaphoreInfo {
        key: read_key(row)?,
        options: row.row(read_options)?,
        waiting: row.uint()?,
        delayed: row.uint()?,
        acquired: row.uint()?,
        revoking: row.uint()?,
        events: row.uint()?,
        next_event: row.optional_time()?,
    })
}

fn write_options(out: &mut Out, options: &SemaphoreOptions) {
    RowWriter::begin(out)
        .uint(u64::from(options.active))
        .uint(u64::from(options.try_release))
        .field(|out| pack::float(out, options.margin.value()))
        .span(options.min_hold)
        .span(options.cool_down)
        .span(options.revoke_grace)
        .bool(options.force)
        .bool(options.shed)
        .bool(options.drop_expired)
        .optional(options.max_revoking.map(u64::from), pack::uint)
        .optional(options.lease, write_span)
        .optional(options.ack_timeout, write_span)
        .end();
}

fn read_options(row: &mut RowReader<'_, '_>) -> RowResult<SemaphoreOptions> {
    let small = |number: u64| u32::try_from(number).map_err(|_| RowError("a number is too large"));
    Ok(SemaphoreOptions {
        active: row.u32()?,
        try_release: row.u32()?,
        margin: priority(row)?,
        min_hold: row.span()?,
        cool_down: row.span()?,
        revoke_grace: row.span()?,
        force: row.bool()?,
        shed: row.bool()?,
        drop_expired: row.bool()?,
        max_revoking: row.optional_uint()?.map(small).transpose()?,
        lease: row.optional_span()?,
        ack_timeout: row.optional_span()?,
    })
}

fn priority(row: &mut RowReader<'_, '_>) -> RowResult<Priority> {
    Priority::new(number(row)?).map_err(|_| RowError("a priority that is not a finite number"))
}

fn write_member(out: &mut Out, member: &Member) {
    RowWriter::begin(out)
        .optional(member.tube.as_ref().map(TubeName::as_str), pack::str)
        .field(|out| write_member_info(out, &member.info))
        .end();
}

fn read_member(row: &mut RowReader<'_, '_>) -> RowResult<Member> {
    Ok(Member { tube: row.optional_tube()?, info: row.row(read_member_info)? })
}

fn write_member_info(out: &mut Out, info: &MemberInfo) {
    RowWriter::begin(out)
        .uint(info.task.0)
        .text(info.status.name())
        .field(|out| pack::float(out, info.priority.value()))
        .time(info.enqueued)
        .bool(info.pinned)
        .optional(info.not_before, write_time)
        .optional(info.grant.map(|grant| grant.0), pack::uint)
        .optional(info.granted, write_time)
        .optional(info.lease_until, write_time)
        .end();
}

fn read_member_info(row: &mut RowReader<'_, '_>) -> RowResult<MemberInfo> {
    Ok(MemberInfo {
        task: TaskId(row.uint()?),
        status: Status::from_name(row.text()?).ok_or(RowError("an unknown status"))?,
        priority: priority(row)?,
        enqueued: row.time()?,
        pinned: row.bool()?,
        not_before: row.optional_time()?,
        grant: row.optional_uint()?.map(Grant),
        granted: row.optional_time()?,
        lease_until: row.optional_time()?,
    })
}

fn write_event(out: &mut Out, event: &SemaphoreEvent) {
    RowWriter::begin(out)
        .uint(event.id.0)
        .text(event.semaphore.as_str())
        .uint(event.task.0)
        .uint(event.grant.0)
        .text(event.kind.name())
        .uint(u64::from(event.attempt))
        .optional(event.tube.as_ref().map(TubeName::as_str), pack::str)
        .end();
}

fn read_event(row: &mut RowReader<'_, '_>) -> RowResult<SemaphoreEvent> {
    Ok(SemaphoreEvent {
        id: EventId(row.uint()?),
        semaphore: read_key(row)?,
        task: TaskId(row.uint()?),
        grant: Grant(row.uint()?),
        kind: EventKind::from_name(row.text()?).ok_or(RowError("an unknown kind of event"))?,
        attempt: row.u32()?,
        tube: row.optional_tube()?,
    })
}

//! Encodes commands for semaphores as calls, and decodes their answers.

use std::collections::{BTreeSet, HashMap, HashSet};

use taskyard_core::limits::SEMAPHORES_MAX;
use taskyard_core::semaphore::tail_too_long;
use taskyard_core::{
    Command, EnqueueItem, Error, EventId, EventKind, Grant, GrantFinish, GrantItem, GrantOutcome,
    Member, MemberCursor, MemberGroup, MemberInfo, MembersPage, Priority, Reply, ScheduleCommand,
    SemaphoreChange, SemaphoreCommand, SemaphoreEvent, SemaphoreInfo, SemaphoreKey,
    SemaphoreOptions, SemaphoreReply, Span, Status, TaskId, Timestamp, TubeName,
};
use tokio_postgres::Row;

use super::codec::{DecodeError, count_from_sql, count_to_sql, get, name, span_to_sql};
use super::counter_deltas::CounterDeltas;
use super::order::tube_of;
use super::statements::{self as sql, Call, Param, param};
use super::status::{outcome, semaphore};

/// The call that locks the semaphores of a batch with several commands: batches that lock them in the order of their
/// commands could deadlock.
pub(super) fn lock(commands: &[Command], gated: &HashSet<TubeName>) -> Option<Call> {
    let (mut keys, mut tubes, mut events) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    for command in commands {
        if let Some(tube) = tube_of(command).filter(|tube| gated.contains(*tube)) {
            tubes.insert(tube.as_str().to_owned());
        }
        let Command::Semaphore(command) = command else { continue };
        match command {
            SemaphoreCommand::Configure { key, .. }
            | SemaphoreCommand::Drop { key, .. }
            | SemaphoreCommand::Enqueue { key, .. }
            | SemaphoreCommand::Finish { key, .. } => _ = keys.insert(key.as_str()),
            SemaphoreCommand::Acknowledge { events: ids } => {
                events.extend(ids.iter().map(|event| event.0 as i64));
            }
            _ => {}
        }
    }
    let keys: Vec<String> = keys.into_iter().map(str::to_owned).collect();
    let tubes: Vec<String> = tubes.into_iter().collect();
    // Also a single semaphore, when another command of the batch may wait for a lock.
    let locks = commands.len() > 1 && !(keys.is_empty() && tubes.is_empty() && events.is_empty());
    locks.then(|| Call::new(&sql::SEMAPHORE_LOCK, [param(keys), param(tubes), param(events)]))
}

/// Whether semaphores may make tasks ready, write events or set deadlines because of a batch. Plain tubes have none.
pub(super) fn may_change_semaphores(commands: &[Command], plain: &HashSet<TubeName>) -> bool {
    commands.iter().any(|command| match command {
        Command::Put { tube, .. }
        | Command::Finish { tube, .. }
        | Command::Delete { tube, .. }
        | Command::Kick { tube, .. }
        | Command::KickTasks { tube, .. }
        | Command::Truncate { tube }
        | Command::DropTube { tube }
        | Command::ReleaseAll { tube } => !plain.contains(tube),
        Command::Tick { .. } | Command::LeaveSession { .. } | Command::JoinSession { .. } => true,
        Command::Schedule(command) => matches!(**command, ScheduleCommand::Fire { .. }),
        Command::Semaphore(command) => matches!(
            command,
            SemaphoreCommand::Configure { .. }
                | SemaphoreCommand::Enqueue { .. }
                | SemaphoreCommand::Finish { .. }
                | SemaphoreCommand::Drop { .. }
        ),
        _ => false,
    })
}

/// Notes what semaphores did because of a batch.
pub(super) fn read_moved(rows: &[Row], deltas: &mut CounterDeltas) -> Result<(), DecodeError> {
    let row = rows.first().ok_or("the effects of semaphores are missing")?;
    deltas.news(get(row, 0)?, None);
    deltas.deadline(get(row, 1)?);
    let tubes = get::<Option<Vec<&str>>>(row, 2)?.unwrap_or_default();
    let counts = get::<Option<Vec<i64>>>(row, 3)?.unwrap_or_default();
    for (tube, count) in tubes.into_iter().zip(counts) {
        deltas.back(&name(tube)?, count_from_sql(count));
    }
    Ok(())
}

/// The call of a command.
pub(super) fn call(command: &SemaphoreCommand, now: Option<i64>) -> Call {
    match command {
        SemaphoreCommand::Configure { key, change, only_new } => {
            configure(key, change, *only_new, now)
        }
        SemaphoreCommand::Enqueue { key, entries } => {
            let (tasks, priorities) = last_priorities(entries);
            let params = [text(key), param(now), param(tasks), param(priorities)];
            Call::new(&sql::SEMAPHORE_ENQUEUE, params)
        }
        SemaphoreCommand::Peek { key, tasks } => {
            let ids: Vec<i64> = tasks.iter().map(|task| task.0 as i64).collect();
            Call::new(&sql::SEMAPHORE_LOOK, [text(key), param(ids)])
        }
        SemaphoreCommand::Finish { key, items } => finish(key, items, now),
        SemaphoreCommand::Members { key, part, after, count } => {
            let params = [
                text(key),
                param(*part == MemberGroup::Holders),
                param(after.map(|after| -after.priority.value())),
                param(after.map(|after| count_to_sql(after.seq))),
                param(count_to_sql(*count as u64)),
            ];
            Call::new(&sql::SEMAPHORE_MEMBERS, params)
        }
        SemaphoreCommand::Drop { key, force } => {
            Call::new(&sql::SEMAPHORE_DROP, [text(key), param(*force)])
        }
        SemaphoreCommand::List { key } => {
            Call::new(&sql::SEMAPHORE_SHOW, [optional_text(key.as_ref())])
        }
        SemaphoreCommand::Events { key, count, .. } => {
            let params =
                [optional_text(key.as_ref()), param(now), param(count_to_sql(*count as u64))];
            Call::new(&sql::SEMAPHORE_FETCH, params)
        }
        SemaphoreCommand::Acknowledge { events } => {
            let ids: Vec<i64> = events.iter().map(|event| event.0 as i64).collect();
            Call::new(&sql::SEMAPHORE_ACKNOWLEDGE, [param(ids)])
        }
    }
}

/// Whether a command may share a call with others like it, and which: 0 enqueues, 1 releases.
pub(super) fn shares(command: &Command) -> Option<(usize, &SemaphoreKey)> {
    match command {
        Command::Semaphore(SemaphoreCommand::Enqueue { key, .. }) => Some((0, key)),
        Command::Semaphore(SemaphoreCommand::Finish { key, items }) => {
            let releases = items.iter().all(|item| item.finish == GrantFinish::Release);
            (releases && !items.is_empty()).then_some((1, key))
        }
        _ => None,
    }
}

/// One call for commands of the same kind.
pub(super) fn call_all(commands: &[Command], now: Option<i64>) -> Call {
    let (mut keys, mut sizes) = (Vec::new(), Vec::new());
    let (mut tasks, mut priorities, mut grants) = (Vec::new(), Vec::new(), Vec::new());
    let mut enqueues = false;
    for command in commands {
        match command {
            Command::Semaphore(SemaphoreCommand::Enqueue { key, entries }) => {
                let (own, own_priorities) = last_priorities(entries);
                sizes.push(own.len() as i32);
                tasks.extend(own);
                priorities.extend(own_priorities);
                keys.push(key.as_str().to_owned());
                enqueues = true;
            }
            Command::Semaphore(SemaphoreCommand::Finish { key, items }) => {
                sizes.push(items.len() as i32);
                tasks.extend(items.iter().map(|item| item.task.0 as i64));
                grants.extend(items.iter().map(|item| item.grant.map(|grant| grant.0 as i64)));
                keys.push(key.as_str().to_owned());
            }
            other => unreachable!("{} shares no call", other.verb()),
        }
    }
    if enqueues {
        let params = [param(keys), param(now), param(sizes), param(tasks), param(priorities)];
        Call::new(&sql::SEMAPHORE_ENQUEUE_ALL, params)
    } else {
        let params = [param(keys), param(now), param(sizes), param(tasks), param(grants)];
        Call::new(&sql::SEMAPHORE_RELEASE_ALL, params)
    }
}

fn text(key: &SemaphoreKey) -> Param {
    param(key.as_str().to_owned())
}

fn optional_text(key: Option<&SemaphoreKey>) -> Param {
    param(key.map(|key| key.as_str().to_owned()))
}

/// Each task once, at the place of its first wish, with the priority of its last.
fn last_priorities(entries: &[EnqueueItem]) -> (Vec<i64>, Vec<f64>) {
    let (mut tasks, mut priorities) = (Vec::new(), Vec::new());
    let mut places: HashMap<TaskId, usize> = HashMap::new();
    for wish in entries {
        let place = *places.entry(wish.task).or_insert(tasks.len());
        let priority = wish.priority + 0.0;
        if place == tasks.len() {
            tasks.push(wish.task.0 as i64);
            priorities.push(priority);
        } else {
            priorities[place] = priority;
        }
    }
    (tasks, priorities)
}

fn configure(
    key: &SemaphoreKey,
    change: &SemaphoreChange,
    only_new: bool,
    now: Option<i64>,
) -> Call {
    // The numbers were checked before: they fit.
    let count =
        |value: Option<i64>| param(value.map(|value| i32::try_from(value).unwrap_or(i32::MAX)));
    let params = [
        text(key),
        param(only_new),
        param(now),
        param(SEMAPHORES_MAX as i32),
        count(change.active),
        count(change.try_release),
        param(change.margin),
        param(span_to_sql(change.min_hold)),
        param(span_to_sql(change.cool_down)),
        param(change.max_revoking.is_some()),
        count(change.max_revoking.flatten()),
        param(span_to_sql(change.revoke_grace)),
        param(change.force),
        param(change.lease.is_some()),
        param(span_to_sql(change.lease.flatten())),
        param(change.ack_timeout.is_some()),
        param(span_to_sql(change.ack_timeout.flatten())),
        param(change.shed),
        param(change.drop_expired),
    ];
    Call::new(&sql::SEMAPHORE_CONFIGURE, params)
}

fn finish(key: &SemaphoreKey, items: &[GrantItem], now: Option<i64>) -> Call {
    let how = |item: &GrantItem| match item.finish {
        GrantFinish::Release => 0_i16,
        GrantFinish::Yield => 1,
        GrantFinish::Decline => 2,
        GrantFinish::Extend(_) => 3,
    };
    let span = |item: &GrantItem| match item.finish {
        GrantFinish::Extend(span) => Some(span.as_micros()),
        _ => None,
    };
    let grant = |item: &GrantItem| item.grant.map(|grant| grant.0 as i64);
    let params = [
        text(key),
        param(now),
        param(items.iter().map(|item| item.task.0 as i64).collect::<Vec<_>>()),
        param(items.iter().map(grant).collect::<Vec<_>>()),
        param(items.iter().map(how).collect::<Vec<_>>()),
        param(items.iter().map(span).collect::<Vec<_>>()),
    ];
    Call::new(&sql::SEMAPHORE_FINISH, params)
}

/// The replies to commands that share a call: each row begins with the place of its command, from 1.
pub(super) fn read_all(
    commands: &[Command],
    rows: &[Row],
    deltas: &mut CounterDeltas,
) -> Result<Vec<Result<Reply, Error>>, DecodeError> {
    let mut parts: Vec<(Option<&Row>, Vec<&Row>)> =
        commands.iter().map(|_| (None, vec![])).collect();
    for row in rows {
        let place = usize::try_from(get::<i32>(row, 0)? - 1)?;
        let part = parts.get_mut(place).ok_or("an answer without a command")?;
        match get::<Option<i16>>(row, 1)? {
            Some(_) => part.0 = Some(row),
            None => part.1.push(row),
        }
    }
    let replies = commands.iter().zip(parts).map(|(command, (head, rows))| {
        let head = head.ok_or("an answer has no head")?;
        let (key, entries) = match command {
            Command::Semaphore(SemaphoreCommand::Enqueue { key, entries }) => (key, Some(entries)),
            Command::Semaphore(SemaphoreCommand::Finish { key, .. }) => (key, None),
            _ => return Err("only commands that change semaphores share a call".into()),
        };
        if get::<i16>(head, 1)? != semaphore::DONE {
            return Ok(Err(Error::SemaphoreNotFound(key.clone())));
        }
        deltas.deadline(get(head, 2)?);
        deltas.news(get::<Option<bool>>(head, 3)?.unwrap_or(false), Some(key));
        Ok(Ok(Reply::Semaphore(match entries {
            Some(entries) => {
                for row in &rows {
                    deltas.deadline(get(row, 2)?);
                }
                let tasks = entries.iter().map(|wish| wish.task);
                SemaphoreReply::MemberInfos(standings(tasks, rows.into_iter(), 1)?)
            }
            None => {
                let outcomes = get::<Vec<i16>>(head, 4)?;
                SemaphoreReply::Finished(outcomes.into_iter().map(grant_outcome).collect())
            }
        })))
    });
    replies.collect()
}

/// The reply to a command with a call of its own.
pub(super) fn read(
    command: &SemaphoreCommand,
    rows: &[Row],
    deltas: &mut CounterDeltas,
) -> Result<Result<Reply, Error>, DecodeError> {
    let reply = match command {
        SemaphoreCommand::Configure { key, change, only_new } => {
            configured(key, change, *only_new, rows, deltas)?
        }
        SemaphoreCommand::List { key: Some(key) } if rows.is_empty() => {
            Err(Error::SemaphoreNotFound(key.clone()))
        }
        SemaphoreCommand::List { .. } => {
            Ok(SemaphoreReply::Semaphores(rows.iter().map(shown).collect::<Result<_, _>>()?))
        }
        SemaphoreCommand::Enqueue { key, entries } => {
            let (head, rows) = rows.split_first().ok_or("standings have no head")?;
            note(head, key, deltas)?;
            let found = standings(entries.iter().map(|wish| wish.task), rows.iter(), 0)?;
            exists(key, head)?.map(|()| SemaphoreReply::MemberInfos(found))
        }
        SemaphoreCommand::Peek { key, tasks } => {
            let (head, rows) = rows.split_first().ok_or("standings have no head")?;
            let found = standings(tasks.iter().copied(), rows.iter(), 0)?;
            exists(key, head)?.map(|()| SemaphoreReply::MemberInfos(found))
        }
        SemaphoreCommand::Members { key, count, .. } => {
            let (head, rows) = rows.split_first().ok_or("members have no head")?;
            let page = members(rows, *count)?;
            exists(key, head)?.map(|()| SemaphoreReply::Members(page))
        }
        SemaphoreCommand::Drop { key, .. } => dropped(rows, key)?,
        SemaphoreCommand::Finish { key, .. } => {
            let row = rows.first().ok_or("a finish has no answer")?;
            note(row, key, deltas)?;
            let outcomes = get::<Option<Vec<i16>>>(row, 3)?.unwrap_or_default();
            let outcomes = outcomes.into_iter().map(grant_outcome).collect();
            exists(key, row)?.map(|()| SemaphoreReply::Finished(outcomes))
        }
        SemaphoreCommand::Events { key, .. } => {
            let (head, rows) = rows.split_first().ok_or("events have no head")?;
            let events = rows.iter().map(event).collect::<Result<_, _>>()?;
            let found = key.as_ref().map_or(Ok(Ok(())), |key| exists(key, head))?;
            found.map(|()| SemaphoreReply::Events(events))
        }
        SemaphoreCommand::Acknowledge { .. } => {
            let row = rows.first().ok_or("an acknowledgement has no answer")?;
            deltas.news(get(row, 1)?, None);
            Ok(SemaphoreReply::Acknowledged(count_from_sql(get(row, 0)?)))
        }
    };
    Ok(reply.map(Reply::Semaphore))
}

/// Whether the head of an answer says that there is such a semaphore.
fn exists(key: &SemaphoreKey, head: &Row) -> Result<Result<(), Error>, DecodeError> {
    let is_there = get::<i16>(head, 0)? == semaphore::DONE;
    Ok(if is_there { Ok(()) } else { Err(Error::SemaphoreNotFound(key.clone())) })
}

/// The answer of a configuration.
fn configured(
    key: &SemaphoreKey,
    change: &SemaphoreChange,
    only_new: bool,
    rows: &[Row],
    deltas: &mut CounterDeltas,
) -> Result<Result<SemaphoreReply, Error>, DecodeError> {
    let row = rows.first().ok_or("a semaphore was not shown")?;
    match get::<i16>(row, 0)? {
        semaphore::TOO_MANY => return Ok(Err(Error::TooManySemaphores(SEMAPHORES_MAX))),
        semaphore::TAIL_TOO_LONG => {
            let active = u32::try_from(get::<i64>(row, 1)?)?;
            return Ok(Err(tail_too_long(change.try_release.unwrap_or_default(), active)));
        }
        _ => note(row, key, deltas)?,
    }
    let info = shown(row)?;
    if only_new && let Err(differs) = change.check_same(key, &info.options) {
        return Ok(Err(differs));
    }
    Ok(Ok(SemaphoreReply::Semaphores(vec![info])))
}

/// The answer of a drop.
fn dropped(rows: &[Row], key: &SemaphoreKey) -> Result<Result<SemaphoreReply, Error>, DecodeError> {
    let row = rows.first().ok_or("a drop has no answer")?;
    let key = key.clone();
    Ok(match get::<i16>(row, 0)? {
        semaphore::DONE => Ok(SemaphoreReply::Dropped),
        semaphore::NOT_FOUND => Err(Error::SemaphoreNotFound(key)),
        semaphore::IN_USE => Err(Error::SemaphoreInUse(key)),
        _ => Err(Error::SemaphoreHasTube { key, tube: name(get(row, 1)?)? }),
    })
}

/// Notes the deadline and the events that a call reports.
fn note(row: &Row, key: &SemaphoreKey, deltas: &mut CounterDeltas) -> Result<(), DecodeError> {
    deltas.deadline(get(row, 1)?);
    deltas.news(get::<Option<bool>>(row, 2)?.unwrap_or(false), Some(key));
    Ok(())
}

fn grant_outcome(code: i16) -> GrantOutcome {
    match code {
        outcome::DONE => GrantOutcome::Done,
        outcome::STALE => GrantOutcome::Stale,
        outcome::NOT_ASKED => GrantOutcome::NotAsked,
        _ => GrantOutcome::Missing,
    }
}

/// A semaphore as answers show it.
fn shown(row: &Row) -> Result<SemaphoreInfo, DecodeError> {
    let info = info(row)?;
    Ok(SemaphoreInfo { options: info.options.shown(), ..info })
}

/// One page of the holders or waiting tasks.
fn members(rows: &[Row], count: usize) -> Result<MembersPage, DecodeError> {
    let member = |row: &Row| {
        let tube = get::<Option<&str>>(row, 13)?.map(name).transpose()?;
        Ok::<_, DecodeError>(Member { tube, info: standing(row, 0)? })
    };
    let members: Vec<Member> = rows.iter().map(member).collect::<Result<_, _>>()?;
    let next = match rows.last().filter(|_| rows.len() == count) {
        Some(row) => Some(MemberCursor {
            priority: Priority::new(get(row, 5)?)?,
            seq: count_from_sql(get(row, 12)?),
        }),
        None => None,
    };
    Ok(MembersPage { members, next })
}

/// A semaphore with its options as they are stored.
pub(super) fn info(row: &Row) -> Result<SemaphoreInfo, DecodeError> {
    let span = |place: usize| get::<i64>(row, place).map(Span::from_micros);
    let optional =
        |place: usize| get::<Option<i64>>(row, place).map(|micros| micros.map(Span::from_micros));
    let number = |place: usize| Ok::<_, DecodeError>(u32::try_from(get::<i32>(row, place)?)?);
    let most = get::<Option<i32>>(row, 9)?.map(u32::try_from).transpose()?;
    Ok(SemaphoreInfo {
        key: SemaphoreKey::new(get(row, 3)?)?,
        options: SemaphoreOptions {
            active: number(4)?,
            try_release: number(5)?,
            margin: Priority::new(get(row, 6)?)?,
            min_hold: span(7)?,
            cool_down: span(8)?,
            max_revoking: most,
            revoke_grace: span(10)?,
            force: get(row, 11)?,
            lease: optional(12)?,
            ack_timeout: optional(13)?,
            shed: get(row, 14)?,
            drop_expired: get(row, 15)?,
        },
        waiting: count_from_sql(get(row, 16)?),
        delayed: count_from_sql(get(row, 17)?),
        acquired: u64::from(number(18)?),
        revoking: u64::from(number(19)?),
        events: count_from_sql(get(row, 20)?),
        next_event: get::<Option<i64>>(row, 21)?.map(Timestamp::from_micros),
    })
}

/// The standings of these tasks, in this order. The columns of a standing begin behind the first `first` columns.
fn standings<'a>(
    tasks: impl Iterator<Item = TaskId>,
    rows: impl Iterator<Item = &'a Row>,
    first: usize,
) -> Result<Vec<MemberInfo>, DecodeError> {
    let found: HashMap<TaskId, MemberInfo> = rows
        .map(|row| standing(row, first).map(|standing| (standing.task, standing)))
        .collect::<Result<_, _>>()?;
    Ok(tasks.filter_map(|task| found.get(&task).copied()).collect())
}

fn standing(row: &Row, first: usize) -> Result<MemberInfo, DecodeError> {
    let moment = |place: usize| {
        get::<Option<i64>>(row, first + place).map(|micros| micros.map(Timestamp::from_micros))
    };
    let status = Status::from_stored_name(get(row, first + 4)?).ok_or("an unknown status")?;
    Ok(MemberInfo {
        task: TaskId(get::<i64>(row, first + 3)? as u64),
        status,
        priority: Priority::new(get(row, first + 5)?)?,
        enqueued: Timestamp::from_micros(get(row, first + 6)?),
        not_before: moment(7)?.filter(|_| status == Status::Delayed),
        grant: get::<Option<i64>>(row, first + 8)?.map(|grant| Grant(grant as u64)),
        granted: moment(9)?,
        lease_until: moment(10)?.filter(|until| *until != Timestamp::NEVER),
        pinned: get(row, first + 11)?,
    })
}

fn event(row: &Row) -> Result<SemaphoreEvent, DecodeError> {
    Ok(SemaphoreEvent {
        id: EventId(get::<i64>(row, 1)? as u64),
        semaphore: SemaphoreKey::new(get(row, 2)?)?,
        task: TaskId(get::<i64>(row, 3)? as u64),
        grant: Grant(get::<i64>(row, 4)? as u64),
        kind: EventKind::from_name(get(row, 5)?).ok_or("an unknown kind of event")?,
        attempt: u32::try_from(get::<i32>(row, 6)?)?,
        tube: get::<Option<&str>>(row, 7)?.map(name).transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use taskyard_core::{Body, NewTask};

    use super::*;

    // A batch with one semaphore locked it at the place of its command, and acknowledgements at theirs: two servers with
    // the same commands in another order deadlocked until the database noticed.
    #[test]
    fn a_batch_that_may_wait_for_locks_locks_its_semaphores_first() {
        let yang = SemaphoreKey::new("yang").unwrap();
        let enqueue = Command::Semaphore(SemaphoreCommand::Enqueue { key: yang, entries: vec![] });
        let acknowledge = SemaphoreCommand::Acknowledge { events: vec![EventId(7)] };
        let acknowledge = Command::Semaphore(acknowledge);
        let tasks = vec![NewTask::new(Body::new(&[0xc0]))];
        let tube = TubeName::new("mail").unwrap();
        let put = Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO };
        let (nothing, gated) = (HashSet::new(), HashSet::from([tube]));
        let locks = |commands: &[&Command], gated: &HashSet<TubeName>| {
            let commands: Vec<Command> = commands.iter().map(|&command| command.clone()).collect();
            lock(&commands, gated).is_some()
        };
        assert!(!locks(&[&enqueue], &nothing), "a single command takes its own lock");
        assert!(!locks(&[&put, &put], &nothing));
        assert!(locks(&[&put, &enqueue], &nothing));
        assert!(locks(&[&acknowledge, &put], &nothing));
        assert!(locks(&[&put, &put], &gated));
    }
}

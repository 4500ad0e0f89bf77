//! Semaphores: what is asked of the database, and what its rows mean.

use std::collections::{BTreeSet, HashMap, HashSet};

use taskyard_core::limits::SEMAPHORES_MAX;
use taskyard_core::semaphore::tail_too_long;
use taskyard_core::{
    Command, Error, EventId, EventKind, Grant, GrantFinish, GrantItem, GrantOutcome, LineCursor,
    LinePart, Member, MembersPage, Priority, Reply, SemaphoreChange, SemaphoreCommand,
    SemaphoreEvent, SemaphoreInfo, SemaphoreKey, SemaphoreOptions, SemaphoreReply, Span, Standing,
    Status, TaskId, Timestamp, TubeName, Wish,
};
use tokio_postgres::Row;

use super::codec::{Unreadable, count_from_sql, count_to_sql, get, name, span_to_sql};
use super::order::tube_of;
use super::statements::{self as sql, Call, Param, param};
use super::tally::Tally;

/// What was asked, as far as its answer needs it.
#[derive(Debug)]
pub(super) enum Ask {
    Configure {
        key: SemaphoreKey,
        change: Box<SemaphoreChange>,
        only_new: bool,
    },
    Members {
        key: SemaphoreKey,
        count: usize,
    },
    Drop {
        key: SemaphoreKey,
    },
    /// The tasks as they were named: one that is named twice is asked about once.
    Standings {
        key: SemaphoreKey,
        tasks: Vec<TaskId>,
    },
    Finish {
        key: SemaphoreKey,
    },
    List {
        key: Option<SemaphoreKey>,
    },
    Events {
        key: Option<SemaphoreKey>,
    },
    Acknowledge,
}

/// Locks the semaphores that a batch changes, where it asks for more than one thing of them: two batches that lock
/// them in the order of their commands could wait for each other.
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
    // Also one semaphore alone, when something else is asked that may wait for a lock.
    let locks = commands.len() > 1 && !(keys.is_empty() && tubes.is_empty() && events.is_empty());
    locks.then(|| Call::new(&sql::SEMAPHORE_LOCK, [param(keys), param(tubes), param(events)]))
}

/// Whether a batch may let semaphores do something beside what it asks: in tubes that are plain they do nothing.
pub(super) fn may_move(commands: &[Command], plain: &HashSet<TubeName>) -> bool {
    commands.iter().any(|command| match command {
        Command::Put { tube, .. }
        | Command::Finish { tube, .. }
        | Command::Delete { tube, .. }
        | Command::Kick { tube, .. }
        | Command::Truncate { tube }
        | Command::DropTube { tube }
        | Command::ReleaseAll { tube } => !plain.contains(tube),
        Command::Tick { .. } | Command::LeaveSession { .. } | Command::JoinSession { .. } => true,
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

/// Notes what semaphores did beside what was asked.
pub(super) fn read_moved(rows: &[Row], tally: &mut Tally) -> Result<(), Unreadable> {
    let row = rows.first().ok_or("what semaphores did was not told")?;
    tally.news(get(row, 0)?, None);
    tally.deadline(get(row, 1)?);
    let tubes = get::<Option<Vec<&str>>>(row, 2)?.unwrap_or_default();
    let counts = get::<Option<Vec<i64>>>(row, 3)?.unwrap_or_default();
    for (tube, count) in tubes.into_iter().zip(counts) {
        tally.back(&name(tube)?, count_from_sql(count));
    }
    Ok(())
}

/// The call of a command.
pub(super) fn call(command: SemaphoreCommand, now: Option<i64>) -> (Ask, Call) {
    match command {
        SemaphoreCommand::Configure { key, change, only_new } => {
            let call = configure(&key, &change, only_new, now);
            (Ask::Configure { key, change, only_new }, call)
        }
        SemaphoreCommand::Enqueue { key, wishes } => {
            let (tasks, priorities) = last_words(&wishes);
            let params = [text(&key), param(now), param(tasks), param(priorities)];
            let tasks = wishes.iter().map(|wish| wish.task).collect();
            (Ask::Standings { key, tasks }, Call::new(&sql::SEMAPHORE_ENQUEUE, params))
        }
        SemaphoreCommand::Look { key, tasks } => {
            let ids: Vec<i64> = tasks.iter().map(|task| task.0 as i64).collect();
            let call = Call::new(&sql::SEMAPHORE_LOOK, [text(&key), param(ids)]);
            (Ask::Standings { key, tasks }, call)
        }
        SemaphoreCommand::Finish { key, items } => {
            let call = finish(&key, &items, now);
            (Ask::Finish { key }, call)
        }
        SemaphoreCommand::Members { key, part, after, count } => {
            let params = [
                text(&key),
                param(part == LinePart::Holders),
                param(after.map(|after| -after.priority.value())),
                param(after.map(|after| count_to_sql(after.seq))),
                param(count_to_sql(count as u64)),
            ];
            (Ask::Members { key, count }, Call::new(&sql::SEMAPHORE_MEMBERS, params))
        }
        SemaphoreCommand::Drop { key, force } => {
            let call = Call::new(&sql::SEMAPHORE_DROP, [text(&key), param(force)]);
            (Ask::Drop { key }, call)
        }
        SemaphoreCommand::List { key } => {
            let call = Call::new(&sql::SEMAPHORE_SHOW, [optional_text(key.as_ref())]);
            (Ask::List { key }, call)
        }
        SemaphoreCommand::Events { key, count, .. } => {
            let params =
                [optional_text(key.as_ref()), param(now), param(count_to_sql(count as u64))];
            (Ask::Events { key }, Call::new(&sql::SEMAPHORE_FETCH, params))
        }
        SemaphoreCommand::Acknowledge { events } => {
            let ids: Vec<i64> = events.iter().map(|event| event.0 as i64).collect();
            (Ask::Acknowledge, Call::new(&sql::SEMAPHORE_ACKNOWLEDGE, [param(ids)]))
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
pub(super) fn call_all(commands: Vec<Command>, now: Option<i64>) -> (Vec<Ask>, Call) {
    let (mut keys, mut sizes, mut asks) = (Vec::new(), Vec::new(), Vec::new());
    let (mut tasks, mut priorities, mut grants) = (Vec::new(), Vec::new(), Vec::new());
    let mut enqueues = false;
    for command in commands {
        match command {
            Command::Semaphore(SemaphoreCommand::Enqueue { key, wishes }) => {
                let (own, own_priorities) = last_words(&wishes);
                sizes.push(own.len() as i32);
                tasks.extend(own);
                priorities.extend(own_priorities);
                keys.push(key.as_str().to_owned());
                let tasks = wishes.iter().map(|wish| wish.task).collect();
                asks.push(Ask::Standings { key, tasks });
                enqueues = true;
            }
            Command::Semaphore(SemaphoreCommand::Finish { key, items }) => {
                sizes.push(items.len() as i32);
                tasks.extend(items.iter().map(|item| item.task.0 as i64));
                grants.extend(items.iter().map(|item| item.grant.map(|grant| grant.0 as i64)));
                keys.push(key.as_str().to_owned());
                asks.push(Ask::Finish { key });
            }
            other => unreachable!("{} shares no call", other.verb()),
        }
    }
    let call = if enqueues {
        let params = [param(keys), param(now), param(sizes), param(tasks), param(priorities)];
        Call::new(&sql::SEMAPHORE_ENQUEUE_ALL, params)
    } else {
        let params = [param(keys), param(now), param(sizes), param(tasks), param(grants)];
        Call::new(&sql::SEMAPHORE_RELEASE_ALL, params)
    };
    (asks, call)
}

fn text(key: &SemaphoreKey) -> Param {
    param(key.as_str().to_owned())
}

fn optional_text(key: Option<&SemaphoreKey>) -> Param {
    param(key.map(|key| key.as_str().to_owned()))
}

/// Each task once, where it was named first, with the priority it was given last.
fn last_words(wishes: &[Wish]) -> (Vec<i64>, Vec<f64>) {
    let (mut tasks, mut priorities) = (Vec::new(), Vec::new());
    let mut places: HashMap<TaskId, usize> = HashMap::new();
    for wish in wishes {
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
    // The numbers were checked: they fit.
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

/// The replies to what many callers asked with one call: each row begins with the place of its caller, from 1.
pub(super) fn read_all(
    asks: &[Ask],
    rows: &[Row],
    tally: &mut Tally,
) -> Result<Vec<Result<Reply, Error>>, Unreadable> {
    let mut parts: Vec<(Option<&Row>, Vec<&Row>)> = asks.iter().map(|_| (None, vec![])).collect();
    for row in rows {
        let place = usize::try_from(get::<i32>(row, 0)? - 1)?;
        let part = parts.get_mut(place).ok_or("an answer without a question")?;
        match get::<Option<i16>>(row, 1)? {
            Some(_) => part.0 = Some(row),
            None => part.1.push(row),
        }
    }
    let replies = asks.iter().zip(parts).map(|(ask, (head, rows))| {
        let head = head.ok_or("an answer has no head")?;
        let key = match ask {
            Ask::Standings { key, .. } | Ask::Finish { key } => key,
            _ => return Err("only what changes semaphores is asked together".into()),
        };
        if get::<i16>(head, 1)? != 0 {
            return Ok(Err(Error::SemaphoreNotFound(key.clone())));
        }
        tally.deadline(get(head, 2)?);
        tally.news(get::<Option<bool>>(head, 3)?.unwrap_or(false), Some(key));
        Ok(Ok(Reply::Semaphore(match ask {
            Ask::Standings { tasks, .. } => {
                for row in &rows {
                    tally.deadline(get(row, 2)?);
                }
                SemaphoreReply::Standings(standings(tasks, rows.into_iter(), 1)?)
            }
            _ => {
                let outcomes = get::<Vec<i16>>(head, 4)?;
                SemaphoreReply::Finished(outcomes.into_iter().map(outcome).collect())
            }
        })))
    });
    replies.collect()
}

/// The reply to what was asked with one call.
pub(super) fn read(
    ask: &Ask,
    rows: &[Row],
    tally: &mut Tally,
) -> Result<Result<Reply, Error>, Unreadable> {
    let reply = match ask {
        Ask::Configure { key, change, only_new } => {
            let row = rows.first().ok_or("a semaphore was not shown")?;
            match get::<i16>(row, 0)? {
                2 => return Ok(Err(Error::TooManySemaphores(SEMAPHORES_MAX))),
                3 => {
                    let active = u32::try_from(get::<i64>(row, 1)?)?;
                    return Ok(Err(tail_too_long(change.try_release.unwrap_or_default(), active)));
                }
                _ => note(row, key, tally)?,
            }
            let info = shown(row)?;
            if *only_new && let Err(differs) = change.check_same(key, &info.options) {
                return Ok(Err(differs));
            }
            SemaphoreReply::Semaphores(vec![info])
        }
        Ask::List { key: Some(key) } if rows.is_empty() => {
            return Ok(Err(Error::SemaphoreNotFound(key.clone())));
        }
        Ask::List { .. } => {
            SemaphoreReply::Semaphores(rows.iter().map(shown).collect::<Result<_, _>>()?)
        }
        Ask::Standings { key, tasks } => {
            let (head, rows) = rows.split_first().ok_or("standings have no head")?;
            if get::<i16>(head, 0)? != 0 {
                return Ok(Err(Error::SemaphoreNotFound(key.clone())));
            }
            note(head, key, tally)?;
            SemaphoreReply::Standings(standings(tasks, rows.iter(), 0)?)
        }
        Ask::Members { key, count } => {
            let (head, rows) = rows.split_first().ok_or("members have no head")?;
            if get::<i16>(head, 0)? != 0 {
                return Ok(Err(Error::SemaphoreNotFound(key.clone())));
            }
            SemaphoreReply::Members(members(rows, *count)?)
        }
        Ask::Drop { key } => match dropped(rows, key)? {
            Ok(reply) => reply,
            Err(refusal) => return Ok(Err(refusal)),
        },
        Ask::Finish { key } => {
            let row = rows.first().ok_or("a finish has no answer")?;
            if get::<i16>(row, 0)? != 0 {
                return Ok(Err(Error::SemaphoreNotFound(key.clone())));
            }
            note(row, key, tally)?;
            SemaphoreReply::Finished(get::<Vec<i16>>(row, 3)?.into_iter().map(outcome).collect())
        }
        Ask::Events { key } => {
            let (head, rows) = rows.split_first().ok_or("events have no head")?;
            if let (Some(key), true) = (key, get::<i16>(head, 0)? != 0) {
                return Ok(Err(Error::SemaphoreNotFound(key.clone())));
            }
            SemaphoreReply::Events(rows.iter().map(event).collect::<Result<_, _>>()?)
        }
        Ask::Acknowledge => {
            let row = rows.first().ok_or("an acknowledgement has no answer")?;
            tally.news(get(row, 1)?, None);
            SemaphoreReply::Acknowledged(count_from_sql(get(row, 0)?))
        }
    };
    Ok(Ok(Reply::Semaphore(reply)))
}

/// The answer of a drop.
fn dropped(rows: &[Row], key: &SemaphoreKey) -> Result<Result<SemaphoreReply, Error>, Unreadable> {
    let row = rows.first().ok_or("a drop has no answer")?;
    let key = key.clone();
    Ok(match get::<i16>(row, 0)? {
        0 => Ok(SemaphoreReply::Dropped),
        1 => Err(Error::SemaphoreNotFound(key)),
        2 => Err(Error::SemaphoreInUse(key)),
        _ => Err(Error::SemaphoreHasTube { key, tube: name(get(row, 1)?)? }),
    })
}

/// Notes what a call says about the time and about events.
fn note(row: &Row, key: &SemaphoreKey, tally: &mut Tally) -> Result<(), Unreadable> {
    tally.deadline(get(row, 1)?);
    tally.news(get::<Option<bool>>(row, 2)?.unwrap_or(false), Some(key));
    Ok(())
}

fn outcome(code: i16) -> GrantOutcome {
    match code {
        0 => GrantOutcome::Done,
        1 => GrantOutcome::Stale,
        3 => GrantOutcome::NotAsked,
        _ => GrantOutcome::Missing,
    }
}

/// A semaphore as answers show it.
fn shown(row: &Row) -> Result<SemaphoreInfo, Unreadable> {
    let info = info(row)?;
    Ok(SemaphoreInfo { options: info.options.shown(), ..info })
}

/// One page of a line.
fn members(rows: &[Row], count: usize) -> Result<MembersPage, Unreadable> {
    let member = |row: &Row| {
        let tube = get::<Option<&str>>(row, 13)?.map(name).transpose()?;
        Ok::<_, Unreadable>(Member { tube, standing: standing(row, 0)? })
    };
    let members: Vec<Member> = rows.iter().map(member).collect::<Result<_, _>>()?;
    let next = match rows.last().filter(|_| rows.len() == count) {
        Some(row) => Some(LineCursor {
            priority: Priority::new(get(row, 5)?)?,
            seq: count_from_sql(get(row, 12)?),
        }),
        None => None,
    };
    Ok(MembersPage { members, next })
}

/// The options are as they are written down.
pub(super) fn info(row: &Row) -> Result<SemaphoreInfo, Unreadable> {
    let span = |place: usize| get::<i64>(row, place).map(Span::from_micros);
    let optional =
        |place: usize| get::<Option<i64>>(row, place).map(|micros| micros.map(Span::from_micros));
    let number = |place: usize| Ok::<_, Unreadable>(u32::try_from(get::<i32>(row, place)?)?);
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

/// Where the tasks stand that were named, in the order in which they were; `first` columns come before what a row says.
fn standings<'a>(
    tasks: &[TaskId],
    rows: impl Iterator<Item = &'a Row>,
    first: usize,
) -> Result<Vec<Standing>, Unreadable> {
    let found: HashMap<TaskId, Standing> = rows
        .map(|row| standing(row, first).map(|standing| (standing.task, standing)))
        .collect::<Result<_, _>>()?;
    Ok(tasks.iter().filter_map(|task| found.get(task).copied()).collect())
}

fn standing(row: &Row, first: usize) -> Result<Standing, Unreadable> {
    let moment = |place: usize| {
        get::<Option<i64>>(row, first + place).map(|micros| micros.map(Timestamp::from_micros))
    };
    let status = Status::from_stored_name(get(row, first + 4)?).ok_or("an unknown status")?;
    Ok(Standing {
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

fn event(row: &Row) -> Result<SemaphoreEvent, Unreadable> {
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

    // A batch with one semaphore locked it where it stood, and acknowledgements where they stood: two servers that did
    // the same things in another order waited for each other until the database found out.
    #[test]
    fn what_may_wait_for_others_locks_its_semaphores_first() {
        let yang = SemaphoreKey::new("yang").unwrap();
        let enqueue = Command::Semaphore(SemaphoreCommand::Enqueue { key: yang, wishes: vec![] });
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
        assert!(!locks(&[&enqueue], &nothing), "alone it locks its own");
        assert!(!locks(&[&put, &put], &nothing));
        assert!(locks(&[&put, &enqueue], &nothing));
        assert!(locks(&[&acknowledge, &put], &nothing));
        assert!(locks(&[&put, &put], &gated));
    }
}

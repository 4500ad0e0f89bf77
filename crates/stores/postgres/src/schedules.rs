//! Encodes commands for schedules as calls, and decodes their answers.

use taskyard_core::limits::SCHEDULES_MAX;
use taskyard_core::{
    Body, CatchUp, Error, HeldKey, Key, KeyRequest, NewTask, OnConflict, Overlap, Priority, Reply,
    ScheduleCommand, ScheduleName, ScheduleReply, Span, StoredSchedule, Timestamp, TubeName,
    check_fire, checked_list_limit,
};
use tokio_postgres::Row;

use super::answers::AnswerReader;
use super::calls::{key_columns, task_columns};
use super::codec::{self, DecodeError, Meta, Payload, count_from_sql, count_to_sql, get};
use super::plan::refuse_tasks;
use super::statements::{self as sql, Call, Param, param};
use super::status::{fire, schedule as status};

/// The error of a command that can be refused without a call.
pub(super) fn refusal(command: &ScheduleCommand) -> Option<Error> {
    match command {
        ScheduleCommand::List { limit, .. } | ScheduleCommand::Due { limit, .. } => {
            checked_list_limit(*limit).err()
        }
        _ => None,
    }
}

/// Whether a command changes nothing.
pub(super) const fn only_reads(command: &ScheduleCommand) -> bool {
    matches!(
        command,
        ScheduleCommand::Get { .. } | ScheduleCommand::List { .. } | ScheduleCommand::Due { .. }
    )
}

/// Why a schedule cannot be set, unless the database refuses it before.
fn refuse_set(schedule: &StoredSchedule) -> Option<Error> {
    let message = "PostgreSQL cannot store a zero character in the rule of a schedule";
    let zero = schedule.timing.contains('\0').then(|| Error::Invalid(message.into()));
    let refused = schedule.check().err().or(zero);
    refused.or_else(|| refuse_tasks(std::slice::from_ref(&schedule.template)))
}

/// The call of a command.
pub(super) fn call(command: &ScheduleCommand, now: Option<i64>) -> Call {
    let text = |name: &ScheduleName| param(name.as_str().to_owned());
    let count = |limit: usize| param(count_to_sql(limit as u64));
    match command {
        ScheduleCommand::Set { schedule, only_new, keep_paused } => {
            let params = set_columns(schedule, Some(*only_new), *keep_paused);
            Call { statement: &sql::SET_SCHEDULE, params }
        }
        ScheduleCommand::Get { name } => Call::new(&sql::GET_SCHEDULE, [text(name)]),
        ScheduleCommand::List { after, limit } => {
            let after = after.as_ref().map_or("", ScheduleName::as_str).to_owned();
            Call::new(&sql::LIST_SCHEDULES, [param(after), count(*limit)])
        }
        ScheduleCommand::Due { skip, limit } => {
            Call::new(&sql::DUE_SCHEDULES, [param(now), count(*limit), count(*skip)])
        }
        ScheduleCommand::Remove { name } => Call::new(&sql::REMOVE_SCHEDULE, [text(name)]),
        ScheduleCommand::Pause { name, paused } => {
            Call::new(&sql::PAUSE_SCHEDULE, [text(name), param(*paused)])
        }
        // Only the database knows whether there is such a schedule, which is refused first.
        ScheduleCommand::Fire { name, puts, .. } if check_fire(puts).is_err() => {
            Call::new(&sql::GET_SCHEDULE, [text(name)])
        }
        ScheduleCommand::Fire { name, expected, next, puts, skipped } => {
            let mut params = vec![
                text(name),
                param(expected.as_micros()),
                param(next.map(Timestamp::as_micros)),
                param(count_to_sql(*skipped)),
                param(now),
                param(refuse_tasks(puts).is_some()),
            ];
            let puts: Vec<&NewTask> = puts.iter().collect();
            params.extend(task_columns(&puts));
            params.extend(key_columns(&puts));
            Call { statement: &sql::FIRE_SCHEDULE, params }
        }
    }
}

/// The call that imports a schedule with its counters.
pub(super) fn import(schedule: &StoredSchedule) -> Call {
    let mut params = set_columns(schedule, None, false);
    params.push(param(schedule.last.map(Timestamp::as_micros)));
    params.push(param(count_to_sql(schedule.fired)));
    params.push(param(count_to_sql(schedule.skipped)));
    Call { statement: &sql::IMPORT_SCHEDULE, params }
}

/// The arguments of the function that sets a schedule; without `only_new` it is imported.
fn set_columns(schedule: &StoredSchedule, only_new: Option<bool>, keep_paused: bool) -> Vec<Param> {
    let StoredSchedule { template: task, .. } = schedule;
    let span = |span: Option<Span>| param(span.map(Span::as_micros));
    let key = task.key.as_deref();
    vec![
        param(schedule.name.as_str().to_owned()),
        param(schedule.tube.as_str().to_owned()),
        param(schedule.timing.replace('\0', "")),
        param(match schedule.catch_up {
            CatchUp::None => 0_i16,
            CatchUp::Last => 1,
            CatchUp::All => 2,
        }),
        param(i16::from(schedule.overlap == Overlap::Skip)),
        param(schedule.until.map(Timestamp::as_micros)),
        param((!keep_paused).then_some(schedule.paused)),
        param(schedule.next.map(Timestamp::as_micros)),
        param(Payload(task.body.clone())),
        param(Meta(task.body.clone())),
        param(task.pri.map(codec::pri_to_sql)),
        span(task.ttl),
        span(task.ttr),
        span(task.delay),
        param(task.at.map(Timestamp::as_micros)),
        param(task.subqueue.as_deref().map(|name| name.replace('\0', ""))),
        param(task.semaphore_priority.map(Priority::value)),
        param(task.attempts_max.map(i64::from)),
        param(key.map(|request| request.held.key.as_str().to_owned())),
        param(key.map(|request| request.held.unique_for.as_micros())),
        param(key.map(|request| request.on_conflict == OnConflict::Replace)),
        param(only_new),
        param(refuse_set(schedule).is_some()),
        param(SCHEDULES_MAX as i64),
    ]
}

/// A schedule in a row of its table.
pub(super) fn schedule(row: &Row) -> Result<StoredSchedule, DecodeError> {
    let moment = |place| get::<Option<i64>>(row, place).map(|at| at.map(Timestamp::from_micros));
    Ok(StoredSchedule {
        name: ScheduleName::new(get(row, 0)?)?,
        tube: codec::name(get(row, 1)?)?,
        timing: get::<&str>(row, 2)?.into(),
        catch_up: match get::<i16>(row, 3)? {
            0 => CatchUp::None,
            1 => CatchUp::Last,
            _ => CatchUp::All,
        },
        overlap: if get::<i16>(row, 4)? == 1 { Overlap::Skip } else { Overlap::Allow },
        until: moment(5)?,
        paused: get(row, 6)?,
        next: moment(7)?,
        last: moment(8)?,
        fired: count_from_sql(get(row, 9)?),
        skipped: count_from_sql(get(row, 10)?),
        template: template(row)?,
    })
}

/// The task that a schedule puts.
fn template(row: &Row) -> Result<NewTask, DecodeError> {
    let span = |place| get::<Option<i64>>(row, place).map(|span| span.map(Span::from_micros));
    let body = codec::body(get(row, 12)?, get(row, 11)?).unwrap_or_else(|| Body::new(&[]));
    let key = match codec::key(get(row, 21)?)? {
        None => None,
        Some(key) => Some(Box::new(key_request(key, row)?)),
    };
    Ok(NewTask {
        pri: get::<Option<i64>>(row, 13)?.map(codec::pri_from_sql),
        ttl: span(14)?,
        ttr: span(15)?,
        delay: span(16)?,
        at: get::<Option<i64>>(row, 17)?.map(Timestamp::from_micros),
        subqueue: get::<Option<&str>>(row, 18)?.map(Into::into),
        semaphore_priority: get::<Option<f64>>(row, 19)?.map(Priority::new).transpose()?,
        attempts_max: get::<Option<i64>>(row, 20)?.map(codec::attempts),
        key,
        ..NewTask::new(body)
    })
}

fn key_request(key: Key, row: &Row) -> Result<KeyRequest, DecodeError> {
    let unique_for = Span::from_micros(get::<Option<i64>>(row, 22)?.unwrap_or_default());
    let replaces = get::<Option<bool>>(row, 23)?.unwrap_or_default();
    let on_conflict = if replaces { OnConflict::Replace } else { OnConflict::Keep };
    Ok(KeyRequest { held: HeldKey { key, unique_for }, on_conflict })
}

impl AnswerReader<'_> {
    /// The reply to a command for schedules.
    pub(super) fn schedule(
        &mut self,
        command: &ScheduleCommand,
        rows: &[Row],
    ) -> Result<Result<Reply, Error>, DecodeError> {
        let reply = match command {
            ScheduleCommand::Set { schedule, .. } => self.set_schedule(schedule, rows)?,
            ScheduleCommand::Get { name } | ScheduleCommand::Pause { name, .. }
                if rows.is_empty() =>
            {
                Err(Error::ScheduleNotFound(name.clone()))
            }
            ScheduleCommand::Remove { name } if rows.is_empty() => {
                Err(Error::ScheduleNotFound(name.clone()))
            }
            ScheduleCommand::Remove { .. } => Ok(ScheduleReply::Removed),
            ScheduleCommand::Due { skip, .. } => self.due_schedules(*skip, rows)?,
            ScheduleCommand::Fire { name, puts, .. } => self.fired(name, puts, rows)?,
            _ => {
                let all = rows.iter().map(schedule).collect::<Result<Vec<_>, _>>()?;
                for one in &all {
                    self.deltas.schedule(one.due());
                }
                Ok(ScheduleReply::Schedules(all))
            }
        };
        Ok(reply.map(Reply::Schedule))
    }

    /// Schedules that are due; one row without a schedule if there are none.
    fn due_schedules(
        &mut self,
        skip: usize,
        rows: &[Row],
    ) -> Result<Result<ScheduleReply, Error>, DecodeError> {
        let row = rows.first().ok_or("an answer has no row")?;
        let now = Timestamp::from_micros(get(row, 24)?);
        let next = get::<Option<i64>>(row, 25)?;
        let is_empty = get::<Option<&str>>(row, 0)?.is_none();
        let rows = if is_empty { &[] } else { rows };
        let schedules = rows.iter().map(schedule).collect::<Result<Vec<_>, _>>()?;
        if skip == 0 {
            let due = schedules.first().and_then(StoredSchedule::due).map(Timestamp::as_micros);
            self.deltas.all_schedules(due.or(next));
        }
        let next = next.map(Timestamp::from_micros);
        Ok(Ok(ScheduleReply::Due { now, schedules, next }))
    }

    fn set_schedule(
        &mut self,
        schedule: &StoredSchedule,
        rows: &[Row],
    ) -> Result<Result<ScheduleReply, Error>, DecodeError> {
        let row = rows.first().ok_or("an answer has no row")?;
        Ok(match get::<i16>(row, 0)? {
            status::DONE => {
                self.deltas.schedule(schedule.due());
                Ok(ScheduleReply::Set(get(row, 1)?))
            }
            status::EXISTS => Err(Error::ScheduleExists(schedule.name.clone())),
            status::TOO_MANY => Err(Error::TooManySchedules(SCHEDULES_MAX)),
            status::REFUSED => Err(refuse_set(schedule).ok_or("nothing is wrong with it")?),
            _ => Err(Error::TubeNotFound(schedule.tube.clone())),
        })
    }

    fn fired(
        &mut self,
        name: &ScheduleName,
        puts: &[NewTask],
        rows: &[Row],
    ) -> Result<Result<ScheduleReply, Error>, DecodeError> {
        if let Err(refusal) = check_fire(puts) {
            let missing = || Error::ScheduleNotFound(name.clone());
            return Ok(Err(rows.first().map_or_else(missing, |_| refusal)));
        }
        let row = rows.first().ok_or("an answer has no row")?;
        let outcome = get::<i16>(row, 12)?;
        self.deltas.all_schedules(get(row, 14)?);
        if outcome == fire::NOT_FOUND {
            return Ok(Err(Error::ScheduleNotFound(name.clone())));
        }
        if outcome == fire::NOT_NEXT {
            return Ok(Ok(ScheduleReply::Fired(None)));
        }
        let tube: TubeName = codec::name(get(row, 13)?)?;
        if let Err(error) = super::answers::put_done(&tube, row)? {
            return Ok(Err(error));
        }
        if outcome == fire::REFUSED {
            return Ok(Err(refuse_tasks(puts).ok_or("nothing is wrong with its tasks")?));
        }
        let mut placed = Vec::new();
        if !puts.is_empty() {
            match self.put_keyed(&tube, &[puts.len()], row)?.pop() {
                Some(Ok(Reply::Put(added))) => placed = added,
                Some(Err(error)) => return Ok(Err(error)),
                _ => return Err("the answer to a fire has no tasks".into()),
            }
            // Its tasks may be before the place where the next take would begin.
            self.deltas.best_put = None;
            self.deltas.back(&tube, 0);
        }
        Ok(Ok(ScheduleReply::Fired(Some(placed))))
    }
}

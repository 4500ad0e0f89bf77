//! Exports the content of the database and imports it, when a store is copied.

use std::collections::HashMap;
use std::sync::Arc;

use taskyard_core::record::{Record, StoredState};
use taskyard_core::semaphore::{EntryState, HeldGrant, QueueEntry, SemaphoreRecord};
use taskyard_core::transfer::{EventCopy, ImportEnd, QueueEntryCopy, SemaphoreCopy, TubeCopy};
use taskyard_core::{
    Body, Bucket, EndedKey, Error, EventId, EventKind, Grant, HeldKey, Key, Priority, SemaphoreKey,
    SemaphoreOptions, Span, TaskId, Timestamp, TubeName, TubeRecord,
};
use tokio_postgres::Row;

use super::calls::{rate_columns, retry_columns};
use super::codec::{self, DecodeError, Meta, Payload, count_from_sql, count_to_sql, get};
use super::counters::counted;
use super::execute::ConnectionRole;
use super::statements::{self as sql, Call, param};
use super::status::state;
use super::{Clock, Postgres};
use super::{schedules, semaphores};
use taskyard_store::{Export, Exported, Import};

impl Postgres {
    pub(crate) async fn export(&self, wanted: Export) -> Result<Exported, Error> {
        let read = match wanted {
            Export::Tubes => {
                let calls = [
                    Call::new(&sql::SHOW_TUBES, [param(None::<String>), param(None::<i64>)]),
                    Call::new(&sql::NEXT_IDS, []),
                    Call::new(&sql::ALL_COUNTERS, []),
                    Call::new(&sql::NEXT_LEASE, []),
                    Call::new(&sql::BUCKETS, []),
                ];
                tubes(&self.look(&calls).await?)
            }
            Export::Tasks { tube, from, count, bytes } => {
                let params = [
                    param(tube as i32),
                    param(codec::id_to_sql(from)),
                    param(count_to_sql(count as u64)),
                    param(count_to_sql(bytes as u64)),
                ];
                let rows = self.look(&[Call::new(&sql::EXPORT_TASKS, params)]).await?;
                let tasks = rows.iter().flatten().map(task).collect();
                tasks_read(tasks)
            }
            Export::EndedKeys { tube, from, count } => {
                let params = [
                    param(tube as i32),
                    param(codec::id_to_sql(from)),
                    param(count_to_sql(count as u64)),
                ];
                let rows = self.look(&[Call::new(&sql::EXPORT_ENDED_KEYS, params)]).await?;
                let keys: Result<Vec<_>, _> = rows.iter().flatten().map(ended_key).collect();
                keys.map(Exported::EndedKeys)
            }
            Export::Schedules => {
                let rows = self.look(&[Call::new(&sql::EXPORT_SCHEDULES, [])]).await?;
                let all: Result<Vec<_>, _> =
                    rows.iter().flatten().map(schedules::schedule).collect();
                all.map(Exported::Schedules)
            }
            Export::Semaphores => {
                let calls = [
                    Call::new(&sql::EXPORT_SEMAPHORES, []),
                    Call::new(&sql::EXPORT_PLACES, []),
                    Call::new(&sql::EXPORT_EVENTS, []),
                ];
                all_semaphores(&self.look(&calls).await?)
            }
        };
        read.map_err(|error| Error::Store(error.to_string()))
    }

    /// Calls without sending session rows: this store may not be a registered server.
    async fn look(&self, calls: &[Call]) -> Result<Vec<Vec<Row>>, Error> {
        let mut place = self.connection.lock().await;
        if place.as_ref().is_none_or(|connection| !connection.is_open()) {
            *place = Some(self.connector.connect().await.map_err(|failure| failure.error())?);
        }
        let Some(connection) = place.as_mut() else { return Ok(Vec::new()) };
        connection.transact(calls).await.map_err(|failure| failure.error())
    }

    pub(crate) async fn import(&self, now: Timestamp, part: Import) -> Result<(), Error> {
        let now = (self.clock == Clock::Caller).then(|| now.as_micros());
        let calls = match part {
            Import::Tasks(tube, records) => vec![import_tasks(&tube, records)],
            Import::EndedKeys(tube, keys) => vec![import_ended_keys(&tube, &keys)],
            Import::End(ending) => end(ending, now),
        };
        let done = self.transact(ConnectionRole::Main, &[], &calls).await;
        self.known().head_hints.forget_all();
        done.map(|_| ()).map_err(|failure| failure.error())
    }
}

fn tasks_read(tasks: Result<Vec<Record>, DecodeError>) -> Result<Exported, DecodeError> {
    Ok(Exported::Tasks(tasks?))
}

fn tubes(answers: &[Vec<Row>]) -> Result<Exported, DecodeError> {
    let [shown, next_ids, counters, next_lease, buckets] = answers else {
        return Err("an answer of the database is incomplete".into());
    };
    let mut counts = HashMap::new();
    for row in counters {
        counts.insert(codec::number(row, 0)?, counted(row)?);
    }
    let mut ids = HashMap::new();
    for row in next_ids {
        ids.insert(codec::number(row, 0)?, count_from_sql(get(row, 1)?));
    }
    let mut levels = HashMap::new();
    for row in buckets {
        let (level, at) = (count_from_sql(get(row, 1)?), Timestamp::from_micros(get(row, 2)?));
        levels.insert(codec::number(row, 0)?, Bucket { level, at });
    }
    let mut tubes = Vec::new();
    for row in shown {
        let mut info = codec::tube(row)?;
        if let Some(counted) = counts.get(&info.number) {
            (info.stats.calls, info.stats.tasks.done) = (counted.calls, counted.done);
        }
        let next_id = ids.get(&info.number).copied().unwrap_or_default();
        let bucket = levels.remove(&info.number);
        let mut copy = TubeCopy::new(info, next_id);
        copy.record.bucket = bucket;
        tubes.push(copy);
    }
    let next_lease = next_lease.first().ok_or("the next lease number is missing")?;
    Ok(Exported::Tubes(tubes, count_from_sql(get(next_lease, 0)?)))
}

fn moment(row: &Row, place: usize) -> Result<Option<Timestamp>, DecodeError> {
    Ok(get::<Option<i64>>(row, place)?.map(Timestamp::from_micros))
}

fn never(moment: Option<Timestamp>) -> Timestamp {
    moment.unwrap_or(Timestamp::NEVER)
}

/// A row of `EXPORT_TASKS`.
fn task(row: &Row) -> Result<Record, DecodeError> {
    let stored: i16 = get(row, 1)?;
    let body = codec::body(get(row, 12)?, get(row, 13)?).unwrap_or_else(|| Body::new(&[]));
    let created = Timestamp::from_micros(get(row, 3)?);
    let key = codec::key(get(row, 18)?)?;
    let unique_for = Span::from_micros(get::<Option<i64>>(row, 19)?.unwrap_or_default());
    let own_attempts = get::<Option<i64>>(row, 20)?.map(codec::attempts);
    let mut record = Record {
        key: key.map(|key| Arc::new(HeldKey { key, unique_for })),
        id: TaskId(count_from_sql(get(row, 0)?)),
        state: match stored {
            state::DELAYED => StoredState::Delayed(never(moment(row, 6)?)),
            state::BURIED => StoredState::Buried,
            state::USED_UP => StoredState::DeadLetter,
            state::DONE => StoredState::Done,
            _ => StoredState::Ready(moment(row, 15)?.unwrap_or(created)),
        },
        pri: codec::pri_from_sql(get(row, 2)?),
        created,
        expires: Timestamp::from_micros(get(row, 4)?),
        ttr: Span::from_micros(get(row, 5)?),
        attempts: codec::attempts(get(row, 7)?),
        previous_start: moment(row, 8)?,
        subqueue: get::<Option<&str>>(row, 10)?.map(Into::into),
        semaphore_priority: get::<Option<f64>>(row, 11)?.map(Priority::new).transpose()?,
        attempts_max: own_attempts,
        failures: get::<Option<&[u8]>>(row, 16)?.map(codec::failures).transpose()?,
        finished: get::<Option<&[u8]>>(row, 17)?.map(codec::finished).transpose()?,
        body_bytes: body.bytes(),
        body: Some(body),
    };
    if stored == state::TAKEN {
        let attempts_max = get::<Option<i64>>(row, 14)?.map(codec::attempts);
        record.given_back(moment(row, 9)?.unwrap_or(created), attempts_max);
    }
    Ok(record)
}

fn import_tasks(tube: &TubeName, records: Vec<Record>) -> Call {
    fn each<T>(records: &[Record], field: impl Fn(&Record) -> T) -> Vec<T> {
        records.iter().map(field).collect()
    }
    let micros = |moment: Option<Timestamp>| moment.map(Timestamp::as_micros);
    let (states, due) = (
        each(&records, |record| match record.state {
            StoredState::Ready(_) => state::READY,
            StoredState::Delayed(_) | StoredState::Scheduled(_) => state::DELAYED,
            StoredState::Buried => state::BURIED,
            StoredState::DeadLetter => state::USED_UP,
            StoredState::Done => state::DONE,
        }),
        each(&records, |record| match record.state {
            StoredState::Delayed(due) | StoredState::Scheduled(due) => Some(due.as_micros()),
            StoredState::Ready(since) => (since != record.created).then(|| since.as_micros()),
            StoredState::Buried | StoredState::DeadLetter => None,
            StoredState::Done => record.finished.as_ref().map(|end| end.at().as_micros()),
        }),
    );
    let body = |record: &Record| record.body.clone().unwrap_or_else(|| Body::new(&[]));
    let failures =
        |record: &Record| record.failures.as_ref().map(|failures| failures.as_bytes().to_vec());
    let finished = |record: &Record| record.finished.as_ref().map(|end| end.as_bytes().to_vec());
    let params = [
        param(tube.as_str().to_owned()),
        param(each(&records, |record| codec::id_to_sql(record.id))),
        param(states),
        param(each(&records, |record| codec::pri_to_sql(record.pri))),
        param(each(&records, |record| record.created.as_micros())),
        param(each(&records, |record| record.expires.as_micros())),
        param(each(&records, |record| record.ttr.as_micros())),
        param(due),
        param(each(&records, |record| i64::from(record.attempts))),
        param(each(&records, |record| micros(record.previous_start))),
        param(each(&records, |record| record.subqueue.as_deref().map(str::to_owned))),
        param(each(&records, |record| record.semaphore_priority.map(Priority::value))),
        param(each(&records, |record| Meta(body(record)))),
        param(each(&records, |record| Payload(body(record)))),
        param(each(&records, failures)),
        param(each(&records, finished)),
        param(each(&records, |record| {
            record.key.as_ref().map(|held| held.key.as_str().to_owned())
        })),
        param(each(&records, |record| record.key.as_ref().map(|held| held.unique_for.as_micros()))),
        param(each(&records, |record| record.attempts_max.map(i64::from))),
    ];
    Call::new(&sql::IMPORT_TASKS, params)
}

/// A row of `EXPORT_ENDED_KEYS`.
fn ended_key(row: &Row) -> Result<EndedKey, DecodeError> {
    Ok(EndedKey {
        id: TaskId(count_from_sql(get(row, 0)?)),
        key: Key::new(get(row, 1)?)?,
        until: Timestamp::from_micros(get(row, 2)?),
    })
}

fn import_ended_keys(tube: &TubeName, keys: &[EndedKey]) -> Call {
    let params = [
        param(tube.as_str().to_owned()),
        param(keys.iter().map(|ended| codec::id_to_sql(ended.id)).collect::<Vec<_>>()),
        param(keys.iter().map(|ended| ended.key.as_str().to_owned()).collect::<Vec<_>>()),
        param(keys.iter().map(|ended| ended.until.as_micros()).collect::<Vec<_>>()),
    ];
    Call::new(&sql::IMPORT_ENDED_KEYS, params)
}

/// The calls of the last step, in one transaction.
fn end(ending: ImportEnd, now: Option<i64>) -> Vec<Call> {
    let ImportEnd { tubes, semaphores, schedules, next_lease } = ending;
    let mut calls: Vec<Call> =
        semaphores.iter().map(|semaphore| import_semaphore(&semaphore.record)).collect();
    let mut names = HashMap::new();
    for (came, copy) in &tubes {
        names.insert(copy.number, copy.record.name.as_str().to_owned());
        calls.push(end_tube(came, copy));
        calls.push(end_pace(&copy.record));
    }
    let (mut places, mut events) = (Vec::new(), Vec::new());
    for SemaphoreCopy { record, entries: stands, events: told } in semaphores {
        places.extend(stands.into_iter().map(|place| (record.key.clone(), place)));
        events.extend(told.into_iter().map(|event| (record.key.clone(), event)));
    }
    // Of all semaphores together, in the order of arrival.
    places.sort_by_key(|(_, copy)| copy.entry.seq);
    events.sort_by_key(|(_, copy)| copy.id);
    calls.push(import_places(&places, &names));
    calls.push(import_events(&events, &names));
    calls.extend(schedules.iter().map(schedules::import));
    let names: Vec<String> = names.into_values().collect();
    let params = [param(names), param(count_to_sql(next_lease)), param(now)];
    calls.push(Call::new(&sql::END_IMPORT, params));
    calls
}

fn end_tube(came: &TubeName, copy: &TubeCopy) -> Call {
    let (record, options) = (&copy.record, &copy.record.options);
    let calls = copy.stats.calls;
    // In the order of the table.
    let counters = [
        calls.ack,
        calls.bury,
        calls.delete,
        calls.kick,
        calls.put,
        calls.release,
        calls.take,
        calls.touch,
        calls.ttl,
        calls.ttr,
        calls.delay,
        copy.stats.tasks.done,
    ];
    let params = [
        param(came.as_str().to_owned()),
        param(record.name.as_str().to_owned()),
        param(options.temporary),
        param(options.capacity.map(count_to_sql)),
        param(options.paused),
        param(options.semaphore.as_ref().map(|key| key.as_str().to_owned())),
        param(options.queue_num.map(i64::from)),
        param(count_to_sql(record.next_id)),
        param(counters.map(count_to_sql).to_vec()),
    ];
    Call::new(&sql::END_IMPORT_TUBE, params)
}

fn end_pace(record: &TubeRecord) -> Call {
    let mut params = vec![param(record.name.as_str().to_owned())];
    params.extend(retry_columns(record.options.retry.as_deref()));
    params.extend(rate_columns(record.options.rate.as_deref()));
    params.push(param(record.bucket.map(|bucket| count_to_sql(bucket.level))));
    params.push(param(record.bucket.map(|bucket| bucket.at.as_micros())));
    Call { statement: &sql::END_IMPORT_PACE, params }
}

fn import_semaphore(record: &SemaphoreRecord) -> Call {
    let SemaphoreOptions {
        active,
        try_release,
        margin,
        min_hold,
        cool_down,
        max_revoking,
        revoke_grace,
        force,
        lease,
        ack_timeout,
        shed,
        drop_expired,
    } = record.options.clone();
    let count = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    let params = [
        param(record.key.as_str().to_owned()),
        param(count(active)),
        param(count(try_release)),
        param(margin.value()),
        param(min_hold.as_micros()),
        param(cool_down.as_micros()),
        param(max_revoking.map(count)),
        param(revoke_grace.as_micros()),
        param(force),
        param(codec::span_to_sql(lease)),
        param(codec::span_to_sql(ack_timeout)),
        param(shed),
        param(drop_expired),
        param(count_to_sql(record.grant_seq)),
        param(record.recheck_at.map(Timestamp::as_micros)),
    ];
    Call::new(&sql::IMPORT_SEMAPHORE, params)
}

fn import_places(places: &[(SemaphoreKey, QueueEntryCopy)], names: &HashMap<u32, String>) -> Call {
    // Without the tasks of tubes that are not copied.
    let places: Vec<_> = places
        .iter()
        .filter(|(_, copy)| copy.tube.is_none_or(|tube| names.contains_key(&tube)))
        .collect();
    fn each<'a, T>(
        places: &[&'a (SemaphoreKey, QueueEntryCopy)],
        field: impl Fn(&'a QueueEntryCopy) -> T,
    ) -> Vec<T> {
        places.iter().map(|(_, copy)| field(copy)).collect()
    }
    let held = |field: fn(&HeldGrant) -> Option<Timestamp>| {
        let micros =
            |copy: &QueueEntryCopy| copy.entry.hold().and_then(field).map(Timestamp::as_micros);
        each(&places, micros)
    };
    let moment = |copy: &QueueEntryCopy| match &copy.entry.state {
        EntryState::Wait => None,
        EntryState::Delayed(until) => Some(until.as_micros()),
        EntryState::Held(hold) => hold.revoke_at.map(Timestamp::as_micros),
    };
    let params = [
        param(places.iter().map(|(key, _)| key.as_str().to_owned()).collect::<Vec<_>>()),
        param(each(&places, |copy| copy.tube.and_then(|tube| names.get(&tube).cloned()))),
        param(each(&places, |copy| codec::id_to_sql(copy.task))),
        param(each(&places, |copy| copy.entry.priority.value())),
        param(each(&places, |copy| copy.entry.status().stored_name().to_uppercase())),
        param(each(&places, |copy| copy.entry.enqueued.as_micros())),
        param(each(&places, |copy| copy.entry.hold().map(|hold| count_to_sql(hold.grant.0)))),
        param(held(|hold| Some(hold.granted))),
        param(held(|hold| Some(hold.lease_until))),
        param(held(|hold| Some(hold.ack_by))),
        param(each(&places, moment)),
        param(each(&places, |copy| copy.entry.hold().is_some_and(|hold| hold.pinned))),
    ];
    Call::new(&sql::IMPORT_PLACES, params)
}

fn import_events(events: &[(SemaphoreKey, EventCopy)], names: &HashMap<u32, String>) -> Call {
    let events: Vec<_> = events
        .iter()
        .filter(|(_, copy)| copy.tube.is_none_or(|tube| names.contains_key(&tube)))
        .collect();
    let params = [
        param(events.iter().map(|(key, _)| key.as_str().to_owned()).collect::<Vec<_>>()),
        param(events.iter().map(|(_, event)| count_to_sql(event.id.0)).collect::<Vec<_>>()),
        param(
            events
                .iter()
                .map(|(_, event)| event.tube.and_then(|tube| names.get(&tube).cloned()))
                .collect::<Vec<_>>(),
        ),
        param(events.iter().map(|(_, event)| codec::id_to_sql(event.task)).collect::<Vec<_>>()),
        param(events.iter().map(|(_, event)| count_to_sql(event.grant.0)).collect::<Vec<_>>()),
        param(events.iter().map(|(_, event)| event.kind.name().to_owned()).collect::<Vec<_>>()),
        param(
            events
                .iter()
                .map(|(_, event)| i32::try_from(event.attempts).unwrap_or(i32::MAX))
                .collect::<Vec<_>>(),
        ),
        param(events.iter().map(|(_, event)| event.next_at.as_micros()).collect::<Vec<_>>()),
    ];
    Call::new(&sql::IMPORT_EVENTS, params)
}

fn all_semaphores(answers: &[Vec<Row>]) -> Result<Exported, DecodeError> {
    let [shown, places, events] = answers else {
        return Err("an answer of the database is incomplete".into());
    };
    let (mut copies, mut by_id) = (Vec::new(), HashMap::new());
    for row in shown {
        let info = semaphores::info(row)?;
        by_id.insert(get::<i32>(row, 22)?, copies.len());
        let record = SemaphoreRecord {
            key: info.key,
            options: info.options,
            grant_seq: count_from_sql(get(row, 23)?),
            recheck_at: moment(row, 24)?,
        };
        copies.push(SemaphoreCopy { record, entries: Vec::new(), events: Vec::new() });
    }
    let lost = "a task waits in a semaphore that does not exist";
    for row in places {
        let place = *by_id.get(&get::<i32>(row, 0)?).ok_or(lost)?;
        copies[place].entries.push(read_place(row)?);
    }
    for row in events {
        let place = *by_id.get(&get::<i32>(row, 0)?).ok_or(lost)?;
        copies[place].events.push(EventCopy {
            tube: tube_of(row, 1)?,
            task: TaskId(count_from_sql(get(row, 2)?)),
            id: EventId(count_from_sql(get(row, 3)?)),
            grant: Grant(count_from_sql(get(row, 4)?)),
            kind: EventKind::from_name(get(row, 5)?).ok_or("an unknown kind of event")?,
            attempts: u32::try_from(get::<i32>(row, 6)?)?,
            next_at: Timestamp::from_micros(get(row, 7)?),
        });
    }
    Ok(Exported::Semaphores(copies))
}

fn tube_of(row: &Row, place: usize) -> Result<Option<u32>, DecodeError> {
    Ok(get::<Option<i32>>(row, place)?.map(u32::try_from).transpose()?)
}

/// A row of `EXPORT_PLACES`.
fn read_place(row: &Row) -> Result<QueueEntryCopy, DecodeError> {
    let moments = moment(row, 11)?;
    let hold = |asked: Option<Timestamp>| -> Result<EntryState, DecodeError> {
        Ok(EntryState::Held(Box::new(HeldGrant {
            grant: Grant(count_from_sql(get::<Option<i64>>(row, 7)?.unwrap_or_default())),
            granted: moment(row, 8)?.unwrap_or(Timestamp::EPOCH),
            lease_until: never(moment(row, 9)?),
            ack_by: never(moment(row, 10)?),
            revoke_at: asked,
            pinned: get(row, 12)?,
        })))
    };
    let state = match get::<&str>(row, 5)? {
        "WAIT" => EntryState::Wait,
        "DELAYED" => EntryState::Delayed(never(moments)),
        "ACQUIRED" => hold(None)?,
        "TRY_RELEASE" => hold(Some(never(moments)))?,
        other => return Err(format!("unknown status {other} in a semaphore").into()),
    };
    let place = QueueEntry {
        priority: Priority::new(get(row, 3)?)?,
        seq: count_from_sql(get(row, 4)?),
        enqueued: Timestamp::from_micros(get(row, 6)?),
        state,
    };
    Ok(QueueEntryCopy {
        tube: tube_of(row, 1)?,
        task: TaskId(count_from_sql(get(row, 2)?)),
        entry: place,
    })
}

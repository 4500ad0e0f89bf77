//! Exports and imports all data, when a store is copied.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use taskyard_core::record::{Record, StoredState};
use taskyard_core::semaphore::{EntryState, HeldGrant, QueueEntry, SemaphoreRecord};
use taskyard_core::transfer::{EventCopy, ImportEnd, QueueEntryCopy, SemaphoreCopy, TubeCopy};
use taskyard_core::{
    Body, Bucket, Command, EndedKey, Error, EventId, EventKind, Failures, Finished, Grant, HeldKey,
    Key, Priority, RateLimit, Reply, RetryPolicy, ScheduleCommand, ScheduleName, ScheduleReply,
    SemaphoreKey, SemaphoreOptions, Span, StoredSchedule, TaskId, Timestamp, TubeName,
};
use taskyard_tarantool::{
    ArgumentWriter, BatchReply, Failure, LuaValue, decode_batch, decode_value,
};

use super::Tarantool;
use super::link::error_of;
use taskyard_store::refused;
use taskyard_store::{Export, Exported, Import};

/// How long a call may take: the last one has all entries of semaphores.
const CALL_MAX: Duration = Duration::from_secs(600);

/// How many schedules are read together.
const SCHEDULES_PAGE: usize = 100;

/// Separates the tasks of tubes from the numbers that callers choose: the number of the tube above the task id.
const GATED: u64 = 1 << 63;
const ID_BITS: u32 = 49;

/// The names of the states and flags of a task in its space.
const DELAYED: u64 = 2;
const BURIED: u64 = 3;
const DONE: u64 = 4;
const DEAD_LETTER: u64 = 1;

impl Tarantool {
    pub(crate) async fn export(&self, wanted: Export) -> Result<Exported, Error> {
        let read = match wanted {
            Export::Tubes => {
                let shown = self.ask("export_tubes", true, |_| {}).await?;
                let numbers = self.ask("export_numbers", true, |_| {}).await?;
                tubes(&shown, &numbers)
            }
            Export::Tasks { tube, from, count, bytes } => {
                let write = |args: &mut ArgumentWriter<'_>| {
                    args.uint(tube.into()).uint(from.0).uint(count as u64).uint(bytes as u64);
                };
                tasks(&self.ask("export_tasks", true, write).await?)
            }
            Export::EndedKeys { tube, from, count } => {
                let write = |args: &mut ArgumentWriter<'_>| {
                    args.uint(tube.into()).uint(from.0).uint(count as u64);
                };
                ended_keys(&self.ask("export_ended_keys", true, write).await?)
            }
            Export::Schedules => return self.export_schedules().await,
            Export::Semaphores => semaphores(&self.ask("export_semaphores", true, |_| {}).await?),
        };
        read.ok_or_else(|| Error::Store("cannot read the data in Tarantool".into()))
    }

    pub(crate) async fn import(&self, now: Timestamp, part: Import) -> Result<(), Error> {
        if self.connector.is_adapter {
            return Err(refused("be copied to"));
        }
        self.cache().now = Some(now);
        let (moment, replicas) = (self.moment(), self.connector.replicas);
        match part {
            Import::Tasks(tube, records) => {
                let write = |args: &mut ArgumentWriter<'_>| {
                    args.optional(moment).uint(replicas).text(tube.as_str());
                    args.rows(&records, write_task);
                };
                self.ask("import_tasks", false, write).await?;
            }
            Import::EndedKeys(tube, ended) => {
                let write = |args: &mut ArgumentWriter<'_>| {
                    args.optional(moment).uint(replicas).text(tube.as_str());
                    args.rows(&ended, |row, ended| {
                        write_moment(row.uint(ended.id.0), Some(ended.until))
                            .text(ended.key.as_str());
                    });
                };
                self.ask("import_ended_keys", false, write).await?;
            }
            Import::End(ending) => {
                let write = |args: &mut ArgumentWriter<'_>| {
                    args.optional(moment).uint(replicas);
                    write_ending(args, &ending);
                };
                self.ask("import_end", false, write).await?;
                // Lease numbers continue from those of the other store.
                self.cache().leases = 0..0;
            }
        }
        Ok(())
    }

    /// All schedules, read in pages: each may have a large payload.
    async fn export_schedules(&self) -> Result<Exported, Error> {
        let mut all: Vec<StoredSchedule> = Vec::new();
        loop {
            let after = all.last().map(|schedule| schedule.name.clone());
            let write = |args: &mut ArgumentWriter<'_>| {
                args.maybe(after.as_ref().map(ScheduleName::as_str), ArgumentWriter::text);
                args.uint(SCHEDULES_PAGE as u64);
            };
            let page = schedules(&self.ask("export_schedules", true, write).await?);
            let page =
                page.ok_or_else(|| Error::Store("cannot read the data in Tarantool".into()))?;
            let is_last = page.len() < SCHEDULES_PAGE;
            all.extend(page);
            if is_last {
                return Ok(Exported::Schedules(all));
            }
        }
    }

    async fn ask(
        &self,
        verb: &str,
        may_repeat: bool,
        write: impl Fn(&mut ArgumentWriter<'_>),
    ) -> Result<Vec<u8>, Error> {
        let mut link = self.link.lock().await;
        let answer = link.call(verb, CALL_MAX, may_repeat, write).await;
        answer.map_err(|failure| match failure {
            // An export changes nothing, so a lost one counts as not done.
            Failure::Lost(why) if may_repeat => error_of(&Failure::Unreachable(why)),
            failure => error_of(&failure),
        })
    }
}

fn tubes(shown: &[u8], numbers: &[u8]) -> Option<Exported> {
    let BatchReply::Executed(mut decided) = decode_batch(shown).ok()? else { return None };
    let Ok(Reply::Tubes(infos)) = decided.replies.pop()? else { return None };
    let numbers = decode_value(numbers).ok()?;
    let [ids, next_lease] = numbers.list() else { return None };
    let mut states = HashMap::new();
    for row in ids.list() {
        let [number, next_id, level, at] = row.list() else { return None };
        let bucket = match (level.uint(), moment(at)) {
            (Some(level), Some(at)) => Some(Bucket { level, at }),
            _ => None,
        };
        states.insert(number.uint()?, (next_id.uint()?, bucket));
    }
    let copy = |info: taskyard_core::command::TubeInfo| {
        let (next_id, bucket) = states.get(&info.number.into()).copied()?;
        let mut copy = TubeCopy::new(info, next_id);
        copy.record.bucket = bucket;
        Some(copy)
    };
    let tubes = infos.into_iter().map(copy).collect::<Option<_>>()?;
    Some(Exported::Tubes(tubes, next_lease.uint()?))
}

fn moment(word: &LuaValue) -> Option<Timestamp> {
    word.int().map(Timestamp::from_micros)
}

fn tasks(data: &[u8]) -> Option<Exported> {
    let word = decode_value(data).ok()?;
    let [tasks, attempts_max] = word.list() else { return None };
    let attempts_max = attempts_max.uint().and_then(|most| u32::try_from(most).ok());
    let mut records = Vec::with_capacity(tasks.list().len() / 2);
    for pair in tasks.list().chunks(2) {
        // A taken task has the start of its delivery there, a done one how it ended.
        let [task, ended] = pair else { return None };
        let mut record = read_task(task.list())?;
        if let Some(start) = moment(ended) {
            record.given_back(start, attempts_max);
        } else if let Some(bytes) = ended.bytes() {
            record.finished = Some(Finished::from_bytes(bytes)?);
        }
        records.push(record);
    }
    Some(Exported::Tasks(records))
}

fn schedules(data: &[u8]) -> Option<Vec<StoredSchedule>> {
    let BatchReply::Executed(mut decided) = decode_batch(data).ok()? else { return None };
    match decided.replies.pop()? {
        Ok(Reply::Schedule(ScheduleReply::Schedules(page))) => Some(page),
        // The store is empty.
        Ok(Reply::Nothing) => Some(Vec::new()),
        _ => None,
    }
}

fn ended_keys(data: &[u8]) -> Option<Exported> {
    let word = decode_value(data).ok()?;
    let read = |row: &LuaValue| {
        let [id, until, key] = row.list() else { return None };
        let key = Key::new(key.text()?).ok()?;
        Some(EndedKey { id: TaskId(id.uint()?), key, until: moment(until)? })
    };
    word.list().iter().map(read).collect::<Option<_>>().map(Exported::EndedKeys)
}

/// A task as it is stored.
fn read_task(row: &[LuaValue]) -> Option<Record> {
    let [id, state, pri, created, expires, ttr, attempts, _, body, rest @ ..] = row else {
        return None;
    };
    let [_, previous, due, subqueue, own, _, _, _, flag, rest @ ..] = rest else { return None };
    let body = match body {
        LuaValue::Bytes(payload) => Body::new(payload),
        both => match both.list() {
            [payload, meta] => Body::with_meta(payload.bytes()?, meta.bytes()?),
            _ => return None,
        },
    };
    let state = match (state.uint()?, flag.uint()?) {
        // A gated task counts as ready.
        (DELAYED, 0) => StoredState::Delayed(moment(due)?),
        (BURIED, DEAD_LETTER) => StoredState::DeadLetter,
        (BURIED, _) => StoredState::Buried,
        (DONE, _) => StoredState::Done,
        _ => StoredState::Ready(moment(due).unwrap_or(moment(created)?)),
    };
    let own = match own {
        LuaValue::Nil => None,
        own => Some(Priority::new(own.number()?).ok()?),
    };
    let failures = match rest.first().and_then(LuaValue::bytes) {
        Some(bytes) => Some(Failures::from_bytes(bytes)?),
        None => None,
    };
    let key = match rest.get(1).and_then(LuaValue::text) {
        Some(key) => {
            let unique_for = Span::from_micros(rest.get(2)?.int()?);
            Some(Arc::new(HeldKey { key: Key::new(key).ok()?, unique_for }))
        }
        None => None,
    };
    let attempts_max = rest.get(3).and_then(LuaValue::uint).map(u32::try_from).transpose().ok()?;
    Some(Record {
        key,
        id: TaskId(id.uint()?),
        state,
        pri: pri.uint()?,
        created: moment(created)?,
        expires: moment(expires)?,
        ttr: Span::from_micros(ttr.int()?),
        attempts: u32::try_from(attempts.uint()?).ok()?,
        previous_start: moment(previous),
        subqueue: subqueue.text().map(Into::into),
        semaphore_priority: own,
        attempts_max,
        failures,
        finished: None,
        body_bytes: body.bytes(),
        body: Some(body),
    })
}

fn write_moment<'a, 'o>(
    args: &'a mut ArgumentWriter<'o>,
    at: Option<Timestamp>,
) -> &'a mut ArgumentWriter<'o> {
    args.optional(at.map(Timestamp::as_micros))
}

/// A task in the order of `import.lua`.
fn write_task(args: &mut ArgumentWriter<'_>, record: &Record) {
    let (state, due, flag) = match record.state {
        StoredState::Ready(since) => (0, (since != record.created).then_some(since), 0),
        StoredState::Delayed(due) | StoredState::Scheduled(due) => (DELAYED, Some(due), 0),
        StoredState::Buried => (BURIED, None, 0),
        StoredState::DeadLetter => (BURIED, None, DEAD_LETTER),
        // The end of a done task.
        StoredState::Done => (DONE, record.finished.as_ref().map(Finished::at), 0),
    };
    args.uint(record.id.0).uint(state).uint(record.pri);
    for at in [record.created, record.expires] {
        write_moment(args, Some(at));
    }
    args.optional(Some(record.ttr.as_micros())).uint(record.attempts.into());
    write_moment(args, due);
    write_moment(args, record.previous_start);
    args.maybe(record.subqueue.as_deref(), ArgumentWriter::text);
    args.maybe(record.semaphore_priority.map(Priority::value), ArgumentWriter::float).uint(flag);
    let (payload, meta) = match &record.body {
        Some(body) => (body.payload(), body.meta()),
        None => (&[][..], None),
    };
    args.bytes(payload).maybe(meta, ArgumentWriter::bytes);
    args.maybe(record.failures.as_ref().map(Failures::as_bytes), ArgumentWriter::bytes);
    args.maybe(record.finished.as_ref().map(Finished::as_bytes), ArgumentWriter::bytes);
    args.maybe(record.key.as_ref().map(|held| held.key.as_str()), ArgumentWriter::text);
    args.optional(record.key.as_ref().map(|held| held.unique_for.as_micros()));
    args.maybe(record.attempts_max.map(u64::from), ArgumentWriter::uint);
}

/// The last step, in the order of `copy.lua`. Tubes and semaphores are named by their positions in these lists.
fn write_ending(args: &mut ArgumentWriter<'_>, ending: &ImportEnd) {
    let ImportEnd { tubes, semaphores, schedules, next_lease } = ending;
    args.uint(*next_lease).rows(tubes, |row, (came, copy)| write_tube(row, came, copy));
    args.rows(semaphores, |row, semaphore| write_semaphore(row, &semaphore.record));
    let numbers: HashMap<u32, u64> =
        (1..).zip(tubes).map(|(place, (_, copy))| (copy.number, place)).collect();
    let (mut places, mut events) = (Vec::new(), Vec::new());
    for (at, semaphore) in (1_u64..).zip(semaphores) {
        places.extend(semaphore.entries.iter().map(|copy| (at, copy)));
        events.extend(semaphore.events.iter().map(|copy| (at, copy)));
    }
    // Entries of tubes that are not imported are left out.
    let comes = |tube: Option<u32>| tube.is_none_or(|tube| numbers.contains_key(&tube));
    places.retain(|(_, copy)| comes(copy.tube));
    events.retain(|(_, copy)| comes(copy.tube));
    places.sort_by_key(|(_, copy)| copy.entry.seq);
    events.sort_by_key(|(_, copy)| copy.id);
    let tube_of = |tube: Option<u32>| tube.and_then(|tube| numbers.get(&tube).copied());
    args.rows(&places, |row, (at, copy)| {
        write_place(row.uint(*at).maybe(tube_of(copy.tube), ArgumentWriter::uint), copy);
    });
    args.rows(&events, |row, (at, copy)| {
        row.uint(*at)
            .uint(copy.id.0)
            .maybe(tube_of(copy.tube), ArgumentWriter::uint)
            .uint(copy.task.0);
        row.uint(copy.grant.0).text(copy.kind.name()).uint(copy.attempts.into());
        write_moment(row, Some(copy.next_at));
    });
    let set = |schedule: &StoredSchedule| {
        let set =
            ScheduleCommand::Set { schedule: schedule.clone(), only_new: true, keep_paused: false };
        Command::Schedule(Box::new(set))
    };
    args.commands(&schedules.iter().map(set).collect::<Vec<_>>());
}

fn write_tube(row: &mut ArgumentWriter<'_>, came: &TubeName, copy: &TubeCopy) {
    let (record, options, calls) = (&copy.record, &copy.record.options, copy.stats.calls);
    row.text(came.as_str()).text(record.name.as_str()).flag(options.temporary);
    row.maybe(options.capacity, ArgumentWriter::uint).flag(options.paused);
    row.maybe(options.semaphore.as_ref().map(SemaphoreKey::as_str), ArgumentWriter::text);
    row.maybe(options.queue_num.map(u64::from), ArgumentWriter::uint).uint(record.next_id);
    row.uint(copy.stats.tasks.done).list(|list| {
        for count in [calls.ack, calls.bury, calls.delete, calls.kick, calls.put, calls.release] {
            list.uint(count);
        }
        for count in [calls.take, calls.touch, calls.ttl, calls.ttr, calls.delay] {
            list.uint(count);
        }
    });
    row.maybe(options.retry.as_deref(), |row, retry| row.list(|list| write_retry(list, retry)));
    row.maybe(options.rate.as_deref(), |row, rate| row.list(|list| write_rate(list, rate)));
    row.maybe(record.bucket.map(|bucket| bucket.level), ArgumentWriter::uint);
    write_moment(row, record.bucket.map(|bucket| bucket.at));
}

/// A retry policy, as the options of a tube have it.
fn write_retry(list: &mut ArgumentWriter<'_>, retry: &RetryPolicy) {
    list.optional(Some(retry.delay.as_micros())).uint(retry.factor_permille.into());
    list.optional(Some(retry.delay_max.as_micros())).uint(retry.jitter_permille.into());
    list.flag(retry.retry_lost);
}

/// A rate limit, as the options of a tube have it.
fn write_rate(list: &mut ArgumentWriter<'_>, rate: &RateLimit) {
    list.uint(rate.count.into()).optional(Some(rate.per.as_micros())).uint(rate.burst.into());
}

/// Its key, its options as they are stored, last grant, and when to look again.
fn write_semaphore(row: &mut ArgumentWriter<'_>, record: &SemaphoreRecord) {
    let options = &record.options;
    let micros = |span: Span| span.as_micros().unsigned_abs();
    row.text(record.key.as_str()).list(|list| {
        list.uint(options.active.into()).uint(options.try_release.into());
        list.float(options.margin.value()).uint(micros(options.min_hold));
        list.uint(micros(options.cool_down)).uint(micros(options.revoke_grace));
        list.flag(options.force).flag(options.shed).flag(options.drop_expired);
        list.maybe(options.max_revoking.map(u64::from), ArgumentWriter::uint);
        list.maybe(options.lease.map(micros), ArgumentWriter::uint);
        list.maybe(options.ack_timeout.map(micros), ArgumentWriter::uint);
    });
    write_moment(row.uint(record.grant_seq), record.recheck_at);
}

fn write_place(row: &mut ArgumentWriter<'_>, copy: &QueueEntryCopy) {
    let place = &copy.entry;
    row.uint(copy.task.0).float(place.priority.value());
    write_moment(row, Some(place.enqueued));
    let not_before =
        if let EntryState::Delayed(until) = &place.state { Some(*until) } else { None };
    write_moment(row, not_before);
    let hold = place.hold();
    row.maybe(hold.map(|hold| hold.grant.0), ArgumentWriter::uint);
    for at in [
        hold.map(|hold| hold.granted),
        hold.map(|hold| hold.lease_until),
        hold.map(|hold| hold.ack_by),
        hold.and_then(|hold| hold.revoke_at),
    ] {
        write_moment(row, at);
    }
    row.flag(hold.is_some_and(|hold| hold.pinned));
}

fn semaphores(data: &[u8]) -> Option<Exported> {
    let word = decode_value(data).ok()?;
    let mut copies = Vec::new();
    for found in word.list() {
        let [row, places, events] = found.list() else { return None };
        let mut places: Vec<_> = places.list().iter().map(read_place).collect::<Option<_>>()?;
        places.sort_unstable_by_key(|copy: &QueueEntryCopy| copy.entry.seq);
        let mut events: Vec<_> = events.list().iter().map(read_event).collect::<Option<_>>()?;
        events.sort_unstable_by_key(|copy: &EventCopy| copy.id);
        copies.push(SemaphoreCopy { record: read_semaphore(row)?, entries: places, events });
    }
    Some(Exported::Semaphores(copies))
}

fn read_semaphore(row: &LuaValue) -> Option<SemaphoreRecord> {
    let [_, key, options, grant_seq, recheck, ..] = row.list() else { return None };
    let [
        active,
        try_release,
        margin,
        min_hold,
        cool_down,
        grace,
        force,
        shed,
        drop,
        most,
        lease,
        ack,
    ] = options.list()
    else {
        return None;
    };
    let small = |word: &LuaValue| word.uint().and_then(|number| u32::try_from(number).ok());
    let span = |word: &LuaValue| word.int().map(Span::from_micros);
    let options = SemaphoreOptions {
        active: small(active)?,
        try_release: small(try_release)?,
        margin: Priority::new(margin.number()?).ok()?,
        min_hold: span(min_hold)?,
        cool_down: span(cool_down)?,
        max_revoking: small(most),
        revoke_grace: span(grace)?,
        force: force.is_true(),
        lease: span(lease),
        ack_timeout: span(ack),
        shed: shed.is_true(),
        drop_expired: drop.is_true(),
    };
    Some(SemaphoreRecord {
        key: SemaphoreKey::new(key.text()?).ok()?,
        options,
        grant_seq: grant_seq.uint()?,
        recheck_at: moment(recheck).filter(|at| *at != Timestamp::NEVER),
    })
}

/// The number of the task's tube, if it belongs to one, and its id there.
fn apart(task: u64) -> (Option<u32>, TaskId) {
    if task < GATED {
        return (None, TaskId(task));
    }
    let tube = ((task & !GATED) >> ID_BITS) as u32;
    (Some(tube), TaskId(task & ((1 << ID_BITS) - 1)))
}

fn read_place(row: &LuaValue) -> Option<QueueEntryCopy> {
    let [
        _,
        task,
        _,
        rank,
        seq,
        enqueued,
        grant,
        granted,
        lease,
        ack_by,
        revoke,
        pinned,
        _,
        rest @ ..,
    ] = row.list()
    else {
        return None;
    };
    let state = match (grant.uint(), rest.first().and_then(moment)) {
        (Some(grant), _) => EntryState::Held(Box::new(HeldGrant {
            grant: Grant(grant),
            granted: moment(granted)?,
            lease_until: moment(lease)?,
            ack_by: moment(ack_by)?,
            revoke_at: moment(revoke),
            pinned: pinned.is_true(),
        })),
        (None, Some(until)) => EntryState::Delayed(until),
        (None, None) => EntryState::Wait,
    };
    let (tube, task) = apart(task.uint()?);
    // Less is better there; minus zero is zero.
    let priority = Priority::new(0.0 - rank.number()?).ok()?;
    let place = QueueEntry { priority, seq: seq.uint()?, enqueued: moment(enqueued)?, state };
    Some(QueueEntryCopy { tube, task, entry: place })
}

fn read_event(row: &LuaValue) -> Option<EventCopy> {
    let [id, _, task, grant, kind, attempts, next_at, ..] = row.list() else { return None };
    let (tube, task) = apart(task.uint()?);
    Some(EventCopy {
        id: EventId(id.uint()?),
        tube,
        task,
        grant: Grant(grant.uint()?),
        kind: EventKind::from_name(kind.text()?)?,
        attempts: u32::try_from(attempts.uint()?).ok()?,
        next_at: moment(next_at)?,
    })
}

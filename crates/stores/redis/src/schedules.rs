//! Sets, shows, fires and removes schedules, in the layouts of `lua/schedules.lua`.

use std::sync::Arc;

use taskyard_core::limits::{SCHEDULES_LISTED_MAX, SCHEDULES_MAX};
use taskyard_core::{
    Body, CatchUp, Command, Error, HeldKey, Key, KeyRequest, NewTask, OnConflict, Overlap, Placed,
    Priority, Reply, ScheduleCommand, ScheduleName, ScheduleReply, Span, StoredSchedule, Timestamp,
    TubeName, check_fire, check_tasks, checked_list_limit,
};
use taskyard_redis::{Call, Failure, Value};

use super::answers::AnswerParts;
use super::codec::{self, ByteReader, Unreadable};
use super::execute::{Batch, unreadable_registry};
use super::replicas;
use super::tubes::{TubeAddress, read, unreadable};

/// The status of an answer of the registry.
const OK: i64 = 0;
const UNKNOWN: i64 = 2;
const TOO_MANY: i64 = 4;
const EXISTS: i64 = 6;
const STALE: i64 = 9;
/// The tasks of this fire, or of another one of the same generation, were put before.
const REPEATED: i64 = 10;
/// The schedule has fired in a later generation than the registry knows.
const EARLIER: i64 = 11;

/// How often a fire is tried whose schedule is set by others at the same time.
const TRIES: usize = 3;

/// A schedule, and its generation in Redis, which each set and each fire renews.
struct KnownSchedule {
    schedule: StoredSchedule,
    generation: f64,
}

/// An answer of the registry about schedules.
struct ScheduleAnswer {
    status: i64,
    values: Vec<Value>,
}

/// What a fire asks for.
struct Fire {
    name: ScheduleName,
    expected: Timestamp,
    next: Option<Timestamp>,
    skipped: u64,
}

impl Batch<'_> {
    pub async fn run_schedule(
        &mut self,
        command: ScheduleCommand,
    ) -> Result<Result<Reply, Error>, Failure> {
        let reply = match command {
            ScheduleCommand::Set { schedule, only_new, keep_paused } => {
                self.set_schedule(&schedule, only_new, keep_paused).await?
            }
            ScheduleCommand::Get { name } => match self.find_schedule(&name).await? {
                Some(known) => Ok(ScheduleReply::Schedules(vec![known.schedule])),
                None => Err(Error::ScheduleNotFound(name)),
            },
            ScheduleCommand::List { after, limit } => {
                self.list_schedules(after.as_ref(), limit).await?
            }
            ScheduleCommand::Due { skip, limit } => self.due_schedules(skip, limit).await?,
            ScheduleCommand::Remove { name } => {
                let answer = self.schedules("schedule_remove", vec![name_bytes(&name)]).await?;
                match answer.status {
                    UNKNOWN => Err(Error::ScheduleNotFound(name)),
                    _ => Ok(ScheduleReply::Removed),
                }
            }
            ScheduleCommand::Pause { name, paused } => {
                let words = vec![name_bytes(&name), vec![if paused { b'1' } else { b'0' }]];
                let answer = self.schedules("schedule_pause", words).await?;
                match answer.status {
                    UNKNOWN => Err(Error::ScheduleNotFound(name)),
                    _ => Ok(ScheduleReply::Schedules(shown(answer)?)),
                }
            }
            ScheduleCommand::Fire { name, expected, next, puts, skipped } => {
                self.fire(Fire { name, expected, next, skipped }, &puts).await?
            }
        };
        Ok(reply.map(Reply::Schedule))
    }

    /// Calls the registry, once if that changes a schedule, and records when the next one is due.
    async fn schedules(
        &mut self,
        verb: &str,
        words: Vec<Vec<u8>>,
    ) -> Result<ScheduleAnswer, Failure> {
        if matches!(verb, "schedule_get" | "schedule_list" | "schedule_due") {
            let values = self.registry_with_retry(verb, words).await?;
            return self.read_schedules(values);
        }
        let call = self.shared.registry_call(verb, words);
        let answer = self.call_replicated(call).await?;
        self.read_schedules(answer.list().ok_or_else(unreadable_registry)?)
    }

    /// Makes a call once, and waits until replicas have its changes.
    async fn call_replicated(&mut self, mut call: Call) -> Result<Value, Failure> {
        call.replicate = true;
        let answer = self.link.call(&[call]).await.pop();
        let (answer, short) = replicas::split(answer.unwrap_or_else(|| Err(unreadable_registry())));
        self.short = self.short.take().or(short);
        answer
    }

    fn read_schedules(&self, values: Vec<Value>) -> Result<ScheduleAnswer, Failure> {
        let mut values = values.into_iter();
        let status = values.next().and_then(|status| status.int());
        let first =
            values.next().and_then(Value::text).and_then(|text| String::from_utf8(text).ok());
        let (Some(status), Some(first)) = (status, first) else {
            return Err(unreadable_registry());
        };
        self.shared.cache().next_schedule = first.parse::<f64>().ok().map(|first| first as i64);
        Ok(ScheduleAnswer { status, values: values.collect() })
    }

    /// Asks when the next schedule is due: other servers may have changed that.
    pub async fn update_next_schedule(&mut self) -> Result<(), Failure> {
        let values = self.registry_with_retry("schedule_next", Vec::new()).await?;
        self.read_schedules(values).map(drop)
    }

    async fn find_schedule(
        &mut self,
        name: &ScheduleName,
    ) -> Result<Option<KnownSchedule>, Failure> {
        let answer = self.schedules("schedule_get", vec![name_bytes(name)]).await?;
        Ok(known(answer)?.pop())
    }

    async fn list_schedules(
        &mut self,
        after: Option<&ScheduleName>,
        limit: usize,
    ) -> Result<Result<ScheduleReply, Error>, Failure> {
        if let Err(refusal) = checked_list_limit(limit) {
            return Ok(Err(refusal));
        }
        let words = vec![after.map_or_else(Vec::new, name_bytes), number_bytes(limit)];
        let answer = self.schedules("schedule_list", words).await?;
        Ok(Ok(ScheduleReply::Schedules(shown(answer)?)))
    }

    async fn due_schedules(
        &mut self,
        skip: usize,
        limit: usize,
    ) -> Result<Result<ScheduleReply, Error>, Failure> {
        if let Err(refusal) = checked_list_limit(limit) {
            return Ok(Err(refusal));
        }
        let words = vec![number_bytes(limit), number_bytes(skip)];
        let mut answer = self.schedules("schedule_due", words).await?;
        if answer.values.len() < 2 {
            return Err(unreadable_registry());
        }
        let mut moments = answer.values.drain(..2).map(read_moment);
        let (now, next) = (moments.next().flatten(), moments.next().flatten());
        drop(moments);
        let now = now.ok_or_else(unreadable_registry)?;
        Ok(Ok(ScheduleReply::Due { now, schedules: shown(answer)?, next }))
    }

    async fn set_schedule(
        &mut self,
        schedule: &StoredSchedule,
        only_new: bool,
        keep_paused: bool,
    ) -> Result<Result<ScheduleReply, Error>, Failure> {
        let name = || schedule.name.clone();
        if only_new && self.find_schedule(&schedule.name).await?.is_some() {
            return Ok(Err(Error::ScheduleExists(name())));
        }
        if let Err(refusal) = schedule.check() {
            return Ok(Err(refusal));
        }
        if self.find(&schedule.tube).await?.1.is_none() {
            return Ok(Err(Error::TubeNotFound(schedule.tube.clone())));
        }
        let wanted = number_bytes(usize::from(only_new) + 2 * usize::from(keep_paused));
        let words = vec![name_bytes(&schedule.name), wanted, encode(schedule)];
        let answer = self.schedules("schedule_set", words).await?;
        let is_new = answer.values.first().and_then(Value::int) == Some(1);
        Ok(match answer.status {
            EXISTS => Err(Error::ScheduleExists(name())),
            TOO_MANY => Err(Error::TooManySchedules(SCHEDULES_MAX)),
            _ => Ok(ScheduleReply::Set(is_new)),
        })
    }

    /// Adds the tasks of a schedule and sets its next time, if `expected` is still the next one.
    async fn fire(
        &mut self,
        fire: Fire,
        puts: &[NewTask],
    ) -> Result<Result<ScheduleReply, Error>, Failure> {
        for _ in 0..TRIES {
            let Some(KnownSchedule { schedule, generation }) =
                self.find_schedule(&fire.name).await?
            else {
                return Ok(Err(Error::ScheduleNotFound(fire.name)));
            };
            if let Err(refusal) = check_fire(puts) {
                return Ok(Err(refusal));
            }
            if schedule.due() != Some(fire.expected) {
                return Ok(Ok(ScheduleReply::Fired(None)));
            }
            let text = fire_text(&fire, generation);
            let fired = if puts.is_empty() {
                self.fired(&fire.name, text, &[]).await?.map(|is_done| is_done.then(Vec::new))
            } else {
                let tasks = match schedule_tasks(&schedule, puts) {
                    Ok(tasks) => tasks,
                    Err(refusal) => return Ok(Err(refusal)),
                };
                match self.fire_into(&fire.name, &schedule.tube, text, tasks).await? {
                    Ok(fired) => fired,
                    Err(refusal) => return Ok(Err(refusal)),
                }
            };
            match fired {
                Some(Some(placed)) => return Ok(Ok(ScheduleReply::Fired(Some(placed)))),
                // Another time is next, or a set has renewed the schedule: the next round finds out.
                Some(None) => {}
                None => return Ok(Err(Error::ScheduleNotFound(fire.name))),
            }
        }
        Ok(Ok(ScheduleReply::Fired(None)))
    }

    /// Changes a schedule after these tasks were put. Answers whether it was changed; `None` if it does not exist.
    async fn fired(
        &mut self,
        name: &ScheduleName,
        mut text: Vec<u8>,
        placed: &[Placed],
    ) -> Result<Option<bool>, Failure> {
        let existing = placed.iter().filter(|placed| placed.existing).count();
        for count in [placed.len(), placed.len() - existing, existing] {
            text.extend((count as f64).to_le_bytes());
        }
        let answer = self.schedules("schedule_fired", vec![name_bytes(name), text]).await?;
        Ok(match answer.status {
            OK => Some(true),
            UNKNOWN => None,
            _ => Some(false),
        })
    }

    /// Puts the tasks of a schedule. Answers as `fired` does, with the tasks.
    async fn fire_into(
        &mut self,
        name: &ScheduleName,
        tube: &TubeName,
        text: Vec<u8>,
        tasks: Vec<NewTask>,
    ) -> Result<Result<Option<Option<Vec<Placed>>>, Error>, Failure> {
        let (address, Some(_)) = self.find(tube).await? else {
            return Ok(Err(Error::TubeNotFound(tube.clone())));
        };
        let is_single = !self.shared.connector.url.cluster;
        let single = if is_single { b"1".to_vec() } else { Vec::new() };
        let put = Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO };
        let mut words = vec![single, name_bytes(name), text.clone()];
        words.extend(codec::encode_put(&put));
        let (status, mut parts) = self.call_fire(tube, &address, words).await?;
        match status {
            UNKNOWN => return Ok(Ok(None)),
            STALE => return Ok(Ok(Some(None))),
            REPEATED | EARLIER => {
                let kept = parts.text().map_err(unreadable)?;
                let verb = if status == REPEATED { "schedule_fired" } else { "schedule_renew" };
                let answer = self.schedules(verb, vec![name_bytes(name), kept]).await?;
                return Ok(Ok((answer.status != UNKNOWN).then_some(None)));
            }
            _ => {}
        }
        let reply = parts.replies(tube, &[(0, put)]).map_err(unreadable)?.pop();
        let placed = match reply {
            Some(Ok(Reply::Put(placed))) => placed,
            Some(Err(refusal)) => return Ok(Err(refusal)),
            _ => return Err(unreadable_registry()),
        };
        if is_single {
            self.update_next_schedule().await?;
            return Ok(Ok(Some(Some(placed))));
        }
        // If another server finished it meanwhile, the tasks are still these.
        let changed = self.fired(name, text, &placed).await?;
        Ok(Ok(changed.map(|_| Some(placed))))
    }

    async fn call_fire(
        &mut self,
        tube: &TubeName,
        address: &TubeAddress,
        words: Vec<Vec<u8>>,
    ) -> Result<(i64, AnswerParts), Failure> {
        let call = self.shared.tube_call("fire", address, words);
        let (head, mut parts) = read(self.call_replicated(call).await?)?;
        self.learn(tube, &head, true);
        let status = i64::from(parts.status().map_err(unreadable)?);
        Ok((status, parts))
    }

    /// All schedules, by name.
    pub async fn export_schedules(&mut self) -> Result<Vec<StoredSchedule>, Failure> {
        let mut all: Vec<StoredSchedule> = Vec::new();
        loop {
            let after = all.last().map_or_else(Vec::new, |last| name_bytes(&last.name));
            let words = vec![after, number_bytes(SCHEDULES_LISTED_MAX)];
            let page = shown(self.schedules("schedule_list", words).await?)?;
            if page.is_empty() {
                return Ok(all);
            }
            all.extend(page);
        }
    }

    /// Adds schedules of another store, or none of them.
    pub async fn import_schedules(
        &mut self,
        schedules: &[StoredSchedule],
    ) -> Result<Result<(), Error>, Failure> {
        if schedules.is_empty() {
            return Ok(Ok(()));
        }
        let mut answer = self.schedules("schedule_import", encode_all(schedules)).await?;
        let name = answer.values.pop().and_then(read_name);
        Ok(match (answer.status, name) {
            (EXISTS, Some(name)) => Err(Error::ScheduleExists(name)),
            (TOO_MANY, _) => Err(Error::TooManySchedules(SCHEDULES_MAX)),
            _ => Ok(()),
        })
    }
}

/// Schedules as names and records.
pub(super) fn encode_all(schedules: &[StoredSchedule]) -> Vec<Vec<u8>> {
    schedules.iter().flat_map(|one| [name_bytes(&one.name), encode(one)]).collect()
}

/// The tasks of a fire, with the key of a schedule whose runs must not overlap.
fn schedule_tasks(schedule: &StoredSchedule, puts: &[NewTask]) -> Result<Vec<NewTask>, Error> {
    let mut tasks = puts.to_vec();
    if let Some(key) = schedule.overlap_key()? {
        let request = KeyRequest::new(key);
        tasks.iter_mut().for_each(|task| task.key = Some(Box::new(request.clone())));
    }
    check_tasks(&tasks)?;
    Ok(tasks)
}

fn number_bytes(number: usize) -> Vec<u8> {
    number.to_string().into_bytes()
}

/// A moment as text; `None` if there is none.
fn read_moment(value: Value) -> Option<Timestamp> {
    let text = String::from_utf8(value.text()?).ok()?;
    text.parse::<f64>().ok().map(|at| Timestamp::from_micros(at as i64))
}

fn name_bytes(name: &ScheduleName) -> Vec<u8> {
    name.as_str().as_bytes().to_vec()
}

fn read_name(value: Value) -> Option<ScheduleName> {
    ScheduleName::new(std::str::from_utf8(&value.text()?).ok()?).ok()
}

fn shown(answer: ScheduleAnswer) -> Result<Vec<StoredSchedule>, Failure> {
    Ok(known(answer)?.into_iter().map(|known| known.schedule).collect())
}

fn known(answer: ScheduleAnswer) -> Result<Vec<KnownSchedule>, Failure> {
    let (mut values, mut known) = (answer.values.into_iter(), Vec::new());
    while let (Some(name), Some(record)) = (values.next(), values.next()) {
        let name = read_name(name).ok_or_else(unreadable_registry)?;
        let record = record.text().ok_or_else(unreadable_registry)?;
        known.push(decode(name, &record).map_err(unreadable)?);
    }
    Ok(known)
}

/// The beginning of a fire: the generation, the expected and the next time, and how many times are skipped.
fn fire_text(fire: &Fire, generation: f64) -> Vec<u8> {
    let mut text = generation.to_le_bytes().to_vec();
    text.extend(codec::moment(fire.expected));
    text.push(u8::from(fire.next.is_some()));
    text.extend(codec::moment(fire.next.unwrap_or(Timestamp::EPOCH)));
    text.extend((fire.skipped as f64).to_le_bytes());
    text
}

/// A schedule as it is stored; Redis sets the generation.
fn encode(schedule: &StoredSchedule) -> Vec<u8> {
    let StoredSchedule { tube, template, timing, until, paused, next, last, .. } = schedule;
    let moment = |moment: &Option<Timestamp>| codec::moment(moment.unwrap_or(Timestamp::EPOCH));
    let mut bytes = 0f64.to_le_bytes().to_vec();
    bytes.push(codec::bits([*paused, next.is_some(), last.is_some()].into_iter()));
    bytes.extend([moment(next), moment(last)].concat());
    bytes.extend((schedule.fired as f64).to_le_bytes());
    bytes.extend((schedule.skipped as f64).to_le_bytes());
    bytes.extend(codec::short_text(tube.as_str()));
    bytes.extend(codec::short_text(timing));
    let catch_up = match schedule.catch_up {
        CatchUp::None => 0,
        CatchUp::Last => 1,
        CatchUp::All => 2,
    };
    bytes.push(catch_up);
    let skips = schedule.overlap == Overlap::Skip;
    bytes.push(codec::bits([skips, until.is_some()].into_iter()));
    bytes.extend(moment(until));
    encode_template(&mut bytes, template);
    bytes
}

fn decode(name: ScheduleName, record: &[u8]) -> Result<KnownSchedule, Unreadable> {
    let mut bytes = ByteReader(record);
    let (generation, flags) = (bytes.number()?, bytes.byte()?);
    let (next, last) = (bytes.moment()?, bytes.moment()?);
    let (fired, skipped) = (bytes.count()?, bytes.count()?);
    let tube = TubeName::new(bytes.short_text()?).map_err(|_| DAMAGED)?;
    let timing = bytes.short_text()?.into();
    let catch_up = match bytes.byte()? {
        0 => CatchUp::None,
        1 => CatchUp::Last,
        2 => CatchUp::All,
        _ => return Err(DAMAGED),
    };
    let (more, until) = (bytes.byte()?, bytes.moment()?);
    let schedule = StoredSchedule {
        name,
        tube,
        template: decode_template(&mut bytes)?,
        timing,
        catch_up,
        overlap: if more & 1 != 0 { Overlap::Skip } else { Overlap::Allow },
        until: (more & 2 != 0).then_some(until),
        paused: flags & 1 != 0,
        next: (flags & 2 != 0).then_some(next),
        last: (flags & 4 != 0).then_some(last),
        fired,
        skipped,
    };
    Ok(KnownSchedule { schedule, generation })
}

const DAMAGED: Unreadable = Unreadable("a schedule is damaged");

/// The task of a schedule: which of its parts are given, these parts, and its body.
fn encode_template(bytes: &mut Vec<u8>, template: &NewTask) {
    let NewTask { body, pri, ttl, ttr, delay, at, subqueue, .. } = template;
    let NewTask { semaphore_priority, attempts_max, key, .. } = template;
    let given = [pri.is_some(), ttl.is_some(), ttr.is_some(), delay.is_some(), at.is_some()];
    let replaces = key.as_ref().is_some_and(|key| key.on_conflict == OnConflict::Replace);
    let more = [attempts_max.is_some(), key.is_some(), replaces, body.meta().is_some()];
    let rest = [subqueue.is_some(), semaphore_priority.is_some()];
    bytes.push(codec::bits(given.into_iter().chain(rest)));
    bytes.push(codec::bits(more.into_iter()));
    bytes.extend(pri.map(u64::to_be_bytes).into_iter().flatten());
    for span in [ttl, ttr, delay].into_iter().flatten() {
        bytes.extend(codec::span_bytes(*span));
    }
    bytes.extend(at.map(codec::moment).into_iter().flatten());
    bytes.extend(subqueue.as_deref().map(codec::short_text).into_iter().flatten());
    bytes.extend(semaphore_priority.map(|own| own.value().to_le_bytes()).into_iter().flatten());
    bytes.extend(attempts_max.map(u32::to_le_bytes).into_iter().flatten());
    if let Some(KeyRequest { held, .. }) = key.as_deref() {
        bytes.extend(codec::span_bytes(held.unique_for));
        bytes.extend(codec::short_text(held.key.as_str()));
    }
    codec::long_text(bytes, body.payload());
    if let Some(meta) = body.meta() {
        codec::long_text(bytes, meta);
    }
}

fn decode_template(bytes: &mut ByteReader<'_>) -> Result<NewTask, Unreadable> {
    let (given, more) = (bytes.byte()?, bytes.byte()?);
    let mut task = NewTask::new(Body::new(&[]));
    if given & 1 != 0 {
        task.pri = Some(bytes.big()?);
    }
    for (flag, span) in [(2, &mut task.ttl), (4, &mut task.ttr), (8, &mut task.delay)] {
        if given & flag != 0 {
            *span = Some(bytes.span()?);
        }
    }
    if given & 16 != 0 {
        task.at = Some(bytes.moment()?);
    }
    if given & 32 != 0 {
        task.subqueue = Some(Arc::from(bytes.short_text()?));
    }
    if given & 64 != 0 {
        task.semaphore_priority = Some(Priority::new(bytes.number()?).map_err(|_| DAMAGED)?);
    }
    if more & 1 != 0 {
        task.attempts_max = Some(bytes.small()?);
    }
    if more & 2 != 0 {
        let unique_for = bytes.span()?;
        let key = Key::new(bytes.short_text()?).map_err(|_| DAMAGED)?;
        let on_conflict = if more & 4 != 0 { OnConflict::Replace } else { OnConflict::Keep };
        let held = HeldKey { key, unique_for };
        task.key = Some(Box::new(KeyRequest { held, on_conflict }));
    }
    let payload = bytes.long_text()?;
    let meta = if more & 8 != 0 { bytes.long_text()? } else { &[] };
    task.body = Body::with_meta(payload, meta);
    Ok(task)
}

//! Decodes the rows of a call into replies, and collects what they say about counters and hints.

use std::collections::HashMap;

use taskyard_core::limits::BATCH_BYTES_MAX;
use taskyard_core::{
    Command, Error, Lease, Outcome, Placed, Reply, State, TaskId, Timestamp, TubeName, no_semaphore,
};
use tokio_postgres::Row;

use super::calls::task_count;
use super::codec::{self, DecodeError, RowLocation, count_from_sql, get, id_to_sql};
use super::connection::LOCKED;
use super::counter_deltas::{CounterDeltas, TickTimes};
use super::counters::Counters;
use super::head_hints::TakeResult;
use super::limited_tubes::LimitedTubes;
use super::list_answers::{listed, positions, searched};
use super::plan::{CallDetail, StepRequest};
use super::semaphores;
use super::status::{event, finished, head, outcome, put, state, tube_status};
use super::tube_answers::{created, found, known, taken_num};

/// The replies of one call.
pub(super) type Replies = Vec<Result<Reply, Error>>;

/// Decodes the answers of a batch in order.
pub(super) struct AnswerReader<'a> {
    pub counters: &'a Counters,
    pub deltas: CounterDeltas,
    /// What the latest take found.
    pub found: TakeResult,
    /// How long the latest tick took, in microseconds.
    pub tick_cost: i64,
    /// A tube that the latest ack has shown to have neither sub-queues nor a capacity.
    pub plain: Option<TubeName>,
    /// The row locations of deliveries.
    pub row_locations: Vec<(Lease, TaskId, RowLocation)>,
    /// A tube that the latest answer has shown to have a semaphore.
    pub gated: Option<TubeName>,
    /// Tubes whose rate limit was reached.
    pub limited: &'a mut LimitedTubes,
}

impl<'a> AnswerReader<'a> {
    /// A reader for a server with these counters.
    pub fn new(counters: &'a Counters, limited: &'a mut LimitedTubes) -> Self {
        AnswerReader {
            counters,
            deltas: CounterDeltas::default(),
            found: TakeResult::default(),
            tick_cost: 0,
            plain: None,
            row_locations: Vec::new(),
            gated: None,
            limited,
        }
    }

    /// The replies to what was asked with one call.
    pub fn read(&mut self, request: &StepRequest, rows: &[Row]) -> Result<Replies, DecodeError> {
        match request {
            StepRequest::Refused(error) => Ok(vec![Err(error.clone())]),
            StepRequest::Commands(commands, detail) => self.commands(commands, detail, rows),
            StepRequest::Lock => Ok(Vec::new()),
            StepRequest::Moved => {
                semaphores::read_moved(rows, &mut self.deltas).map(|()| Vec::new())
            }
        }
    }

    fn commands(
        &mut self,
        commands: &[Command],
        detail: &CallDetail,
        rows: &[Row],
    ) -> Result<Replies, DecodeError> {
        let sizes = || commands.iter().map(task_count).collect::<Vec<_>>();
        match (commands, detail) {
            ([Command::Put { tube, .. }, ..], _) => self.put(tube, &sizes(), rows),
            ([Command::Take(take), ..], _) => self.take(take, commands, rows),
            ([Command::Finish { tube, show, .. }, ..], CallDetail::Ack { order }) => {
                self.ack(tube, *show, &sizes(), order, rows)
            }
            ([command], _) => Ok(vec![self.single(command, rows)?]),
            _ => semaphores::read_all(commands, rows, &mut self.deltas),
        }
    }

    fn single(
        &mut self,
        command: &Command,
        rows: &[Row],
    ) -> Result<Result<Reply, Error>, DecodeError> {
        Ok(match command {
            Command::CreateTube { tube, options, if_not_exists } => {
                created(tube, options, *if_not_exists, first(rows)?)?
            }
            Command::AlterTube { tube, change } => {
                let reply = self.tubes(Some(tube), rows)?;
                if let Ok(Reply::Tubes(tubes)) = &reply
                    && let Some(info) = tubes.first()
                {
                    self.deltas.back(tube, info.takeable);
                    let room = info.options.capacity.unwrap_or(u64::MAX);
                    let room = room.saturating_sub(info.stats.tasks.total());
                    self.deltas.room(tube, change.capacity.is_some().then_some(room));
                    // The next tick removes the done tasks that are not kept any more.
                    let retention = change.keep_done.is_some() || change.keep_done_max.is_some();
                    self.deltas.deadline(retention.then_some(0));
                }
                reply
            }
            Command::NameTube { tube, name, queue_num } => {
                self.named(tube, name, *queue_num, first(rows)?)?
            }
            Command::DropTube { tube } => self.drop_tube(tube, first(rows)?)?,
            Command::Tubes { tube } => self.tubes(tube.as_ref(), rows)?,
            Command::Finish { tube, items, show } => self.finish(tube, items.len(), *show, rows)?,
            Command::Delete { tube, ids, show } => self.delete(tube, ids.len(), *show, rows)?,
            Command::Kick { tube, .. } => self.kick(tube, first(rows)?)?,
            Command::KickTasks { tube, ids, .. } => self.kick_tasks(tube, ids, first(rows)?)?,
            Command::Peek { tube, .. } | Command::Deliveries { tube, .. } => tasks(tube, rows)?,
            Command::List(list) => listed(&list.tube, first(rows)?)?,
            Command::Search(search) => searched(search, rows)?,
            Command::Positions { tube, .. } => positions(tube, rows)?,
            Command::Truncate { tube } => {
                let row = first(rows)?;
                self.deltas.room(tube, get::<Option<i64>>(row, 2)?.map(count_from_sql));
                self.deltas.deadline(get(row, 3)?);
                found(tube, get(row, 0)?).map(|()| Reply::Nothing)
            }
            Command::ReleaseAll { tube } => {
                found(tube, self.events(rows, false)?).map(|()| Reply::Nothing)
            }
            Command::JoinSession { session, .. } => {
                known(*session, self.events(rows, true)?).map(|()| Reply::Session(*session))
            }
            Command::LeaveSession { session } => {
                known(*session, self.events(rows, true)?).map(|()| Reply::Nothing)
            }
            Command::ConfigureSessions { .. } => Ok(Reply::Nothing),
            Command::Semaphore(command) => semaphores::read(command, rows, &mut self.deltas)?,
            Command::Tick { .. } => Ok(Reply::Ticked(self.tick(rows)?)),
            Command::Schedule(command) => self.schedule(command, rows)?,
            Command::Put { .. } | Command::Take(_) => {
                return Err(
                    "the answer of a put or a take was read as that of a single command".into()
                );
            }
        })
    }

    /// The replies to puts of these sizes into one tube.
    pub fn put(
        &mut self,
        tube: &TubeName,
        sizes: &[usize],
        rows: &[Row],
    ) -> Result<Replies, DecodeError> {
        let row = first(rows)?;
        if let Err(error) = put_done(tube, row)? {
            return Ok(vec![Err(error); sizes.len()]);
        }
        if row.len() > put::COLUMNS {
            return self.put_keyed(tube, sizes, row);
        }
        let accepted = get::<Option<Vec<bool>>>(row, 3)?;
        let mut ids = get::<Option<Vec<i64>>>(row, 4)?.unwrap_or_default().into_iter();
        let delayed = get::<Option<Vec<bool>>>(row, 5)?;
        let mut delayed = delayed.into_iter().flatten();
        self.deltas.deadline(get(row, 6)?);
        self.deltas.best_put = get(row, 7)?;
        let (mut count, mut ready) = (0, 0);
        let mut replies = Vec::with_capacity(sizes.len());
        for (place, size) in sizes.iter().enumerate() {
            if accepted.as_ref().is_some_and(|accepted| accepted.get(place) != Some(&true)) {
                let capacity = get::<Option<i64>>(row, 2)?.map_or(u64::MAX, count_from_sql);
                replies.push(Err(Error::TubeFull { tube: tube.clone(), capacity }));
                continue;
            }
            let mut placed = Vec::with_capacity(*size);
            for id in ids.by_ref().take(*size) {
                let waits = delayed.next().unwrap_or(false);
                ready += u64::from(!waits);
                let state = if waits { State::Delayed } else { State::Ready };
                placed.push(Placed { id: TaskId(count_from_sql(id)), state, existing: false });
            }
            count += placed.len() as u64;
            replies.push(Ok(Reply::Put(placed)));
        }
        self.deltas.of(codec::number(row, 1)?).calls.put += count;
        self.deltas.ready(tube, ready);
        Ok(replies)
    }

    fn ack(
        &mut self,
        tube: &TubeName,
        show: bool,
        sizes: &[usize],
        order: &[usize],
        rows: &[Row],
    ) -> Result<Replies, DecodeError> {
        let head = match head(tube, rows)? {
            Ok(head) => head,
            Err(error) => return Ok(vec![Err(error); sizes.len()]),
        };
        let answered = outcomes(order.len(), show, &head, rows)?;
        let done = answered.iter().filter(|outcome| matches!(outcome, Outcome::Done(_))).count();
        let counted = self.deltas.of(head.number);
        counted.calls.ack += done as u64;
        counted.done += done as u64;
        self.left(tube, &head, done as u64);
        self.plain = (!head.lets_others && head.room.is_none()).then(|| tube.clone());
        let mut outcomes = vec![Outcome::Missing; order.len()];
        for (outcome, place) in answered.into_iter().zip(order) {
            outcomes[*place] = outcome;
        }
        let mut outcomes = outcomes.into_iter();
        let share = |size: &usize| Ok(Reply::Finished(outcomes.by_ref().take(*size).collect()));
        Ok(sizes.iter().map(share).collect())
    }

    fn finish(
        &mut self,
        tube: &TubeName,
        size: usize,
        show: bool,
        rows: &[Row],
    ) -> Result<Result<Reply, Error>, DecodeError> {
        let head = match head(tube, rows)? {
            Ok(head) => head,
            Err(error) => return Ok(Err(error)),
        };
        let mut ready = 0;
        for row in rows.iter().filter(|row| is_item(row)) {
            let counted = self.deltas.of(head.number);
            let event = get::<Option<i16>>(row, 2)?;
            match event {
                Some(finished::ACKED) => {
                    counted.calls.ack += 1;
                    counted.done += 1;
                }
                Some(finished::RELEASED) => counted.calls.release += 1,
                Some(finished::USED_UP) => {
                    counted.calls.release += 1;
                    counted.calls.bury += 1;
                }
                Some(finished::BURIED) => counted.calls.bury += 1,
                Some(finished::TOUCHED) => counted.calls.touch += 1,
                _ => {}
            }
            let state = get::<Option<i16>>(row, 4)?;
            ready += u64::from(event == Some(finished::RELEASED) && state == Some(state::READY));
        }
        self.left(tube, &head, size as u64);
        self.deltas.back(tube, ready);
        self.deltas.deadline(head.deadline);
        Ok(Ok(Reply::Finished(outcomes(size, show, &head, rows)?)))
    }

    fn delete(
        &mut self,
        tube: &TubeName,
        size: usize,
        show: bool,
        rows: &[Row],
    ) -> Result<Result<Reply, Error>, DecodeError> {
        let head = match head(tube, rows)? {
            Ok(head) => head,
            Err(error) => return Ok(Err(error)),
        };
        let mut outcomes = vec![Outcome::Missing; size];
        let (mut deleted, mut done) = (0, 0);
        for row in rows.iter().filter(|row| is_item(row)) {
            let place = usize::try_from(get::<i32>(row, 0)? - 1)?;
            let task = if show { Some(Box::new(codec::viewed(row)?)) } else { None };
            *outcomes.get_mut(place).ok_or("an outcome without an item")? = Outcome::Done(task);
            deleted += 1;
            // One that was done already is counted as such.
            done += u64::from(get::<i16>(row, 4)? != state::DONE);
        }
        let counted = self.deltas.of(head.number);
        counted.calls.delete += deleted;
        counted.done += done;
        self.left(tube, &head, done);
        Ok(Ok(Reply::Finished(outcomes)))
    }

    /// Notes that deliveries ended or tasks were deleted.
    fn left(&mut self, tube: &TubeName, head: &AnswerHead, count: u64) {
        self.deltas.room(tube, head.room);
        if head.lets_others {
            self.deltas.ready(tube, count);
        }
        if head.is_gated {
            self.gated = Some(tube.clone());
        }
        self.deltas.deadline(head.deadline);
    }

    fn kick(&mut self, tube: &TubeName, row: &Row) -> Result<Result<Reply, Error>, DecodeError> {
        if let Err(error) = found(tube, get(row, 0)?) {
            return Ok(Err(error));
        }
        let kicked = count_from_sql(get(row, 2)?);
        self.deltas.of(codec::number(row, 1)?).calls.kick += kicked;
        self.deltas.back(tube, kicked);
        self.deltas.deadline(get(row, 3)?);
        Ok(Ok(Reply::Kicked(kicked)))
    }

    fn kick_tasks(
        &mut self,
        tube: &TubeName,
        ids: &[TaskId],
        row: &Row,
    ) -> Result<Result<Reply, Error>, DecodeError> {
        if let Err(error) = found(tube, get(row, 0)?) {
            return Ok(Err(error));
        }
        let column = |place| get::<Option<Vec<i64>>>(row, place).map(Option::unwrap_or_default);
        let (kicked, others) = (column(2)?, column(3)?);
        let count = kicked.len() as u64;
        self.deltas.of(codec::number(row, 1)?).calls.kick += count;
        self.deltas.back(tube, count);
        self.deltas.deadline(get(row, 4)?);
        // A task that is named twice is buried for the first of them only.
        let mut known: HashMap<i64, Outcome> =
            others.into_iter().map(|id| (id, Outcome::Stale)).collect();
        known.extend(kicked.into_iter().map(|id| (id, Outcome::Done(None))));
        let outcome = |id: &TaskId| match known.get_mut(&id_to_sql(*id)) {
            Some(outcome) => std::mem::replace(outcome, Outcome::Stale),
            None => Outcome::Missing,
        };
        Ok(Ok(Reply::Finished(ids.iter().map(outcome).collect())))
    }

    fn drop_tube(
        &mut self,
        tube: &TubeName,
        row: &Row,
    ) -> Result<Result<Reply, Error>, DecodeError> {
        Ok(match get::<i16>(row, 0)? {
            tube_status::DONE => {
                self.deltas.dropped(codec::number(row, 1)?);
                self.deltas.deadline(get(row, 2)?);
                Ok(Reply::Nothing)
            }
            tube_status::TUBE_HAS_TAKEN => Err(Error::TubeHasTaken(tube.clone())),
            _ => Err(Error::TubeNotFound(tube.clone())),
        })
    }

    /// The reply to a command that renames a tube.
    fn named(
        &mut self,
        tube: &TubeName,
        name: &TubeName,
        queue_num: Option<u32>,
        row: &Row,
    ) -> Result<Result<Reply, Error>, DecodeError> {
        Ok(match get::<i16>(row, 0)? {
            tube_status::DONE => {
                let mut info = codec::tube_after(row, 2)?;
                self.counters.show(info.number, &self.deltas, &mut info.stats);
                Ok(Reply::Tubes(vec![info]))
            }
            tube_status::TUBE_EXISTS => Err(Error::TubeExists(name.clone())),
            tube_status::QUEUE_NUM_TAKEN => Err(taken_num(codec::name(get(row, 1)?)?, queue_num)?),
            tube_status::OTHER_QUEUE_NUM => {
                Err(taken_num(tube.clone(), get::<&str>(row, 1)?.parse().ok())?)
            }
            _ => Err(Error::TubeNotFound(tube.clone())),
        })
    }

    fn tubes(
        &mut self,
        tube: Option<&TubeName>,
        rows: &[Row],
    ) -> Result<Result<Reply, Error>, DecodeError> {
        if let Some(tube) = tube.filter(|_| rows.is_empty()) {
            return Ok(Err(Error::TubeNotFound(tube.clone())));
        }
        let mut tubes = rows.iter().map(codec::tube).collect::<Result<Vec<_>, _>>()?;
        for info in &mut tubes {
            self.counters.show(info.number, &self.deltas, &mut info.stats);
        }
        Ok(Ok(Reply::Tubes(tubes)))
    }

    /// Counts what happened to tasks without a command for them. What a session held when it ended has failed. Returns the
    /// status.
    pub fn events(&mut self, rows: &[Row], ends_sessions: bool) -> Result<i16, DecodeError> {
        let mut status = tube_status::DONE;
        for row in rows {
            let event: i32 = get(row, 0)?;
            if event == event::END {
                status = get(row, 4)?;
                self.deltas.deadline(get(row, 3)?);
                continue;
            }
            if event == event::CLOCK {
                match get::<Option<i32>>(row, 1)? {
                    Some(event::NEXT_SCHEDULE) => self.deltas.all_schedules(get(row, 3)?),
                    Some(event::KEYS_FREED_EARLY) => {
                        self.deltas.keys_freed_early += count_from_sql(get(row, 3)?);
                    }
                    _ => {}
                }
            }
            if event == event::CLOCK || event == event::SEMAPHORE_EVENTS {
                self.deltas.news(event == event::SEMAPHORE_EVENTS, None);
                continue;
            }
            let count = count_from_sql(get(row, 3)?);
            let tube = codec::name(get(row, 2)?)?;
            match event {
                event::ROOM => self.deltas.room(&tube, Some(count)),
                event::DELAY_ENDED | event::LEASE_ENDED | event::RELEASED => {
                    self.deltas.back(&tube, count);
                }
                _ => {}
            }
            let is_failure = match event {
                event::LEASE_ENDED => true,
                event::RELEASED => ends_sessions,
                _ => false,
            };
            self.deltas.failed(&tube, if is_failure { count } else { 0 });
            let counted = self.deltas.of(codec::number(row, 1)?);
            match event {
                event::DELAY_ENDED => counted.calls.delay += count,
                event::LEASE_ENDED => counted.calls.ttr += count,
                event::ATTEMPTS_USED_UP => counted.calls.bury += count,
                event::EXPIRED => {
                    counted.calls.delete += count;
                    counted.calls.ttl += count;
                    counted.done += count;
                }
                event::RELEASED => counted.calls.release += count,
                _ => {}
            }
        }
        Ok(status)
    }

    fn tick(&mut self, rows: &[Row]) -> Result<usize, DecodeError> {
        self.events(rows, true)?;
        let [.., end, clock] = rows else { return Err("a tick has no end".into()) };
        let now: i64 = get(clock, 3)?;
        for tube in self.limited.refilled(now) {
            self.deltas.ready(&tube, 1);
        }
        self.tick_cost = get::<Option<i32>>(clock, 1)?.map_or(0, i64::from);
        self.deltas.exact = Some(TickTimes { deadline: get(end, 3)?, clock: get(clock, 3)? });
        Ok(usize::try_from(get::<i32>(end, 1)?)?)
    }
}

/// The error of a put that was refused as a whole.
pub(super) fn put_done(tube: &TubeName, row: &Row) -> Result<Result<(), Error>, DecodeError> {
    Ok(match get(row, 0)? {
        put::LOCKED => Err(Error::StoreUnavailable(LOCKED.into())),
        put::UNGATED => Err(no_semaphore(tube)),
        status => found(tube, status),
    })
}

/// Item 0 of an answer, which is about the whole.
struct AnswerHead {
    number: u32,
    room: Option<u64>,
    /// Whether the end of a delivery may make another task of the sub-queue or semaphore ready.
    lets_others: bool,
    is_gated: bool,
    deadline: Option<i64>,
    /// When the rate limit of the tube allows the next delivery, if it allows none now.
    next_token: Option<Timestamp>,
}

pub(super) fn is_item(row: &Row) -> bool {
    row.try_get::<_, i32>(0).is_ok_and(|item| item > 0)
}

fn head(tube: &TubeName, rows: &[Row]) -> Result<Result<AnswerHead, Error>, DecodeError> {
    let row = rows.iter().find(|row| !is_item(row)).ok_or("an answer has no head")?;
    if let Err(error) = refused(tube, row)? {
        return Ok(Err(error));
    }
    Ok(Ok(AnswerHead {
        number: u32::try_from(get::<i64>(row, 12)?)?,
        room: get::<Option<i64>>(row, 3)?.map(count_from_sql),
        lets_others: get::<Option<i16>>(row, 4)?.is_some_and(|state| state > 0),
        is_gated: get::<Option<i16>>(row, 4)?.is_some_and(|state| state >= 2),
        deadline: get(row, 9)?,
        next_token: next_token(row)?,
    }))
}

/// When the rate limit allows the next delivery, from the head of an answer.
fn next_token(row: &Row) -> Result<Option<Timestamp>, DecodeError> {
    Ok(get::<Option<i64>>(row, 6)?.map(Timestamp::from_micros))
}

/// The error in the head of an answer, if the whole was refused.
fn refused(tube: &TubeName, row: &Row) -> Result<Result<(), Error>, DecodeError> {
    Ok(match get::<i16>(row, 1)? {
        head::TOO_LARGE => Err(Error::TooLarge {
            what: "the size of the tasks to show, in bytes,",
            size: usize::try_from(get::<i64>(row, 3)?)?,
            limit: BATCH_BYTES_MAX,
            advice: "ask for fewer at a time",
        }),
        head::NO_TOUCH => {
            let keyed = get::<Option<i16>>(row, 4)?.is_some_and(|state| state % 2 == 1);
            let kind = if keyed { "utube" } else { "fifo" };
            Err(Error::Unsupported { kind, verb: "touch" })
        }
        status => found(tube, status),
    })
}

fn outcomes(
    size: usize,
    show: bool,
    head: &AnswerHead,
    rows: &[Row],
) -> Result<Vec<Outcome>, DecodeError> {
    let mut outcomes = vec![Outcome::Done(None); size];
    for row in rows.iter().filter(|row| is_item(row)) {
        let place = usize::try_from(get::<i32>(row, 0)? - 1)?;
        *outcomes.get_mut(place).ok_or("an outcome without an item")? = match get::<i16>(row, 1)? {
            outcome::DONE if show => {
                Outcome::Done(Some(Box::new(codec::viewed_in(row, head.next_token)?)))
            }
            outcome::DONE => Outcome::Done(None),
            outcome::STALE => Outcome::Stale,
            _ => Outcome::Missing,
        };
    }
    Ok(outcomes)
}

/// The tasks in the rows of items.
pub(super) fn tasks(tube: &TubeName, rows: &[Row]) -> Result<Result<Reply, Error>, DecodeError> {
    let head = rows.iter().find(|row| !is_item(row)).ok_or("an answer has no head")?;
    if let Err(error) = refused(tube, head)? {
        return Ok(Err(error));
    }
    let mut items = rows.iter().filter(|row| is_item(row)).collect::<Vec<_>>();
    items.sort_by_key(|row| row.try_get::<_, i32>(0).unwrap_or_default());
    let next = next_token(head)?;
    let tasks = items.into_iter().map(|row| codec::viewed_in(row, next));
    let tasks = tasks.collect::<Result<Vec<_>, _>>()?;
    Ok(Ok(Reply::Tasks(tasks)))
}

fn first(rows: &[Row]) -> Result<&Row, DecodeError> {
    rows.first().ok_or_else(|| "an answer has no row".into())
}

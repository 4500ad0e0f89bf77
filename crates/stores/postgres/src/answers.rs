//! From rows to replies.

use taskyard_core::limits::{BATCH_BYTES_MAX, TUBES_MAX};
use taskyard_core::{
    Error, Lease, Outcome, Placed, Reply, SessionId, State, TaskId, TubeName, no_semaphore,
};
use tokio_postgres::Row;

use super::codec::{self, Place, Unreadable, count_from_sql, get, id_to_sql, pri_to_sql};
use super::connection::LOCKED;
use super::counters::Counters;
use super::heads::Found;
use super::plan::Ask;
use super::semaphores;
use super::tally::{Exact, Tally};

/// The status of a put that would have to wait for somebody's open transaction.
const PUT_LOCKED: i16 = 8;
/// The status of a put with priorities for a semaphore that is not there.
const PUT_UNGATED: i16 = 9;

/// The replies of one call.
pub(super) type Replies = Vec<Result<Reply, Error>>;

/// Reads the answers of a batch in order, and counts.
pub(super) struct Reader<'a> {
    pub counters: &'a Counters,
    pub tally: Tally,
    /// What the latest take found.
    pub found: Found,
    /// How long the latest tick took, in microseconds.
    pub tick_cost: i64,
    /// A tube that the latest ack has shown to have neither sub-queues nor a capacity.
    pub plain: Option<TubeName>,
    /// Where the deliveries of takes lie.
    pub places: Vec<(Lease, TaskId, Place)>,
    /// A tube that the latest answer has shown to have a semaphore.
    pub gated: Option<TubeName>,
}

impl<'a> Reader<'a> {
    /// Reads for a server that has counted this so far.
    pub fn new(counters: &'a Counters) -> Self {
        Reader {
            counters,
            tally: Tally::default(),
            found: Found::default(),
            tick_cost: 0,
            plain: None,
            places: Vec::new(),
            gated: None,
        }
    }

    /// The replies to what was asked with one call.
    pub fn read(&mut self, ask: &Ask, rows: &[Row]) -> Result<Replies, Unreadable> {
        match ask {
            Ask::Put { tube, sizes, .. } => self.put(tube, sizes, first(rows)?),
            Ask::Take { tube, session, counts, .. } => self.take(tube, *session, counts, rows),
            Ask::Ack { .. } => self.ack(ask, rows),
            Ask::Semaphores(asks) => semaphores::read_all(asks, rows, &mut self.tally),
            Ask::LockSemaphores | Ask::LockTube => Ok(Vec::new()),
            Ask::Moved => semaphores::read_moved(rows, &mut self.tally).map(|()| Vec::new()),
            other => Ok(vec![self.single(other, rows)?]),
        }
    }

    fn single(&mut self, ask: &Ask, rows: &[Row]) -> Result<Result<Reply, Error>, Unreadable> {
        Ok(match ask {
            Ask::Refused(error) => Err(error.clone()),
            Ask::Create { tube, if_not_exists, semaphore, queue_num } => {
                match get::<i16>(first(rows)?, 0)? {
                    0 => Ok(Reply::Created(true)),
                    6 => Err(taken_num(codec::name(get(first(rows)?, 2)?)?, *queue_num)?),
                    4 => Err(Error::TooManyTubes(TUBES_MAX)),
                    8 => {
                        let key =
                            semaphore.clone().ok_or("a semaphore that nobody named is missing")?;
                        Err(Error::SemaphoreNotFound(key))
                    }
                    _ if *if_not_exists => Ok(Reply::Created(false)),
                    _ => Err(Error::TubeExists(tube.clone())),
                }
            }
            Ask::Alter { tube, change } => {
                let reply = self.tubes(Some(tube), rows)?;
                if let Ok(Reply::Tubes(tubes)) = &reply
                    && let Some(info) = tubes.first()
                {
                    self.tally.back(tube, info.takeable);
                    let room = info.options.capacity.unwrap_or(u64::MAX);
                    let room = room.saturating_sub(info.stats.tasks.total());
                    self.tally.room(tube, change.capacity.is_some().then_some(room));
                }
                reply
            }
            Ask::Name { tube, name, queue_num } => {
                self.named(tube, name, *queue_num, first(rows)?)?
            }
            Ask::Drop { tube } => self.drop_tube(tube, first(rows)?)?,
            Ask::Tubes { tube } => self.tubes(tube.as_ref(), rows)?,
            Ask::Finish { tube, size, show } => self.finish(tube, *size, *show, rows)?,
            Ask::Delete { tube, size, show } => self.delete(tube, *size, *show, rows)?,
            Ask::Kick { tube } => self.kick(tube, first(rows)?)?,
            Ask::Peek { tube } | Ask::Deliveries { tube } => tasks(tube, rows)?,
            Ask::Truncate { tube } => {
                let row = first(rows)?;
                self.tally.room(tube, get::<Option<i64>>(row, 2)?.map(count_from_sql));
                self.tally.deadline(get(row, 3)?);
                found(tube, get(row, 0)?).map(|()| Reply::Nothing)
            }
            Ask::ReleaseAll { tube } => match self.events(rows)? {
                1 => Err(Error::TubeNotFound(tube.clone())),
                _ => Ok(Reply::Nothing),
            },
            Ask::Join { session } => match self.events(rows)? {
                2 => Err(Error::SessionUnknown(*session)),
                _ => Ok(Reply::Session(*session)),
            },
            Ask::Leave { session } => match self.events(rows)? {
                2 => Err(Error::SessionUnknown(*session)),
                _ => Ok(Reply::Nothing),
            },
            Ask::Configure => Ok(Reply::Nothing),
            Ask::Semaphore(ask) => semaphores::read(ask, rows, &mut self.tally)?,
            Ask::Tick { .. } => Ok(Reply::Ticked(self.tick(rows)?)),
            Ask::Put { .. }
            | Ask::Take { .. }
            | Ask::Ack { .. }
            | Ask::Semaphores(_)
            | Ask::LockSemaphores
            | Ask::LockTube
            | Ask::Moved => {
                return Err("an answer was read in the wrong place".into());
            }
        })
    }

    fn put(&mut self, tube: &TubeName, sizes: &[usize], row: &Row) -> Result<Replies, Unreadable> {
        let status = get(row, 0)?;
        if status == PUT_LOCKED {
            return Ok(vec![Err(Error::StoreAway(LOCKED.into())); sizes.len()]);
        }
        if status == PUT_UNGATED {
            return Ok(vec![Err(no_semaphore(tube)); sizes.len()]);
        }
        if let Err(error) = found(tube, status) {
            return Ok(vec![Err(error); sizes.len()]);
        }
        let accepted = get::<Option<Vec<bool>>>(row, 3)?;
        let mut ids = get::<Option<Vec<i64>>>(row, 4)?.unwrap_or_default().into_iter();
        let delayed = get::<Option<Vec<bool>>>(row, 5)?;
        let mut delayed = delayed.into_iter().flatten();
        self.tally.deadline(get(row, 6)?);
        self.tally.best_put = get(row, 7)?;
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
                placed.push(Placed { id: TaskId(count_from_sql(id)), state });
            }
            count += placed.len() as u64;
            replies.push(Ok(Reply::Put(placed)));
        }
        self.tally.of(codec::number(row, 1)?).calls.put += count;
        self.tally.ready(tube, ready);
        Ok(replies)
    }

    fn take(
        &mut self,
        tube: &TubeName,
        session: Option<SessionId>,
        counts: &[usize],
        rows: &[Row],
    ) -> Result<Replies, Unreadable> {
        let mut tasks = Vec::with_capacity(rows.len());
        let (mut sweep, mut more) = (None, false);
        for row in rows {
            match (get::<i16>(row, 0)?, session) {
                (0, _) => {}
                (2, Some(session)) => {
                    return Ok(vec![Err(Error::SessionUnknown(session)); counts.len()]);
                }
                (3, _) => {
                    // There was more, for others who wait.
                    self.tally.ready(tube, 1);
                    more = true;
                    continue;
                }
                (4, _) => {
                    sweep = Some((get(row, 4)?, (get(row, 3)?, get(row, 2)?)));
                    continue;
                }
                _ => return Ok(vec![Err(Error::TubeNotFound(tube.clone())); counts.len()]),
            }
            self.tally.of(codec::number(row, 1)?).calls.take += 1;
            self.tally.deadline(get(row, 12)?);
            let task = codec::taken(row, session)?;
            if let Some(lease) = task.lease {
                self.places.push((lease, task.id, get(row, 15)?));
            }
            tasks.push(task);
        }
        tasks.sort_unstable_by_key(|task| (task.pri, task.id));
        let last = tasks.last().map(|task| (pri_to_sql(task.pri), id_to_sql(task.id)));
        let enough = more || tasks.len() == counts.iter().sum::<usize>();
        self.found = Found { last, enough, sweep };
        let mut tasks = tasks.into_iter();
        let share = |count: &usize| Ok(Reply::Taken(tasks.by_ref().take(*count).collect()));
        Ok(counts.iter().map(share).collect())
    }

    fn ack(&mut self, ask: &Ask, rows: &[Row]) -> Result<Replies, Unreadable> {
        let Ask::Ack { tube, sizes, order, show } = ask else { return Ok(Vec::new()) };
        let head = match head(tube, rows)? {
            Ok(head) => head,
            Err(error) => return Ok(vec![Err(error); sizes.len()]),
        };
        let answered = outcomes(order.len(), *show, rows)?;
        let done = answered.iter().filter(|outcome| matches!(outcome, Outcome::Done(_))).count();
        let counted = self.tally.of(head.number);
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
    ) -> Result<Result<Reply, Error>, Unreadable> {
        let head = match head(tube, rows)? {
            Ok(head) => head,
            Err(error) => return Ok(Err(error)),
        };
        let mut ready = 0;
        for row in rows.iter().filter(|row| is_item(row)) {
            let counted = self.tally.of(head.number);
            let event = get::<Option<i16>>(row, 2)?;
            match event {
                Some(1) => {
                    counted.calls.ack += 1;
                    counted.done += 1;
                }
                Some(2) => counted.calls.release += 1,
                Some(3) => {
                    counted.calls.release += 1;
                    counted.calls.bury += 1;
                }
                Some(4) => counted.calls.bury += 1,
                Some(5) => counted.calls.touch += 1,
                _ => {}
            }
            let state = get::<Option<i16>>(row, 4)?;
            ready += u64::from(event == Some(2) && state == Some(0));
        }
        self.left(tube, &head, size as u64);
        self.tally.back(tube, ready);
        self.tally.deadline(head.deadline);
        Ok(Ok(Reply::Finished(outcomes(size, show, rows)?)))
    }

    fn delete(
        &mut self,
        tube: &TubeName,
        size: usize,
        show: bool,
        rows: &[Row],
    ) -> Result<Result<Reply, Error>, Unreadable> {
        let head = match head(tube, rows)? {
            Ok(head) => head,
            Err(error) => return Ok(Err(error)),
        };
        let mut outcomes = vec![Outcome::Missing; size];
        let mut done = 0;
        for row in rows.iter().filter(|row| is_item(row)) {
            let place = usize::try_from(get::<i32>(row, 0)? - 1)?;
            let task = if show { Some(Box::new(codec::viewed(row)?)) } else { None };
            *outcomes.get_mut(place).ok_or("an outcome without an item")? = Outcome::Done(task);
            done += 1;
        }
        let counted = self.tally.of(head.number);
        counted.calls.delete += done;
        counted.done += done;
        self.left(tube, &head, done);
        Ok(Ok(Reply::Finished(outcomes)))
    }

    /// Tasks left their tube or its taken ones.
    fn left(&mut self, tube: &TubeName, head: &Head, count: u64) {
        self.tally.room(tube, head.room);
        if head.lets_others {
            self.tally.ready(tube, count);
        }
        if head.is_gated {
            self.gated = Some(tube.clone());
        }
        self.tally.deadline(head.deadline);
    }

    fn kick(&mut self, tube: &TubeName, row: &Row) -> Result<Result<Reply, Error>, Unreadable> {
        if let Err(error) = found(tube, get(row, 0)?) {
            return Ok(Err(error));
        }
        let kicked = count_from_sql(get(row, 2)?);
        self.tally.of(codec::number(row, 1)?).calls.kick += kicked;
        self.tally.back(tube, kicked);
        self.tally.deadline(get(row, 3)?);
        Ok(Ok(Reply::Kicked(kicked)))
    }

    fn drop_tube(
        &mut self,
        tube: &TubeName,
        row: &Row,
    ) -> Result<Result<Reply, Error>, Unreadable> {
        Ok(match get::<i16>(row, 0)? {
            0 => {
                self.tally.dropped(codec::number(row, 1)?);
                self.tally.deadline(get(row, 2)?);
                Ok(Reply::Nothing)
            }
            5 => Err(Error::TubeHasTaken(tube.clone())),
            _ => Err(Error::TubeNotFound(tube.clone())),
        })
    }

    /// A tube after it got a name, or why it did not.
    fn named(
        &mut self,
        tube: &TubeName,
        name: &TubeName,
        queue_num: Option<u32>,
        row: &Row,
    ) -> Result<Result<Reply, Error>, Unreadable> {
        Ok(match get::<i16>(row, 0)? {
            0 => {
                let mut info = codec::tube_from(row, 2)?;
                self.counters.show(info.number, &self.tally, &mut info.stats);
                Ok(Reply::Tubes(vec![info]))
            }
            3 => Err(Error::TubeExists(name.clone())),
            6 => Err(taken_num(codec::name(get(row, 1)?)?, queue_num)?),
            7 => Err(taken_num(tube.clone(), get::<&str>(row, 1)?.parse().ok())?),
            _ => Err(Error::TubeNotFound(tube.clone())),
        })
    }

    fn tubes(
        &mut self,
        tube: Option<&TubeName>,
        rows: &[Row],
    ) -> Result<Result<Reply, Error>, Unreadable> {
        if let Some(tube) = tube.filter(|_| rows.is_empty()) {
            return Ok(Err(Error::TubeNotFound(tube.clone())));
        }
        let mut tubes = rows.iter().map(codec::tube).collect::<Result<Vec<_>, _>>()?;
        for info in &mut tubes {
            self.counters.show(info.number, &self.tally, &mut info.stats);
        }
        Ok(Ok(Reply::Tubes(tubes)))
    }

    /// Counts what happened to tasks without their holders. Answers the status.
    fn events(&mut self, rows: &[Row]) -> Result<i16, Unreadable> {
        let mut status = 0;
        for row in rows {
            let event: i32 = get(row, 0)?;
            if event == 0 {
                status = get(row, 4)?;
                self.tally.deadline(get(row, 3)?);
                continue;
            }
            if event == 6 || event == 8 {
                self.tally.news(event == 8, None);
                continue;
            }
            let count = count_from_sql(get(row, 3)?);
            let tube = codec::name(get(row, 2)?)?;
            match event {
                7 => self.tally.room(&tube, Some(count)),
                1 | 2 | 5 => self.tally.back(&tube, count),
                _ => {}
            }
            let counted = self.tally.of(codec::number(row, 1)?);
            match event {
                1 => counted.calls.delay += count,
                2 => counted.calls.ttr += count,
                3 => counted.calls.bury += count,
                4 => {
                    counted.calls.delete += count;
                    counted.calls.ttl += count;
                    counted.done += count;
                }
                5 => counted.calls.release += count,
                _ => {}
            }
        }
        Ok(status)
    }

    fn tick(&mut self, rows: &[Row]) -> Result<usize, Unreadable> {
        self.events(rows)?;
        let [.., end, clock] = rows else { return Err("a tick has no end".into()) };
        self.tick_cost = get::<Option<i32>>(clock, 1)?.map_or(0, i64::from);
        self.tally.exact = Some(Exact { deadline: get(end, 3)?, clock: get(clock, 3)? });
        Ok(usize::try_from(get::<i32>(end, 1)?)?)
    }
}

/// What is said about a whole answer.
struct Head {
    number: u32,
    room: Option<u64>,
    /// Whether a task that leaves may let others of its sub-queue or semaphore run.
    lets_others: bool,
    is_gated: bool,
    deadline: Option<i64>,
}

fn is_item(row: &Row) -> bool {
    row.try_get::<_, i32>(0).is_ok_and(|item| item > 0)
}

fn head(tube: &TubeName, rows: &[Row]) -> Result<Result<Head, Error>, Unreadable> {
    let row = rows.iter().find(|row| !is_item(row)).ok_or("an answer has no head")?;
    if let Err(error) = refused(tube, row)? {
        return Ok(Err(error));
    }
    Ok(Ok(Head {
        number: u32::try_from(get::<i64>(row, 12)?)?,
        room: get::<Option<i64>>(row, 3)?.map(count_from_sql),
        lets_others: get::<Option<i16>>(row, 4)?.is_some_and(|state| state > 0),
        is_gated: get::<Option<i16>>(row, 4)?.is_some_and(|state| state >= 2),
        deadline: get(row, 9)?,
    }))
}

/// Whether the head of an answer refuses the whole.
fn refused(tube: &TubeName, row: &Row) -> Result<Result<(), Error>, Unreadable> {
    Ok(match get::<i16>(row, 1)? {
        6 => Err(Error::TooLarge {
            what: "the size of the tasks to show, in bytes,",
            size: usize::try_from(get::<i64>(row, 3)?)?,
            limit: BATCH_BYTES_MAX,
            advice: "ask for fewer at a time",
        }),
        7 => {
            let keyed = get::<Option<i16>>(row, 4)?.is_some_and(|state| state % 2 == 1);
            let kind = if keyed { "utube" } else { "fifo" };
            Err(Error::Unsupported { kind, verb: "touch" })
        }
        status => found(tube, status),
    })
}

fn outcomes(size: usize, show: bool, rows: &[Row]) -> Result<Vec<Outcome>, Unreadable> {
    let mut outcomes = vec![Outcome::Done(None); size];
    for row in rows.iter().filter(|row| is_item(row)) {
        let place = usize::try_from(get::<i32>(row, 0)? - 1)?;
        *outcomes.get_mut(place).ok_or("an outcome without an item")? = match get::<i16>(row, 1)? {
            0 if show => Outcome::Done(Some(Box::new(codec::viewed(row)?))),
            0 => Outcome::Done(None),
            1 => Outcome::Stale,
            _ => Outcome::Missing,
        };
    }
    Ok(outcomes)
}

fn tasks(tube: &TubeName, rows: &[Row]) -> Result<Result<Reply, Error>, Unreadable> {
    let head = rows.iter().find(|row| !is_item(row)).ok_or("an answer has no head")?;
    if let Err(error) = refused(tube, head)? {
        return Ok(Err(error));
    }
    let mut items = rows.iter().filter(|row| is_item(row)).collect::<Vec<_>>();
    items.sort_by_key(|row| row.try_get::<_, i32>(0).unwrap_or_default());
    let tasks = items.into_iter().map(codec::viewed).collect::<Result<Vec<_>, _>>()?;
    Ok(Ok(Reply::Tasks(tasks)))
}

fn found(tube: &TubeName, status: i16) -> Result<(), Error> {
    if status == 1 { Err(Error::TubeNotFound(tube.clone())) } else { Ok(()) }
}

fn first(rows: &[Row]) -> Result<&Row, Unreadable> {
    rows.first().ok_or_else(|| "an answer has no row".into())
}

/// Refuses a number of a queue that this tube has.
fn taken_num(tube: TubeName, num: Option<u32>) -> Result<Error, Unreadable> {
    let num = num.ok_or("a queue number that nobody named is taken")?;
    Ok(Error::QueueNumTaken { tube, num })
}

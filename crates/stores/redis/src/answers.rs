//! Decodes the answers of a tube to the commands of one call.

use taskyard_core::command::TubeInfo;
use taskyard_core::estimate::DelayedTasks;
use taskyard_core::limits::BATCH_BYTES_MAX;
use taskyard_core::{
    Command, Error, HeldKey, ListedTask, NewTask, Outcome, Placed, Position, Reply, SemaphoreKey,
    State, SubqueuePosition, Task, TaskId, Timestamp, TubeName, no_semaphore,
};
use taskyard_redis::Value;

use super::codec::{ByteReader, Unreadable, read_info};
use super::extension::needs_keyring;
use super::merge;
use super::tasks::{
    Detail, has_failures, is_apart, read_failures, read_finished, read_held_key, read_shown,
    read_since, read_taken, read_task,
};

/// The state of a tube after a call.
#[derive(Clone, Debug)]
pub(super) struct TubeHead {
    /// Whether the tube exists.
    pub present: bool,
    /// Whether a tube of another name has this tag.
    pub has_other_name: bool,
    /// The clock of the tasks.
    pub clock: i64,
    pub takeable: u64,
    /// How many more tasks it may hold, if it has a capacity.
    pub room: Option<u64>,
    /// The next deadline.
    pub next: Option<i64>,
    /// When done tasks are to be removed.
    pub removal: Option<i64>,
    pub number: u32,
    /// Whether it has a semaphore.
    pub gated: bool,
    /// Whether single commands can be merged in it.
    pub mergeable: bool,
    /// Whether it has a rate limit.
    pub rated: bool,
    /// Whether it lost its capacity.
    pub unlimited: bool,
    /// How many keys of ended tasks were freed before their time.
    pub keys_freed_early: u64,
    /// Its name, where the call did not name it.
    pub name: Option<TubeName>,
}

/// The state of a tube or a semaphore after a call for another one.
#[derive(Clone, Debug)]
pub(super) enum OtherState {
    /// How many tasks can be taken, and the next deadline.
    Tube {
        name: TubeName,
        takeable: u64,
        next: Option<i64>,
    },
    Semaphore(SemaphoreHead),
}

/// The state of a semaphore after a call.
#[derive(Clone, Debug)]
pub(super) struct SemaphoreHead {
    pub key: SemaphoreKey,
    pub number: u32,
    /// The next deadline.
    pub next: Option<i64>,
    /// When the next event may be delivered.
    pub next_event: Option<i64>,
    /// Whether there are new events.
    pub has_new_events: bool,
}

/// A task with what only its record says.
pub(super) struct Peeked {
    pub task: Task,
    /// Since when it is ready, where that is not since its put.
    pub since: Option<Timestamp>,
    pub key: Option<HeldKey>,
}

/// Reads the parts of an answer in order.
pub(super) struct AnswerParts(std::vec::IntoIter<Value>);

impl AnswerParts {
    /// The answer to a call of a tube, which begins with its state.
    pub fn new(answer: Value) -> Result<(TubeHead, Self), Unreadable> {
        let list = answer.list().ok_or(Unreadable("an answer has no parts"))?;
        let mut parts = AnswerParts(list.into_iter());
        let head = read_head(&parts.text()?)?;
        Ok((head, parts))
    }

    /// The answer to a call of a semaphore.
    pub fn all(answer: Value) -> Result<Self, Unreadable> {
        let list = answer.list().ok_or(Unreadable("an answer has no parts"))?;
        Ok(AnswerParts(list.into_iter()))
    }

    /// The next part.
    pub fn text(&mut self) -> Result<Vec<u8>, Unreadable> {
        self.0.next().and_then(Value::text).ok_or(Unreadable("an answer is too short"))
    }

    /// A number that a function answers after its status.
    pub fn counted(&mut self) -> Result<u64, Unreadable> {
        let text = self.text()?;
        let mut bytes = ByteReader(&text);
        // A tube that does not exist counts nothing.
        if bytes.byte()? == 0 { bytes.count() } else { Ok(0) }
    }

    /// How many tasks a tick changed, and how many deliveries it ended.
    pub fn ticked(&mut self) -> Result<(u64, u64), Unreadable> {
        let text = self.text()?;
        let mut bytes = ByteReader(&text);
        if bytes.byte()? == 0 { Ok((bytes.count()?, bytes.count()?)) } else { Ok((0, 0)) }
    }

    /// The description of a tube, or the status with which it refuses.
    pub fn info(&mut self) -> Result<Result<TubeInfo, u8>, Unreadable> {
        let text = self.text()?;
        let mut bytes = ByteReader(&text);
        match bytes.byte()? {
            0 => read_info(bytes).map(Ok),
            status => Ok(Err(status)),
        }
    }

    /// The states of other tubes and semaphores that the call changed. Read after all answers.
    pub fn others(&mut self) -> Result<Vec<OtherState>, Unreadable> {
        let Some(text) = self.0.next().and_then(Value::text) else { return Ok(Vec::new()) };
        let (mut bytes, mut others) = (ByteReader(&text), Vec::new());
        while bytes.has_more() {
            others.push(read_other(&mut bytes)?);
        }
        Ok(others)
    }

    /// The answer to one command, as bytes.
    pub fn bytes(&mut self) -> Result<Vec<u8>, Unreadable> {
        self.text()
    }

    /// A status alone.
    pub fn status(&mut self) -> Result<u8, Unreadable> {
        ByteReader(&self.text()?).byte()
    }

    /// The answers to a run of commands that were sent as one, or to a single command.
    pub fn replies(
        &mut self,
        tube: &TubeName,
        run: &[merge::IndexedCommand],
    ) -> Result<Vec<Result<Reply, Error>>, Unreadable> {
        let Some((_, first)) = run.first() else { return Ok(Vec::new()) };
        if run.len() == 1 {
            return Ok(vec![self.reply(tube, first)?]);
        }
        let text = self.text()?;
        let mut bytes = ByteReader(&text);
        let status = bytes.byte()?;
        if status != 0 {
            return Ok(vec![Err(refusal(status, bytes, tube, first)?); run.len()]);
        }
        match first {
            Command::Put { .. } => placed_apart(bytes, tube, run),
            Command::Take(_) => {
                let mut tasks = self.tasks(bytes, Detail::Taken)?.into_iter();
                let each = run.iter().map(|_| Ok(Reply::Taken(tasks.next().into_iter().collect())));
                Ok(each.collect())
            }
            _ => {
                let count = |command: &Command| match command {
                    Command::Finish { items, .. } => items.len(),
                    _ => 0,
                };
                let all = run.iter().map(|(_, command)| count(command)).sum();
                let mut outcomes = self.outcomes(bytes, all, false)?.into_iter();
                let each = run.iter().map(|(_, command)| {
                    Ok(Reply::Finished(outcomes.by_ref().take(count(command)).collect()))
                });
                Ok(each.collect())
            }
        }
    }

    /// The answer to one command.
    fn reply(
        &mut self,
        tube: &TubeName,
        command: &Command,
    ) -> Result<Result<Reply, Error>, Unreadable> {
        let text = self.text()?;
        let mut bytes = ByteReader(&text);
        let status = bytes.byte()?;
        if status != 0 {
            return refusal(status, bytes, tube, command).map(Err);
        }
        Ok(Ok(match command {
            Command::Put { tasks, .. } => placed(bytes, tasks)?,
            Command::Take(_) => Reply::Taken(self.tasks(bytes, Detail::Taken)?),
            Command::Peek { .. } => Reply::Tasks(self.tasks(bytes, Detail::Everything)?),
            Command::Search(search) => {
                Reply::Found(search.among(self.tasks(bytes, Detail::Everything)?))
            }
            Command::Deliveries { .. } => Reply::Tasks(self.tasks(bytes, Detail::NoBodies)?),
            Command::List(_) => listed(bytes)?,
            Command::Positions { .. } => positions(bytes)?,
            Command::Finish { show, items, .. } => {
                Reply::Finished(self.outcomes(bytes, items.len(), *show)?)
            }
            Command::Delete { show, ids, .. } => {
                Reply::Finished(self.outcomes(bytes, ids.len(), *show)?)
            }
            Command::KickTasks { ids, .. } => {
                Reply::Finished(self.outcomes(bytes, ids.len(), false)?)
            }
            Command::Kick { .. } => Reply::Kicked(bytes.count()?),
            Command::AlterTube { .. } | Command::NameTube { .. } | Command::Tubes { .. } => {
                Reply::Tubes(vec![read_info(bytes)?])
            }
            _ => Reply::Nothing,
        }))
    }

    /// Tasks whose count and heads are in these bytes; their records follow.
    fn tasks(
        &mut self,
        mut bytes: ByteReader<'_>,
        detail: Detail,
    ) -> Result<Vec<Task>, Unreadable> {
        let count = bytes.small()?;
        // Each task has a record among the parts, so the number of these bounds a count that is wrong.
        let mut tasks = Vec::with_capacity((count as usize).min(self.0.len()));
        for _ in 0..count {
            tasks.push(self.task(&mut bytes, detail)?);
        }
        Ok(tasks)
    }

    fn task(&mut self, heads: &mut ByteReader<'_>, detail: Detail) -> Result<Task, Unreadable> {
        self.recorded(heads, detail).map(|(task, _)| task)
    }

    /// A task, and its record.
    fn recorded(
        &mut self,
        heads: &mut ByteReader<'_>,
        detail: Detail,
    ) -> Result<(Task, Vec<u8>), Unreadable> {
        let shown = if detail == Detail::Taken { read_taken(heads) } else { read_shown(heads) }?;
        let (record, is_kept) = (self.text()?, shown.is_kept());
        let apart = if detail != Detail::NoBodies && is_apart(&record)? {
            Some(self.text()?)
        } else {
            None
        };
        let mut task = read_task(shown, &record, apart.as_deref(), detail)?;
        if detail == Detail::Everything && has_failures(&record)? {
            task.failures = read_failures(&self.text()?)?;
        }
        if is_kept {
            task.finished = Some(read_finished(&self.text()?)?);
        }
        if task.state == State::Taken && detail != Detail::Bodies {
            task.due = Some(read_since(&record)?.unwrap_or(task.created));
        }
        Ok((task, record))
    }

    /// The answer to a peek, with what only the records say.
    pub fn peeked(&mut self, tube: &TubeName) -> Result<Result<Vec<Peeked>, Error>, Unreadable> {
        let text = self.text()?;
        let mut bytes = ByteReader(&text);
        let status = bytes.byte()?;
        if status != 0 {
            let peek = Command::Peek { tube: tube.clone(), ids: Vec::new() };
            return refusal(status, bytes, tube, &peek).map(Err);
        }
        let count = bytes.small()?;
        let tasks = (0..count).map(|_| {
            let (task, record) = self.recorded(&mut bytes, Detail::Everything)?;
            Ok(Peeked { task, since: read_since(&record)?, key: read_held_key(&record)? })
        });
        tasks.collect::<Result<_, _>>().map(Ok)
    }

    /// The outcome of each item, followed by the heads of the tasks that are shown.
    fn outcomes(
        &mut self,
        bytes: ByteReader<'_>,
        count: usize,
        show: bool,
    ) -> Result<Vec<Outcome>, Unreadable> {
        let cut = Unreadable("outcomes are missing");
        let (statuses, heads) = bytes.rest().split_at_checked(count).ok_or(cut)?;
        let mut heads = ByteReader(heads);
        let outcomes = statuses.iter().map(|status| {
            Ok(match status {
                0 if show => Outcome::Done(Some(Box::new(self.task(&mut heads, Detail::Bodies)?))),
                0 => Outcome::Done(None),
                1 => Outcome::Stale,
                _ => Outcome::Missing,
            })
        });
        outcomes.collect()
    }
}

fn read_head(text: &[u8]) -> Result<TubeHead, Unreadable> {
    let mut bytes = ByteReader(text);
    let present = bytes.byte()?;
    let (clock, takeable) = (bytes.number()? as i64, bytes.count()?);
    let (room, next) = (bytes.number()?, bytes.maybe_moment()?);
    let (number, kind) = (bytes.small()?, bytes.byte()?);
    let room = (room >= 0.0).then_some(room as u64);
    let (rare, removal) = (bytes.byte()?, bytes.maybe_moment()?);
    let keys_freed_early = if rare & 2 != 0 { bytes.count()? } else { 0 };
    let name = std::str::from_utf8(bytes.rest()).ok().and_then(|name| TubeName::new(name).ok());
    let (present, has_other_name) = (present == 1, present == 2);
    let (gated, mergeable) = (kind & 1 != 0, kind & 2 != 0 && room.is_none());
    Ok(TubeHead {
        present,
        has_other_name,
        clock,
        takeable,
        room,
        next,
        removal,
        number,
        gated,
        mergeable,
        rated: kind & 4 != 0,
        unlimited: rare & 1 != 0,
        keys_freed_early,
        name,
    })
}

fn read_other(bytes: &mut ByteReader<'_>) -> Result<OtherState, Unreadable> {
    let kind = bytes.byte()?;
    let name = bytes.short_text()?;
    if kind == 0 {
        let name = TubeName::new(name).map_err(|_| Unreadable("a tube has no name"))?;
        let (takeable, next) = (bytes.count()?, bytes.maybe_moment()?);
        return Ok(OtherState::Tube { name, takeable, next });
    }
    let key = SemaphoreKey::new(name).map_err(|_| Unreadable("a semaphore has no key"))?;
    let (next, next_event) = (bytes.maybe_moment()?, bytes.maybe_moment()?);
    let (has_new_events, number) = (bytes.byte()? == 1, bytes.small()?);
    Ok(OtherState::Semaphore(SemaphoreHead { key, number, next, next_event, has_new_events }))
}

/// A page of a list: ids, each followed by its priority.
fn listed(mut bytes: ByteReader<'_>) -> Result<Reply, Unreadable> {
    let mut tasks = Vec::new();
    while bytes.has_more() {
        tasks.push(ListedTask { id: TaskId(bytes.big()?), pri: bytes.big()? });
    }
    Ok(Reply::Listed(tasks))
}

/// Positions: the clock and the delayed tasks come first.
fn positions(mut bytes: ByteReader<'_>) -> Result<Reply, Unreadable> {
    let (now, count) = (bytes.moment()?, bytes.small()?);
    let delayed = (0..count).map(|_| {
        let (pri, id) = (bytes.big()?, TaskId(bytes.big()?));
        Ok((pri, id, bytes.moment()?))
    });
    let delayed = delayed.collect::<Result<Vec<_>, Unreadable>>()?;
    let delayed = DelayedTasks::new(now, delayed.into_iter());
    let mut positions = Vec::new();
    while bytes.has_more() {
        let (id, pri, flags) = (TaskId(bytes.big()?), bytes.big()?, bytes.byte()?);
        let (due, ahead) = (bytes.moment()?, bytes.count()?);
        let (subqueue_ahead, gate_ahead) = (bytes.count()?, bytes.count()?);
        let has = |flag: u8| flags & flag != 0;
        positions.push(Position {
            id,
            pri,
            due: has(1).then_some(due),
            ahead,
            delayed_ahead: delayed.before(pri, id),
            subqueue: has(4).then_some(SubqueuePosition { ahead: subqueue_ahead, is_busy: has(8) }),
            gate_ahead: has(16).then_some(gate_ahead),
            is_exact: has(2),
            estimate: None,
        });
    }
    Ok(Reply::Positions(positions))
}

fn placed(mut bytes: ByteReader<'_>, tasks: &[NewTask]) -> Result<Reply, Unreadable> {
    if needs_keyring(tasks) {
        let placed = (0..tasks.len()).map(|_| read_one(&mut bytes)).collect::<Result<_, _>>()?;
        let placed: Option<Vec<Placed>> = placed;
        return placed.map(Reply::Put).ok_or(Unreadable("a task of a put found no room"));
    }
    let first = bytes.count()?;
    Ok(Reply::Put(read_placed(first, bytes.rest()).collect()))
}

/// The answers to puts of one task each. A tube that got a capacity meanwhile has room for the first ones only.
fn placed_apart(
    mut bytes: ByteReader<'_>,
    tube: &TubeName,
    run: &[merge::IndexedCommand],
) -> Result<Vec<Result<Reply, Error>>, Unreadable> {
    let reply = |placed: Option<Placed>, capacity| match placed {
        Some(placed) => Ok(Reply::Put(vec![placed])),
        None => Err(Error::TubeFull { tube: tube.clone(), capacity }),
    };
    let is_keyed = |command: &Command| match command {
        Command::Put { tasks, .. } => needs_keyring(tasks),
        _ => false,
    };
    if run.iter().any(|(_, command)| is_keyed(command)) {
        let capacity = bytes.big()?;
        return run.iter().map(|_| Ok(reply(read_one(&mut bytes)?, capacity))).collect();
    }
    let (first, capacity) = (bytes.count()?, bytes.big()?);
    let mut placed = read_placed(first, bytes.rest());
    Ok(run.iter().map(|_| reply(placed.next(), capacity)).collect())
}

/// One task of a put with keys; `None` if it found no room.
fn read_one(bytes: &mut ByteReader<'_>) -> Result<Option<Placed>, Unreadable> {
    let (state, id) = (bytes.byte()?, TaskId(bytes.big()?));
    let existing = state & 0x80 != 0;
    let state = match state & 0x7f {
        0x7f => return Ok(None),
        0 => State::Ready,
        1 => State::Taken,
        2 => State::Delayed,
        3 => State::Buried,
        _ => State::Done,
    };
    Ok(Some(Placed { id, state, existing }))
}

/// New tasks with consecutive ids, in these states.
fn read_placed(first: u64, states: &[u8]) -> impl Iterator<Item = Placed> {
    let states = states.iter().map(|state| match state {
        0 => State::Ready,
        _ => State::Delayed,
    });
    (first..).zip(states).map(|(id, state)| Placed { id: TaskId(id), state, existing: false })
}

fn refusal(
    status: u8,
    mut bytes: ByteReader<'_>,
    tube: &TubeName,
    command: &Command,
) -> Result<Error, Unreadable> {
    let tube = tube.clone();
    Ok(match (status, command) {
        (1, _) => Error::TubeNotFound(tube),
        (2, _) => Error::TubeFull { tube, capacity: bytes.big()? },
        (3, _) => Error::Invalid(format!("tube '{tube}' has used up its task ids")),
        (4, _) => Error::TooLarge {
            what: "the size of the tasks to show, in bytes,",
            size: bytes.count()? as usize,
            limit: BATCH_BYTES_MAX,
            advice: "ask for fewer at a time",
        },
        (5, _) => Error::Unsupported { kind: bytes.kind()?.name(), verb: "touch" },
        (6, _) => Error::TubeExists(tube),
        (7, _) => Error::TubeHasTaken(tube),
        (14, _) => no_semaphore(&tube),
        (8, Command::Take(take)) => match take.session {
            Some(session) => Error::SessionUnknown(session),
            None => return Err(Unreadable("a session is unknown although the command names none")),
        },
        _ => return Err(Unreadable("an answer has an unknown status")),
    })
}

//! Runs a batch as calls to Tarantool.
//!
//! A call has any commands in order and is one transaction; a large batch is several calls, which are sent together, so that
//! other servers do not wait long. Each command is atomic.

use std::collections::BTreeMap;

use taskyard_core::names::check_names;
use taskyard_core::{
    Command, Effects, Error, NewEvents, Reply, ScheduleCommand, Timestamp, TubeName,
};
use taskyard_tarantool::{
    ANSWER_MAX, BatchReply as BatchAnswer, Failure, Fault, LuaValue, decode_batch,
};

use super::checks::{is_invalid, refusal, without_values};
use super::link::{Link, error_of, needs_reconnect};
use super::tube_cache::Resync;
use super::{Clock, NextDue, Tarantool};
use taskyard_store::Executed;

/// How often commands are sent that were not done.
const TRIES: usize = 3;
/// How many lease numbers are reserved together.
const LEASES: u64 = 1 << 20;
/// Most tasks and bytes of one call, unless one command has more: a call blocks Tarantool while it runs.
const CALL_TASKS_MAX: usize = 2_000;
const CALL_BYTES_MAX: usize = 4 << 20;

/// A batch in progress.
struct Batch<'a> {
    shared: &'a Tarantool,
    link: &'a mut Link,
    now: Timestamp,
    replies: Vec<Option<Result<Reply, Error>>>,
    /// Commands with values that are refused, by their indexes: Tarantool decides whether another refusal comes first.
    invalid: BTreeMap<usize, Error>,
    ready: BTreeMap<TubeName, u64>,
    room: BTreeMap<TubeName, u64>,
    failed: BTreeMap<TubeName, u64>,
    /// The semaphores that may have new events.
    events: NewEvents,
    /// How many keys of ended tasks were freed before their time.
    keys_freed_early: u64,
    /// What is due next, if a call was answered.
    due: Option<NextDue>,
    /// Whether the tasks of a call were too large for one answer.
    is_large: bool,
}

/// The commands of one call, with their indexes in the batch.
#[derive(Default)]
struct Chunk {
    places: Vec<usize>,
    commands: Vec<Command>,
    tasks: usize,
    bytes: usize,
    /// Lease numbers that its takes may use: the first, and the one after the last.
    leases: (u64, u64),
}

/// The reply, unless a semaphore to be created exists with other options.
fn check_created(command: &Command, reply: Reply) -> Result<Reply, Error> {
    if let (Command::Semaphore(command), Reply::Semaphore(reply)) = (command, &reply) {
        command.check_kept(reply)?;
    }
    Ok(reply)
}

impl Tarantool {
    /// Runs a batch. Every command is answered, whatever fails.
    pub(crate) async fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Executed {
        let mut link = self.link.lock().await;
        self.cache().now = Some(now);
        let replies = vec![None; commands.len()];
        let mut batch = Batch {
            shared: self,
            link: &mut link,
            now,
            replies,
            invalid: BTreeMap::new(),
            ready: BTreeMap::new(),
            room: BTreeMap::new(),
            failed: BTreeMap::new(),
            events: NewEvents::Nothing,
            keys_freed_early: 0,
            due: None,
            is_large: false,
        };
        batch.run(commands).await;
        batch.end()
    }

    /// The moment as an argument of calls: `None` is the clock of Tarantool.
    pub(crate) fn moment(&self) -> Option<i64> {
        match self.clock {
            Clock::Caller => self.cache().now.map(Timestamp::as_micros),
            Clock::Database => None,
        }
    }
}

impl Batch<'_> {
    async fn run(&mut self, commands: Vec<Command>) {
        let mut open = Vec::new();
        for (place, command) in commands.into_iter().enumerate() {
            if let Err(refused) = check_names(&command) {
                self.replies[place] = Some(Err(refused));
                continue;
            }
            match refusal(&command) {
                None => open.push((place, command)),
                Some(refused) => match without_values(command) {
                    Some(command) if !self.shared.connector.is_adapter => {
                        self.invalid.insert(place, refused);
                        open.push((place, command));
                    }
                    _ => self.replies[place] = Some(Err(refused)),
                },
            }
        }
        let (mut chunks, mut tries) = (cut(open), 0);
        while !chunks.is_empty() {
            let left = self.unanswered();
            // If one answer was too small for all, the rest is sent call by call. Calls after one that yields wait for it, because Tarantool
            // may run other calls while it reads.
            let first = chunks.iter().position(Chunk::yields);
            let together = if self.is_large { 1 } else { first.map_or(chunks.len(), |at| at + 1) };
            let later = chunks.split_off(together);
            tries += 1;
            chunks = self.attempt(chunks, tries == TRIES).await;
            chunks.extend(later);
            if self.unanswered() < left {
                tries = 0;
            }
        }
    }

    fn unanswered(&self) -> usize {
        self.replies.iter().filter(|reply| reply.is_none()).count()
    }

    /// Sends all calls; answers those that were not done and may be sent again.
    async fn attempt(&mut self, mut chunks: Vec<Chunk>, last: bool) -> Vec<Chunk> {
        let answers = match self.ask(&mut chunks).await {
            Ok(answers) => answers,
            Err(failure) => {
                if needs_reconnect(&failure) {
                    self.link.drop_connection();
                }
                return self.fail_all(chunks, &failure, last);
            }
        };
        let mut again = Vec::new();
        let mut is_cut = false;
        for (chunk, answer) in chunks.into_iter().zip(answers) {
            match answer.map(|data| decode_batch(&data)) {
                Ok(Ok(BatchAnswer::Executed(decided))) => {
                    let ahead = decided.clock.as_micros().saturating_sub(self.now.as_micros());
                    self.learn(&chunk, decided.effects, ahead);
                    if let Some(rest) = self.answer(chunk, decided.replies) {
                        is_cut = true;
                        again.push(rest);
                    }
                }
                // It waits for the rest of another call.
                Ok(Ok(BatchAnswer::Cancelled)) if is_cut => again.push(chunk),
                // This server was declared dead; nothing was done.
                Ok(Ok(BatchAnswer::Cancelled)) if !last => {
                    self.shared.cache().request_resync();
                    again.push(chunk);
                }
                Ok(Ok(BatchAnswer::Cancelled)) => {
                    self.fail(
                        &chunk,
                        &Failure::Unreachable("this server was declared dead".into()),
                    );
                }
                Ok(Ok(BatchAnswer::Unreplicated)) => {
                    let why = "too few replicas have it".into();
                    self.fail(&chunk, &Failure::Lost(why));
                }
                Ok(Err(error)) => self.unreadable(&chunk, &error.to_string()),
                Err(fault) => again.extend(self.refused(chunk, fault, last)),
            }
        }
        self.is_large |= is_cut;
        again
    }

    /// Sends all calls and waits for all answers.
    async fn ask(&mut self, chunks: &mut [Chunk]) -> Result<Vec<Result<Vec<u8>, Fault>>, Failure> {
        let not_sent = |failure: Failure| match failure {
            // The lost call was a different one; these commands were not sent.
            Failure::Lost(why) => Failure::Unreachable(why),
            other => other,
        };
        self.link.connection().await.map_err(not_sent)?;
        self.shared.cache().is_new(self.link.number());
        match self.resync().await {
            // A resync must write; reads go on if writing is refused.
            Err(Failure::Refused(_)) if chunks.iter().all(Chunk::is_read_only) => {}
            resynced => resynced.map_err(not_sent)?,
        }
        self.reserve_leases(chunks).await.map_err(not_sent)?;
        let (shared, moment) = (self.shared, self.shared.moment());
        let replicas = shared.connector.replicas;
        self.link.connection().await.map_err(not_sent)?;
        if self.shared.cache().is_new(self.link.number()) {
            return Err(Failure::Unreachable("the connection was lost meanwhile".into()));
        }
        let connection = self.link.connection().await.map_err(not_sent)?;
        let mut requests = connection.requests();
        let first = shared.cache().calls + 1;
        let last = shared.cache().calls + chunks.len() as u64;
        shared.cache().calls = last;
        for (call, chunk) in (first..).zip(chunks.iter()) {
            shared.connector.call(&mut requests, "batch", |args| {
                args.bytes(&shared.server).uint(call).optional(moment);
                args.uint(chunk.leases.0).commands(&chunk.commands).uint(replicas).uint(last);
                args.list(|list| {
                    let is_invalid = |place: &usize| self.invalid.contains_key(place);
                    let positions = (1..).zip(&chunk.places);
                    for (position, _) in positions.filter(|(_, place)| is_invalid(place)) {
                        list.uint(position);
                    }
                });
            });
        }
        connection.exchange(requests, ANSWER_MAX).await
    }

    /// Reserves lease numbers for all takes.
    async fn reserve_leases(&mut self, chunks: &mut [Chunk]) -> Result<(), Failure> {
        let wanted: u64 = chunks.iter().map(Chunk::deliveries).sum();
        let own = self.shared.cache().leases.clone();
        if wanted > own.end.saturating_sub(own.start) {
            let size = wanted.max(LEASES);
            let first = self.link.call_with_retry("leases", |args| _ = args.uint(size)).await?;
            let first = first.uint().ok_or_else(|| Failure::Lost("no lease numbers".into()))?;
            self.shared.cache().leases = first..first + size;
        }
        let mut cache = self.shared.cache();
        for chunk in chunks {
            let first = cache.leases.start;
            cache.leases.start += chunk.deliveries();
            chunk.leases = (first, cache.leases.start);
        }
        Ok(())
    }

    /// Corrects Tarantool, if it may differ from what this server knows. Idempotent.
    async fn resync(&mut self) -> Result<(), Failure> {
        while !self.try_resync().await? {}
        Ok(())
    }

    /// Tries a resync; false if Tarantool has seen later calls, whose number is recorded.
    async fn try_resync(&mut self) -> Result<bool, Failure> {
        let (resync, sessions, calls) = {
            let mut cache = self.shared.cache();
            let Some(resync) = cache.resync.clone() else { return Ok(true) };
            // It has a number too, so that a delayed one is not done again.
            cache.calls += 1;
            let sessions: Vec<_> = cache.sessions.iter().map(|(id, count)| (*id, *count)).collect();
            (resync, sessions, cache.calls)
        };
        let now = self.shared.moment();
        let server = &self.shared.server;
        let answer = self
            .link
            .call_with_retry("resync", |args| {
                args.bytes(server).optional(now).uint(calls);
                args.rows(&sessions, |row, (session, count)| {
                    _ = row.bytes(&session.0).uint(*count);
                });
                let unacknowledged: Vec<_> = resync.unacknowledged.iter().collect();
                args.rows(&unacknowledged, |row, (tube, first, last)| {
                    _ = row.text(tube.as_str()).uint(*first).uint(*last);
                });
            })
            .await?;
        let mut parts = answer.list().iter();
        let last = parts.next().and_then(LuaValue::uint);
        self.count_failed(parts.next().map_or(&[], LuaValue::list));
        if let Some(last) = last.filter(|last| *last > calls) {
            self.shared.cache().calls = last;
            return Ok(false);
        }
        self.shared.cache().resync = None;
        self.shared.presence.notify_unknown();
        Ok(true)
    }

    /// Counts deliveries that failed because their sessions had ended: tubes and numbers.
    fn count_failed(&mut self, failed: &[LuaValue]) {
        for row in failed {
            let [tube, count] = row.list() else { continue };
            let tube = tube.text().and_then(|name| TubeName::new(name).ok());
            if let (Some(tube), Some(count)) = (tube, count.uint()) {
                *self.failed.entry(tube).or_default() += count;
            }
        }
    }

    /// Handles the failure of calls that were not answered.
    fn fail_all(&mut self, chunks: Vec<Chunk>, failure: &Failure, last: bool) -> Vec<Chunk> {
        let mut again = Vec::new();
        if matches!(failure, Failure::Lost(_)) {
            self.shared.cache().request_resync();
        }
        // A connection that was closed while idle is no reason to fail.
        let may_repeat = |chunk: &Chunk| match failure {
            Failure::Unreachable(_) => true,
            Failure::Lost(_) => chunk.is_read_only(),
            Failure::Refused(_) => needs_reconnect(failure),
        };
        for chunk in chunks {
            if !last && may_repeat(&chunk) {
                again.push(chunk);
            } else {
                self.fail(&chunk, failure);
            }
        }
        again
    }

    fn fail(&mut self, chunk: &Chunk, failure: &Failure) {
        if matches!(failure, Failure::Lost(_)) {
            // Also if it took nothing, because it may have changed sessions.
            chunk.add_unacknowledged(self.shared.cache().request_resync());
        }
        for place in &chunk.places {
            self.replies[*place] = Some(Err(error_of(failure)));
        }
    }

    /// Handles a call that was refused as a whole, so nothing of it was done. If one command may be the cause, all are sent again one
    /// by one.
    fn refused(&mut self, chunk: Chunk, fault: Fault, last: bool) -> Vec<Chunk> {
        let failure = Failure::Refused(fault);
        if needs_reconnect(&failure) {
            self.link.drop_connection();
            if !last {
                return vec![chunk];
            }
        } else if chunk.commands.len() > 1 && !last {
            return chunk.one_by_one();
        }
        self.fail(&chunk, &failure);
        Vec::new()
    }

    fn unreadable(&mut self, chunk: &Chunk, why: &str) {
        // The tasks are taken, but the callers do not have their lease numbers.
        chunk.add_unacknowledged(self.shared.cache().request_resync());
        tracing::error!(why, "cannot read an answer of Tarantool");
        let what = "the call was done, but the answer of Tarantool cannot be read; see the log";
        for place in &chunk.places {
            self.replies[*place] = Some(Err(Error::Store(what.into())));
        }
    }

    /// Records replies. Answers the rest of the commands if one answer had no room for all.
    fn answer(&mut self, mut chunk: Chunk, replies: Vec<Result<Reply, Error>>) -> Option<Chunk> {
        let count = replies.len();
        if count > chunk.places.len() || (count == 0 && !chunk.places.is_empty()) {
            self.unreadable(&chunk, "not as many replies as commands");
            return None;
        }
        let rest = chunk.split_off(count);
        let mut cache = self.shared.cache();
        for ((place, command), reply) in chunk.places.iter().zip(&chunk.commands).zip(replies) {
            let reply = match self.invalid.get(place) {
                Some(refused) if is_invalid(&reply) => Err(refused.clone()),
                _ => reply.and_then(|reply| check_created(command, reply)),
            };
            if let Ok(reply) = &reply {
                cache.learn(command, reply);
            }
            self.replies[*place] = Some(reply);
        }
        rest
    }

    fn learn(&mut self, chunk: &Chunk, effects: Effects, ahead: i64) {
        if !chunk.is_read_only() {
            self.ready.extend(effects.ready);
            self.room.extend(effects.room);
        }
        for (tube, count) in effects.failed {
            *self.failed.entry(tube).or_default() += count;
        }
        self.events.add(effects.events);
        self.keys_freed_early += effects.keys_freed_early;
        let here = |next: Timestamp| Timestamp::from_micros(next.as_micros().saturating_sub(ahead));
        let (wakeup, schedule) = (effects.next_wakeup.map(here), effects.next_schedule.map(here));
        self.due = Some(NextDue { wakeup, schedule });
        *self.shared.due() = NextDue { wakeup, schedule };
    }

    fn end(self) -> Executed {
        let missing = || Err(Error::Store("the store did not answer".into()));
        let replies = self.replies.into_iter().map(|reply| reply.unwrap_or_else(missing)).collect();
        // Without an answer what was known stays.
        let due = self.due.unwrap_or(*self.shared.due());
        let effects = Effects {
            ready: self.ready.into_iter().collect(),
            room: self.room.into_iter().collect(),
            failed: self.failed.into_iter().collect(),
            events: self.events,
            next_wakeup: due.wakeup,
            next_schedule: due.schedule,
            keys_freed_early: self.keys_freed_early,
        };
        Executed { replies, effects, unloaded: Vec::new() }
    }
}

impl Chunk {
    fn is_read_only(&self) -> bool {
        self.commands.iter().all(is_read_only)
    }

    /// Lists and positions are the only commands of their calls, so that they need no transaction and may yield.
    fn yields(&self) -> bool {
        self.commands.iter().any(yields)
    }

    /// How many lease numbers its takes may use.
    fn deliveries(&self) -> u64 {
        let takes = self.commands.iter().filter_map(|command| match command {
            Command::Take(take) => Some(take.count as u64),
            _ => None,
        });
        takes.sum()
    }

    /// Notes that the callers do not get the deliveries: one entry for each tube, however many takes there were.
    fn add_unacknowledged(&self, resync: &mut Resync) {
        let (first, end) = self.leases;
        for command in &self.commands {
            if let Command::Take(take) = command
                && take.count > 0
            {
                resync.unacknowledged.insert((take.tube.clone(), first, end.saturating_sub(1)));
            }
        }
    }

    /// The commands from this index on, if there are any.
    fn split_off(&mut self, place: usize) -> Option<Chunk> {
        let places = self.places.split_off(place).into_iter();
        let mut rest = Chunk::default();
        for (place, command) in places.zip(self.commands.split_off(place)) {
            rest.push(place, command);
        }
        (!rest.places.is_empty()).then_some(rest)
    }

    /// Each command in a call of its own.
    fn one_by_one(self) -> Vec<Chunk> {
        let each = self.places.into_iter().zip(self.commands);
        each.map(|(place, command)| {
            let mut chunk = Chunk::default();
            chunk.push(place, command);
            chunk
        })
        .collect()
    }

    fn push(&mut self, place: usize, command: Command) {
        self.tasks += tasks_in(&command);
        self.bytes += command.payload_bytes();
        self.places.push(place);
        self.commands.push(command);
    }
}

/// Cuts a batch into calls.
fn cut(commands: Vec<(usize, Command)>) -> Vec<Chunk> {
    let mut chunks: Vec<Chunk> = Vec::new();
    for (place, command) in commands {
        let (tasks, bytes) = (tasks_in(&command), command.payload_bytes());
        let fits = |chunk: &&mut Chunk| {
            chunk.tasks + tasks <= CALL_TASKS_MAX
                && chunk.bytes + bytes <= CALL_BYTES_MAX
                && !yields(&command)
                && !chunk.yields()
        };
        match chunks.last_mut().filter(fits) {
            Some(chunk) => chunk.push(place, command),
            None => {
                let mut chunk = Chunk::default();
                chunk.push(place, command);
                chunks.push(chunk);
            }
        }
    }
    chunks
}

pub(super) fn tasks_in(command: &Command) -> usize {
    match command {
        Command::Put { tasks, .. } => tasks.len(),
        Command::Take(take) => take.count,
        Command::Finish { items, .. } => items.len(),
        Command::Delete { ids, .. }
        | Command::KickTasks { ids, .. }
        | Command::Peek { ids, .. }
        | Command::Positions { ids, .. } => ids.len(),
        Command::List(list) => list.limit,
        Command::Search(search) => search.count,
        Command::Semaphore(command) => command.items(),
        Command::Schedule(command) => command.tasks().len().max(1),
        _ => 1,
    }
}

fn yields(command: &Command) -> bool {
    matches!(command, Command::List(_) | Command::Positions { .. })
}

fn is_read_only(command: &Command) -> bool {
    match command {
        Command::Peek { .. }
        | Command::Deliveries { .. }
        | Command::List(_)
        | Command::Search(_)
        | Command::Positions { .. }
        | Command::Tubes { .. } => true,
        Command::Schedule(command) => matches!(
            **command,
            ScheduleCommand::Get { .. }
                | ScheduleCommand::List { .. }
                | ScheduleCommand::Due { .. }
        ),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Each take of a lost call was sent to Tarantool, which searched for it in all deliveries of the tube: with a thousand takes it
    // blocked for longer than the timeout, and was sent the same again.
    #[test]
    fn a_lost_call_is_reported_once_for_each_tube() {
        let take = |text| {
            let tube = TubeName::new(text).unwrap();
            let (session, lease, wait) = (None, None, Default::default());
            Command::Take(taskyard_core::Take {
                tube,
                count: 1,
                session,
                lease,
                worker: None,
                wait,
            })
        };
        let mut chunk = Chunk { leases: (10, 2_010), ..Chunk::default() };
        for place in 0..2_000 {
            chunk.push(place, take(if place % 2 == 0 { "a" } else { "b" }));
        }
        let mut resync = Resync::default();
        chunk.add_unacknowledged(&mut resync);
        let rows: Vec<_> =
            resync.unacknowledged.iter().map(|row| (row.0.as_str(), row.1, row.2)).collect();
        assert_eq!(rows, [("a", 10, 2_009), ("b", 10, 2_009)]);
    }

    #[test]
    fn a_large_batch_is_several_calls() {
        let name = |text| TubeName::new(text).unwrap();
        let kick = |place| (place, Command::Kick { tube: name("a"), count: 1 });
        let peek = |place| {
            let ids = vec![taskyard_core::TaskId(0); CALL_TASKS_MAX];
            (place, Command::Peek { tube: name("a"), ids })
        };
        let chunks = cut(vec![kick(0), kick(1), peek(2), peek(3), kick(4)]);
        let places: Vec<_> = chunks.into_iter().map(|chunk| chunk.places).collect();
        assert_eq!(places, [vec![0, 1], vec![2], vec![3], vec![4]]);
    }
}

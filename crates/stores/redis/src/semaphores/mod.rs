//! Runs the commands of semaphores. Each semaphore is on one node, and a call is for one of them.
//!
//! Events of all semaphores are delivered in order: due events are listed first, then the oldest are delivered. A server knows which
//! semaphores have events from its own calls, from notices of other servers, and from regular scans of all of them.

mod codec;
mod drop;
pub(super) mod transfer;

use std::collections::HashMap;

use taskyard_core::limits::BATCH_TASKS_MAX;
use taskyard_core::semaphore::tail_too_long;
use taskyard_core::{
    Command, Error, EventId, Reply, SemaphoreCommand, SemaphoreEvent, SemaphoreKey, SemaphoreReply,
};
use taskyard_redis::{Call, Failure, Value};

use super::Redis;
use super::answers::AnswerParts;
use super::codec::{ByteReader, Unreadable};
use super::execute::{Batch, unreadable_registry};
use super::failure::error;
use super::registry::{RETRY_AFTER, TickProgress};
use super::replicas;
use super::results::misread;
use super::tube_cache::Numbered;
use super::tubes::{status, unreadable};

/// The status of the registry when there are too many semaphores.
const TOO_MANY: i64 = 4;
/// The status of a semaphore that does not exist, whose try_release would be more than active, and that has no number yet or another.
const MISSING: u8 = 1;
const TAIL: u8 = 2;
const UNNUMBERED: u8 = 3;
/// The status of a semaphore that is created before the drop of an earlier one is finished.
const DROPPED: u8 = 7;

/// How many semaphores a server scans in a second for changes of other servers.
const SWEPT_TOGETHER: usize = 1000;

/// Commands for one semaphore each, in order, until they are sent. They are sent together; only neighbours share a call,
/// because events of all semaphores are delivered in the order in which they occurred.
#[derive(Default)]
pub(super) struct SemaphoreBatch {
    groups: Vec<SemaphoreGroup>,
    items: usize,
}

/// The answer of a semaphore, and its number.
struct SemaphoreAnswer {
    number: u32,
    text: Vec<u8>,
}

/// Commands for one semaphore.
struct SemaphoreGroup {
    key: SemaphoreKey,
    commands: Vec<(usize, SemaphoreCommand)>,
}

impl SemaphoreBatch {
    /// Adds a command; answers it if it must be sent alone.
    pub fn add(&mut self, place: usize, command: Command) -> Option<Command> {
        let command = match command {
            Command::Semaphore(command) => command,
            other => return Some(other),
        };
        let Some(key) = key_of(&command).filter(|_| self.items <= BATCH_TASKS_MAX) else {
            return Some(Command::Semaphore(command));
        };
        self.items += command.items();
        match self.groups.last_mut().filter(|group| group.key == key) {
            Some(group) => group.commands.push((place, command)),
            None => self.groups.push(SemaphoreGroup { key, commands: vec![(place, command)] }),
        }
        None
    }
}

/// The semaphore of a command, if it is about one only and can be sent together with others.
fn key_of(command: &SemaphoreCommand) -> Option<SemaphoreKey> {
    match command {
        SemaphoreCommand::Enqueue { key, .. }
        | SemaphoreCommand::Finish { key, .. }
        | SemaphoreCommand::Peek { key, .. }
        | SemaphoreCommand::Members { key, .. }
        | SemaphoreCommand::List { key: Some(key) }
        | SemaphoreCommand::Events { key: Some(key), .. } => Some(key.clone()),
        _ => None,
    }
}

fn is_read_only(command: &SemaphoreCommand) -> bool {
    matches!(
        command,
        SemaphoreCommand::Peek { .. }
            | SemaphoreCommand::Members { .. }
            | SemaphoreCommand::List { .. }
    )
}

impl Redis {
    fn semaphore_call(&self, key: &SemaphoreKey, words: Vec<Vec<u8>>, grows: bool) -> Call {
        let place = &self.connector.url;
        let channel =
            if self.presence.has_other_servers() { self.channel() } else { String::new() };
        let single = if place.cluster { "" } else { "1" };
        let mut args = vec![self.now_word(), self.epoch_word()];
        args.extend([channel, self.presence.name().to_owned(), single.into()].map(Vec::from));
        args.extend(words);
        let function = if grows { "semaphore" } else { "semaphore_oom" };
        let key = format!("{{{}:/{key}}}", place.prefix);
        Call { function, key, args, replicate: false }
    }
}

impl Batch<'_> {
    /// Sends one call to each semaphore.
    pub async fn call_semaphores(&mut self, pending: SemaphoreBatch) {
        if pending.groups.is_empty() {
            return;
        }
        if self.lost {
            let failure =
                Failure::Unreachable("the connection was lost earlier in this batch".into());
            pending.groups.iter().for_each(|group| self.fail_group(group, &failure));
            return;
        }
        let calls: Vec<Call> = pending.groups.iter().map(|group| self.group_call(group)).collect();
        let answers = self.link.call(&calls).await;
        let mut again = SemaphoreBatch::default();
        for ((group, call), answer) in pending.groups.into_iter().zip(&calls).zip(answers) {
            let looks = group.commands.iter().all(|(_, command)| is_read_only(command));
            let answer = match answer {
                Err(Failure::Lost(_)) if looks => self.call_with_retry(call).await,
                answer => answer,
            };
            let (answer, short) = replicas::split(answer);
            match answer {
                Ok(value) => {
                    self.read_group(&group, value);
                    if let Some(why) = short {
                        self.replace_unreplicated_group(&group, &why);
                    }
                }
                Err(Failure::Full) => again.groups.extend(self.without_enqueues(group)),
                Err(failure) => self.fail_group(&group, &failure),
            }
        }
        Box::pin(self.call_semaphores(again)).await;
    }

    /// Refuses enqueues because Redis is full. Answers the group without them, to be sent again.
    fn without_enqueues(&mut self, mut group: SemaphoreGroup) -> Option<SemaphoreGroup> {
        let asked = group.commands.len();
        group.commands.retain(|(place, command)| {
            let grows = matches!(command, SemaphoreCommand::Enqueue { .. });
            if grows {
                self.replies[*place] = Some(Err(error(&Failure::Full)));
            }
            !grows
        });
        if group.commands.len() == asked {
            // Nothing can be left out.
            self.fail_group(&group, &Failure::Full);
            return None;
        }
        (!group.commands.is_empty()).then_some(group)
    }

    /// Replaces the replies of a group whose changes a failover may undo.
    fn replace_unreplicated_group(&mut self, group: &SemaphoreGroup, why: &str) {
        for (place, command) in &group.commands {
            if !is_read_only(command) && matches!(self.replies[*place], Some(Ok(_))) {
                self.answer(*place, Err(replicas::unreplicated(why)));
            }
        }
    }

    fn group_call(&self, group: &SemaphoreGroup) -> Call {
        let words = group.commands.iter().map(|(_, command)| codec::encode(command)).collect();
        let commands = || group.commands.iter().map(|(_, command)| command);
        let grows = commands().any(|command| matches!(command, SemaphoreCommand::Enqueue { .. }));
        let mut call = self.shared.semaphore_call(&group.key, words, grows);
        call.replicate = !commands().all(is_read_only);
        call
    }

    fn fail_group(&mut self, group: &SemaphoreGroup, failure: &Failure) {
        self.note(failure);
        for (place, _) in &group.commands {
            self.answer(*place, Err(error(failure)));
        }
    }

    fn read_group(&mut self, group: &SemaphoreGroup, value: Value) {
        let read = self.read_semaphore(&group.key, value);
        let (number, mut parts) = match read {
            Ok(read) => read,
            Err(why) => {
                group.commands.iter().for_each(|(place, _)| self.answer(*place, misread(&why)));
                return;
            }
        };
        for (place, command) in &group.commands {
            let reply = read_reply((number, &group.key), command, &mut parts);
            let reply = reply.unwrap_or_else(|why| misread(&why));
            self.answer(*place, reply);
        }
        self.learn_others(&mut parts);
    }

    /// Records the state of a semaphore. Answers its number, or 0 if it does not exist, and the rest of the answer.
    fn read_semaphore(
        &mut self,
        key: &SemaphoreKey,
        value: Value,
    ) -> Result<(u32, AnswerParts), Unreadable> {
        let mut parts = AnswerParts::all(value)?;
        let (head, clock) = codec::read_head(key, &parts.bytes()?)?;
        {
            let mut cache = self.shared.cache();
            cache.ahead = clock.saturating_sub(cache.now);
        }
        let number = head.as_ref().map_or(0, |head| head.number);
        match head {
            Some(head) => self.learn_semaphore(&head),
            None => self.shared.cache().semaphores.forget(key),
        }
        Ok((number, parts))
    }

    /// Runs a command about all semaphores, or one that may create a semaphore.
    pub async fn run_semaphore_command(
        &mut self,
        command: SemaphoreCommand,
    ) -> Result<Result<Reply, Error>, Failure> {
        let reply = match command {
            SemaphoreCommand::Configure { ref key, .. } => self.configure(key, &command).await?,
            SemaphoreCommand::Drop { ref key, .. } => self.drop_semaphore(key, &command).await?,
            SemaphoreCommand::List { key: None } => Ok(self.list().await?),
            SemaphoreCommand::Events { key: None, count, .. } => Ok(self.fetch(count).await?),
            SemaphoreCommand::Acknowledge { events } => Ok(self.acknowledge(&events).await?),
            one => return Ok(self.call_semaphore(one).await),
        };
        Ok(reply.map(Reply::Semaphore))
    }

    /// Sends a command to one semaphore.
    async fn call_semaphore(&mut self, command: SemaphoreCommand) -> Result<Reply, Error> {
        let mut pending = SemaphoreBatch::default();
        let place = self.replies.len();
        self.replies.push(None);
        pending.add(place, Command::Semaphore(command));
        self.call_semaphores(pending).await;
        let reply = self.replies.pop().flatten();
        reply.unwrap_or_else(|| Err(Error::Store("the store did not answer".into())))
    }

    async fn configure(
        &mut self,
        key: &SemaphoreKey,
        command: &SemaphoreCommand,
    ) -> Result<Result<SemaphoreReply, Error>, Failure> {
        let SemaphoreCommand::Configure { change, only_new, .. } = command else {
            return Err(unreadable_registry());
        };
        let mut begin = codec::NewSemaphore::default();
        loop {
            let words = vec![codec::configure(change, *only_new, begin)];
            let mut call = self.shared.semaphore_call(key, words, true);
            call.replicate = true;
            let answer = self.link.call(&[call]).await.pop();
            let answer = answer.unwrap_or_else(|| Err(unreadable_registry()));
            let (answer, short) = replicas::split(answer);
            self.short = short;
            let answer = answer?;
            let (found, mut parts) = self.read_semaphore(key, answer).map_err(unreadable)?;
            let text = parts.bytes().map_err(unreadable)?;
            let mut bytes = ByteReader(&text);
            match bytes.byte().map_err(unreadable)? {
                0 => {
                    self.learn_others(&mut parts);
                    if begin.number == 0 {
                        self.list_semaphore(key, found).await?;
                    }
                    let info = codec::read_info(key, bytes).map_err(unreadable)?;
                    let reply = SemaphoreReply::Semaphores(vec![info]);
                    return Ok(command.check_kept(&reply).map(|()| reply));
                }
                TAIL => {
                    let active = bytes.small().map_err(unreadable)?;
                    return Ok(Err(tail_too_long(change.try_release.unwrap_or(0), active)));
                }
                DROPPED => {
                    let remains = codec::Remains::read(bytes).map_err(unreadable)?;
                    self.end_drop(key, &remains).await?;
                }
                UNNUMBERED if begin.number == 0 => {
                    let words = vec![key.as_str().as_bytes().to_vec()];
                    let answer = self.registry_with_retry("semaphore", words).await?;
                    let (found, new) = status(&answer)?;
                    if found == TOO_MANY {
                        return Ok(Err(Error::TooManySemaphores(new as usize)));
                    }
                    let more = |place| answer.get(place).and_then(Value::int).unwrap_or(0) as f64;
                    begin =
                        codec::NewSemaphore { number: new as u32, event: more(2), grant: more(3) };
                }
                _ => return Err(unreadable_registry()),
            }
        }
    }

    /// Lists an existing semaphore, which the registry may have lost.
    async fn list_semaphore(&mut self, key: &SemaphoreKey, number: u32) -> Result<(), Failure> {
        let words = vec![key.as_str().as_bytes().to_vec(), number.to_string().into_bytes()];
        self.registry_with_retry("list_semaphore", words).await.map(drop)
    }

    /// Sends a command to each semaphore, repeated if the answer is lost unless `once`. Answers the first failure.
    async fn call_each_semaphore(
        &mut self,
        asked: &[(Numbered, Vec<u8>)],
        once: bool,
    ) -> Result<Vec<SemaphoreAnswer>, Failure> {
        self.try_each_semaphore(asked, once).await.into_iter().collect()
    }

    /// Like `call_each_semaphore`, with a result for each.
    async fn try_each_semaphore(
        &mut self,
        asked: &[(Numbered, Vec<u8>)],
        once: bool,
    ) -> Vec<Result<SemaphoreAnswer, Failure>> {
        let call = |((_, key), words): &(Numbered, Vec<u8>)| {
            self.shared.semaphore_call(key, vec![words.clone()], false)
        };
        let calls: Vec<Call> = asked.iter().map(call).collect();
        let answers = match once {
            true => self.link.call(&calls).await,
            false => self.call_each_with_retry(&calls).await,
        };
        let answers = asked.iter().zip(answers);
        answers.map(|(((_, key), _), answer)| self.read_answered(key, answer?)).collect()
    }

    fn read_answered(
        &mut self,
        key: &SemaphoreKey,
        answer: Value,
    ) -> Result<SemaphoreAnswer, Failure> {
        let (number, mut parts) = self.read_semaphore(key, answer).map_err(unreadable)?;
        let text = parts.bytes().map_err(unreadable)?;
        self.learn_others(&mut parts);
        Ok(SemaphoreAnswer { number, text })
    }

    /// All listed semaphores, by number.
    async fn all_semaphores(&mut self) -> Result<Vec<Numbered>, Failure> {
        let mut words = self.registry_with_retry("semaphores", Vec::new()).await?.into_iter();
        let mut found = Vec::new();
        while let (Some(key), Some(number)) = (words.next(), words.next()) {
            let key = key.text().and_then(|key| String::from_utf8(key).ok());
            let key = key.and_then(|key| SemaphoreKey::new(&key).ok());
            let number = number.int().and_then(|number| u32::try_from(number).ok());
            if let (Some(key), Some(number)) = (key, number) {
                self.shared.cache().semaphores.list(number, &key);
                found.push((number, key));
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    async fn list(&mut self) -> Result<SemaphoreReply, Failure> {
        let all = self.all_semaphores().await?;
        let mut infos = Vec::with_capacity(all.len());
        for some in all.chunks(SWEPT_TOGETHER) {
            let asked: Vec<_> = some.iter().map(|one| (one.clone(), b"N".to_vec())).collect();
            let answers = self.call_each_semaphore(&asked, false).await?;
            for ((_, key), answered) in some.iter().zip(answers) {
                let mut bytes = ByteReader(&answered.text);
                // A listed semaphore may not exist yet.
                if bytes.byte().map_err(unreadable)? == 0 {
                    infos.push(codec::read_info(key, bytes).map_err(unreadable)?);
                }
            }
        }
        infos.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(SemaphoreReply::Semaphores(infos))
    }

    /// Delivers events of all semaphores, the oldest first.
    async fn fetch(&mut self, count: usize) -> Result<SemaphoreReply, Failure> {
        let due = {
            let cache = self.shared.cache();
            cache.semaphores.events.due(cache.clock())
        };
        let mut found = Vec::new();
        for some in due.chunks(SWEPT_TOGETHER) {
            let asked: Vec<_> = some.iter().map(|one| (one.clone(), codec::peek(count))).collect();
            let answers = self.call_each_semaphore(&asked, false).await?;
            for ((_, key), answered) in some.iter().zip(answers) {
                let mut bytes = ByteReader(&answered.text);
                if bytes.byte().map_err(unreadable)? == 0 {
                    let due = codec::read_due(bytes).map_err(unreadable)?;
                    let one = (answered.number, key.clone());
                    found.extend(due.into_iter().map(|due| (due, one.clone())));
                }
            }
        }
        found.sort_by(|(a, one), (b, other)| {
            a.at.total_cmp(&b.at)
                .then(a.stamp.total_cmp(&b.stamp))
                .then_with(|| (one, a.number).cmp(&(other, b.number)))
        });
        found.truncate(count);
        let wanted: Vec<(Numbered, u64)> =
            found.into_iter().map(|(due, one)| (one, due.number)).collect();
        Ok(SemaphoreReply::Events(self.deliver(&wanted).await?))
    }

    /// Delivers these events in this order, without those that another server delivered meanwhile.
    async fn deliver(
        &mut self,
        wanted: &[(Numbered, u64)],
    ) -> Result<Vec<SemaphoreEvent>, Failure> {
        let mut by_semaphore: HashMap<&Numbered, Vec<u64>> = HashMap::new();
        for (one, number) in wanted {
            by_semaphore.entry(one).or_default().push(*number);
        }
        let asked: Vec<_> = by_semaphore
            .into_iter()
            .map(|(one, numbers)| (one.clone(), codec::deliver(&numbers)))
            .collect();
        let answers = self.call_each_semaphore(&asked, true).await?;
        let mut events: HashMap<EventId, SemaphoreEvent> = HashMap::new();
        for (((_, key), _), answered) in asked.iter().zip(answers) {
            let mut bytes = ByteReader(&answered.text);
            if bytes.byte().map_err(unreadable)? == 0 {
                let semaphore = (answered.number, key);
                let handed = codec::read_events(semaphore, bytes).map_err(unreadable)?;
                events.extend(handed.into_iter().map(|event| (event.id, event)));
            }
        }
        let ids =
            wanted.iter().map(|((semaphore, _), number)| codec::event_id(*semaphore, *number));
        Ok(ids.filter_map(|id| events.remove(&id)).collect())
    }

    async fn acknowledge(&mut self, events: &[EventId]) -> Result<SemaphoreReply, Failure> {
        let mut by_semaphore: HashMap<u32, Vec<u64>> = HashMap::new();
        for id in events {
            let (semaphore, number) = codec::event_number(*id);
            by_semaphore.entry(semaphore).or_default().push(number);
        }
        let mut arrived = 0;
        // First the numbers that are known here, then those of the registry.
        for looked in [false, true] {
            let mut asked = Vec::new();
            for (semaphore, numbers) in &by_semaphore {
                let key = self.shared.cache().semaphores.keys.get(semaphore).cloned();
                let words = || codec::acknowledge(*semaphore, numbers);
                asked.extend(key.map(|key| ((*semaphore, key), words())));
            }
            let answers = self.call_each_semaphore(&asked, true).await?;
            for (((semaphore, _), _), answered) in asked.iter().zip(answers) {
                // If another semaphore has the number, nothing was done.
                if !matches!(answered.text[..], [MISSING | UNNUMBERED, ..]) {
                    by_semaphore.remove(semaphore);
                    arrived += counted(&answered.text).map_err(unreadable)?;
                }
            }
            if by_semaphore.is_empty() || looked {
                break;
            }
            self.all_semaphores().await?;
        }
        Ok(SemaphoreReply::Acknowledged(arrived))
    }

    /// Applies due deadlines in semaphores. Each semaphore that changes counts as one.
    pub async fn tick_semaphores(
        &mut self,
        limit: usize,
        sweep: bool,
        ticked: &mut TickProgress,
    ) -> Result<(), Failure> {
        let due = self.due_semaphores(sweep).await?;
        for some in due.chunks(SWEPT_TOGETHER) {
            if ticked.moved >= limit {
                break;
            }
            let asked: Vec<_> = some.iter().map(|one| (one.clone(), codec::tick())).collect();
            let answers = self.try_each_semaphore(&asked, false).await;
            for (one, answered) in some.iter().zip(answers) {
                let moved =
                    answered.and_then(|answered| counted(&answered.text).map_err(unreadable));
                let Some(moved) = ticked.take(moved) else {
                    let mut cache = self.shared.cache();
                    let again = cache.clock().saturating_add(RETRY_AFTER);
                    cache.semaphores.retry_at(one, again);
                    continue;
                };
                ticked.moved += moved as usize;
            }
        }
        let mut cache = self.shared.cache();
        let clock = cache.clock();
        self.events.add(cache.semaphores.take_due_events(clock));
        Ok(())
    }

    /// The semaphores to call: those with a due deadline, and in a sweep some of all, or all the first time.
    async fn due_semaphores(&mut self, sweep: bool) -> Result<Vec<Numbered>, Failure> {
        let (mut due, first) = {
            let cache = self.shared.cache();
            (cache.semaphores.deadlines.due(cache.clock()), cache.was_never_swept())
        };
        if sweep {
            let all = self.all_semaphores().await?;
            let mut cache = self.shared.cache();
            let cursor = cache.semaphores.cursor;
            let rest = all.into_iter().filter(|(number, _)| first || *number >= cursor);
            let some: Vec<Numbered> =
                rest.take(if first { usize::MAX } else { SWEPT_TOGETHER }).collect();
            let whole = some.len() < SWEPT_TOGETHER;
            let last = some.last().map_or(0, |(number, _)| number + 1);
            cache.semaphores.cursor = if first || whole { 0 } else { last };
            due.extend(some);
            // Each once, due ones first.
            let mut seen = std::collections::HashSet::new();
            due.retain(|one| seen.insert(one.0));
        }
        Ok(due)
    }
}

fn counted(text: &[u8]) -> Result<u64, Unreadable> {
    let mut bytes = ByteReader(text);
    if bytes.byte()? == 0 { bytes.count() } else { Ok(0) }
}

fn read_reply(
    semaphore: (u32, &SemaphoreKey),
    command: &SemaphoreCommand,
    parts: &mut AnswerParts,
) -> Result<Result<Reply, Error>, Unreadable> {
    let text = parts.bytes()?;
    let mut bytes = ByteReader(&text);
    match bytes.byte()? {
        0 => {}
        MISSING => return Ok(Err(Error::SemaphoreNotFound(semaphore.1.clone()))),
        _ => return Err(Unreadable("a semaphore answers an unknown status")),
    }
    Ok(Ok(Reply::Semaphore(match command {
        SemaphoreCommand::Enqueue { .. } | SemaphoreCommand::Peek { .. } => {
            SemaphoreReply::MemberInfos(codec::read_standings(bytes)?)
        }
        SemaphoreCommand::Members { count, .. } => {
            SemaphoreReply::Members(codec::read_members(bytes, *count)?)
        }
        SemaphoreCommand::Finish { .. } => SemaphoreReply::Finished(codec::read_outcomes(bytes)),
        SemaphoreCommand::Events { .. } => {
            SemaphoreReply::Events(codec::read_events(semaphore, bytes)?)
        }
        _ => SemaphoreReply::Semaphores(vec![codec::read_info(semaphore.1, bytes)?]),
    })))
}

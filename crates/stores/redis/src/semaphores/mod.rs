//! Semaphores: each is whole on one node, and a call is about one of them.
//!
//! Whoever wants events of all semaphores is given them in order: what is due is looked at first, then the first of it is handed
//! out. Which semaphores to look at a server knows from its own calls, from notices of others, and from a look at all of them now and then.

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
use super::answers::Parts;
use super::codec::{Bytes, Unreadable};
use super::execute::{Batch, unreadable_registry};
use super::failure::error;
use super::known::Numbered;
use super::registry::{AGAIN, Ticked};
use super::replicas;
use super::results::misread;
use super::tubes::{status, unreadable};

/// What the registry answers when there are too many.
const TOO_MANY: i64 = 4;
/// What a semaphore answers that is not there, whose tail would be too long, and that has no number yet or another one.
const MISSING: u8 = 1;
const TAIL: u8 = 2;
const UNNUMBERED: u8 = 3;
/// What a semaphore answers to a call that makes it before a drop of the one before has ended.
const DROPPED: u8 = 7;

/// How many semaphores a server looks at in a second, for what other servers did.
const SWEPT_TOGETHER: usize = 1000;

/// Commands that ask one semaphore each, in order, until they are asked. They leave together; only neighbours share a call,
/// since events of all semaphores are told in the order in which they came about.
#[derive(Default)]
pub(super) struct Pending {
    groups: Vec<Group>,
    items: usize,
}

/// What a semaphore answered, and its number.
struct Answered {
    number: u32,
    text: Vec<u8>,
}

/// What is asked of one semaphore.
struct Group {
    key: SemaphoreKey,
    commands: Vec<(usize, SemaphoreCommand)>,
}

impl Pending {
    /// Adds a command, unless it must be asked alone.
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
            None => self.groups.push(Group { key, commands: vec![(place, command)] }),
        }
        None
    }
}

/// The semaphore that a command is about, if that is all it is about and it can be asked together with others.
fn key_of(command: &SemaphoreCommand) -> Option<SemaphoreKey> {
    match command {
        SemaphoreCommand::Enqueue { key, .. }
        | SemaphoreCommand::Finish { key, .. }
        | SemaphoreCommand::Look { key, .. }
        | SemaphoreCommand::Members { key, .. }
        | SemaphoreCommand::List { key: Some(key) }
        | SemaphoreCommand::Events { key: Some(key), .. } => Some(key.clone()),
        _ => None,
    }
}

fn only_looks(command: &SemaphoreCommand) -> bool {
    matches!(
        command,
        SemaphoreCommand::Look { .. }
            | SemaphoreCommand::Members { .. }
            | SemaphoreCommand::List { .. }
    )
}

impl Redis {
    fn semaphore_call(&self, key: &SemaphoreKey, words: Vec<Vec<u8>>, grows: bool) -> Call {
        let place = &self.reach.url;
        let channel = if self.presence.is_accompanied() { self.channel() } else { String::new() };
        let single = if place.cluster { "" } else { "1" };
        let mut args = vec![self.now_word(), self.epoch_word()];
        args.extend([channel, self.presence.name().to_owned(), single.into()].map(Vec::from));
        args.extend(words);
        let function = if grows { "semaphore" } else { "semaphore_free" };
        let key = format!("{{{}:/{key}}}", place.prefix);
        Call { function, key, args, replicate: false }
    }
}

impl Batch<'_> {
    /// Asks semaphores, each once.
    pub async fn ask_semaphores(&mut self, pending: Pending) {
        if pending.groups.is_empty() {
            return;
        }
        if self.lost {
            let failure = Failure::Unreachable("it was lost before".into());
            pending.groups.iter().for_each(|group| self.fail_group(group, &failure));
            return;
        }
        let calls: Vec<Call> = pending.groups.iter().map(|group| self.group_call(group)).collect();
        let answers = self.link.call(&calls).await;
        let mut again = Pending::default();
        for ((group, call), answer) in pending.groups.into_iter().zip(&calls).zip(answers) {
            let looks = group.commands.iter().all(|(_, command)| only_looks(command));
            let answer = match answer {
                Err(Failure::Lost(_)) if looks => self.call_again(call).await,
                answer => answer,
            };
            let (answer, short) = replicas::split(answer);
            match answer {
                Ok(value) => {
                    self.read_group(&group, value);
                    if let Some(why) = short {
                        self.doubt_group(&group, &why);
                    }
                }
                Err(Failure::Full) => again.groups.extend(self.without_enqueues(group)),
                Err(failure) => self.fail_group(&group, &failure),
            }
        }
        Box::pin(self.ask_semaphores(again)).await;
    }

    /// Redis has no room: whoever wants to stand in line is refused, and the rest is asked again without that.
    fn without_enqueues(&mut self, mut group: Group) -> Option<Group> {
        let asked = group.commands.len();
        group.commands.retain(|(place, command)| {
            let grows = matches!(command, SemaphoreCommand::Enqueue { .. });
            if grows {
                self.replies[*place] = Some(Err(error(&Failure::Full)));
            }
            !grows
        });
        if group.commands.len() == asked {
            // Then there is nothing to leave out.
            self.fail_group(&group, &Failure::Full);
            return None;
        }
        (!group.commands.is_empty()).then_some(group)
    }

    /// What was done here may be undone.
    fn doubt_group(&mut self, group: &Group, why: &str) {
        for (place, command) in &group.commands {
            if !only_looks(command) && matches!(self.replies[*place], Some(Ok(_))) {
                self.answer(*place, Err(replicas::undoable(why)));
            }
        }
    }

    fn group_call(&self, group: &Group) -> Call {
        let words = group.commands.iter().map(|(_, command)| codec::encode(command)).collect();
        let commands = || group.commands.iter().map(|(_, command)| command);
        let grows = commands().any(|command| matches!(command, SemaphoreCommand::Enqueue { .. }));
        let mut call = self.shared.semaphore_call(&group.key, words, grows);
        call.replicate = !commands().all(only_looks);
        call
    }

    fn fail_group(&mut self, group: &Group, failure: &Failure) {
        self.note(failure);
        for (place, _) in &group.commands {
            self.answer(*place, Err(error(failure)));
        }
    }

    fn read_group(&mut self, group: &Group, value: Value) {
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

    /// Takes in how a semaphore stands. Answers its number, or none where there is none, and what it answered.
    fn read_semaphore(
        &mut self,
        key: &SemaphoreKey,
        value: Value,
    ) -> Result<(u32, Parts), Unreadable> {
        let mut parts = Parts::all(value)?;
        let (head, clock) = codec::read_head(key, &parts.bytes()?)?;
        {
            let mut known = self.shared.known();
            known.ahead = clock.saturating_sub(known.now);
        }
        let number = head.as_ref().map_or(0, |head| head.number);
        match head {
            Some(head) => self.learn_semaphore(&head),
            None => self.shared.known().semaphores.forget(key),
        }
        Ok((number, parts))
    }

    /// What is about all semaphores, or may make one.
    pub async fn ask_all_semaphores(
        &mut self,
        command: SemaphoreCommand,
    ) -> Result<Result<Reply, Error>, Failure> {
        let reply = match command {
            SemaphoreCommand::Configure { ref key, .. } => self.configure(key, &command).await?,
            SemaphoreCommand::Drop { ref key, .. } => self.drop_semaphore(key, &command).await?,
            SemaphoreCommand::List { key: None } => Ok(self.list().await?),
            SemaphoreCommand::Events { key: None, count, .. } => Ok(self.fetch(count).await?),
            SemaphoreCommand::Acknowledge { events } => Ok(self.acknowledge(&events).await?),
            one => return Ok(self.ask_one(one).await),
        };
        Ok(reply.map(Reply::Semaphore))
    }

    /// Asks one semaphore, when those before it were as many as are asked together.
    async fn ask_one(&mut self, command: SemaphoreCommand) -> Result<Reply, Error> {
        let mut pending = Pending::default();
        let place = self.replies.len();
        self.replies.push(None);
        pending.add(place, Command::Semaphore(command));
        self.ask_semaphores(pending).await;
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
        let mut begin = codec::Begin::default();
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
            let mut bytes = Bytes(&text);
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
                    let answer = self.registry_again("semaphore", words).await?;
                    let (found, new) = status(&answer)?;
                    if found == TOO_MANY {
                        return Ok(Err(Error::TooManySemaphores(new as usize)));
                    }
                    let more = |place| answer.get(place).and_then(Value::int).unwrap_or(0) as f64;
                    begin = codec::Begin { number: new as u32, event: more(2), grant: more(3) };
                }
                _ => return Err(unreadable_registry()),
            }
        }
    }

    /// One that was there already is listed, also when the registry has lost it.
    async fn list_semaphore(&mut self, key: &SemaphoreKey, number: u32) -> Result<(), Failure> {
        let words = vec![key.as_str().as_bytes().to_vec(), number.to_string().into_bytes()];
        self.registry_again("list_semaphore", words).await.map(drop)
    }

    /// Asks semaphores the same thing each, which may be asked twice unless `once`. The first that cannot be asked is the answer.
    async fn ask_each_semaphore(
        &mut self,
        asked: &[(Numbered, Vec<u8>)],
        once: bool,
    ) -> Result<Vec<Answered>, Failure> {
        self.try_each_semaphore(asked, once).await.into_iter().collect()
    }

    /// The same with an answer for each.
    async fn try_each_semaphore(
        &mut self,
        asked: &[(Numbered, Vec<u8>)],
        once: bool,
    ) -> Vec<Result<Answered, Failure>> {
        let call = |((_, key), words): &(Numbered, Vec<u8>)| {
            self.shared.semaphore_call(key, vec![words.clone()], false)
        };
        let calls: Vec<Call> = asked.iter().map(call).collect();
        let answers = match once {
            true => self.link.call(&calls).await,
            false => self.call_each_again(&calls).await,
        };
        let answers = asked.iter().zip(answers);
        answers.map(|(((_, key), _), answer)| self.read_answered(key, answer?)).collect()
    }

    fn read_answered(&mut self, key: &SemaphoreKey, answer: Value) -> Result<Answered, Failure> {
        let (number, mut parts) = self.read_semaphore(key, answer).map_err(unreadable)?;
        let text = parts.bytes().map_err(unreadable)?;
        self.learn_others(&mut parts);
        Ok(Answered { number, text })
    }

    /// All semaphores that are listed, by number.
    async fn all_semaphores(&mut self) -> Result<Vec<Numbered>, Failure> {
        let mut words = self.registry_again("semaphores", Vec::new()).await?.into_iter();
        let mut found = Vec::new();
        while let (Some(key), Some(number)) = (words.next(), words.next()) {
            let key = key.text().and_then(|key| String::from_utf8(key).ok());
            let key = key.and_then(|key| SemaphoreKey::new(&key).ok());
            let number = number.int().and_then(|number| u32::try_from(number).ok());
            if let (Some(key), Some(number)) = (key, number) {
                self.shared.known().semaphores.list(number, &key);
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
            let answers = self.ask_each_semaphore(&asked, false).await?;
            for ((_, key), answered) in some.iter().zip(answers) {
                let mut bytes = Bytes(&answered.text);
                // One that is listed may not be made yet.
                if bytes.byte().map_err(unreadable)? == 0 {
                    infos.push(codec::read_info(key, bytes).map_err(unreadable)?);
                }
            }
        }
        infos.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(SemaphoreReply::Semaphores(infos))
    }

    /// Hands out events of all semaphores, the oldest first.
    async fn fetch(&mut self, count: usize) -> Result<SemaphoreReply, Failure> {
        let due = {
            let known = self.shared.known();
            known.semaphores.events.due(known.clock())
        };
        let mut found = Vec::new();
        for some in due.chunks(SWEPT_TOGETHER) {
            let asked: Vec<_> = some.iter().map(|one| (one.clone(), codec::peek(count))).collect();
            let answers = self.ask_each_semaphore(&asked, false).await?;
            for ((_, key), answered) in some.iter().zip(answers) {
                let mut bytes = Bytes(&answered.text);
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
        Ok(SemaphoreReply::Events(self.hand_out(&wanted).await?))
    }

    /// Hands out these events, in this order. What another server handed out meanwhile is left out.
    async fn hand_out(
        &mut self,
        wanted: &[(Numbered, u64)],
    ) -> Result<Vec<SemaphoreEvent>, Failure> {
        let mut by_semaphore: HashMap<&Numbered, Vec<u64>> = HashMap::new();
        for (one, number) in wanted {
            by_semaphore.entry(one).or_default().push(*number);
        }
        let asked: Vec<_> = by_semaphore
            .into_iter()
            .map(|(one, numbers)| (one.clone(), codec::hand_out(&numbers)))
            .collect();
        let answers = self.ask_each_semaphore(&asked, true).await?;
        let mut events: HashMap<EventId, SemaphoreEvent> = HashMap::new();
        for (((_, key), _), answered) in asked.iter().zip(answers) {
            let mut bytes = Bytes(&answered.text);
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
        // What is known here comes first; after that what the registry says.
        for looked in [false, true] {
            let mut asked = Vec::new();
            for (semaphore, numbers) in &by_semaphore {
                let key = self.shared.known().semaphores.keys.get(semaphore).cloned();
                let words = || codec::acknowledge(*semaphore, numbers);
                asked.extend(key.map(|key| ((*semaphore, key), words())));
            }
            let answers = self.ask_each_semaphore(&asked, true).await?;
            for (((semaphore, _), _), answered) in asked.iter().zip(answers) {
                // Where the number is another's, nothing was done.
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

    /// Lets time do what is due in semaphores. Each in which something was counts as one that moved.
    pub async fn tick_semaphores(
        &mut self,
        limit: usize,
        sweep: bool,
        ticked: &mut Ticked,
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
                    let mut known = self.shared.known();
                    let again = known.clock().saturating_add(AGAIN);
                    known.semaphores.ask_later(one, again);
                    continue;
                };
                ticked.moved += moved as usize;
            }
        }
        let mut known = self.shared.known();
        let clock = known.clock();
        self.events.add(known.semaphores.tell(clock));
        Ok(())
    }

    /// The semaphores to be asked what is due: those whose moment has come, and with a sweep some of all, or all the first time.
    async fn due_semaphores(&mut self, sweep: bool) -> Result<Vec<Numbered>, Failure> {
        let (mut due, first) = {
            let known = self.shared.known();
            (known.semaphores.moments.due(known.clock()), known.was_never_swept())
        };
        if sweep {
            let all = self.all_semaphores().await?;
            let mut known = self.shared.known();
            let cursor = known.semaphores.cursor;
            let rest = all.into_iter().filter(|(number, _)| first || *number >= cursor);
            let some: Vec<Numbered> =
                rest.take(if first { usize::MAX } else { SWEPT_TOGETHER }).collect();
            let whole = some.len() < SWEPT_TOGETHER;
            let last = some.last().map_or(0, |(number, _)| number + 1);
            known.semaphores.cursor = if first || whole { 0 } else { last };
            due.extend(some);
            // Each once, those whose moment has come first.
            let mut seen = std::collections::HashSet::new();
            due.retain(|one| seen.insert(one.0));
        }
        Ok(due)
    }
}

fn counted(text: &[u8]) -> Result<u64, Unreadable> {
    let mut bytes = Bytes(text);
    if bytes.byte()? == 0 { bytes.count() } else { Ok(0) }
}

fn read_reply(
    semaphore: (u32, &SemaphoreKey),
    command: &SemaphoreCommand,
    parts: &mut Parts,
) -> Result<Result<Reply, Error>, Unreadable> {
    let text = parts.bytes()?;
    let mut bytes = Bytes(&text);
    match bytes.byte()? {
        0 => {}
        MISSING => return Ok(Err(Error::SemaphoreNotFound(semaphore.1.clone()))),
        _ => return Err(Unreadable("a semaphore refuses for no reason")),
    }
    Ok(Ok(Reply::Semaphore(match command {
        SemaphoreCommand::Enqueue { .. } | SemaphoreCommand::Look { .. } => {
            SemaphoreReply::Standings(codec::read_standings(bytes)?)
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

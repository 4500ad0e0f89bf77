//! Who waits for events of semaphores.

use std::collections::{BTreeMap, BTreeSet};

use taskyard_core::limits::WAITERS_MAX;
use taskyard_core::{
    Command, Error, News, Reply, Result, SemaphoreCommand, SemaphoreKey, SemaphoreReply, Span,
    Timestamp,
};

use crate::jobs::Place;
use crate::running::{Origin, Running};

/// The number of a listener: grows with arrival, never used twice.
pub(crate) type ListenerId = u64;

/// Everybody who waits for events, in the order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    all: BTreeMap<ListenerId, Listener>,
    /// Those who wait for events of the same semaphore, or of all.
    lines: BTreeMap<Option<SemaphoreKey>, BTreeSet<ListenerId>>,
    deadlines: BTreeSet<(Timestamp, ListenerId)>,
    next_id: ListenerId,
    /// There may be events for them.
    pub news: News,
}

/// Somebody who waits for events.
#[derive(Debug)]
struct Listener {
    place: Place,
    command: Command,
    until: Timestamp,
}

impl Listener {
    /// Of which semaphore it wants to hear.
    fn key(&self) -> Option<SemaphoreKey> {
        match &self.command {
            Command::Semaphore(SemaphoreCommand::Events { key, .. }) => key.clone(),
            _ => None,
        }
    }

    /// Whether a reply leaves nothing for those behind it: there were fewer events than it wanted.
    fn took_all(&self, reply: &Result<Reply>) -> bool {
        match (&self.command, reply) {
            (
                Command::Semaphore(SemaphoreCommand::Events { count, .. }),
                Ok(Reply::Semaphore(SemaphoreReply::Events(events))),
            ) => events.len() < *count,
            _ => false,
        }
    }
}

impl Listeners {
    /// When the first of them gives up.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.deadlines.first().map(|deadline| deadline.0)
    }

    fn add(&mut self, listener: Listener) -> ListenerId {
        let id = self.next_id;
        self.next_id += 1;
        if listener.until != Timestamp::NEVER {
            self.deadlines.insert((listener.until, id));
        }
        self.lines.entry(listener.key()).or_default().insert(id);
        self.all.insert(id, listener);
        id
    }

    fn remove(&mut self, id: ListenerId) -> Option<Listener> {
        let listener = self.all.remove(&id)?;
        self.deadlines.remove(&(listener.until, id));
        let key = listener.key();
        if let Some(line) = self.lines.get_mut(&key) {
            line.remove(&id);
            if line.is_empty() {
                self.lines.remove(&key);
            }
        }
        Some(listener)
    }

    /// Who tries first when there are news: the first of each line that they concern. The next follow only when there
    /// may be more.
    fn first_of_each(&self, news: &News) -> impl Iterator<Item = (ListenerId, &Listener)> {
        let lines = self.lines.iter().filter(|(key, _)| news.concern(key.as_ref()));
        let first = lines.filter_map(|(_, line)| line.first());
        first.filter_map(|id| Some((*id, self.all.get(id)?)))
    }

    fn expired(&self, now: Timestamp) -> Option<ListenerId> {
        self.deadlines.first().filter(|deadline| deadline.0 <= now).map(|deadline| deadline.1)
    }
}

/// How long a command waits for events; `None` for all that do not.
pub(crate) fn listens(command: &Command) -> Option<Span> {
    match command {
        Command::Semaphore(SemaphoreCommand::Events { wait, count, .. }) => {
            Some(*wait).filter(|wait| !wait.is_zero() && *count > 0)
        }
        _ => None,
    }
}

/// The answer to who waited in vain.
fn no_events() -> Result<Reply> {
    Ok(Reply::Semaphore(SemaphoreReply::Events(Vec::new())))
}

/// Whether a listener with this reply has to go on waiting.
pub(crate) fn in_vain(reply: &Result<Reply>) -> bool {
    matches!(reply, Ok(Reply::Semaphore(SemaphoreReply::Events(events))) if events.is_empty())
}

impl Running {
    /// Lets a command in that waits for events: it tries at once, and again whenever there are news.
    pub fn admit_listener(&mut self, place: Place, command: Command, wait: Span) {
        if self.stopping {
            return self.round.push(Origin::Job(place), command);
        }
        if self.listeners.all.len() >= WAITERS_MAX {
            let refusal = Error::Overloaded("too many wait for events");
            return self.jobs.answer(place, Err(refusal));
        }
        let until = self.now + wait;
        let id = self.listeners.add(Listener { place, command: command.clone(), until });
        self.round.push(Origin::Listener(id), command);
    }

    /// Lets those who wait for events try again, if there may be some: of many who want the same the first.
    pub fn wake_listeners(&mut self) {
        let news = std::mem::take(&mut self.listeners.news);
        if !news.are_there() {
            return;
        }
        self.forget_deaf();
        for (id, listener) in self.listeners.first_of_each(&news) {
            self.round.push(Origin::Listener(id), listener.command.clone());
        }
    }

    /// Answers a listener whose command ran, unless it has to go on waiting.
    pub fn serve_listener(&mut self, id: ListenerId, reply: Result<Reply>) {
        if in_vain(&reply) {
            return;
        }
        if let Some(listener) = self.listeners.remove(id) {
            if !listener.took_all(&reply) {
                self.listeners.news.add(listener.key().map_or(News::All, News::of));
            }
            self.jobs.answer(listener.place, reply);
        }
    }

    /// Lets those go whose time is over.
    pub fn let_listeners_go(&mut self, somebody_left: bool) {
        while let Some(id) = self.listeners.expired(self.now) {
            self.dismiss_listener(id);
        }
        if somebody_left {
            self.forget_deaf();
        }
    }

    /// Answers everybody who waits for events, because the engine stops.
    pub fn dismiss_listeners(&mut self) {
        let all: Vec<ListenerId> = self.listeners.all.keys().copied().collect();
        all.into_iter().for_each(|id| self.dismiss_listener(id));
    }

    /// Lets those go whose callers are gone: what they fetched would be told to nobody.
    fn forget_deaf(&mut self) {
        let all = self.listeners.all.iter();
        let deaf = all.filter(|(_, listener)| self.jobs.is_abandoned(listener.place.slot));
        let deaf: Vec<ListenerId> = deaf.map(|(id, _)| *id).collect();
        deaf.into_iter().for_each(|id| self.dismiss_listener(id));
    }

    fn dismiss_listener(&mut self, id: ListenerId) {
        if let Some(listener) = self.listeners.remove(id) {
            self.jobs.answer(listener.place, no_events());
        }
    }
}

//! The callers that wait for events of semaphores.

use std::collections::{BTreeMap, BTreeSet};

use taskyard_core::limits::WAITERS_MAX;
use taskyard_core::{
    Command, Error, NewEvents, Reply, Result, SemaphoreCommand, SemaphoreKey, SemaphoreReply, Span,
    Timestamp,
};

use crate::event_loop::{EventLoop, Origin};
use crate::jobs::ReplySlot;

/// Identifies a listener: grows with arrival, never reused.
pub(crate) type ListenerId = u64;

/// All listeners, in the order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    all: BTreeMap<ListenerId, Listener>,
    /// The listeners of one semaphore, or of all semaphores (`None`).
    queues: BTreeMap<Option<SemaphoreKey>, BTreeSet<ListenerId>>,
    deadlines: BTreeSet<(Timestamp, ListenerId)>,
    next_id: ListenerId,
    /// The semaphores that may have new events.
    pub new_events: NewEvents,
}

/// A caller that waits for events.
#[derive(Debug)]
struct Listener {
    slot: ReplySlot,
    command: Command,
    until: Timestamp,
}

impl Listener {
    /// The semaphore it listens to; `None` for all.
    fn key(&self) -> Option<SemaphoreKey> {
        match &self.command {
            Command::Semaphore(SemaphoreCommand::Events { key, .. }) => key.clone(),
            _ => None,
        }
    }

    /// Whether a reply leaves no events for later listeners: there were fewer than it asked for.
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
    /// When the first wait ends.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.deadlines.first().map(|deadline| deadline.0)
    }

    fn add(&mut self, listener: Listener) -> ListenerId {
        let id = self.next_id;
        self.next_id += 1;
        if listener.until != Timestamp::NEVER {
            self.deadlines.insert((listener.until, id));
        }
        self.queues.entry(listener.key()).or_default().insert(id);
        self.all.insert(id, listener);
        id
    }

    fn remove(&mut self, id: ListenerId) -> Option<Listener> {
        let listener = self.all.remove(&id)?;
        self.deadlines.remove(&(listener.until, id));
        let key = listener.key();
        if let Some(queue) = self.queues.get_mut(&key) {
            queue.remove(&id);
            if queue.is_empty() {
                self.queues.remove(&key);
            }
        }
        Some(listener)
    }

    /// The listeners that try first when there is new_events: the first of each affected queue. The next
    /// ones follow only when there may be more events.
    fn first_of_each_queue(
        &self,
        new_events: &NewEvents,
    ) -> impl Iterator<Item = (ListenerId, &Listener)> {
        let queues = self.queues.iter().filter(|(key, _)| new_events.may_concern(key.as_ref()));
        let first = queues.filter_map(|(_, queue)| queue.first());
        first.filter_map(|id| Some((*id, self.all.get(id)?)))
    }

    fn expired(&self, now: Timestamp) -> Option<ListenerId> {
        self.deadlines.first().filter(|deadline| deadline.0 <= now).map(|deadline| deadline.1)
    }
}

/// How long a command waits for events; `None` for commands that do not.
pub(crate) fn listens(command: &Command) -> Option<Span> {
    match command {
        Command::Semaphore(SemaphoreCommand::Events { wait, count, .. }) => {
            Some(*wait).filter(|wait| !wait.is_zero() && *count > 0)
        }
        _ => None,
    }
}

/// The reply when a wait for events ends.
fn no_events() -> Result<Reply> {
    Ok(Reply::Semaphore(SemaphoreReply::Events(Vec::new())))
}

/// Whether a listener with this reply keeps waiting.
pub(crate) fn found_no_events(reply: &Result<Reply>) -> bool {
    matches!(reply, Ok(Reply::Semaphore(SemaphoreReply::Events(events))) if events.is_empty())
}

impl EventLoop {
    /// Admits a command that waits for events: it tries at once, and again whenever there is new_events.
    pub fn admit_listener(&mut self, slot: ReplySlot, command: Command, wait: Span) {
        if self.stopping {
            return self.batch.push(Origin::Job(slot), command);
        }
        if self.listeners.all.len() >= WAITERS_MAX {
            let refusal = Error::Overloaded("too many callers wait for semaphore events");
            return self.jobs.answer(slot, Err(refusal));
        }
        let until = self.now + wait;
        let id = self.listeners.add(Listener { slot, command: command.clone(), until });
        self.batch.push(Origin::Listener(id), command);
    }

    /// Lets listeners try again if there may be events; the first of each queue.
    pub fn wake_listeners(&mut self) {
        let new_events = std::mem::take(&mut self.listeners.new_events);
        if !new_events.any() {
            return;
        }
        self.end_abandoned_listeners();
        for (id, listener) in self.listeners.first_of_each_queue(&new_events) {
            self.batch.push(Origin::Listener(id), listener.command.clone());
        }
    }

    /// Answers a listener whose command ran, unless it keeps waiting.
    pub fn serve_listener(&mut self, id: ListenerId, reply: Result<Reply>) {
        if found_no_events(&reply) {
            return;
        }
        if let Some(listener) = self.listeners.remove(id) {
            if !listener.took_all(&reply) {
                self.listeners.new_events.add(listener.key().map_or(NewEvents::All, NewEvents::of));
            }
            self.jobs.answer(listener.slot, reply);
        }
    }

    /// Ends the listeners whose time is over.
    pub fn end_expired_listeners(&mut self, any_cancelled: bool) {
        while let Some(id) = self.listeners.expired(self.now) {
            self.end_listener(id);
        }
        if any_cancelled {
            self.end_abandoned_listeners();
        }
    }

    /// Answers all listeners, because the engine stops.
    pub fn end_all_listeners(&mut self) {
        let all: Vec<ListenerId> = self.listeners.all.keys().copied().collect();
        all.into_iter().for_each(|id| self.end_listener(id));
    }

    /// Ends the listeners whose callers are gone: events fetched for them would be lost.
    fn end_abandoned_listeners(&mut self) {
        let all = self.listeners.all.iter();
        let abandoned = all.filter(|(_, listener)| self.jobs.is_abandoned(listener.slot.job));
        let abandoned: Vec<ListenerId> = abandoned.map(|(id, _)| *id).collect();
        abandoned.into_iter().for_each(|id| self.end_listener(id));
    }

    fn end_listener(&mut self, id: ListenerId) {
        if let Some(listener) = self.listeners.remove(id) {
            self.jobs.answer(listener.slot, no_events());
        }
    }
}

//! Events of semaphores.

use serde::{Deserialize, Serialize};
use taskyard_core::limits::BATCH_TASKS_MAX;
use taskyard_core::{
    Error, EventId, EventKind, Grant, Result, SemaphoreCommand, SemaphoreEvent, SemaphoreKey, Span,
    TaskId, TubeName,
};

use super::seconds::{seconds_of, span};
use super::whole;

/// Which events to fetch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EventsRequest {
    /// Of which semaphore; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub semaphore: Option<String>,
    /// At most how many, 1 to 10000.
    #[serde(default = "hundred", deserialize_with = "whole::number")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 10000))]
    pub count: u64,
    /// Seconds to wait for the first; 0 answers at once.
    #[serde(default)]
    pub wait: f64,
}

const fn hundred() -> u64 {
    100
}

impl EventsRequest {
    /// The request for these events, on the client's side.
    pub fn new(key: Option<&SemaphoreKey>, count: usize, wait: Span) -> Self {
        let semaphore = key.map(SemaphoreKey::to_string);
        EventsRequest { semaphore, count: count as u64, wait: seconds_of(wait) }
    }

    /// The command, on the server's side.
    pub fn into_command(self) -> Result<SemaphoreCommand> {
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        if !(1..=BATCH_TASKS_MAX).contains(&count) {
            return Err(Error::Invalid(format!(
                "'count' is {count}; ask for 1 to {BATCH_TASKS_MAX} events"
            )));
        }
        let key = self.semaphore.as_deref().map(SemaphoreKey::new).transpose()?;
        Ok(SemaphoreCommand::Events { key, count, wait: span("wait", self.wait)? })
    }
}

/// Events; each must be acknowledged, or it is delivered again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EventsAnswer {
    /// The events; perhaps none.
    pub events: Vec<EventAnswer>,
}

/// What happened to a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum EventWord {
    /// The task holds a grant now.
    Acquired,
    /// Better tasks wait: the holder should release or yield.
    TryRelease,
    /// The holder need not release any more.
    Keep,
    /// The grant was revoked after the grace period.
    Revoked,
    /// The grant has ended, because its lease was over or it was not acknowledged.
    Expired,
}

/// One event. It may be delivered more than once: (semaphore, task, grant, kind) identifies
/// repetitions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EventAnswer {
    /// Its number, to be acknowledged.
    pub id: u64,
    /// Of which semaphore.
    pub semaphore: String,
    /// The tube of the task, if the semaphore belongs to a tube.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tube: Option<String>,
    /// For which task.
    pub task: u64,
    /// About which grant.
    pub grant: u64,
    /// What happened.
    pub kind: EventWord,
    /// The number of this delivery, from 1.
    pub attempt: u32,
}

/// One message of a WebSocket with events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SocketAnswer {
    /// Something happened; to be acknowledged.
    Event(EventAnswer),
    /// How many of the events that were acknowledged were there.
    Acknowledged(u64),
}

impl EventAnswer {
    /// The event as answers show it.
    pub fn new(event: &SemaphoreEvent) -> Self {
        EventAnswer {
            id: event.id.0,
            semaphore: event.semaphore.to_string(),
            tube: event.tube.as_ref().map(ToString::to_string),
            task: event.task.0,
            grant: event.grant.0,
            kind: match event.kind {
                EventKind::Acquired => EventWord::Acquired,
                EventKind::TryRelease => EventWord::TryRelease,
                EventKind::Keep => EventWord::Keep,
                EventKind::Revoked => EventWord::Revoked,
                EventKind::Expired => EventWord::Expired,
            },
            attempt: event.attempt,
        }
    }

    /// The result for the client's caller.
    pub fn into_event(self) -> Result<SemaphoreEvent> {
        Ok(SemaphoreEvent {
            id: EventId(self.id),
            semaphore: SemaphoreKey::new(&self.semaphore)?,
            tube: self.tube.as_deref().map(TubeName::new).transpose()?,
            task: TaskId(self.task),
            grant: Grant(self.grant),
            kind: match self.kind {
                EventWord::Acquired => EventKind::Acquired,
                EventWord::TryRelease => EventKind::TryRelease,
                EventWord::Keep => EventKind::Keep,
                EventWord::Revoked => EventKind::Revoked,
                EventWord::Expired => EventKind::Expired,
            },
            attempt: self.attempt,
        })
    }
}

/// Which events have arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AcknowledgeRequest {
    /// Their numbers; those that are not there do no harm.
    #[serde(deserialize_with = "whole::list")]
    pub events: Vec<u64>,
}

impl AcknowledgeRequest {
    /// The request for these events, on the client's side.
    pub fn new(events: &[EventId]) -> Self {
        AcknowledgeRequest { events: events.iter().map(|event| event.0).collect() }
    }

    /// The command, on the server's side.
    pub fn into_command(self) -> SemaphoreCommand {
        SemaphoreCommand::Acknowledge { events: self.events.into_iter().map(EventId).collect() }
    }
}

/// How many events were acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AcknowledgedAnswer {
    /// Those that were there.
    pub acknowledged: u64,
}

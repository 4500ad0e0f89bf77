//! Parses the events that the leading scheduler reads from Redis.

use std::time::Duration;

use taskyard_core::classes::{Resumed, RunRequest, TaskKind, Ticket};
use taskyard_core::{Span, Timestamp};
use taskyard_redis::Value;
use tokio::time::Instant;

use super::NO_DURATION;
use super::client::texts;
use crate::scheduler::RunOutcome;

/// The events of one call.
#[derive(Debug, Default)]
pub(super) struct CollectedEvents {
    pub backends: u32,
    /// How long nothing may start yet, because backends may still have to report their runs.
    pub start_delay: Duration,
    /// The task after which the scan of the queue continues; `0` at its end.
    pub cursor: String,
    pub events: Vec<PoolEvent>,
    /// Whether every task that holds a backend is listed.
    pub lists_all: bool,
}

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PoolEvent {
    /// A task waits: a new one, or one listed by a scan.
    Waiting {
        ticket: Ticket,
        ask: RunRequest,
        arrived: Timestamp,
        requeues: u32,
        requested: Option<Span>,
        is_new: bool,
    },
    /// Its client lowered the duration.
    Lowered { ticket: Ticket, requested: Span },
    /// It holds a backend.
    RunningProgram { ticket: Ticket, attempt: String, task: Resumed, requeues: u32 },
    /// Its run ended.
    Ended {
        ticket: Ticket,
        attempt: String,
        outcome: RunOutcome,
        took: Duration,
        stopping: Option<Duration>,
    },
    /// Its backend is gone.
    Lost { ticket: Ticket, attempt: String, seen: bool },
    /// Its client is gone and it holds no backend any more.
    Gone { ticket: Ticket, attempt: String },
    /// It waits again: no backend claimed it.
    Unclaimed { ticket: Ticket, attempt: String },
    /// Its client left the queue.
    Left { ticket: Ticket },
}

impl CollectedEvents {
    /// Until when at least nothing may start.
    pub fn no_starts_until(&self) -> Option<Instant> {
        (!self.start_delay.is_zero()).then(|| Instant::now() + self.start_delay)
    }

    /// Parses a reply. Entries of another version that are not understood are skipped.
    pub fn read(answer: Value) -> Self {
        let parts = texts(answer);
        let mut collected = CollectedEvents {
            backends: parts.first().and_then(|text| text.parse().ok()).unwrap_or_default(),
            start_delay: parts.get(1).and_then(|text| millis(text)).unwrap_or_default(),
            cursor: parts.get(2).cloned().unwrap_or_else(|| "0".into()),
            ..CollectedEvents::default()
        };
        for text in parts.iter().skip(3) {
            match event(text) {
                Some(event) => collected.events.push(event),
                None if text == "swept" => collected.lists_all = true,
                None => tracing::warn!(text, "unknown event from Redis"),
            }
        }
        collected
    }
}

fn event(text: &str) -> Option<PoolEvent> {
    let fields: Vec<&str> = text.split_whitespace().collect();
    let ticket = || Some(Ticket(fields.get(1)?.parse().ok()?));
    let attempt = || Some((*fields.get(2)?).to_owned());
    match *fields.first()? {
        "arrive" => waiting(&fields, true),
        "waits" => waiting(&fields, false),
        "wish" => {
            let PoolEvent::Waiting { ticket, requested, .. } = waiting(&fields, false)? else {
                return None;
            };
            Some(PoolEvent::Lowered { ticket, requested: requested? })
        }
        "runs" => running(&fields),
        how @ ("done" | "stuck") => Some(PoolEvent::Ended {
            ticket: ticket()?,
            attempt: attempt()?,
            outcome: if how == "done" { RunOutcome::Done } else { RunOutcome::Stuck },
            took: micros(fields.get(3)?)?,
            stopping: fields.get(4).and_then(|text| micros(text)),
        }),
        "lost" => {
            let seen = *fields.get(3)? == "1";
            Some(PoolEvent::Lost { ticket: ticket()?, attempt: attempt()?, seen })
        }
        "gone" => Some(PoolEvent::Gone { ticket: ticket()?, attempt: attempt()? }),
        "unclaimed" => Some(PoolEvent::Unclaimed { ticket: ticket()?, attempt: attempt()? }),
        "left" => Some(PoolEvent::Left { ticket: ticket()? }),
        _ => None,
    }
}

/// `waits ID ASK DURATION ARRIVED TRIES`
fn waiting(fields: &[&str], is_new: bool) -> Option<PoolEvent> {
    let [_, id, ask, duration, arrived, requeues] = fields else { return None };
    let duration: u64 = duration.parse().ok()?;
    let requested = (duration < NO_DURATION).then(|| span(duration));
    let ask = match *ask {
        "timed" => RunRequest::Timed(requested?),
        "default" => RunRequest::Default,
        "interactive" => RunRequest::Interactive,
        _ => return None,
    };
    let ticket = Ticket(id.parse().ok()?);
    let (arrived, requeues) = (moment(arrived)?, requeues.parse().ok()?);
    Some(PoolEvent::Waiting { ticket, ask, arrived, requeues, requested, is_new })
}

/// `runs ID ATTEMPT CLASS KIND LIMIT STARTED AGAIN WISH TRIES`
fn running(fields: &[&str]) -> Option<PoolEvent> {
    let [_, id, attempt, class, kind, limit, started, _, requested, requeues] = fields else {
        return None;
    };
    let kind = match *kind {
        "explicit" => TaskKind::Explicit,
        "default" => TaskKind::Default,
        "interactive" => TaskKind::Interactive,
        _ => return None,
    };
    let task = Resumed {
        kind,
        class: class.parse().unwrap_or(0),
        started: moment(started)?,
        limit: limit_of(limit)?.map_or(Span::FOREVER, Span::from),
        wish: span(requested.parse().ok()?),
    };
    let (ticket, attempt) = (Ticket(id.parse().ok()?), (*attempt).to_owned());
    Some(PoolEvent::RunningProgram { ticket, attempt, task, requeues: requeues.parse().ok()? })
}

/// A limit in microseconds; `-` means none.
pub(super) fn limit_of(text: &str) -> Option<Option<Duration>> {
    if text == "-" { Some(None) } else { micros(text).map(Some) }
}

fn micros(text: &str) -> Option<Duration> {
    text.parse().ok().map(Duration::from_micros)
}

fn millis(text: &str) -> Option<Duration> {
    text.parse().ok().map(Duration::from_millis)
}

fn span(micros: u64) -> Span {
    if micros >= NO_DURATION { Span::FOREVER } else { Span::from(Duration::from_micros(micros)) }
}

fn moment(millis: &str) -> Option<Timestamp> {
    let millis: i64 = millis.parse().ok()?;
    Some(Timestamp::from_micros(millis.saturating_mul(1_000)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_parsed_and_unknown_ones_are_skipped() {
        let lines = [
            "2",
            "1500",
            "0",
            "arrive 7 timed 3000000 1700000000000 1",
            "waits 8 default 4503599627370496 1700000000000 0",
            "wish 7 timed 2000000 1700000000000 0",
            "runs 9 5-1 2 default 30000000 1700000000000 1 4503599627370496 0",
            "done 9 5-1 1500000 -",
            "lost 9 5-1 1",
            "gone 9 5-1",
            "unclaimed 9 5-1",
            "left 8",
            "swept",
            "dance 9",
            "runs 9",
            "arrive x timed 3 4 5",
        ];
        let answer = Value::List(lines.iter().map(|text| Value::Text((*text).into())).collect());
        let collected = CollectedEvents::read(answer);
        assert_eq!((collected.backends, collected.lists_all, collected.events.len()), (2, true, 9));
        assert_eq!(collected.start_delay, Duration::from_millis(1_500));
        let arrived = Timestamp::from_micros(1_700_000_000_000_000);
        let requested = Some(Span::from_secs(3));
        let ask = RunRequest::Timed(Span::from_secs(3));
        let waiting = PoolEvent::Waiting {
            ticket: Ticket(7),
            ask,
            arrived,
            requeues: 1,
            requested,
            is_new: true,
        };
        assert_eq!(collected.events[0], waiting);
        assert!(matches!(
            collected.events[1],
            PoolEvent::Waiting { ask: RunRequest::Default, requested: None, .. }
        ));
        let took = Duration::from_millis(1_500);
        let (ticket, attempt) = (Ticket(9), "5-1".to_owned());
        let done =
            PoolEvent::Ended { ticket, attempt, outcome: RunOutcome::Done, took, stopping: None };
        assert_eq!(collected.events[4], done);
    }
}

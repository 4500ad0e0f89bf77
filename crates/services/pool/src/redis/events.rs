//! What happened, as the scheduler that leads reads it from Redis.

use std::time::Duration;

use taskyard_core::classes::{Ask, Kind, Resumed, Ticket};
use taskyard_core::{Span, Timestamp};
use taskyard_redis::Value;
use tokio::time::Instant;

use super::NO_WISH;
use super::wire::texts;
use crate::scheduler::Ended;

/// Everything that was gathered at once.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    pub backends: u32,
    /// How long nothing may start yet, because backends may still have to say what they run.
    pub unsettled: Duration,
    /// The task after which to look on at those who wait; nothing when all were looked at.
    pub cursor: String,
    pub events: Vec<Event>,
    /// Whether everybody who holds a backend was named.
    pub swept: bool,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Event {
    /// It waits: a newcomer, or one that is named in a look at everybody.
    Waits {
        ticket: Ticket,
        ask: Ask,
        arrived: Timestamp,
        tries: u32,
        wish: Option<Span>,
        new: bool,
    },
    /// Its client wants less time.
    Wish { ticket: Ticket, wish: Span },
    /// It holds a backend.
    Runs { ticket: Ticket, attempt: String, task: Resumed, tries: u32 },
    /// Its run ended.
    Ended {
        ticket: Ticket,
        attempt: String,
        ended: Ended,
        took: Duration,
        stopping: Option<Duration>,
    },
    /// Its backend is gone.
    Lost { ticket: Ticket, attempt: String, seen: bool },
    /// Its client is gone and it holds no backend any more.
    Gone { ticket: Ticket, attempt: String },
    /// It waits again: no backend was there to take it.
    Unclaimed { ticket: Ticket, attempt: String },
    /// Its client left the queue.
    Left { ticket: Ticket },
}

impl Gathered {
    /// Until when at least nothing may start.
    pub fn unsettled_until(&self) -> Option<Instant> {
        (!self.unsettled.is_zero()).then(|| Instant::now() + self.unsettled)
    }

    /// Reads an answer. What is not understood was written by another version, and is left out.
    pub fn read(answer: Value) -> Self {
        let parts = texts(answer);
        let mut gathered = Gathered {
            backends: parts.first().and_then(|text| text.parse().ok()).unwrap_or_default(),
            unsettled: parts.get(1).and_then(|text| millis(text)).unwrap_or_default(),
            cursor: parts.get(2).cloned().unwrap_or_else(|| "0".into()),
            ..Gathered::default()
        };
        for text in parts.iter().skip(3) {
            match event(text) {
                Some(event) => gathered.events.push(event),
                None if text == "swept" => gathered.swept = true,
                None => tracing::warn!(text, "not understood"),
            }
        }
        gathered
    }
}

fn event(text: &str) -> Option<Event> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let ticket = || Some(Ticket(words.get(1)?.parse().ok()?));
    let attempt = || Some((*words.get(2)?).to_owned());
    match *words.first()? {
        "arrive" => waits(&words, true),
        "waits" => waits(&words, false),
        "wish" => {
            let Event::Waits { ticket, wish, .. } = waits(&words, false)? else { return None };
            Some(Event::Wish { ticket, wish: wish? })
        }
        "runs" => runs(&words),
        how @ ("done" | "stuck") => Some(Event::Ended {
            ticket: ticket()?,
            attempt: attempt()?,
            ended: if how == "done" { Ended::Done } else { Ended::Stuck },
            took: micros(words.get(3)?)?,
            stopping: words.get(4).and_then(|text| micros(text)),
        }),
        "lost" => {
            let seen = *words.get(3)? == "1";
            Some(Event::Lost { ticket: ticket()?, attempt: attempt()?, seen })
        }
        "gone" => Some(Event::Gone { ticket: ticket()?, attempt: attempt()? }),
        "unclaimed" => Some(Event::Unclaimed { ticket: ticket()?, attempt: attempt()? }),
        "left" => Some(Event::Left { ticket: ticket()? }),
        _ => None,
    }
}

/// `waits ID ASK DURATION ARRIVED TRIES`
fn waits(words: &[&str], new: bool) -> Option<Event> {
    let [_, id, ask, duration, arrived, tries] = words else { return None };
    let duration: u64 = duration.parse().ok()?;
    let wish = (duration < NO_WISH).then(|| span(duration));
    let ask = match *ask {
        "timed" => Ask::Timed(wish?),
        "default" => Ask::Default,
        "interactive" => Ask::Interactive,
        _ => return None,
    };
    let ticket = Ticket(id.parse().ok()?);
    let (arrived, tries) = (moment(arrived)?, tries.parse().ok()?);
    Some(Event::Waits { ticket, ask, arrived, tries, wish, new })
}

/// `runs ID ATTEMPT CLASS KIND LIMIT STARTED AGAIN WISH TRIES`
fn runs(words: &[&str]) -> Option<Event> {
    let [_, id, attempt, class, kind, limit, started, _, wish, tries] = words else {
        return None;
    };
    let kind = match *kind {
        "explicit" => Kind::Explicit,
        "default" => Kind::Default,
        "interactive" => Kind::Interactive,
        _ => return None,
    };
    let task = Resumed {
        kind,
        class: class.parse().unwrap_or(0),
        started: moment(started)?,
        limit: limit_of(limit)?.map_or(Span::FOREVER, Span::from),
        wish: span(wish.parse().ok()?),
    };
    let (ticket, attempt) = (Ticket(id.parse().ok()?), (*attempt).to_owned());
    Some(Event::Runs { ticket, attempt, task, tries: tries.parse().ok()? })
}

/// A limit in microseconds; `-` is none.
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
    if micros >= NO_WISH { Span::FOREVER } else { Span::from(Duration::from_micros(micros)) }
}

fn moment(millis: &str) -> Option<Timestamp> {
    let millis: i64 = millis.parse().ok()?;
    Some(Timestamp::from_micros(millis.saturating_mul(1_000)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_redis_says_is_read_and_what_is_strange_is_left_out() {
        let said = [
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
        let answer = Value::List(said.iter().map(|text| Value::Text((*text).into())).collect());
        let gathered = Gathered::read(answer);
        assert_eq!((gathered.backends, gathered.swept, gathered.events.len()), (2, true, 9));
        assert_eq!(gathered.unsettled, Duration::from_millis(1_500));
        let arrived = Timestamp::from_micros(1_700_000_000_000_000);
        let wish = Some(Span::from_secs(3));
        let ask = Ask::Timed(Span::from_secs(3));
        let waits = Event::Waits { ticket: Ticket(7), ask, arrived, tries: 1, wish, new: true };
        assert_eq!(gathered.events[0], waits);
        assert!(matches!(gathered.events[1], Event::Waits { ask: Ask::Default, wish: None, .. }));
        let took = Duration::from_millis(1_500);
        let (ticket, attempt) = (Ticket(9), "5-1".to_owned());
        let done = Event::Ended { ticket, attempt, ended: Ended::Done, took, stopping: None };
        assert_eq!(gathered.events[4], done);
    }
}

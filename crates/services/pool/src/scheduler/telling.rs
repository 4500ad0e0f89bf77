//! Tells those who wait how long: not too often, and soon when something changes.

use taskyard_core::classes::{Class, Ticket, Waiting};
use taskyard_core::estimate::Estimate;
use taskyard_core::{Reason, Span, Timestamp};

use super::desk::{Desk, Order};
use crate::protocol::QueueNews;
use crate::units::seconds;

/// The least time between two looks at the whole queue.
const PAUSE: Span = Span::from_micros(500_000);
/// How many times longer than a look the pause after it is at least.
const PAUSE_LOOKS: i64 = 10;
/// A client that heard nothing for so long is told again.
const AGAIN: Span = Span::from_secs(5);
/// A change of less than this is not worth a word.
const CHANGE_MIN: Span = Span::from_secs(1);

/// How many may wait so that a newcomer is told at once.
const GREETED_MAX: usize = 1_000;

/// What a client was told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    at: Timestamp,
    start: Option<Timestamp>,
}

/// What a client was told first: when it starts at the latest, and when probably.
#[derive(Clone, Copy, Debug)]
pub(super) struct Promise {
    max: Timestamp,
    expected: Timestamp,
}

/// How far a start was from what was told first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Error {
    pub early: Span,
    pub late: Span,
    pub expected: Span,
}

impl Promise {
    fn new(now: Timestamp, estimate: Estimate) -> Self {
        Promise { max: now + estimate.max, expected: now + estimate.expected }
    }

    pub fn error(self, start: Timestamp) -> Error {
        let expected = self.expected.since(start) + start.since(self.expected);
        Error { early: self.max.since(start), late: start.since(self.max), expected }
    }
}

impl Desk {
    /// Sees that there is a next look while somebody waits.
    pub fn plan_look(&mut self, now: Timestamp) {
        if self.classes.queued() == 0 {
            self.next_look = None;
        } else if self.next_look.is_none() {
            let earliest = self.last_look.map_or(now, |last| last + PAUSE);
            self.next_look = Some(earliest.max(now));
        }
    }

    /// The last look took so long: a longer queue is looked at less often.
    pub fn note_look(&mut self, took: Span) {
        let (Some(last), Some(next)) = (self.last_look, self.next_look) else { return };
        let pause = Span::from_micros(took.as_micros().saturating_mul(PAUSE_LOOKS));
        self.next_look = Some(next.max(last + pause));
    }

    /// Tells a newcomer at once, unless the queue is so long that its turn to be told comes with all others.
    pub(super) fn greet(&mut self, now: Timestamp, ticket: Ticket) -> Vec<Order> {
        let outlook = self.outlook.take().filter(|outlook| !outlook.is_overdue(now));
        let mut outlook = match outlook {
            Some(outlook) => outlook,
            None if self.classes.queued() > GREETED_MAX => return Vec::new(),
            None => {
                let ending = self.endings.usual_max().into();
                let mut outlook = self.classes.outlook(now, ending, &self.means);
                for earlier in self.classes.waiting_tickets().filter(|one| *one < ticket) {
                    self.classes.greet(now, earlier, &mut outlook);
                }
                outlook
            }
        };
        let waiting = self.classes.greet(now, ticket, &mut outlook);
        self.outlook = Some(outlook);
        waiting.and_then(|waiting| self.tell_one(now, &waiting)).into_iter().collect()
    }

    fn tell_one(&mut self, now: Timestamp, waiting: &Waiting) -> Option<Order> {
        let task = self.tasks.get_mut(&waiting.ticket)?;
        let start = waiting.estimate.map(|estimate| now + estimate.max);
        if task.told.is_some_and(|told| !told.is_old(now, start)) {
            return None;
        }
        if task.told.is_none() {
            let first = waiting.estimate.map(|estimate| Promise::new(now, estimate));
            task.promised = task.promised.or(first);
        }
        task.told = Some(Told { at: now, start });
        let classes = self.classes.rules().classes();
        Some(Order::News(waiting.ticket, news(waiting, classes)))
    }

    /// Tells everybody who waits what is news to them.
    pub(super) fn tell(&mut self, now: Timestamp) -> Vec<Order> {
        let ending = self.endings.usual_max().into();
        let waiting = self.classes.waiting(now, ending, &self.means);
        let orders = waiting.iter().filter_map(|one| self.tell_one(now, one)).collect();
        self.last_look = Some(now);
        self.next_look = (self.classes.queued() > 0).then(|| now + PAUSE);
        orders
    }
}

impl Told {
    fn is_old(self, now: Timestamp, start: Option<Timestamp>) -> bool {
        if self.at + AGAIN <= now {
            return true;
        }
        match (self.start, start) {
            (Some(told), Some(start)) => {
                let change = start.since(told) + told.since(start);
                let fifth = Span::from_micros(told.since(now).as_micros() / 5);
                change > CHANGE_MIN.max(fifth)
            }
            (told, start) => told != start,
        }
    }
}

fn news(waiting: &Waiting, classes: &[Class]) -> QueueNews {
    let words = match waiting.reason {
        Reason::LimitReached { class: 0 } => "all backends are busy".into(),
        Reason::LimitReached { class } => {
            let class = &classes[usize::from(class)];
            let most = seconds(class.duration.into());
            format!("as many {} tasks as may run do; they take up to {most}", class.name)
        }
        other => other.to_string(),
    };
    QueueNews {
        estimate: waiting.estimate.map(|estimate| estimate.max.as_secs_f64()),
        expected: waiting.estimate.map(|estimate| estimate.expected.as_secs_f64()),
        ahead: waiting.ahead,
        reason: waiting.reason.name().into(),
        words,
    }
}

//! Tells those who wait how long: not too often, and soon when something changes.

use std::time::Duration;

use taskyard_core::classes::{Class, Waiting};
use taskyard_core::{Reason, Span, Timestamp};
use tokio::time::Instant;

use super::actor::Actor;
use crate::protocol::QueueNews;

/// The least time between two looks at the whole queue.
const PAUSE: Duration = Duration::from_millis(500);
/// How many times longer than a look the pause after it is at least.
const PAUSE_LOOKS: u32 = 10;
/// A client that heard nothing for so long is told again.
const AGAIN: Span = Span::from_secs(5);
/// A change of less than this is not worth a word.
const CHANGE_MIN: Span = Span::from_secs(1);

/// What a client was told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    at: Timestamp,
    start: Option<Timestamp>,
}

impl Actor {
    /// Sees that there is a next look while somebody waits.
    pub fn plan_telling(&mut self) {
        if self.classes.queued() == 0 {
            self.next_telling = None;
        } else if self.next_telling.is_none() {
            let now = Instant::now();
            let earliest = self.last_telling.map_or(now, |last| last + PAUSE);
            self.next_telling = Some(earliest.max(now));
        }
    }

    /// Tells everybody who waits what is news to them.
    pub fn tell(&mut self) {
        let looked = Instant::now();
        let now = self.clock.now();
        let ending = self.endings.usual_max().into();
        for waiting in self.classes.waiting(now, ending, &self.means) {
            let classes = self.classes.rules().classes();
            let Some(task) = self.tasks.get_mut(&waiting.ticket) else { continue };
            let start = waiting.estimate.map(|estimate| now + estimate.max);
            if task.told.is_some_and(|told| !told.is_old(now, start)) {
                continue;
            }
            if task.told.is_none() {
                task.promised = task.promised.or(start);
            }
            task.told = Some(Told { at: now, start });
            task.client.news.send_replace(Some(news(&waiting, classes)));
        }
        let pause = PAUSE.max(looked.elapsed() * PAUSE_LOOKS);
        self.last_telling = Some(looked);
        self.next_telling = (self.classes.queued() > 0).then(|| looked + pause);
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
            let seconds = class.duration.as_secs_f64();
            format!("as many {} tasks as may run do; they take up to {seconds} s", class.name)
        }
        other => other.to_string(),
    };
    QueueNews {
        estimate: waiting.estimate.map(|estimate| estimate.max.as_secs_f64()),
        expected: waiting.estimate.map(|estimate| estimate.expected.as_secs_f64()),
        ahead: waiting.ahead,
        reason: waiting.reason.name(),
        words,
    }
}

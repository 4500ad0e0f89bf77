//! Semaphores that do not move although they should: the alarm, in the log and among the metrics.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use taskyard_core::{
    Command, Reply, SemaphoreCommand, SemaphoreInfo, SemaphoreKey, SemaphoreReply, Span, Timestamp,
};

use crate::app::App;

/// How often semaphores are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// For so long something may be free, or due, before it is called stalled.
const PATIENCE: Span = Span::from_secs(10);
/// No more semaphores than this are among the metrics: each is several lines.
const SHOWN_MAX: usize = 1000;

/// What was seen of semaphores at the latest look.
#[derive(Debug, Default)]
pub(crate) struct Lookout {
    seen: Mutex<Seen>,
}

/// The semaphores, and since when each could have moved and did not.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub infos: Vec<SemaphoreInfo>,
    idle_since: HashMap<SemaphoreKey, Timestamp>,
    stalled: HashMap<SemaphoreKey, &'static str>,
}

impl Lookout {
    /// What was seen.
    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks now and then, for as long as it is polled.
    pub async fn watch(&self, app: &App) {
        loop {
            let list = SemaphoreCommand::List { key: None };
            // A store that is away has its own alarm.
            if let Ok(Reply::Semaphore(SemaphoreReply::Semaphores(infos))) =
                app.ask(Command::Semaphore(list)).await
            {
                self.seen().look(now(), infos);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

impl Seen {
    /// Takes in how semaphores stand, and says what has stalled, or moves again, since the latest look.
    pub fn look(&mut self, now: Timestamp, mut infos: Vec<SemaphoreInfo>) {
        let mut stalled = HashMap::new();
        let mut idle_since = HashMap::new();
        for info in &infos {
            if info.waiting > 0 && info.acquired + info.revoking < u64::from(info.options.active) {
                let since = self.idle_since.get(&info.key).copied().unwrap_or(now);
                idle_since.insert(info.key.clone(), since);
                if since + PATIENCE < now {
                    stalled.insert(info.key.clone(), "places are free and somebody waits");
                }
            }
            if info.next_event.is_some_and(|due| due + PATIENCE < now) {
                stalled.insert(info.key.clone(), "nobody fetches its events");
            }
        }
        for (key, why) in stalled.iter().filter(|(key, _)| !self.stalled.contains_key(*key)) {
            tracing::warn!(semaphore = %key, why, "a semaphore is stalled");
        }
        for key in self.stalled.keys().filter(|key| !stalled.contains_key(*key)) {
            tracing::info!(semaphore = %key, "a semaphore moves again");
        }
        infos.truncate(SHOWN_MAX);
        *self = Seen { infos, idle_since, stalled };
    }

    /// Whether a semaphore is stalled.
    pub fn is_stalled(&self, key: &SemaphoreKey) -> bool {
        self.stalled.contains_key(key)
    }
}

#[cfg(test)]
mod tests {
    use taskyard_core::SemaphoreOptions;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn info(acquired: u64, waiting: u64, next_event: Option<Timestamp>) -> SemaphoreInfo {
        SemaphoreInfo {
            key: SemaphoreKey::new("yang").unwrap(),
            options: SemaphoreOptions { active: 2, ..SemaphoreOptions::default() },
            waiting,
            delayed: 0,
            acquired,
            revoking: 0,
            events: u64::from(next_event.is_some()),
            next_event,
        }
    }

    fn looks(looks: &[(i64, SemaphoreInfo)]) -> bool {
        let mut seen = Seen::default();
        for (second, info) in looks {
            seen.look(at(*second), vec![info.clone()]);
        }
        seen.is_stalled(&looks[0].1.key)
    }

    #[test]
    fn a_free_place_for_over_ten_seconds_is_stalled() {
        assert!(!looks(&[(0, info(1, 5, None)), (10, info(1, 5, None))]), "not yet");
        assert!(looks(&[(0, info(1, 5, None)), (11, info(1, 5, None))]));
        let moved = [(0, info(1, 5, None)), (5, info(2, 4, None)), (11, info(1, 4, None))];
        assert!(!looks(&moved), "it moved meanwhile");
        assert!(!looks(&[(0, info(2, 5, None)), (99, info(2, 5, None))]), "it is full");
        assert!(!looks(&[(0, info(0, 0, None)), (99, info(0, 0, None))]), "nobody waits");
    }

    #[test]
    fn an_event_that_nobody_fetches_is_stalled() {
        assert!(looks(&[(11, info(2, 0, Some(at(0))))]));
        assert!(!looks(&[(10, info(2, 0, Some(at(0))))]));
        assert!(!looks(&[(20, info(2, 0, Some(at(50))))]), "it was fetched, and comes again later");
        assert!(!looks(&[(11, info(2, 0, Some(at(0)))), (12, info(2, 0, None))]), "it moves again");
    }
}

//! Detects stalled semaphores and reports them in the log and in the metrics.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use taskyard_core::{
    Command, Reply, SemaphoreCommand, SemaphoreInfo, SemaphoreKey, SemaphoreReply, Span, Timestamp,
};

use crate::app::App;

/// How often semaphores are checked.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// A semaphore is stalled when a grant is free, or an event due, for longer than this.
const STALLED_AFTER: Span = Span::from_secs(10);
/// Maximum number of semaphores in the metrics: each has several lines.
const SHOWN_MAX: usize = 1000;

/// The latest state of semaphores.
#[derive(Debug, Default)]
pub(crate) struct SemaphoreMonitor {
    snapshot: Mutex<SemaphoreSnapshot>,
}

/// The semaphores, and since when each could have granted and did not.
#[derive(Debug, Default)]
pub(crate) struct SemaphoreSnapshot {
    pub infos: Vec<SemaphoreInfo>,
    idle_since: HashMap<SemaphoreKey, Timestamp>,
    stalled: HashMap<SemaphoreKey, &'static str>,
}

impl SemaphoreMonitor {
    /// The latest state.
    pub fn snapshot(&self) -> MutexGuard<'_, SemaphoreSnapshot> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the state periodically, as long as it is polled.
    pub async fn watch(&self, app: &App) {
        loop {
            let list = SemaphoreCommand::List { key: None };
            // An unavailable store is reported by its own metric.
            if let Ok(Reply::Semaphore(SemaphoreReply::Semaphores(infos))) =
                app.run(Command::Semaphore(list)).await
            {
                self.snapshot().update(now(), infos);
            }
            tokio::time::sleep(CHECK_EVERY).await;
        }
    }
}

pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

impl SemaphoreSnapshot {
    /// Replaces the state, and logs which semaphores have stalled or recovered since the last
    /// check.
    pub fn update(&mut self, now: Timestamp, mut infos: Vec<SemaphoreInfo>) {
        let mut stalled = HashMap::new();
        let mut idle_since = HashMap::new();
        for info in &infos {
            if info.waiting > 0 && info.acquired + info.revoking < u64::from(info.options.active) {
                let since = self.idle_since.get(&info.key).copied().unwrap_or(now);
                idle_since.insert(info.key.clone(), since);
                if since + STALLED_AFTER < now {
                    stalled.insert(info.key.clone(), "grants are free and tasks wait");
                }
            }
            if info.next_event.is_some_and(|due| due + STALLED_AFTER < now) {
                stalled.insert(info.key.clone(), "its events are not fetched");
            }
        }
        for (key, why) in stalled.iter().filter(|(key, _)| !self.stalled.contains_key(*key)) {
            tracing::warn!(semaphore = %key, why, "semaphore is stalled");
        }
        for key in self.stalled.keys().filter(|key| !stalled.contains_key(*key)) {
            tracing::info!(semaphore = %key, "semaphore is no longer stalled");
        }
        infos.truncate(SHOWN_MAX);
        *self = SemaphoreSnapshot { infos, idle_since, stalled };
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

    fn stalled_after(checks: &[(i64, SemaphoreInfo)]) -> bool {
        let mut snapshot = SemaphoreSnapshot::default();
        for (second, info) in checks {
            snapshot.update(at(*second), vec![info.clone()]);
        }
        snapshot.is_stalled(&checks[0].1.key)
    }

    #[test]
    fn a_free_grant_for_over_ten_seconds_is_stalled() {
        assert!(!stalled_after(&[(0, info(1, 5, None)), (10, info(1, 5, None))]), "not yet");
        assert!(stalled_after(&[(0, info(1, 5, None)), (11, info(1, 5, None))]));
        let moved = [(0, info(1, 5, None)), (5, info(2, 4, None)), (11, info(1, 4, None))];
        assert!(!stalled_after(&moved), "it granted meanwhile");
        assert!(!stalled_after(&[(0, info(2, 5, None)), (99, info(2, 5, None))]), "it is full");
        assert!(!stalled_after(&[(0, info(0, 0, None)), (99, info(0, 0, None))]), "no task waits");
    }

    #[test]
    fn an_event_that_is_not_fetched_is_stalled() {
        assert!(stalled_after(&[(11, info(2, 0, Some(at(0))))]));
        assert!(!stalled_after(&[(10, info(2, 0, Some(at(0))))]));
        assert!(
            !stalled_after(&[(20, info(2, 0, Some(at(50))))]),
            "it was fetched, and is sent again later"
        );
        assert!(
            !stalled_after(&[(11, info(2, 0, Some(at(0)))), (12, info(2, 0, None))]),
            "it recovered"
        );
    }
}

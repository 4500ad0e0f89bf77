//! The interval of the heartbeats of servers that share a database, and the messages about missed ones.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The interval of heartbeats. A server that missed two is declared dead by another one, which ends its sessions: the
/// tasks of a dead server are ready again within three intervals.
pub const HEARTBEAT: Duration = Duration::from_secs(2);

/// How long a server may miss heartbeats.
pub const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(2 * HEARTBEAT.as_secs());

/// When the last heartbeat was sent that the database received.
pub struct LastHeartbeat(Mutex<Instant>);

impl Default for LastHeartbeat {
    fn default() -> Self {
        LastHeartbeat(Mutex::new(Instant::now()))
    }
}

impl LastHeartbeat {
    /// Records a heartbeat that was sent at this moment.
    pub fn note(&self, sent: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = sent;
    }

    /// Whether other servers may have declared this one dead, because it was frozen or disconnected.
    pub fn is_overdue(&self) -> bool {
        self.elapsed() > HEARTBEAT_TIMEOUT
    }

    /// The message of a server that was declared dead.
    pub fn declared_dead(&self) -> String {
        let seconds = self.elapsed().as_secs();
        format!("missed heartbeats for {seconds} s; declared dead, sessions released")
    }

    fn elapsed(&self) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

/// The message of a server that declared another one dead.
pub fn declared_other_dead() -> String {
    let seconds = HEARTBEAT_TIMEOUT.as_secs();
    format!("another server missed heartbeats for {seconds} s; declared dead, its sessions end")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_time() {
        let last = LastHeartbeat::default();
        assert!(!last.is_overdue());
        last.note(Instant::now() - Duration::from_millis(6_100));
        assert!(last.is_overdue());
        let own = "missed heartbeats for 6 s; declared dead, sessions released";
        assert_eq!(last.declared_dead(), own);
        assert!(declared_other_dead().starts_with("another server missed heartbeats for 4 s;"));
    }
}

//! Sends heartbeats, and exchanges notifications about changed tubes with other servers.
//!
//! Both use a connection of their own, so that a long batch does not delay heartbeats. Notifications are hints: they are
//! collected while the last ones are under way, because each costs a lock that all transactions of the database share,
//! and every server also polls once a second.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use taskyard_core::TubeName;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::codec::get;
use super::connection::{Connection, Failure};
use super::counter_deltas::CounterDeltas;
use super::statements::{self as sql, Call, param};
use super::{Clock, Postgres};
use taskyard_store::remote::{HEARTBEAT, HEARTBEAT_TIMEOUT, LastHeartbeat, declared_other_dead};
use taskyard_store::{RemoteChange, Watcher};

/// The notification of new semaphore events. No tube has such a name, so servers of an older version ignore it.
const EVENTS: &str = "/events";

/// Least time between two rounds of notifications.
const THROTTLE: Duration = Duration::from_millis(2);

/// How long a server may miss heartbeats, in microseconds.
pub(super) fn heartbeat_timeout() -> i64 {
    HEARTBEAT_TIMEOUT.as_micros() as i64
}

/// The state of the background work, and the notifications to send.
#[derive(Default)]
pub(super) struct Presence {
    stopped: AtomicBool,
    /// Whether there are other live servers.
    has_peers: AtomicBool,
    /// Tubes that got tasks or room since the last notifications, and whether semaphores have new events.
    outbox: Mutex<(BTreeSet<TubeName>, bool)>,
    /// Signals that something is in the outbox, or that the store is closed.
    wake: Notify,
    watcher: Mutex<Option<Watcher>>,
    pub last: LastHeartbeat,
}

impl Presence {
    /// Queues notifications of what a batch made available.
    pub fn announce(&self, deltas: &CounterDeltas) {
        if !self.has_peers.load(Ordering::Relaxed) {
            return;
        }
        let mut outbox = self.outbox.lock().unwrap_or_else(PoisonError::into_inner);
        outbox.0.extend(deltas.changed_tubes().cloned());
        outbox.1 |= deltas.events.any();
        if !outbox.0.is_empty() || outbox.1 {
            self.wake.notify_one();
        }
    }

    /// Sets the receiver of changes by other servers.
    pub fn watch(&self, watcher: Watcher) {
        *self.watcher.lock().unwrap_or_else(PoisonError::into_inner) = Some(watcher);
    }

    /// Ends the background work.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.wake.notify_one();
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Lets all waiting callers check again.
    pub fn recheck_all(&self) {
        self.report(RemoteChange::Anything);
    }

    fn report(&self, what: RemoteChange) {
        if let Some(watcher) = &*self.watcher.lock().unwrap_or_else(PoisonError::into_inner) {
            watcher(what);
        }
    }

    fn outgoing(&self, server: &[u8]) -> Vec<String> {
        let mut outbox = self.outbox.lock().unwrap_or_else(PoisonError::into_inner);
        let (tubes, events) = std::mem::take(&mut *outbox);
        let tubes = tubes.iter().map(|tube| notice(server, tube));
        tubes.chain(events.then(|| notice_of(server, EVENTS))).collect()
    }
}

/// The text of a notification: the server and the tube, whose name has no colon.
pub(super) fn notice(server: &[u8], tube: &TubeName) -> String {
    notice_of(server, tube.as_str())
}

fn notice_of(server: &[u8], what: &str) -> String {
    let mut text = String::with_capacity(2 * server.len() + 1 + what.len());
    for byte in server {
        let _ = write!(text, "{byte:02x}");
    }
    let _ = write!(text, ":{what}");
    text
}

/// What a notification of another server is about.
fn read_notice(own: &[u8], text: &str) -> Option<RemoteChange> {
    let what = text.split_once(':')?.1;
    if notice_of(own, what) == text {
        return None;
    }
    if what == EVENTS {
        return Some(RemoteChange::Events);
    }
    TubeName::new(what).ok().map(RemoteChange::Tube)
}

/// Runs until the store is closed.
pub(super) async fn run(shared: Arc<Postgres>) {
    while !shared.presence.is_stopped() {
        let (sender, notices) = mpsc::unbounded_channel();
        // A failure to connect is in the log already.
        if let Ok(connection) = shared.connector.try_connect(Some(sender)).await
            && let Err(failure) = serve_connection(&shared, connection, notices).await
        {
            let why = failure.text();
            tracing::warn!(why, "cannot send a heartbeat; trying again");
        }
        // Soon, since a server without heartbeats is declared dead. Ends early when the store is closed.
        let _ = timeout(shared.connector.pause(), shared.presence.wake.notified()).await;
    }
}

async fn serve_connection(
    shared: &Postgres,
    mut connection: Connection,
    mut notices: mpsc::UnboundedReceiver<String>,
) -> Result<(), Failure> {
    if !shared.connector.pooled {
        connection.listen().await?;
    }
    // Notifications may have been lost before this.
    shared.known().head_hints.forget_all();
    shared.presence.recheck_all();
    let mut beats = interval(HEARTBEAT);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !shared.presence.is_stopped() {
        tokio::select! {
            _ = beats.tick() => send_heartbeat(shared, &mut connection).await?,
            () = shared.presence.wake.notified() => {
                let outgoing = shared.presence.outgoing(&shared.server);
                if !outgoing.is_empty() {
                    connection.transact(&[Call::new(&sql::NOTIFY, [param(outgoing)])]).await?;
                    tokio::time::sleep(THROTTLE).await;
                }
            }
            heard = notices.recv() => {
                let Some(text) = heard else { return Ok(()) };
                if let Some(what) = read_notice(&shared.server, &text) {
                    if let RemoteChange::Tube(tube) = &what {
                        shared.known().head_hints.forget(tube);
                    }
                    shared.presence.report(what);
                }
            }
        }
    }
    Ok(())
}

/// Sends a heartbeat, which also ends the sessions of dead servers.
async fn send_heartbeat(shared: &Postgres, connection: &mut Connection) -> Result<(), Failure> {
    let now = (shared.clock == Clock::Caller).then(|| shared.known().now);
    let params = [param(shared.server.clone()), param(heartbeat_timeout()), param(now)];
    let leaves = Instant::now();
    let rows = connection.transact(&[Call::new(&sql::HEARTBEAT, params)]).await?;
    let Some(row) = rows.first().and_then(|rows| rows.first()) else { return Ok(()) };
    let count = |place| get::<i64>(row, place).map_err(|error| Failure::Refused(error.to_string()));
    shared.presence.has_peers.store(count(0)? > 0, Ordering::Relaxed);
    let forgotten: bool = get(row, 2).map_err(|error| Failure::Refused(error.to_string()))?;
    if forgotten {
        tracing::warn!("{}", shared.presence.last.declared_dead());
        shared.known().sessions.mark_diverged();
        shared.presence.recheck_all();
    }
    shared.presence.last.note(leaves);
    if count(1)? > 0 {
        tracing::warn!("{}", declared_other_dead());
        shared.known().head_hints.forget_all();
        shared.presence.report(RemoteChange::Anything);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_ignores_its_own_notifications() {
        let tube = TubeName::new("mail").unwrap();
        let text = notice(&[0xab, 1], &tube);
        assert_eq!(text, "ab01:mail");
        assert_eq!(read_notice(&[0xab, 1], &text), None);
        assert_eq!(read_notice(&[0xab, 2], &text), Some(RemoteChange::Tube(tube.clone())));
        assert_eq!(read_notice(&[0xab, 2], ":mail"), Some(RemoteChange::Tube(tube)));
        let text = notice_of(&[0xab, 1], EVENTS);
        assert_eq!(read_notice(&[0xab, 1], &text), None);
        assert_eq!(read_notice(&[0xab, 2], &text), Some(RemoteChange::Events));
    }

    #[test]
    fn malformed_notifications_are_ignored() {
        for text in ["", "mail", "ab:", "ab:a/b", "ab:a:b"] {
            assert_eq!(read_notice(&[], text), None, "{text}");
        }
    }
}

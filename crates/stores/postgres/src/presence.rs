//! This server among others: it says that it lives, and tells and hears which tubes got tasks.
//!
//! All of it is on a connection of its own, so that a long batch does not make others think that this server is
//! dead. Notices are hints: they are gathered while the last ones are under way, because each costs a lock
//! that all transactions of the database share, and behind them every server looks once a second.

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
use super::statements::{self as sql, Call, param};
use super::tally::Tally;
use super::{Clock, Postgres};
use taskyard_store::{RemoteChange, Watcher};

/// How often a server says that it lives. The sessions of one that has not for two of these are ended by
/// another, which looks as often: a dead server's tasks return within three.
pub const HEARTBEAT: Duration = Duration::from_secs(2);

/// What a notice says of new events. No tube has such a name, so servers of an older version do not listen to it.
const EVENTS: &str = "/events";

/// Least time between two rounds of notices.
const THROTTLE: Duration = Duration::from_millis(2);

/// How long a server may be silent, in microseconds.
pub(super) fn patience() -> i64 {
    2 * HEARTBEAT.as_micros() as i64
}

/// What is known of the other servers, and what they are to be told.
pub(super) struct Presence {
    stopped: AtomicBool,
    /// Whether other servers live.
    accompanied: AtomicBool,
    /// Tubes that got tasks or room since the last notices, and whether semaphores have new events.
    outbox: Mutex<(BTreeSet<TubeName>, bool)>,
    /// Something is in the outbox, or it is over.
    wake: Notify,
    watcher: Mutex<Option<Watcher>>,
    /// When the last sign of life left that the database has seen.
    seen: Mutex<Instant>,
}

impl Default for Presence {
    fn default() -> Self {
        Presence {
            stopped: AtomicBool::default(),
            accompanied: AtomicBool::default(),
            outbox: Mutex::default(),
            wake: Notify::default(),
            watcher: Mutex::default(),
            seen: Mutex::new(Instant::now()),
        }
    }
}

impl Presence {
    /// Tells the others what a batch made takeable.
    pub fn tell(&self, tally: &Tally) {
        if !self.accompanied.load(Ordering::Relaxed) {
            return;
        }
        let mut outbox = self.outbox.lock().unwrap_or_else(PoisonError::into_inner);
        outbox.0.extend(tally.concerned().cloned());
        outbox.1 |= tally.events.are_there();
        if !outbox.0.is_empty() || outbox.1 {
            self.wake.notify_one();
        }
    }

    /// Who wants to know what others say.
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

    /// Whether others may take this server for dead: it was frozen, or cut off.
    pub fn is_overdue(&self) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.elapsed() > 2 * HEARTBEAT
    }

    fn seen(&self, at: Instant) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }

    /// Lets those who wait here look whether there is something for them.
    pub fn look_around(&self) {
        self.heard(RemoteChange::Anything);
    }

    fn heard(&self, what: RemoteChange) {
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

/// What a notice says: who and where. A tube's name has no colon.
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

/// What a notice of another server is about.
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

/// Lives until the store is closed.
pub(super) async fn live(shared: Arc<Postgres>) {
    while !shared.presence.is_stopped() {
        let (sender, notices) = mpsc::unbounded_channel();
        // What cannot be reached is in the log already.
        if let Ok(connection) = shared.reach.try_connect(Some(sender)).await
            && let Err(failure) = attend(&shared, connection, notices).await
        {
            let why = failure.text();
            tracing::warn!(why, "cannot tell the other servers that this one lives; trying again");
        }
        // Soon, since those who hear nothing take this server for dead. Ends early when the store is closed.
        let _ = timeout(shared.reach.pause(), shared.presence.wake.notified()).await;
    }
}

async fn attend(
    shared: &Postgres,
    mut connection: Connection,
    mut notices: mpsc::UnboundedReceiver<String>,
) -> Result<(), Failure> {
    if !shared.reach.pooled {
        connection.listen().await?;
    }
    // Notices may have been lost before this.
    shared.known().heads.forget_all();
    shared.presence.look_around();
    let mut beats = interval(HEARTBEAT);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !shared.presence.is_stopped() {
        tokio::select! {
            _ = beats.tick() => beat(shared, &mut connection).await?,
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
                        shared.known().heads.forget(tube);
                    }
                    shared.presence.heard(what);
                }
            }
        }
    }
    Ok(())
}

/// Says that this server lives, and ends the sessions of those that do not.
async fn beat(shared: &Postgres, connection: &mut Connection) -> Result<(), Failure> {
    let now = (shared.clock == Clock::Caller).then(|| shared.known().now);
    let params = [param(shared.server.clone()), param(patience()), param(now)];
    let leaves = Instant::now();
    let rows = connection.transact(&[Call::new(&sql::HEARTBEAT, params)]).await?;
    let Some(row) = rows.first().and_then(|rows| rows.first()) else { return Ok(()) };
    let count = |place| get::<i64>(row, place).map_err(|error| Failure::Refused(error.to_string()));
    shared.presence.accompanied.store(count(0)? > 0, Ordering::Relaxed);
    let forgotten: bool = get(row, 2).map_err(|error| Failure::Refused(error.to_string()))?;
    if forgotten {
        tracing::warn!("this server was silent for so long that others took it for dead");
        shared.known().attendance.doubt();
        shared.presence.look_around();
    }
    shared.presence.seen(leaves);
    if count(1)? > 0 {
        tracing::warn!("another server is gone; its sessions end");
        shared.known().heads.forget_all();
        shared.presence.heard(RemoteChange::Anything);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_does_not_hear_itself() {
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
    fn what_is_no_notice_is_not_heard() {
        for text in ["", "mail", "ab:", "ab:a/b", "ab:a:b"] {
            assert_eq!(read_notice(&[], text), None, "{text}");
        }
    }
}

//! Sends heartbeats and receives notices of other servers.
//!
//! Both use connections of their own, so that a long batch does not delay heartbeats. To receive notices, one call of each
//! server waits in Tarantool, however many consumers wait here: Tarantool stops reading when too many requests are in
//! flight. Notices may be lost, so every server also looks once a second.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use taskyard_core::TubeName;
use taskyard_tarantool::{ANSWER_MAX, Failure, LuaValue, decode_value};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::Tarantool;
use super::link::Link;
use taskyard_store::remote::{HEARTBEAT, HEARTBEAT_TIMEOUT, LastHeartbeat, declared_other_dead};
use taskyard_store::{RemoteChange, Watcher};

/// How long a call waits for notices.
const WATCH: Duration = Duration::from_secs(5);

/// How long a server may miss heartbeats, in microseconds.
pub(super) fn heartbeat_timeout() -> u64 {
    HEARTBEAT_TIMEOUT.as_micros() as u64
}

/// The background work of this server.
#[derive(Default)]
pub(super) struct Presence {
    stopped: AtomicBool,
    wake: Notify,
    watcher: Mutex<Option<Watcher>>,
    last: LastHeartbeat,
}

impl Presence {
    /// Sets the function that is called on changes of other servers.
    pub fn watch(&self, watcher: Watcher) {
        *self.watcher.lock().unwrap_or_else(PoisonError::into_inner) = Some(watcher);
    }

    /// Ends the background work.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.wake.notify_waiters();
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Waits, at most until the store is closed.
    async fn pause(&self, span: Duration) {
        let _ = timeout(span, self.wake.notified()).await;
    }

    /// Reports that anything may have changed, so that all waiting callers look again.
    pub fn notify_unknown(&self) {
        self.notify(RemoteChange::Anything);
    }

    fn notify(&self, what: RemoteChange) {
        if let Some(watcher) = &*self.watcher.lock().unwrap_or_else(PoisonError::into_inner) {
            watcher(what);
        }
    }
}

/// Sends heartbeats until the store is closed.
pub(super) async fn run(shared: Arc<Tarantool>) {
    let mut link = Link::new(Arc::clone(&shared.connector));
    while !shared.presence.is_stopped() {
        let pause = match send_heartbeat(&shared, &mut link).await {
            Ok(()) => HEARTBEAT,
            Err(failure) => {
                tracing::debug!(why = %failure, "cannot send heartbeats; trying again");
                // Soon, because a server without heartbeats is declared dead.
                link.pause()
            }
        };
        shared.presence.pause(pause).await;
    }
}

async fn send_heartbeat(shared: &Tarantool, link: &mut Link) -> Result<(), Failure> {
    let (now, leaves) = (shared.moment(), Instant::now());
    let answer = link
        .call_with_retry("heartbeat", |args| {
            _ = args.bytes(&shared.server).optional(now).uint(heartbeat_timeout());
        })
        .await?;
    let [_, lost, forgotten] = answer.list() else {
        return Err(Failure::Lost("unexpected answer".into()));
    };
    let lost = lost.uint().unwrap_or(0) > 0;
    if forgotten.is_true() {
        tracing::warn!("{}", shared.presence.last.declared_dead());
        shared.cache().request_resync();
    }
    if lost {
        tracing::warn!("{}", declared_other_dead());
    }
    shared.presence.last.note(leaves);
    if lost || forgotten.is_true() {
        shared.presence.notify_unknown();
    }
    Ok(())
}

/// Receives notices of other servers until the store is closed.
pub(super) async fn receive_notices(shared: Arc<Tarantool>) {
    let mut link = Link::new(Arc::clone(&shared.connector));
    // The last notice that was received; `None` when some may have been missed.
    let mut seen = None;
    while !shared.presence.is_stopped() {
        match receive(&shared, &mut link, seen).await {
            Ok(last) => seen = Some(last),
            Err(failure) => {
                tracing::debug!(why = %failure, "cannot receive notices of other servers; trying again");
                link.drop_connection();
                seen = None;
                shared.presence.pause(link.pause()).await;
            }
        }
    }
}

async fn receive(shared: &Tarantool, link: &mut Link, seen: Option<u64>) -> Result<u64, Failure> {
    let connection = link.connection().await?;
    let mut requests = connection.requests();
    let last_seen = seen.and_then(|seen| i64::try_from(seen).ok());
    shared.connector.call(&mut requests, "watch", |args| {
        _ = args.bytes(&shared.server).optional(last_seen).uint(WATCH.as_secs());
    });
    let answers = connection.exchange(requests, WATCH + ANSWER_MAX).await?;
    let data = answers.into_iter().next().unwrap_or_else(|| Ok(Vec::new()));
    let word = decode_value(&data.map_err(Failure::Refused)?);
    let word = word.map_err(|error| Failure::Lost(error.to_string()))?;
    let [last, tubes, events, anything] = word.list() else {
        return Err(Failure::Lost("unexpected answer".into()));
    };
    if anything.is_true() {
        shared.presence.notify_unknown();
    }
    for tube in tubes.list().iter().filter_map(LuaValue::text) {
        if let Ok(tube) = TubeName::new(tube) {
            shared.presence.notify(RemoteChange::Tube(tube));
        }
    }
    if events.is_true() {
        shared.presence.notify(RemoteChange::Events);
    }
    last.uint().ok_or_else(|| Failure::Lost("unexpected answer".into()))
}

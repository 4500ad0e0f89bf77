//! This server among others: it says that it lives, and hears which tubes got tasks.
//!
//! Both are on connections of their own, so that a long batch does not make others think that this server is dead. To
//! hear, one call is parked in Tarantool for each server, however many consumers wait here: Tarantool stops reading
//! when too many requests are under way. Notices may be lost, and behind them every server looks once a second.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use taskyard_core::TubeName;
use taskyard_tarantool::{ANSWER_MAX, Failure, LuaValue, decode_value};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::Tarantool;
use super::link::Link;
use taskyard_store::{RemoteChange, Watcher};

/// How often a server says that it lives. The sessions of one that has not for two of these are ended by
/// another, which looks as often: a dead server's tasks return within three.
pub const HEARTBEAT: Duration = Duration::from_secs(2);
/// How long a call waits for news.
const WATCH: Duration = Duration::from_secs(5);

/// How long a server may be silent, in microseconds.
pub(super) fn patience() -> u64 {
    2 * HEARTBEAT.as_micros() as u64
}

/// What is known of the other servers.
#[derive(Default)]
pub(super) struct Presence {
    stopped: AtomicBool,
    wake: Notify,
    watcher: Mutex<Option<Watcher>>,
}

impl Presence {
    /// Who wants to know what others say.
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

    /// Waits, or until the store is closed.
    async fn rest(&self, span: Duration) {
        let _ = timeout(span, self.wake.notified()).await;
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
}

/// Says that this server lives, until the store is closed.
pub(super) async fn live(shared: Arc<Tarantool>) {
    let mut link = Link::new(Arc::clone(&shared.reach));
    while !shared.presence.is_stopped() {
        let pause = match beat(&shared, &mut link).await {
            Ok(()) => HEARTBEAT,
            Err(failure) => {
                tracing::debug!(why = %failure, "cannot say that this server lives; trying again");
                // Soon, since those who hear nothing take this server for dead.
                link.pause()
            }
        };
        shared.presence.rest(pause).await;
    }
}

async fn beat(shared: &Tarantool, link: &mut Link) -> Result<(), Failure> {
    let now = shared.moment();
    let answer = link
        .call_again("beat", |args| {
            _ = args.bytes(&shared.server).optional(now).uint(patience());
        })
        .await?;
    let [_, lost, forgotten] = answer.list() else {
        return Err(Failure::Lost("it answered something else".into()));
    };
    let lost = lost.uint().unwrap_or(0) > 0;
    if forgotten.is_true() {
        tracing::warn!("this server was silent for so long that others took it for dead");
        shared.known().doubt();
    }
    if lost {
        tracing::warn!("another server is gone; its sessions end");
    }
    if lost || forgotten.is_true() {
        shared.presence.look_around();
    }
    Ok(())
}

/// Hears what others did, until the store is closed.
pub(super) async fn listen(shared: Arc<Tarantool>) {
    let mut link = Link::new(Arc::clone(&shared.reach));
    // The last notice that was heard; nothing when some may have been missed.
    let mut seen = None;
    while !shared.presence.is_stopped() {
        match hear(&shared, &mut link, seen).await {
            Ok(last) => seen = Some(last),
            Err(failure) => {
                tracing::debug!(why = %failure, "cannot hear the other servers; trying again");
                link.drop_connection();
                seen = None;
                shared.presence.rest(link.pause()).await;
            }
        }
    }
}

async fn hear(shared: &Tarantool, link: &mut Link, seen: Option<u64>) -> Result<u64, Failure> {
    let connection = link.connection().await?;
    let mut requests = connection.requests();
    let known = seen.and_then(|seen| i64::try_from(seen).ok());
    shared.reach.call(&mut requests, "watch", |args| {
        _ = args.bytes(&shared.server).optional(known).uint(WATCH.as_secs());
    });
    let answers = connection.exchange(requests, WATCH + ANSWER_MAX).await?;
    let data = answers.into_iter().next().unwrap_or_else(|| Ok(Vec::new()));
    let word = decode_value(&data.map_err(Failure::Refused)?);
    let word = word.map_err(|error| Failure::Lost(error.to_string()))?;
    let [last, tubes, events, anything] = word.list() else {
        return Err(Failure::Lost("it answered something else".into()));
    };
    if anything.is_true() {
        shared.presence.look_around();
    }
    for tube in tubes.list().iter().filter_map(LuaValue::text) {
        if let Ok(tube) = TubeName::new(tube) {
            shared.presence.heard(RemoteChange::Tube(tube));
        }
    }
    if events.is_true() {
        shared.presence.heard(RemoteChange::Events);
    }
    last.uint().ok_or_else(|| Failure::Lost("it answered something else".into()))
}

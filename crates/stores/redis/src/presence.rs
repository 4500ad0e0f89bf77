//! Sends heartbeats and receives notices of other servers.
//!
//! Both use connections of their own, so that a long batch does not delay heartbeats. The Lua functions publish notices of
//! changes, only while there are several servers. Notices may be lost, so every server also looks once a second.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use taskyard_core::{Error, SemaphoreKey, TubeName};
use taskyard_redis::{Connection, Failure, Link, Value};
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::Redis;
use super::execute::unreadable_registry;
use super::library::FORMAT;
use taskyard_store::remote::{HEARTBEAT, HEARTBEAT_TIMEOUT, LastHeartbeat, declared_other_dead};
use taskyard_store::{RemoteChange, Watcher};

/// Allowed on a subscribed connection, too.
const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// How long a server may miss heartbeats, in microseconds.
pub(super) fn heartbeat_timeout() -> Vec<u8> {
    HEARTBEAT_TIMEOUT.as_micros().to_string().into_bytes()
}

/// This server's view of the other servers.
pub(super) struct Presence {
    /// This server's identity, as text.
    name: String,
    stopped: AtomicBool,
    /// Whether there are other servers.
    has_others: AtomicBool,
    wake: Notify,
    watcher: Mutex<Option<Watcher>>,
    pub last: LastHeartbeat,
    /// The version of the stored format that the last heartbeat found.
    format: AtomicI64,
    /// Held while a heartbeat is in flight.
    sending: tokio::sync::Mutex<()>,
}

impl Presence {
    pub fn new(server: &[u8]) -> Self {
        let mut name = String::with_capacity(2 * server.len());
        for byte in server {
            let _ = write!(name, "{byte:02x}");
        }
        Presence {
            name,
            stopped: AtomicBool::default(),
            has_others: AtomicBool::default(),
            wake: Notify::default(),
            watcher: Mutex::default(),
            last: LastHeartbeat::default(),
            format: AtomicI64::default(),
            sending: tokio::sync::Mutex::default(),
        }
    }

    /// This server's identity, as text.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads a notice of another server: the server, a colon, then the name of a tube, or a slash and the key of a semaphore. Names and
    /// keys contain no colon and no slash.
    fn read_notice(&self, text: &[u8]) -> Option<Notice> {
        let (server, name) = std::str::from_utf8(text).ok()?.split_once(':')?;
        if server == self.name {
            return None;
        }
        match name.strip_prefix('/') {
            Some(key) => SemaphoreKey::new(key).ok().map(Notice::Semaphore),
            None => TubeName::new(name).ok().map(Notice::Tube),
        }
    }

    /// Whether there are other servers, which need notices.
    pub fn has_other_servers(&self) -> bool {
        self.has_others.load(Ordering::Relaxed)
    }

    /// Sets the function that is called on changes of other servers.
    pub fn watch(&self, watcher: Watcher) {
        *self.watcher.lock().unwrap_or_else(PoisonError::into_inner) = Some(watcher);
    }

    /// Ends the background work. No heartbeat is sent after this: it would register a server again that has ended.
    pub async fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.wake.notify_one();
        drop(self.sending.lock().await);
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Records the version of the stored format.
    fn check_format(&self, format: i64) {
        if self.format.swap(format, Ordering::Relaxed) <= FORMAT && format > FORMAT {
            tracing::error!(
                format,
                known = FORMAT,
                "a later version has converted the data in Redis; stop this server"
            );
        }
    }

    /// Why this server cannot continue, if so.
    pub fn refusal(&self) -> Option<Error> {
        let format = self.format.load(Ordering::Relaxed);
        let why = format!(
            "the data in Redis has format {format} now, this server knows {FORMAT}: \
             a later version has converted it, so stop this server"
        );
        (format > FORMAT).then_some(Error::Store(why))
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

/// A notice of another server.
#[derive(Debug, PartialEq, Eq)]
enum Notice {
    Tube(TubeName),
    /// A semaphore with new events.
    Semaphore(SemaphoreKey),
}

impl Redis {
    fn apply_notice(&self, notice: Notice) {
        match notice {
            Notice::Tube(tube) => self.presence.notify(RemoteChange::Tube(tube)),
            Notice::Semaphore(key) => {
                let mut cache = self.cache();
                if !cache.semaphores.mark_stale(&key) {
                    cache.forget_sweep();
                }
                drop(cache);
                self.presence.notify(RemoteChange::Events);
            }
        }
    }
}

/// Sends heartbeats and receives notices until the store is closed.
pub(super) async fn run(shared: Arc<Redis>) {
    let mut link = Link::new(Arc::clone(&shared.connector));
    while !shared.presence.is_stopped() {
        if let Err(failure) = run_connected(&shared, &mut link).await {
            let why = failure.text();
            tracing::debug!(why, "cannot send heartbeats; trying again");
        }
        // Soon, because a server without heartbeats is declared dead. Ends early when the store is closed.
        let _ = timeout(link.pause(), shared.presence.wake.notified()).await;
    }
}

async fn run_connected(shared: &Redis, link: &mut Link) -> Result<(), Failure> {
    let mut subscription = subscribe(shared, link).await?;
    // Notices may have been lost before this.
    shared.presence.notify_unknown();
    let mut beats = interval(HEARTBEAT);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // On a cluster the subscription may be at another node than the heartbeat, so it is checked with a PING too.
    let mut asked = false;
    while !shared.presence.is_stopped() {
        tokio::select! {
            _ = beats.tick() => {
                send_heartbeat(shared, link).await?;
                if std::mem::replace(&mut asked, true) {
                    return Err(Failure::Lost("the subscription does not answer".into()));
                }
                subscription.send(PING).await?;
                // After a slow heartbeat the PING gets a whole interval for its answer.
                beats.reset();
            }
            () = shared.presence.wake.notified() => {}
            heard = subscription.next_message() => {
                asked = false;
                let text = heard?.list().and_then(|mut parts| parts.pop()?.text());
                if let Some(notice) = text.and_then(|text| shared.presence.read_notice(&text)) {
                    shared.apply_notice(notice);
                }
            }
        }
    }
    Ok(())
}

/// A connection on which notices arrive.
async fn subscribe(shared: &Redis, link: &mut Link) -> Result<Connection, Failure> {
    let mut last = Failure::Unreachable("the cluster has no node".into());
    for node in link.masters().await? {
        match link.listener(&node).await {
            Ok(mut connection) => {
                connection.ask(&["SUBSCRIBE", &shared.channel()]).await?;
                return Ok(connection);
            }
            Err(failure) => last = failure,
        }
    }
    Err(last)
}

/// Sends a heartbeat, which also ends the sessions of dead servers.
async fn send_heartbeat(shared: &Redis, link: &mut Link) -> Result<(), Failure> {
    let _sending = shared.presence.sending.lock().await;
    if shared.presence.is_stopped() {
        return Ok(());
    }
    let leaves = Instant::now();
    let words = vec![shared.server.clone(), heartbeat_timeout(), shared.epoch_word()];
    let call = shared.registry_call("heartbeat", words);
    let answer = link.call(&[call]).await.pop().unwrap_or_else(|| Err(unreadable_registry()))?;
    let numbers = answer.list().unwrap_or_default();
    let numbers: Vec<i64> = numbers.iter().filter_map(Value::int).collect();
    let [others, lost, forgotten, epoch, format] = numbers[..] else {
        return Err(unreadable_registry());
    };
    shared.presence.check_format(format);
    let has_others = others > 0;
    if has_others != shared.presence.has_others.swap(has_others, Ordering::Relaxed) {
        shared.cache().forget_sweep();
    }
    {
        let mut cache = shared.cache();
        cache.raise_epoch(epoch);
        if forgotten == 1 {
            tracing::warn!("{}", shared.presence.last.declared_dead());
            cache.request_resync();
        }
        if lost > 0 {
            tracing::warn!("{}", declared_other_dead());
            cache.forget_sweep();
        }
    }
    shared.presence.last.note(leaves);
    if forgotten == 1 || lost > 0 {
        shared.presence.notify_unknown();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_notices_are_ignored() {
        let tube = TubeName::new("mail").unwrap();
        let (own, other) = (Presence::new(&[0xab, 1]), Presence::new(&[0xab, 2]));
        assert_eq!(own.read_notice(b"ab01:mail"), None);
        assert_eq!(other.read_notice(b"ab01:mail"), Some(Notice::Tube(tube)));
        let key = SemaphoreKey::new("door").unwrap();
        assert_eq!(other.read_notice(b"ab01:/door"), Some(Notice::Semaphore(key)));
    }

    #[test]
    fn malformed_notices_are_ignored() {
        let presence = Presence::new(&[1]);
        for text in [&b""[..], b"mail", b"ab:", b"ab:a/b", b"ab:a:b", b"ab:/", b"ab://", b"\xff:a"]
        {
            assert_eq!(presence.read_notice(text), None, "{text:?}");
        }
    }
}

//! This server among others: it says that it lives, and hears which tubes got tasks.
//!
//! Both are on connections of their own, so that a long batch does not make others think that this server is dead. What
//! others did is published by the functions that did it, and only while there are others; notices may be lost, and
//! behind them every server looks once a second.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use taskyard_core::{Error, SemaphoreKey, TubeName};
use taskyard_redis::{Connection, Failure, Link, Value};
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::Redis;
use super::execute::unreadable_registry;
use super::library::FORMAT;
use taskyard_store::{RemoteChange, Watcher};

/// How often a server says that it lives. The sessions of one that has not for two of these are ended by
/// another, which looks as often: a dead server's tasks return within three.
pub const HEARTBEAT: Duration = Duration::from_secs(2);

/// May be said where notices are heard, too.
const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// How long a server may be silent, in microseconds.
pub(super) fn patience() -> Vec<u8> {
    (2 * HEARTBEAT.as_micros()).to_string().into_bytes()
}

/// What is known of the other servers.
pub(super) struct Presence {
    /// This server's identity, as text.
    name: String,
    stopped: AtomicBool,
    /// Whether other servers live.
    accompanied: AtomicBool,
    wake: Notify,
    watcher: Mutex<Option<Watcher>>,
    /// When the last sign of life left that Redis has seen.
    seen: Mutex<Instant>,
    /// A version of what is kept in Redis that is later than the one that is known here; no more than that if it is not.
    format: AtomicI64,
    /// Held while a sign of life is under way.
    beating: tokio::sync::Mutex<()>,
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
            accompanied: AtomicBool::default(),
            wake: Notify::default(),
            watcher: Mutex::default(),
            seen: Mutex::new(Instant::now()),
            format: AtomicI64::default(),
            beating: tokio::sync::Mutex::default(),
        }
    }

    /// This server's identity, as text.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What a notice of another server is about: who tells it, a colon, then the name of a tube, or a slash and the key of a
    /// semaphore. Neither has a colon or a slash in it.
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

    /// Whether others live, who must be told things.
    pub fn is_accompanied(&self) -> bool {
        self.accompanied.load(Ordering::Relaxed)
    }

    /// Who wants to know what others say.
    pub fn watch(&self, watcher: Watcher) {
        *self.watcher.lock().unwrap_or_else(PoisonError::into_inner) = Some(watcher);
    }

    /// Ends the background work. No sign of life leaves after this: it would make others believe that a server lives which
    /// has said that it ends.
    pub async fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.wake.notify_one();
        drop(self.beating.lock().await);
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Whether others may take this server for dead: it was frozen, or cut off.
    pub fn is_overdue(&self) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.elapsed() > 2 * HEARTBEAT
    }

    /// Takes in of which version what is kept in Redis is now.
    fn found_format(&self, format: i64) {
        if self.format.swap(format, Ordering::Relaxed) <= FORMAT && format > FORMAT {
            tracing::error!(format, known = FORMAT, "Redis was taken over by a later version");
        }
    }

    /// Why nothing can be done here any more, if so.
    pub fn refusal(&self) -> Option<Error> {
        let format = self.format.load(Ordering::Relaxed);
        let why = format!(
            "what is kept in Redis is of version {format} now, and this server knows {FORMAT}: \
             a later one has taken over, so stop this one"
        );
        (format > FORMAT).then_some(Error::Store(why))
    }

    pub fn seen(&self, at: Instant) {
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
}

/// What another server tells.
#[derive(Debug, PartialEq, Eq)]
enum Notice {
    Tube(TubeName),
    /// It has new events.
    Semaphore(SemaphoreKey),
}

impl Redis {
    fn heed(&self, notice: Notice) {
        match notice {
            Notice::Tube(tube) => self.presence.heard(RemoteChange::Tube(tube)),
            Notice::Semaphore(key) => {
                let mut known = self.known();
                if !known.semaphores.suspect(&key) {
                    known.forget_sweep();
                }
                drop(known);
                self.presence.heard(RemoteChange::Events);
            }
        }
    }
}

/// Lives until the store is closed.
pub(super) async fn live(shared: Arc<Redis>) {
    let mut link = Link::new(Arc::clone(&shared.reach));
    while !shared.presence.is_stopped() {
        if let Err(failure) = attend(&shared, &mut link).await {
            let why = failure.text();
            tracing::debug!(why, "cannot tell the other servers that this one lives; trying again");
        }
        // Soon, since those who hear nothing take this server for dead. Ends early when the store is closed.
        let _ = timeout(link.pause(), shared.presence.wake.notified()).await;
    }
}

async fn attend(shared: &Redis, link: &mut Link) -> Result<(), Failure> {
    let mut ear = listen(shared, link).await?;
    // Notices may have been lost before this.
    shared.presence.look_around();
    let mut beats = interval(HEARTBEAT);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // On a cluster it may be at another node than the heartbeat, so it is asked for a sign of life too.
    let mut asked = false;
    while !shared.presence.is_stopped() {
        tokio::select! {
            _ = beats.tick() => {
                beat(shared, link).await?;
                if std::mem::replace(&mut asked, true) {
                    return Err(Failure::Lost("no notices can be heard any more".into()));
                }
                ear.send(PING).await?;
                // A beat that took long leaves its answer as much time as any.
                beats.reset();
            }
            () = shared.presence.wake.notified() => {}
            heard = ear.next_message() => {
                asked = false;
                let text = heard?.list().and_then(|mut parts| parts.pop()?.text());
                if let Some(notice) = text.and_then(|text| shared.presence.read_notice(&text)) {
                    shared.heed(notice);
                }
            }
        }
    }
    Ok(())
}

/// A connection on which notices arrive.
async fn listen(shared: &Redis, link: &mut Link) -> Result<Connection, Failure> {
    let mut last = Failure::Unreachable("it has no node".into());
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

/// Says that this server lives, and ends the sessions of those that do not.
async fn beat(shared: &Redis, link: &mut Link) -> Result<(), Failure> {
    let _beating = shared.presence.beating.lock().await;
    if shared.presence.is_stopped() {
        return Ok(());
    }
    let leaves = Instant::now();
    let words = vec![shared.server.clone(), patience(), shared.epoch_word()];
    let call = shared.registry_call("beat", words);
    let answer = link.call(&[call]).await.pop().unwrap_or_else(|| Err(unreadable_registry()))?;
    let numbers = answer.list().unwrap_or_default();
    let numbers: Vec<i64> = numbers.iter().filter_map(Value::int).collect();
    let [others, lost, forgotten, epoch, format] = numbers[..] else {
        return Err(unreadable_registry());
    };
    shared.presence.found_format(format);
    let accompanied = others > 0;
    if accompanied != shared.presence.accompanied.swap(accompanied, Ordering::Relaxed) {
        shared.known().forget_sweep();
    }
    {
        let mut known = shared.known();
        known.heard_epoch(epoch);
        if forgotten == 1 {
            tracing::warn!("this server was silent for so long that others took it for dead");
            known.doubt();
        }
        if lost > 0 {
            tracing::warn!("another server is gone; its sessions end");
            known.forget_sweep();
        }
    }
    shared.presence.seen(leaves);
    if forgotten == 1 || lost > 0 {
        shared.presence.look_around();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_does_not_hear_itself() {
        let tube = TubeName::new("mail").unwrap();
        let (own, other) = (Presence::new(&[0xab, 1]), Presence::new(&[0xab, 2]));
        assert_eq!(own.read_notice(b"ab01:mail"), None);
        assert_eq!(other.read_notice(b"ab01:mail"), Some(Notice::Tube(tube)));
        let key = SemaphoreKey::new("door").unwrap();
        assert_eq!(other.read_notice(b"ab01:/door"), Some(Notice::Semaphore(key)));
    }

    #[test]
    fn what_is_no_notice_is_not_heard() {
        let presence = Presence::new(&[1]);
        for text in [&b""[..], b"mail", b"ab:", b"ab:a/b", b"ab:a:b", b"ab:/", b"ab://", b"\xff:a"]
        {
            assert_eq!(presence.read_notice(text), None, "{text:?}");
        }
    }
}

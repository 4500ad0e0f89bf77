//! Limits how many TLS handshakes are in progress.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// A handshake that takes longer than this is ended for a new one when there are too many.
const SLOW: Duration = Duration::from_secs(1);

/// The handshakes in progress.
#[derive(Debug)]
pub(crate) struct HandshakeLimit {
    most: usize,
    handshakes: Mutex<Handshakes>,
}

#[derive(Debug, Default)]
struct Handshakes {
    next: u64,
    /// By number, so the oldest is the first.
    current: BTreeMap<u64, Handshake>,
}

#[derive(Debug)]
struct Handshake {
    since: Instant,
    /// The handshake is over for its connection when this is dropped.
    _allowed: oneshot::Sender<()>,
}

/// One handshake in progress; it is over on drop.
#[derive(Debug)]
pub(crate) struct HandshakeSlot {
    limit: Arc<HandshakeLimit>,
    number: u64,
    /// Ready when the handshake must give way to a newer one.
    pub revoked: oneshot::Receiver<()>,
}

impl HandshakeLimit {
    /// Allows this many at a time.
    pub fn new(most: usize) -> Self {
        HandshakeLimit { most, handshakes: Mutex::default() }
    }

    /// Begins a handshake. When there are too many, the oldest gives way if it is slow: clients that connect and send
    /// nothing do not keep others out. If it is not slow, there is no place for a new one.
    pub fn begin(self: &Arc<Self>, now: Instant) -> Option<HandshakeSlot> {
        let mut handshakes = self.lock();
        if handshakes.current.len() >= self.most {
            let oldest = handshakes.current.first_entry()?;
            if now.saturating_duration_since(oldest.get().since) < SLOW {
                return None;
            }
            oldest.remove();
        }
        let number = handshakes.next;
        handshakes.next += 1;
        let (_allowed, revoked) = oneshot::channel();
        handshakes.current.insert(number, Handshake { since: now, _allowed });
        Some(HandshakeSlot { limit: self.clone(), number, revoked })
    }

    fn lock(&self) -> MutexGuard<'_, Handshakes> {
        self.handshakes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        self.limit.lock().current.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    fn is_revoked(slot: &mut HandshakeSlot) -> bool {
        slot.revoked.try_recv() == Err(TryRecvError::Closed)
    }

    #[test]
    fn a_new_handshake_is_refused_while_all_are_young() {
        let limit = Arc::new(HandshakeLimit::new(2));
        let now = Instant::now();
        let one = limit.begin(now).unwrap();
        let _two = limit.begin(now).unwrap();
        assert!(limit.begin(now + SLOW / 2).is_none());
        drop(one);
        assert!(limit.begin(now).is_some());
    }

    #[test]
    fn the_oldest_handshake_gives_way_if_it_is_slow() {
        let limit = Arc::new(HandshakeLimit::new(2));
        let now = Instant::now();
        let mut one = limit.begin(now).unwrap();
        let mut two = limit.begin(now + SLOW / 2).unwrap();
        let mut three = limit.begin(now + SLOW).unwrap();
        assert!(is_revoked(&mut one) && !is_revoked(&mut two) && !is_revoked(&mut three));
        // It has no place any more that its end could free.
        drop(one);
        assert!(limit.begin(now + SLOW).is_none());
    }

    #[test]
    fn a_limit_of_none_allows_none() {
        assert!(Arc::new(HandshakeLimit::new(0)).begin(Instant::now()).is_none());
    }
}

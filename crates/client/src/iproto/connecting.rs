//! Sees that there is a connection, one for everybody.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use taskyard_core::SessionId;
use tokio::sync::watch;

use super::address::Address;
use super::link::Link;
use crate::error::IprotoError;

/// What comes of connecting.
type Outcome = Result<Arc<Link>, IprotoError>;

/// Makes connections, one at a time.
pub(super) struct Connector {
    /// Where to.
    pub address: Address,
    /// What the names of the server's functions begin with.
    pub prefix: String,
    /// In which time a connection must be there.
    pub within: Duration,
    current: Mutex<Current>,
    /// The session that a new connection joins.
    session: Mutex<Option<SessionId>>,
}

/// How far it is with the connection.
enum Current {
    /// There is none.
    None,
    /// Somebody makes one; everybody who comes meanwhile shares what comes of it.
    Coming(watch::Receiver<Option<Outcome>>),
    /// There is one, though it may be broken by now.
    There(Arc<Link>),
}

impl Connector {
    /// No connection yet.
    pub fn new(address: Address, prefix: &str, within: Duration) -> Self {
        let prefix = prefix.to_owned();
        let (current, session) = (Mutex::new(Current::None), Mutex::new(None));
        Connector { address, prefix, within, current, session }
    }

    /// The connection, a new one if there is none or the last one broke.
    pub async fn link(self: &Arc<Self>) -> Outcome {
        let mut coming = match self.there_or_coming() {
            Ok(link) => return Ok(link),
            Err(coming) => coming,
        };
        match coming.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(outcome)) => outcome.clone(),
            // The runtime of whoever connected is no more.
            _ => Err(IprotoError::Unreachable {
                address: self.address.to_string(),
                why: "connecting was given up".into(),
            }),
        }
    }

    /// The connection that is there, or where to learn what comes of making one.
    fn there_or_coming(self: &Arc<Self>) -> Result<Arc<Link>, watch::Receiver<Option<Outcome>>> {
        let mut current = self.current();
        match &*current {
            Current::There(link) if link.is_open() => return Ok(link.clone()),
            Current::Coming(coming) if coming.has_changed().is_ok() => return Err(coming.clone()),
            _ => {}
        }
        let (told, coming) = watch::channel(None);
        *current = Current::Coming(coming.clone());
        // In a task of its own: whoever asked first may go away, and the others still wait.
        tokio::spawn(self.clone().connect(told));
        Err(coming)
    }

    async fn connect(self: Arc<Self>, told: watch::Sender<Option<Outcome>>) {
        let session = *self.session();
        let outcome = Link::connect(&self.address, &self.prefix, session, self.within).await;
        *self.current() = match &outcome {
            Ok(link) => Current::There(link.clone()),
            Err(_) => Current::None,
        };
        told.send_replace(Some(outcome));
    }

    /// The session that a new connection joins.
    pub fn session(&self) -> MutexGuard<'_, Option<SessionId>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! Opens and reopens the one connection that all callers share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use taskyard_core::SessionId;
use tokio::sync::watch;

use super::address::IprotoAddress;
use super::connection::Connection;
use super::socket::IprotoDialer;
use crate::error::IprotoError;

/// The result of connecting.
type ConnectResult = Result<Arc<Connection>, IprotoError>;

/// Opens connections, one at a time.
pub(super) struct Connector {
    /// The address of the server.
    pub address: IprotoAddress,
    /// The prefix of the names of the server's functions.
    pub prefix: String,
    /// The timeout for connecting.
    pub within: Duration,
    /// Opens the sockets.
    pub dialer: Arc<dyn IprotoDialer>,
    current: Mutex<ConnectionStatus>,
    /// The session that a new connection joins.
    session: Mutex<Option<SessionId>>,
}

/// The status of the connection.
enum ConnectionStatus {
    /// Not connected.
    None,
    /// A task connects; all callers share its result.
    Connecting(watch::Receiver<Option<ConnectResult>>),
    /// Connected, though the connection may have failed meanwhile.
    Connected(Arc<Connection>),
}

impl Connector {
    /// A connector without a connection.
    pub fn new(
        address: IprotoAddress,
        prefix: &str,
        within: Duration,
        dialer: Arc<dyn IprotoDialer>,
    ) -> Self {
        let prefix = prefix.to_owned();
        let (current, session) = (Mutex::new(ConnectionStatus::None), Mutex::new(None));
        Connector { address, prefix, within, dialer, current, session }
    }

    /// The connection; opens a new one if there is none or the last one failed.
    pub async fn connection(self: &Arc<Self>) -> ConnectResult {
        let mut connecting = match self.connected_or_connecting() {
            Ok(connection) => return Ok(connection),
            Err(connecting) => connecting,
        };
        match connecting.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(outcome)) => outcome.clone(),
            // The runtime of the connecting task has ended.
            _ => Err(IprotoError::Unreachable {
                address: self.address.to_string(),
                why: "connecting was cancelled".into(),
            }),
        }
    }

    /// The open connection, or the receiver of the result of connecting.
    fn connected_or_connecting(
        self: &Arc<Self>,
    ) -> Result<Arc<Connection>, watch::Receiver<Option<ConnectResult>>> {
        let mut current = self.current();
        match &*current {
            ConnectionStatus::Connected(connection) if connection.is_open() => {
                return Ok(connection.clone());
            }
            ConnectionStatus::Connecting(connecting) if connecting.has_changed().is_ok() => {
                return Err(connecting.clone());
            }
            _ => {}
        }
        let (sender, connecting) = watch::channel(None);
        *current = ConnectionStatus::Connecting(connecting.clone());
        // As a separate task: the first caller may be cancelled while others still wait.
        tokio::spawn(self.clone().connect(sender));
        Err(connecting)
    }

    async fn connect(self: Arc<Self>, sender: watch::Sender<Option<ConnectResult>>) {
        let session = *self.session();
        let (address, dialer) = (&self.address, &*self.dialer);
        let outcome =
            Connection::connect(dialer, address, &self.prefix, session, self.within).await;
        *self.current() = match &outcome {
            Ok(connection) => ConnectionStatus::Connected(connection.clone()),
            Err(_) => ConnectionStatus::None,
        };
        sender.send_replace(Some(outcome));
    }

    /// The session that a new connection joins.
    pub fn session(&self) -> MutexGuard<'_, Option<SessionId>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self) -> MutexGuard<'_, ConnectionStatus> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! Opens and reopens the one connection that all callers share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use taskyard_core::SessionId;
use tokio::sync::oneshot;

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
    /// A task connects; its result is sent to all callers, in the order in which they asked.
    Connecting(Vec<oneshot::Sender<ConnectResult>>),
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
        let connecting = match self.connected_or_connecting() {
            Ok(connection) => return Ok(connection),
            Err(connecting) => connecting,
        };
        connecting.await.unwrap_or_else(|_| {
            // The runtime of the connecting task has ended.
            Err(IprotoError::Unreachable {
                address: self.address.to_string(),
                why: "connecting was cancelled".into(),
            })
        })
    }

    /// The open connection, or the receiver of the result of connecting.
    fn connected_or_connecting(
        self: &Arc<Self>,
    ) -> Result<Arc<Connection>, oneshot::Receiver<ConnectResult>> {
        let (sender, connecting) = oneshot::channel();
        let mut current = self.current();
        match &mut *current {
            ConnectionStatus::Connected(connection) if connection.is_open() => {
                return Ok(connection.clone());
            }
            ConnectionStatus::Connecting(callers) => {
                callers.push(sender);
                return Err(connecting);
            }
            _ => {}
        }
        *current = ConnectionStatus::Connecting(vec![sender]);
        drop(current);
        // As a separate task: the first caller may be cancelled while others still wait.
        tokio::spawn(ConnectingTask { connector: self.clone(), is_done: false }.run());
        Err(connecting)
    }

    /// The session that a new connection joins.
    pub fn session(&self) -> MutexGuard<'_, Option<SessionId>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self) -> MutexGuard<'_, ConnectionStatus> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connects, and wakes all callers also if its runtime ends before.
struct ConnectingTask {
    connector: Arc<Connector>,
    /// Whether its callers have the result: what is being connected after that is another task.
    is_done: bool,
}

impl ConnectingTask {
    async fn run(mut self) {
        let connector = self.connector.clone();
        let session = *connector.session();
        let (address, dialer) = (&connector.address, &*connector.dialer);
        let outcome =
            Connection::connect(dialer, address, &connector.prefix, session, connector.within)
                .await;
        let connected = match &outcome {
            Ok(connection) => ConnectionStatus::Connected(connection.clone()),
            Err(_) => ConnectionStatus::None,
        };
        self.is_done = true;
        let before = std::mem::replace(&mut *connector.current(), connected);
        if let ConnectionStatus::Connecting(callers) = before {
            for caller in callers {
                // It may have been cancelled.
                let _ = caller.send(outcome.clone());
            }
        }
    }
}

impl Drop for ConnectingTask {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let mut current = self.connector.current();
        if matches!(*current, ConnectionStatus::Connecting(_)) {
            *current = ConnectionStatus::None;
        }
    }
}

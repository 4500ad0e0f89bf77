//! One connection: callers append requests to a buffer, one task writes it, another reads replies.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use taskyard_core::SessionId;
use taskyard_iproto::greeting::GREETING_BYTES;
use taskyard_iproto::{
    Greeting, Operation, Shape, auth, encode_execute, encode_request, faults, identify_args,
    next_frame, parse_reply, version_args,
};
#[cfg(feature = "tls")]
use tokio::io::AsyncReadExt;
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::address::IprotoAddress;
use super::pending_requests::{GROUP_MAX, NO_CALLER, PendingRequests, Results, TakeCommands};
use super::socket::{IprotoDialer, IprotoSocket};
#[cfg(feature = "tls")]
use super::socket::{connect_tcp, encrypted};
use super::write_buffer::WriteBuffer;
use crate::error::IprotoError;
#[cfg(feature = "tls")]
use crate::tls::{Encryption, EncryptionError};

/// The largest reply. Servers have much smaller limits.
const REPLY_BYTES_MAX: usize = 1 << 30;
/// The smallest size of a read.
const READ_BYTES: usize = 64 << 10;
/// The capacity that the read buffer keeps while it is empty.
const IDLE_BYTES_MAX: usize = 1 << 20;

/// A connection, closed when it is dropped.
#[derive(Debug)]
pub(super) struct Connection {
    shared: Arc<ConnectionShared>,
    tasks: [AbortHandle; 2],
}

#[derive(Debug)]
struct ConnectionShared {
    address: String,
    state: Mutex<ConnectionState>,
    /// Wakes the task that writes.
    write_wake: Notify,
    socket: Box<dyn IprotoSocket>,
}

#[derive(Debug, Default)]
struct ConnectionState {
    write_buffer: WriteBuffer,
    pending: PendingRequests,
    /// Why the connection failed.
    error: Option<String>,
}

impl Connection {
    /// Connects, authenticates, and joins the session if it still exists, all within the timeout.
    pub async fn connect(
        dialer: &dyn IprotoDialer,
        address: &IprotoAddress,
        prefix: &str,
        session: Option<SessionId>,
        within: Duration,
    ) -> Result<Arc<Connection>, IprotoError> {
        let connected = timeout(within, Connection::open(dialer, address, prefix, session)).await;
        connected.unwrap_or_else(|_| Err(unreachable(address, "no response in time".into())))
    }

    async fn open(
        dialer: &dyn IprotoDialer,
        address: &IprotoAddress,
        prefix: &str,
        session: Option<SessionId>,
    ) -> Result<Arc<Connection>, IprotoError> {
        let (socket, greeting) = connect_and_greet(dialer, address).await?;
        let greeting = Greeting::parse(&greeting).map_err(|error| IprotoError::NotTaskyard {
            address: address.to_string(),
            what: error.to_string(),
        })?;
        let connection = Connection::start(socket, address.to_string());
        if let Some((user, password)) = &address.user {
            let scramble = Some(auth::scramble(password, &greeting.salt));
            connection.execute(&Operation::Auth { user, scramble }).await?;
        }
        connection.announce_version(prefix);
        if session.is_some() {
            let (name, args) = identify(prefix, session);
            let call = Operation::Call { name: &name, args: &args, shape: Shape::Call };
            match connection.execute(&call).await {
                // The session has ended: the queue refuses commands that name it.
                Ok(()) | Err(IprotoError::Refused(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(connection)
    }

    fn start(socket: Box<dyn IprotoSocket>, address: String) -> Arc<Connection> {
        let state = Mutex::default();
        let shared =
            Arc::new(ConnectionShared { address, state, write_wake: Notify::new(), socket });
        let writing = tokio::spawn(write_all(shared.clone()));
        let reading = tokio::spawn(read_all(shared.clone()));
        let tasks = [writing.abort_handle(), reading.abort_handle()];
        Arc::new(Connection { shared, tasks })
    }

    /// Writes the version for the list of workers ahead of the first request, without waiting for the reply: a server that
    /// cannot note it refuses, which does not matter.
    fn announce_version(&self, prefix: &str) {
        let (name, args) = (format!("{prefix}.worker"), version_args(env!("CARGO_PKG_VERSION")));
        let call = Operation::Call { name: &name, args: &args, shape: Shape::Call };
        encode_request(self.shared.lock().write_buffer.end(), NO_CALLER, &call);
    }

    /// Whether the connection can send requests.
    pub fn is_open(&self) -> bool {
        self.shared.lock().error.is_none()
    }

    /// Sends `count` requests, which `encode` writes with consecutive numbers from its argument, and waits for all
    /// replies. When the caller is cancelled, the tasks of the commands in `takes` are released.
    pub async fn request(
        &self,
        count: usize,
        takes: TakeCommands,
        encode: impl FnOnce(&mut Vec<u8>, u64),
    ) -> Result<Results, IprotoError> {
        if count == 0 {
            return Ok(Vec::new());
        }
        if count > GROUP_MAX {
            let text =
                format!("{count} calls in one request, the limit is {GROUP_MAX}; send fewer");
            return Err(IprotoError::Refused(faults::lua(text)));
        }
        let (done, replies) = oneshot::channel();
        {
            let mut state = self.shared.lock();
            if let Some(why) = &state.error {
                return Err(self.shared.unreachable(why));
            }
            let ConnectionState { write_buffer, pending, .. } = &mut *state;
            encode(write_buffer.end(), pending.open(count, takes, done));
            if state.pending.is_single() {
                // No other request is pending, so there is nothing to batch with.
                self.shared.write_some(&mut state);
            }
            if !state.write_buffer.is_empty() {
                self.shared.write_wake.notify_one();
            }
        }
        match replies.await {
            Ok(results) => Ok(results),
            Err(_) => {
                let why = self.shared.lock().error.clone();
                Err(self.shared.unreachable(why.as_deref().unwrap_or("the connection ended")))
            }
        }
    }

    async fn execute(&self, operation: &Operation<'_>) -> Result<(), IprotoError> {
        let encode = |out: &mut Vec<u8>, sync| encode_request(out, sync, operation);
        let results = self.request(1, TakeCommands::new(), encode).await?;
        match results.into_iter().next() {
            Some(Err(fault)) => Err(IprotoError::Refused(fault)),
            _ => Ok(()),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// The call that joins a session, or asks for that of the connection.
pub(super) fn identify(prefix: &str, session: Option<SessionId>) -> (String, Vec<u8>) {
    (format!("{prefix}.identify"), identify_args(session))
}

fn unreachable(address: &IprotoAddress, why: String) -> IprotoError {
    IprotoError::Unreachable { address: address.to_string(), why }
}

async fn connect_and_greet(
    dialer: &dyn IprotoDialer,
    address: &IprotoAddress,
) -> Result<(Box<dyn IprotoSocket>, [u8; GREETING_BYTES]), IprotoError> {
    let failed = |error: io::Error| unreachable(address, error.to_string());
    #[cfg(feature = "tls")]
    if let Some(why) = address.encryption.as_ref().and_then(Encryption::problem) {
        return Err(IprotoError::Certificates(why.into()));
    }
    let mut greeting = [0; GREETING_BYTES];
    #[cfg(feature = "tls")]
    if let Some(encryption) = &address.encryption {
        let refused = |error| match error {
            EncryptionError::Failed(error) => failed(error),
            EncryptionError::Untrusted(why) => IprotoError::Certificates(why),
        };
        let stream = connect_tcp(&address.host, address.port).await.map_err(failed)?;
        let mut stream = encryption.connect(&address.host, stream).await.map_err(refused)?;
        // A server refuses the certificate of a client only after the handshake.
        let read = stream.read_exact(&mut greeting).await;
        read.map_err(|error| refused(EncryptionError::new(&address.host, error)))?;
        return Ok((encrypted(stream).map_err(failed)?, greeting));
    }
    let socket = dialer.dial(&address.host, address.port).await.map_err(failed)?;
    socket.read_exact(&mut greeting).await.map_err(failed)?;
    Ok((socket, greeting))
}

/// Writes the buffer and continues when the socket is writable again.
async fn write_all(shared: Arc<ConnectionShared>) {
    loop {
        shared.write_wake.notified().await;
        while !shared.lock().write_buffer.is_empty() {
            if let Err(error) = shared.socket.writable().await {
                return shared.fail(error.to_string());
            }
            shared.write_some(&mut shared.lock());
        }
    }
}

async fn read_all(shared: Arc<ConnectionShared>) {
    let mut bytes = Vec::new();
    loop {
        if let Err(error) = shared.socket.readable().await {
            return shared.fail(error.to_string());
        }
        bytes.reserve(READ_BYTES);
        match shared.socket.try_read_buf(&mut bytes) {
            Ok(0) => return shared.fail("the server closed the connection".into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return shared.fail(error.to_string()),
        }
        match shared.receive(&bytes) {
            Ok(read) => drop(bytes.drain(..read)),
            Err(why) => return shared.fail(why),
        }
        if bytes.len() < READ_BYTES {
            bytes.shrink_to(IDLE_BYTES_MAX);
        }
    }
}

impl ConnectionShared {
    /// Writes as much as the socket accepts now.
    fn write_some(&self, state: &mut ConnectionState) {
        match self.socket.try_write(state.write_buffer.rest()) {
            Ok(written) => state.write_buffer.advance(written),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                // The reading task gets the same error and fails all pending requests.
                state.write_buffer.clear();
                state.error.get_or_insert(error.to_string());
            }
        }
    }

    /// Handles all complete replies; returns how many bytes they had.
    fn receive(&self, bytes: &[u8]) -> Result<usize, String> {
        let (mut read, mut releases) = (0, Vec::new());
        let mut state = self.lock();
        while let Some(frame) =
            next_frame(&bytes[read..], REPLY_BYTES_MAX).map_err(|error| error.to_string())?
        {
            let reply = parse_reply(frame.body).map_err(|error| error.to_string())?;
            if reply.sync == 0
                && let Some(fault) = reply.fault()
            {
                // The server closes the connection and says why.
                return Err(fault.text.into_owned());
            }
            releases.extend(state.pending.complete(&reply));
            read += frame.consumed;
        }
        if !releases.is_empty() {
            encode_execute(state.write_buffer.end(), NO_CALLER, &releases);
            self.write_wake.notify_one();
        }
        Ok(read)
    }

    /// Ends the connection and fails all pending requests.
    fn fail(&self, why: String) {
        let mut state = self.lock();
        state.error.get_or_insert(why);
        let pending = std::mem::take(&mut state.pending);
        drop(state);
        pending.fail();
    }

    fn unreachable(&self, why: &str) -> IprotoError {
        IprotoError::Unreachable { address: self.address.clone(), why: why.to_owned() }
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! Sends commands over iproto, the binary protocol of Tarantool, on one connection that all callers share.
//!
//! Requests of all callers are written together and replies arrive in any order, so a waiting take does not block other
//! requests. `address` parses addresses, `connector` opens the connection, `connection` runs it with two tasks,
//! `socket` opens and encrypts it, `write_buffer` holds unwritten requests, `pending_requests` matches replies to callers.

mod address;
mod connection;
mod connector;
mod pending_requests;
mod socket;
mod write_buffer;

use std::fmt;
#[cfg(feature = "tls")]
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use taskyard_core::{
    Command, Error, Execute, Kind, Placed, Reply, Result, ScheduleName, SessionId, TubeOptions,
};
use taskyard_iproto::{
    Fault, Operation, Shape, decode_executed, encode_execute, encode_request, encode_run_schedule,
    reply_session,
};

use crate::client::unexpected;
use crate::error::IprotoError;
#[cfg(feature = "tls")]
use crate::tls::{Encryption, not_encrypted};
use address::IprotoAddress;
use connection::Connection;
use connector::Connector;
use pending_requests::TakeCommands;
use socket::TcpDialer;

pub use socket::{IprotoDialer, IprotoSocket};

/// The default timeout for connecting, including greeting and authentication.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// A connection to a server over iproto. Cheap to clone: clones share one connection, on which any number of
/// requests may be pending.
///
/// When the connection fails, pending requests may have been executed or not, and return an error that says so. The next
/// request opens a new connection, which joins the session of the old one: the session still holds its tasks if the
/// server is configured to wait for it (`queue.cfg{ttr = …}`).
///
/// The protocol cannot cancel a request. When the caller of a waiting take is cancelled (by a timeout around it or a
/// `select!`), the take continues to wait at the server until its own wait ends; a task that it gets is released at once,
/// without counting as an attempt. [`Iproto::call`] does not know what its function takes and releases nothing. A loop
/// should therefore use the wait of the take as its timeout instead of cancelling a longer take: up to ten thousand
/// abandoned takes may wait on one connection.
///
/// The connection is encrypted if the address begins with `iprotos://`, which needs the feature `tls`.
#[derive(Clone)]
pub struct Iproto {
    connector: Arc<Connector>,
    strict: bool,
}

/// One call of a function.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Its name, such as `queue.tube.mail:put`.
    pub function: &'a str,
    /// Its arguments: one MessagePack list.
    pub args: &'a [u8],
}

impl Iproto {
    /// The server at this address: `host:port`, `iproto://user:password@host:port` or `iprotos://…`. Does not connect
    /// yet.
    pub fn new(address: &str) -> Result<Self, IprotoError> {
        Iproto::with_dialer(address, Arc::new(TcpDialer))
    }

    /// The same over sockets of another kind than TCP. An `iprotos` address is always reached over TCP.
    pub fn with_dialer(address: &str, dialer: Arc<dyn IprotoDialer>) -> Result<Self, IprotoError> {
        let address = IprotoAddress::parse(address)?;
        let connector = Connector::new(address, "queue", CONNECT_MAX, dialer);
        Ok(Iproto { connector: Arc::new(connector), strict: false })
    }

    /// Sets another prefix of the server's functions than `queue`. The result has its own
    /// connection.
    pub fn with_prefix(self, prefix: &str) -> Self {
        let Connector { address, within, dialer, .. } = &*self.connector;
        let connector = Connector::new(address.clone(), prefix, *within, dialer.clone());
        Iproto { connector: Arc::new(connector), strict: self.strict }
    }

    /// Sets another timeout for connecting than ten seconds. The result has its own
    /// connection.
    pub fn connect_within(self, within: Duration) -> Self {
        let Connector { address, prefix, dialer, .. } = &*self.connector;
        let connector = Connector::new(address.clone(), prefix, within, dialer.clone());
        Iproto { connector: Arc::new(connector), strict: self.strict }
    }

    /// Sets a file of root certificates in PEM form that sign the certificate of an `iprotos` server, instead of those that
    /// TASKYARD_CA names or the system trusts. The result has its own connection.
    #[cfg(feature = "tls")]
    pub fn with_roots(self, path: &Path) -> Result<Self, IprotoError> {
        self.change_encryption(|encryption| encryption.with_roots(path))
    }

    /// Sets the certificate that is shown to an `iprotos` server that asks for one, with its key, both in PEM form, instead
    /// of those that TASKYARD_CLIENT_CERT and TASKYARD_CLIENT_KEY name. The result has its own connection.
    #[cfg(feature = "tls")]
    pub fn with_client_certificate(
        self,
        certificate: &Path,
        key: &Path,
    ) -> Result<Self, IprotoError> {
        self.change_encryption(|encryption| encryption.with_certificate(certificate, key))
    }

    #[cfg(feature = "tls")]
    fn change_encryption(
        self,
        change: impl FnOnce(Encryption) -> Result<Encryption, String>,
    ) -> Result<Self, IprotoError> {
        let Connector { address, prefix, within, dialer, .. } = &*self.connector;
        let Some(encryption) = address.encryption.clone() else {
            let why = not_encrypted(&address.to_string(), "iprotos://");
            return Err(IprotoError::Certificates(why));
        };
        let encryption = Some(change(encryption).map_err(IprotoError::Certificates)?);
        let address = IprotoAddress { encryption, ..address.clone() };
        let connector = Connector::new(address, prefix, *within, dialer.clone());
        Ok(Iproto { connector: Arc::new(connector), strict: self.strict })
    }

    /// Refuses a put into a tube that does not exist, instead of creating the tube.
    pub fn strict_tubes(self) -> Self {
        Iproto { strict: true, ..self }
    }

    /// The address, without user name and password.
    pub fn address(&self) -> String {
        self.connector.address.to_string()
    }

    /// Checks that the server responds.
    pub async fn ping(&self) -> Result<(), IprotoError> {
        let connection = self.connection().await?;
        connection
            .request(1, TakeCommands::new(), |out, sync| {
                encode_request(out, sync, &Operation::Ping)
            })
            .await?;
        Ok(())
    }

    /// Calls a function and returns its results, a MessagePack list.
    pub async fn call(&self, function: &str, args: &[u8]) -> Result<Vec<u8>, IprotoError> {
        let mut results = self.call_many(&[Call { function, args }]).await?;
        results.pop().ok_or_else(|| self.wrong_reply_count())?.map_err(IprotoError::Refused)
    }

    /// Sends several calls together and waits for all of them: one result for each, in order.
    pub async fn call_many(
        &self,
        calls: &[Call<'_>],
    ) -> Result<Vec<Result<Vec<u8>, Fault>>, IprotoError> {
        let connection = self.connection().await?;
        let replies = connection.request(calls.len(), TakeCommands::new(), |out, first| {
            for (sync, call) in (first..).zip(calls) {
                let Call { function: name, args } = *call;
                let call = Operation::Call { name, args, shape: Shape::Call };
                encode_request(out, sync, &call);
            }
        });
        replies.await
    }

    /// The session of this connection, created if there is none. Tasks taken in the session return when the connection
    /// ends, or later if the server is configured so; a new connection joins the session again.
    pub async fn identify(&self) -> Result<SessionId, IprotoError> {
        self.join(None).await
    }

    /// Joins a session of another connection, with everything it holds.
    pub async fn join_session(&self, session: SessionId) -> Result<SessionId, IprotoError> {
        self.join(Some(session)).await
    }

    async fn join(&self, session: Option<SessionId>) -> Result<SessionId, IprotoError> {
        let (function, args) = connection::identify(&self.connector.prefix, session);
        let results = self.call(&function, &args).await?;
        let session = reply_session(&results).map_err(|error| self.malformed(&error))?;
        *self.connector.session() = Some(session);
        Ok(session)
    }

    /// Puts the task of a schedule now; its times stay. A user that may put into the tube need not see the payload.
    pub async fn run_schedule(&self, name: &ScheduleName) -> Result<Vec<Placed>> {
        let encode = |out: &mut Vec<u8>, sync| encode_run_schedule(out, sync, name);
        match self.request(1, TakeCommands::new(), encode).await?.pop() {
            Some(Ok(Reply::Put(placed))) => Ok(placed),
            Some(Err(error)) => Err(error),
            _ => Err(unexpected("run_schedule")),
        }
    }

    async fn run(&self, commands: &[Command]) -> Result<Vec<Result<Reply>>, IprotoError> {
        let takes = pending_requests::takes_in(commands);
        let encode = |out: &mut Vec<u8>, sync| encode_execute(out, sync, commands);
        self.request(commands.len(), takes, encode).await
    }

    /// Sends one request that this many commands reply to.
    async fn request(
        &self,
        commands: usize,
        takes: TakeCommands,
        encode: impl FnOnce(&mut Vec<u8>, u64),
    ) -> Result<Vec<Result<Reply>>, IprotoError> {
        let connection = self.connection().await?;
        let replies = connection.request(1, takes, encode).await?.pop();
        let data =
            replies.ok_or_else(|| self.wrong_reply_count())?.map_err(IprotoError::Refused)?;
        let replies = decode_executed(&data).map_err(|error| self.malformed(&error))?;
        if replies.len() == commands { Ok(replies) } else { Err(self.wrong_reply_count()) }
    }

    /// Creates the tube of a refused put, and puts again.
    async fn put_into_new_tube(&self, put: &Command) -> Result<Reply> {
        let Command::Put { tube, .. } = put else { return Ok(Reply::Nothing) };
        let create = Command::CreateTube {
            tube: tube.clone(),
            options: TubeOptions::new(Kind::FifoTtl),
            if_not_exists: true,
        };
        let mut replies = self.run(&[create, put.clone()]).await?;
        let put = replies.pop().unwrap_or(Err(Error::ShuttingDown));
        replies.pop().unwrap_or(Err(Error::ShuttingDown)).and(put)
    }

    /// The connection; opens a new one if there is none or the last one failed.
    async fn connection(&self) -> Result<Arc<Connection>, IprotoError> {
        self.connector.connection().await
    }

    fn wrong_reply_count(&self) -> IprotoError {
        self.not_taskyard("the number of replies differs from the number of requests".into())
    }

    fn malformed(&self, error: &taskyard_iproto::IprotoError) -> IprotoError {
        self.not_taskyard(error.to_string())
    }

    fn not_taskyard(&self, what: String) -> IprotoError {
        IprotoError::NotTaskyard { address: self.address(), what }
    }
}

impl Execute for Iproto {
    /// Sends one request for all commands. A put that found no tube is repeated after the others.
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply>> {
        let mut replies = match self.run(&commands).await {
            Ok(replies) => replies,
            Err(error) => return vec![Err(error.into()); commands.len()],
        };
        for (reply, command) in replies.iter_mut().zip(&commands) {
            let put = !self.strict && matches!(command, Command::Put { .. });
            if put && matches!(reply, Err(Error::TubeNotFound(_))) {
                *reply = self.put_into_new_tube(command).await;
            }
        }
        replies
    }

    fn may_lose_replies(&self) -> bool {
        true
    }
}

impl fmt::Debug for Iproto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Iproto").field("address", &self.address()).finish_non_exhaustive()
    }
}

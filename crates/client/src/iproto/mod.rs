//! Commands over iproto, the binary protocol of Tarantool, on one connection for everybody.
//!
//! Requests of all callers leave together and replies come back in any order, so a take that waits
//! holds up nobody. `address` says where, `connecting` sees that there is a connection, `link` is one with its
//! two tasks, `unsent` what it has to write, `waiting` knows who waits for which reply.

mod address;
mod connecting;
mod link;
mod unsent;
mod waiting;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use taskyard_core::{Command, Error, Execute, Kind, Reply, Result, SessionId, TubeOptions};
use taskyard_wire::iproto::{Fault, Operation, Shape, decode_executed, encode_execute};
use taskyard_wire::iproto::{encode_request, reply_session};

use crate::error::IprotoError;
use address::Address;
use connecting::Connector;
use link::Link;
use waiting::Takes;

/// How long a server may take to accept a connection, to say who it is and to let somebody in, unless
/// another time is set.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// A server, spoken to over iproto. Cheap to clone: clones share one connection, over which any number of
/// requests may be under way.
///
/// When the connection breaks, what was asked may have been done or not, and those who asked are told
/// so. The next request makes a new connection, which joins the session of the old one: the tasks held
/// by that session are still there if the server was told to wait for it (`queue.cfg{ttr = …}`).
///
/// The protocol cannot take a question back. When the caller of a take that waits goes away (a timeout
/// around it, a `select!`), the take goes on waiting at the server until its own time is over; a task that
/// comes for it is given back at once, without counting as an attempt, but [`Iproto::call`] does not know
/// what it takes and gives nothing back. Whoever loops should therefore ask for the time they want to wait,
/// rather than for longer and give up: up to ten thousand forgotten takes may wait on one connection.
///
/// The connection is not encrypted.
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
    /// The server at this address: `host:port` or `iproto://user:password@host:port`. Nothing is sent
    /// yet.
    pub fn new(address: &str) -> Result<Self, IprotoError> {
        let connector = Connector::new(Address::parse(address)?, "queue", CONNECT_MAX);
        Ok(Iproto { connector: Arc::new(connector), strict: false })
    }

    /// The same for a server whose functions begin with another word than `queue`. Makes a connection of
    /// its own.
    pub fn with_prefix(self, prefix: &str) -> Self {
        let Connector { address, within, .. } = &*self.connector;
        let connector = Connector::new(address.clone(), prefix, *within);
        Iproto { connector: Arc::new(connector), strict: self.strict }
    }

    /// The same with another time in which a connection must be there, instead of ten seconds. Makes a
    /// connection of its own.
    pub fn connect_within(self, within: Duration) -> Self {
        let Connector { address, prefix, .. } = &*self.connector;
        let connector = Connector::new(address.clone(), prefix, within);
        Iproto { connector: Arc::new(connector), strict: self.strict }
    }

    /// The same, but a put into a tube that does not exist is refused.
    pub fn strict_tubes(self) -> Self {
        Iproto { strict: true, ..self }
    }

    /// The address, without a password that may stand in it.
    pub fn address(&self) -> String {
        self.connector.address.to_string()
    }

    /// Asks whether the server is there.
    pub async fn ping(&self) -> Result<(), IprotoError> {
        let link = self.link().await?;
        link.ask(1, Takes::new(), |out, sync| encode_request(out, sync, &Operation::Ping)).await?;
        Ok(())
    }

    /// Calls a function and answers its results, a MessagePack list.
    pub async fn call(&self, function: &str, args: &[u8]) -> Result<Vec<u8>, IprotoError> {
        let mut results = self.call_many(&[Call { function, args }]).await?;
        results.pop().ok_or_else(|| self.broken())?.map_err(IprotoError::Refused)
    }

    /// Sends several calls in one go and waits for all of them: a result for each, in their order.
    pub async fn call_many(
        &self,
        calls: &[Call<'_>],
    ) -> Result<Vec<Result<Vec<u8>, Fault>>, IprotoError> {
        let link = self.link().await?;
        let replies = link.ask(calls.len(), Takes::new(), |out, first| {
            for (sync, call) in (first..).zip(calls) {
                let Call { function: name, args } = *call;
                let call = Operation::Call { name, args, shape: Shape::Call };
                encode_request(out, sync, &call);
            }
        });
        replies.await
    }

    /// The session of this connection, made if there is none. Tasks taken in its name return when the
    /// connection ends, or some time later if the server was told so; a new connection joins it again.
    pub async fn identify(&self) -> Result<SessionId, IprotoError> {
        self.join(None).await
    }

    /// Joins a session of another connection, with everything it holds.
    pub async fn join_session(&self, session: SessionId) -> Result<SessionId, IprotoError> {
        self.join(Some(session)).await
    }

    async fn join(&self, session: Option<SessionId>) -> Result<SessionId, IprotoError> {
        let (function, args) = link::identify(&self.connector.prefix, session);
        let results = self.call(&function, &args).await?;
        let session = reply_session(&results).map_err(|error| self.misunderstood(&error))?;
        *self.connector.session() = Some(session);
        Ok(session)
    }

    async fn run(&self, commands: &[Command]) -> Result<Vec<Result<Reply>>, IprotoError> {
        let link = self.link().await?;
        let takes = waiting::takes_of(commands);
        let encode = |out: &mut Vec<u8>, sync| encode_execute(out, sync, commands);
        let replies = link.ask(1, takes, encode).await?.pop();
        let data = replies.ok_or_else(|| self.broken())?.map_err(IprotoError::Refused)?;
        let replies = decode_executed(&data).map_err(|error| self.misunderstood(&error))?;
        if replies.len() == commands.len() { Ok(replies) } else { Err(self.broken()) }
    }

    /// Makes the tube that a refused put was for, and puts again.
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

    /// The connection, a new one if there is none or the last one broke.
    async fn link(&self) -> Result<Arc<Link>, IprotoError> {
        self.connector.link().await
    }

    fn broken(&self) -> IprotoError {
        self.not_taskyard("another number of answers than questions".into())
    }

    fn misunderstood(&self, error: &taskyard_wire::iproto::IprotoError) -> IprotoError {
        self.not_taskyard(error.to_string())
    }

    fn not_taskyard(&self, what: String) -> IprotoError {
        IprotoError::NotTaskyard { address: self.address(), what }
    }
}

impl Execute for Iproto {
    /// One request for all commands. A put that found no tube runs again after the others.
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
}

impl fmt::Debug for Iproto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Iproto").field("address", &self.address()).finish_non_exhaustive()
    }
}

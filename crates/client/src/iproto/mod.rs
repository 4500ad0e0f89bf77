//! Commands over iproto, the binary protocol of Tarantool, on one connection for everybody.
//!
//! Requests of all callers leave together and replies come back in any order, so a take that waits
//! holds up nobody. `address` says where, `link` is one connection with its two tasks, `waiting` knows
//! who waits for which reply.

mod address;
mod link;
mod waiting;

use std::fmt;
use std::sync::{Arc, Mutex as Lock, PoisonError};

use taskyard_core::{Command, Error, Execute, Kind, Reply, Result, SessionId, TubeOptions};
use taskyard_wire::iproto::{Fault, Operation, Shape, decode_executed, encode_execute};
use taskyard_wire::iproto::{encode_request, reply_session};
use tokio::sync::Mutex;

use crate::error::IprotoError;
use address::Address;
use link::Link;
use waiting::Takes;

/// A server, spoken to over iproto. Cheap to clone: clones share one connection, over which any number of
/// requests may be under way.
///
/// When the connection breaks, what was asked may have been done or not, and those who asked are told
/// so. The next request makes a new connection, which joins the session of the old one: the tasks held
/// by that session are still there if the server was told to wait for it (`queue.cfg{ttr = …}`).
#[derive(Clone)]
pub struct Iproto {
    shared: Arc<Shared>,
    strict: bool,
}

struct Shared {
    address: Address,
    prefix: String,
    /// Locked while somebody connects, so that only one does.
    link: Mutex<Option<Arc<Link>>>,
    /// The session that a new connection joins.
    session: Lock<Option<SessionId>>,
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
        let shared = Shared {
            address: Address::parse(address)?,
            prefix: "queue".into(),
            link: Mutex::new(None),
            session: Lock::new(None),
        };
        Ok(Iproto { shared: Arc::new(shared), strict: false })
    }

    /// The same for a server whose functions begin with another word than `queue`. Makes a connection of
    /// its own.
    pub fn with_prefix(self, prefix: &str) -> Self {
        let shared = Shared {
            address: self.shared.address.clone(),
            prefix: prefix.to_owned(),
            link: Mutex::new(None),
            session: Lock::new(None),
        };
        Iproto { shared: Arc::new(shared), strict: self.strict }
    }

    /// The same, but a put into a tube that does not exist is refused.
    pub fn strict_tubes(self) -> Self {
        Iproto { strict: true, ..self }
    }

    /// The address, without a password that may stand in it.
    pub fn address(&self) -> String {
        self.shared.address.to_string()
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
        results.pop().ok_or_else(|| self.shared.broken())?.map_err(IprotoError::Refused)
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
        let (function, args) = link::identify(&self.shared.prefix, session);
        let results = self.call(&function, &args).await?;
        let session = reply_session(&results).map_err(|error| self.shared.misunderstood(&error))?;
        *self.shared.session() = Some(session);
        Ok(session)
    }

    async fn run(&self, commands: &[Command]) -> Result<Vec<Result<Reply>>, IprotoError> {
        let link = self.link().await?;
        let takes = waiting::takes_of(commands);
        let encode = |out: &mut Vec<u8>, sync| encode_execute(out, sync, commands);
        let replies = link.ask(1, takes, encode).await?.pop();
        let data = replies.ok_or_else(|| self.shared.broken())?.map_err(IprotoError::Refused)?;
        let replies = decode_executed(&data).map_err(|error| self.shared.misunderstood(&error))?;
        if replies.len() == commands.len() { Ok(replies) } else { Err(self.shared.broken()) }
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
        let mut current = self.shared.link.lock().await;
        if let Some(link) = &*current
            && link.is_open()
        {
            return Ok(link.clone());
        }
        let session = *self.shared.session();
        let link = Link::connect(&self.shared.address, &self.shared.prefix, session).await?;
        Ok(current.insert(link).clone())
    }
}

impl Shared {
    fn session(&self) -> std::sync::MutexGuard<'_, Option<SessionId>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn broken(&self) -> IprotoError {
        self.not_taskyard("another number of answers than questions".into())
    }

    fn misunderstood(&self, error: &taskyard_wire::iproto::IprotoError) -> IprotoError {
        self.not_taskyard(error.to_string())
    }

    fn not_taskyard(&self, what: String) -> IprotoError {
        IprotoError::NotTaskyard { address: self.address.to_string(), what }
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

//! Requests that wait for replies of the engine.

use std::pin::Pin;
use std::sync::Arc;
use std::vec;

use taskyard_core::{Body, Command, Execute, Reply, Result as CoreResult, SessionId, TubeName};
use taskyard_iproto::{Fault, ReplyForm};

use super::audit::BatchDrafts;
use super::expected_replies::ReplyCharge;
use super::keyed_put::KeyedPut;
use super::list_page::ListPage;
use super::protocol_session::ReplyTo;
use super::repeatable_take::RepeatableTake;
use super::server::{IprotoServer, LimitShare, SharedLimit};
use crate::users::Principal;

/// Capacity that is reserved for a new batch, at most.
const CAPACITY_HINT_MAX: usize = 1_024;

/// A request without a reply yet, and what its reply needs.
#[derive(Debug)]
pub(super) struct PendingRequest {
    /// Which request is answered, and how.
    pub reply_to: ReplyTo,
    /// What is done with the reply.
    pub follow_up: FollowUp,
    /// The expected size of the reply.
    pub charge: ReplyCharge,
}

/// What is done with the engine's reply to a request.
#[derive(Debug)]
pub(super) enum FollowUp {
    /// Sends nothing: the connection itself joined this session, by the join of this number.
    NoteJoined(SessionId, u32),
    /// Sends nothing: the connection itself left this session.
    NoteLeft(SessionId),
    /// Sends the reply in this form.
    Send(ReplyForm),
    /// Sends the task that was put, with this body.
    SendPut(Body),
    /// Sends the tasks that were put, with these bodies.
    SendPutMany(Vec<Body>),
    /// Reads the tasks that held the keys of a put, and sends them with those that were put.
    SendKeyedPut(Box<KeyedPut>),
    /// Sends the tasks that were taken, or takes once more if the session is unknown.
    SendTaken(RepeatableTake),
    /// Reads the tasks of a page that are not read yet, and sends it when it is complete.
    ContinuePage(Box<ListPage>),
    /// Sends whether the tube exists.
    SendExists,
    /// Sends the identity of this session, which was joined by the join of this number.
    SendSession(SessionId, u32),
    /// Makes this the session of the connection and sends its identity.
    SwitchSession(SessionId),
    /// Stores that variables stand for these tubes, if each of them exists, and sends no result.
    SetVariables(Vec<(TubeName, Option<String>)>),
    /// Parses the arguments of a call again for the kind of tube that was found.
    ParseAgain(UnresolvedCall),
    /// Sends the replies to this many commands as they are; sessions are joined and left among them.
    SendAll(Vec<SessionChange>),
}

/// A call whose meaning depends on the kind of its tube; the kind is fetched first.
#[derive(Debug)]
pub(super) struct UnresolvedCall {
    /// The method.
    pub method: &'static str,
    /// The arguments, a MessagePack list.
    pub args: Vec<u8>,
    /// Their part of the memory that incomplete frames may use.
    #[expect(dead_code, reason = "dropping it gives the memory back")]
    pub memory: LimitShare,
}

/// How a native command changes the sessions of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionChange {
    /// Not at all.
    None,
    /// It joins this session.
    Join(SessionId),
    /// It leaves this session.
    Leave(SessionId),
}

/// Commands that are sent to the engine together.
pub(super) struct Batch {
    /// The commands.
    pub commands: Vec<Command>,
    /// Their requests, in the order of the commands.
    pub requests: Vec<PendingRequest>,
    /// The audit entries of the commands that have one.
    pub drafts: BatchDrafts,
    /// How many of the allowed requests these are.
    pub share: LimitShare,
    /// The size of the previous batch, which is a good guess for this one.
    capacity_hint: usize,
}

/// What the engine returned.
pub(super) enum Completion {
    /// Replies to a batch.
    Replies {
        /// The requests that are not answered yet.
        requests: vec::IntoIter<PendingRequest>,
        /// The replies to them.
        replies: vec::IntoIter<CoreResult<Reply>>,
        share: LimitShare,
    },
    /// The result of a request that is not a batch, such as the rows of a SELECT, as bytes.
    Encoded {
        reply_to: ReplyTo,
        result: Result<Vec<u8>, Fault>,
        charge: ReplyCharge,
        share: LimitShare,
    },
}

/// A batch or another request that the engine works on.
pub(super) type CompletionFuture = Pin<Box<dyn Future<Output = Completion> + Send>>;

impl Batch {
    /// An empty batch.
    pub fn new(server: Arc<IprotoServer>) -> Self {
        let share = LimitShare::new(server, SharedLimit::InFlight);
        Batch {
            commands: Vec::new(),
            requests: Vec::new(),
            drafts: BatchDrafts::default(),
            share,
            capacity_hint: 0,
        }
    }

    /// Adds a command and its request.
    pub fn push(&mut self, command: Command, request: PendingRequest) {
        if self.requests.is_empty() {
            // Memory is reserved only now: most connections are idle and need none.
            self.commands.reserve(self.capacity_hint);
            self.requests.reserve(self.capacity_hint);
        }
        self.commands.push(command);
        self.requests.push(request);
    }

    /// Adds commands that have one reply together.
    pub fn push_all(&mut self, commands: Vec<Command>, request: PendingRequest) {
        self.commands.extend(commands);
        self.requests.push(request);
    }

    /// Moves the content into a batch of its own.
    pub fn split(&mut self) -> Batch {
        self.capacity_hint = self.requests.len().min(CAPACITY_HINT_MAX);
        Batch {
            commands: std::mem::take(&mut self.commands),
            requests: std::mem::take(&mut self.requests),
            drafts: std::mem::take(&mut self.drafts),
            share: self.share.split(),
            capacity_hint: 0,
        }
    }

    /// Sends the batch to the engine.
    pub fn execute(self, server: Arc<IprotoServer>) -> CompletionFuture {
        let Batch { commands, requests, drafts, share, .. } = self;
        let (commands, counts) = drafts.count(commands);
        Box::pin(async move {
            let replies = server.engine.execute(commands).await;
            let replies = drafts.record(replies, counts).await;
            let (requests, replies) = (requests.into_iter(), replies.into_iter());
            Completion::Replies { requests, replies, share }
        })
    }

    /// Sends a batch with commands that may create tubes; the number of tubes of a user is limited.
    pub fn execute_as(self, server: Arc<IprotoServer>, user: Principal) -> CompletionFuture {
        let Batch { commands, requests, drafts, share, .. } = self;
        let (commands, counts) = drafts.count(commands);
        Box::pin(async move {
            let creator = user.creator();
            let replies = server.tubes.execute(&server.engine, creator, commands).await;
            let replies = drafts.record(replies, counts).await;
            let (requests, replies) = (requests.into_iter(), replies.into_iter());
            Completion::Replies { requests, replies, share }
        })
    }
}

//! Requests on their way through the engine.

use std::pin::Pin;
use std::sync::Arc;
use std::vec;

use taskyard_core::{
    Body, Command, Execute, Reply, Result as CoreResult, SessionId, TaskId, TubeName,
};
use taskyard_wire::iproto::Fault;

use super::desk::Caller;
use super::expected::Charge;
use super::face::{Face, Of, Share};
use super::taking::Taking;
use super::users::{GUEST, Grants};
use crate::tube_quota::User;

/// For how many commands there is room in a batch from the beginning, at most.
const USUAL_MAX: usize = 1_024;

/// A request that is not answered yet: how to answer it.
#[derive(Debug)]
pub(super) struct Tag {
    /// Who asks.
    pub caller: Caller,
    /// What is told.
    pub wanted: Wanted,
    /// How large its answer is expected to be.
    pub charge: Charge,
}

/// What a client is told about the engine's reply.
#[derive(Debug)]
pub(super) enum Wanted {
    /// Nothing: no client asked. This session was joined along the way, by the join of this number.
    Joined(SessionId, u32),
    /// Nothing: nobody asked. This session was left along the way.
    Left(SessionId),
    /// The task that was put.
    Put(Body),
    /// The tasks that were put.
    PutMany(Vec<Body>),
    /// The tasks that were taken.
    Take(Taking),
    /// The task that was finished; it must be held by the session.
    Held,
    /// The task that was buried or deleted; it must be there.
    There(TaskId),
    /// Those tasks that were finished.
    Acked,
    /// How many tasks were kicked. Of a negative count, that count.
    Kicked(i64),
    /// The task that was looked at.
    Peeked(TaskId),
    /// Nothing but that it was done.
    Nothing,
    /// That it was done.
    True,
    /// Nothing but that each of these tubes is there, which variables may stand for from now on.
    Made(Vec<(TubeName, Option<String>)>),
    /// The statistics of one tube.
    Statistics,
    /// The statistics of all tubes.
    AllStatistics,
    /// The names of all tubes.
    Names,
    /// What a semaphore says.
    Semaphore,
    /// Whether there is such a tube.
    Exists,
    /// The identity of this session, which was joined along the way, by the join of this number.
    Session(SessionId, u32),
    /// The identity of the session that this connection belongs to from now on.
    Switched(SessionId),
    /// What the arguments of this method mean for a tube of the kind that was found.
    Unclear(Unclear),
    /// The replies to this many commands, as they are; sessions are joined and left among them.
    Native(Vec<Joins>),
}

/// A call whose meaning depends on the kind of its tube, which is asked for first.
#[derive(Debug)]
pub(super) struct Unclear {
    /// The method.
    pub method: &'static str,
    /// Its arguments, a MessagePack list.
    pub args: Vec<u8>,
    /// The memory that they take of what arriving frames may have.
    #[expect(dead_code, reason = "it is kept until it is dropped, and gives the memory back then")]
    pub kept: Share,
}

/// What a native command does to the sessions of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joins {
    /// Nothing.
    No,
    /// Joins this one.
    Join(SessionId),
    /// Leaves this one.
    Leave(SessionId),
}

/// Commands that go down together.
pub(super) struct Batch {
    /// What is asked.
    pub commands: Vec<Command>,
    /// How to answer, in the order of the commands.
    pub tags: Vec<Tag>,
    /// The requests among them.
    pub share: Share,
    /// How many the batch before this had: this one will probably have as many.
    usual: usize,
}

/// What came back.
pub(super) enum Landed {
    /// Replies of the engine.
    Replies {
        /// How to answer, as far as that is not done.
        tags: vec::IntoIter<Tag>,
        /// The replies that belong to them.
        replies: vec::IntoIter<CoreResult<Reply>>,
        share: Share,
    },
    /// The data of a SELECT.
    Rows { caller: Caller, rows: Result<Vec<u8>, Fault>, charge: Charge, share: Share },
}

/// Something that is under way.
pub(super) type Flight = Pin<Box<dyn Future<Output = Landed> + Send>>;

impl Batch {
    /// An empty one.
    pub fn new(face: Arc<Face>) -> Self {
        let share = Share::new(face, Of::InFlight);
        Batch { commands: Vec::new(), tags: Vec::new(), share, usual: 0 }
    }

    /// Adds a command and how to answer it.
    pub fn push(&mut self, command: Command, tag: Tag) {
        if self.tags.is_empty() {
            // Not before something comes: most connections are idle and need no memory then.
            self.commands.reserve(self.usual);
            self.tags.reserve(self.usual);
        }
        self.commands.push(command);
        self.tags.push(tag);
    }

    /// Adds commands that are answered together.
    pub fn push_all(&mut self, commands: Vec<Command>, tag: Tag) {
        self.commands.extend(commands);
        self.tags.push(tag);
    }

    /// Takes everything out of it.
    pub fn split(&mut self) -> Batch {
        self.usual = self.tags.len().min(USUAL_MAX);
        Batch {
            commands: std::mem::take(&mut self.commands),
            tags: std::mem::take(&mut self.tags),
            share: self.share.split(),
            usual: 0,
        }
    }

    /// Sends it down.
    pub fn fly(self, face: Arc<Face>) -> Flight {
        let Batch { commands, tags, share, .. } = self;
        Box::pin(async move {
            let replies = face.engine.execute(commands).await.into_iter();
            Landed::Replies { tags: tags.into_iter(), replies, share }
        })
    }

    /// The same for commands that may create tubes: the user may create only so many.
    pub fn fly_for(self, face: Arc<Face>, user: &str, grants: &Grants) -> Flight {
        let Batch { commands, tags, share, .. } = self;
        let (name, is_admin) = (user.to_owned(), *grants == Grants::All && user != GUEST);
        Box::pin(async move {
            let user = User { name: &name, is_admin };
            let replies = face.tubes.execute(&face.engine, user, commands).await.into_iter();
            Landed::Replies { tags: tags.into_iter(), replies, share }
        })
    }
}

//! The way of an answer back to its caller, and of tasks that nobody received back to their tube.

use taskyard_core::{
    Body, Command, Error, Finish, FinishItem, Holder, Reply, Result, Span, Task, TubeName,
};
use taskyard_store::{BodyKey, Store, Unloaded, fill};
use tokio::sync::oneshot;

use crate::inbox::{Inbox, JobId};

/// What the loop answers to one caller.
#[derive(Debug)]
pub(crate) struct Answer {
    /// A reply for each command, in order.
    pub replies: Vec<Result<Reply>>,
    /// Which of the commands took from which tube.
    pub takes: Vec<(usize, TubeName)>,
    /// Bodies that are still on disk.
    pub unloaded: Vec<Unloaded>,
}

/// What a caller says who got no answer from a loop that is no more.
pub(crate) fn engine_stopped() -> Error {
    Error::Store("the engine stopped".into())
}

impl Answer {
    /// The commands that give back what nobody received. Such a delivery is not an attempt.
    pub fn returns(&self) -> Vec<Command> {
        let taken = self.takes.iter().filter_map(|(index, tube)| match self.replies.get(*index) {
            Some(Ok(Reply::Taken(tasks))) => give_back(tube, tasks),
            _ => None,
        });
        taken.collect()
    }

    /// Puts an error in place of every reply that lacks a body, and gives back what was taken there.
    fn fail(&mut self, error: &Error) -> Vec<Command> {
        let mut returns = Vec::new();
        for place in &self.unloaded {
            let reply = std::mem::replace(&mut self.replies[place.reply], Err(error.clone()));
            let taken = self.takes.iter().find(|take| take.0 == place.reply);
            if let (Ok(Reply::Taken(tasks)), Some((_, tube))) = (reply, taken) {
                returns.extend(give_back(tube, &tasks));
            }
        }
        returns
    }
}

fn give_back(tube: &TubeName, tasks: &[Task]) -> Option<Command> {
    let finish = Finish::Release { delay: Span::ZERO, counted: false };
    let items: Vec<_> = tasks
        .iter()
        .filter_map(|task| {
            let holder = Holder::Lease(task.lease?);
            Some(FinishItem { id: task.id, holder, finish })
        })
        .collect();
    (!items.is_empty()).then(|| Command::Finish { tube: tube.clone(), items })
}

/// A caller's claim to an answer. When it is dropped early, whatever was taken for it goes back.
pub(crate) struct Receipt<'a> {
    inbox: &'a Inbox,
    job: JobId,
    /// Whether the loop may keep the job for long, so that it must be told when the caller leaves.
    waits: bool,
    receiver: oneshot::Receiver<Answer>,
    /// The answer, while it is not complete.
    answer: Option<Answer>,
    settled: bool,
}

impl<'a> Receipt<'a> {
    /// The claim to the answer of this job.
    pub fn new(
        inbox: &'a Inbox,
        job: JobId,
        waits: bool,
        receiver: oneshot::Receiver<Answer>,
    ) -> Self {
        Receipt { inbox, job, waits, receiver, answer: None, settled: false }
    }

    /// The replies, with all their bodies; `None` when the loop is no more.
    pub async fn replies(mut self, store: &dyn Store) -> Option<Vec<Result<Reply>>> {
        let answer = (&mut self.receiver).await;
        self.settled = true;
        let answer = self.answer.insert(answer.ok()?);
        if !answer.unloaded.is_empty() {
            let keys = answer.unloaded.iter().map(|place| place.key).collect();
            match load(self.inbox, store, keys).await {
                Ok(bodies) => fill(&mut answer.replies, &answer.unloaded, bodies),
                Err(error) => self.inbox.give_back(answer.fail(&error)),
            }
        }
        self.answer.take().map(|answer| answer.replies)
    }
}

/// Reads bodies, unless the store may not be asked any more.
async fn load(inbox: &Inbox, store: &dyn Store, keys: Vec<BodyKey>) -> Result<Vec<Option<Body>>> {
    if inbox.is_alive() { store.load(keys).await } else { Err(Error::ShuttingDown) }
}

impl Drop for Receipt<'_> {
    fn drop(&mut self) {
        if !self.settled {
            // Closing first decides the race with the loop: either its answer is here already, or
            // it learns that nobody listens.
            self.receiver.close();
            match self.receiver.try_recv() {
                Ok(answer) => self.answer = Some(answer),
                Err(_) if self.waits => self.inbox.leave(self.job),
                Err(_) => {}
            }
        }
        if let Some(answer) = self.answer.take() {
            self.inbox.give_back(answer.returns());
        }
    }
}

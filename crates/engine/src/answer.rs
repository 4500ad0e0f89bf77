//! The way of an answer back to its caller, and of tasks that nobody received back to their tube.

use std::time::{Duration, Instant};

use taskyard_core::{
    Body, Command, Error, Finish, FinishItem, Holder, Reply, Result, Span, Task, TubeName,
};
use taskyard_store::{BodyKey, Store, Unloaded, fill};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use crate::inbox::{Inbox, JobId};

/// How long a caller looks for its answer before it sleeps: a little more than a sync of a good disk.
const LOOKOUT: Duration = Duration::from_micros(150);

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

/// What is said to commands that come when the loop is no more.
pub(crate) fn engine_stopped() -> Error {
    Error::Store("the engine stopped".into())
}

/// What is said to commands that the loop accepted and did not answer before it broke: the store may have done them.
pub(crate) fn unanswered() -> Error {
    Error::OutcomeUnknown("the engine stopped before it answered; it was done or it was not".into())
}

impl Answer {
    /// The commands that give back what nobody received. Such a delivery is not an attempt.
    pub fn returns(&self) -> Vec<Command> {
        let taken = self.takes.iter().filter_map(|(index, tube)| match self.replies.get(*index) {
            Some(Ok(Reply::Taken(tasks))) => finish(tube, tasks, GIVEN_BACK),
            _ => None,
        });
        taken.collect()
    }

    /// Puts the loaded bodies into the replies. Tasks whose bodies could not be loaded leave them; a
    /// reply of which nothing is left is the error instead. Answers the commands that end the
    /// deliveries of such tasks: the next consumer would fare no better with a body that is lost, so
    /// its task is buried; the others go back.
    fn complete(&mut self, loaded: Vec<Result<Option<Body>>>) -> Vec<Command> {
        let (mut bodies, mut failed) = (Vec::with_capacity(loaded.len()), Vec::new());
        for (place, body) in self.unloaded.iter().zip(loaded) {
            bodies.push(body.unwrap_or_else(|error| {
                failed.push((*place, error));
                None
            }));
        }
        let ends = failed.iter().filter_map(|(place, error)| self.end(place, error)).collect();
        fill(&mut self.replies, &self.unloaded, bodies);
        for (place, error) in failed {
            let reply = &mut self.replies[place.reply];
            if matches!(reply, Ok(Reply::Taken(tasks) | Reply::Tasks(tasks)) if tasks.is_empty()) {
                *reply = Err(error);
            }
        }
        ends
    }

    /// The command that ends the delivery of a task whose body could not be loaded, if it is one.
    fn end(&self, place: &Unloaded, error: &Error) -> Option<Command> {
        let (_, tube) = self.takes.iter().find(|take| take.0 == place.reply)?;
        let Ok(Reply::Taken(tasks)) = &self.replies[place.reply] else { return None };
        let task = tasks.get(place.item)?;
        if !matches!(error, Error::Store(_)) {
            return finish(tube, [task], GIVEN_BACK);
        }
        tracing::error!(%tube, task = %task.id, %error, "buried a task without a payload");
        finish(tube, [task], Finish::Bury)
    }
}

/// How a delivery ends that nobody received.
const GIVEN_BACK: Finish = Finish::Release { delay: Span::ZERO, counted: false };

fn finish<'a>(
    tube: &TubeName,
    tasks: impl IntoIterator<Item = &'a Task>,
    finish: Finish,
) -> Option<Command> {
    let items: Vec<_> = tasks
        .into_iter()
        .filter_map(|task| {
            let holder = Holder::Lease(task.lease?);
            Some(FinishItem { id: task.id, holder, finish })
        })
        .collect();
    (!items.is_empty()).then(|| Command::Finish { tube: tube.clone(), items, show: false })
}

/// A caller's claim to an answer. When it is dropped early, whatever was taken for it goes back.
pub(crate) struct Receipt<'a> {
    inbox: &'a Inbox,
    job: JobId,
    /// Whether the loop may keep the job for long, so that it must be told when the caller leaves.
    waits: bool,
    /// Whether jobs come one after the other, as of a single caller.
    alone: bool,
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
        let alone = !waits && inbox.begin_asking();
        Receipt { inbox, job, waits, alone, receiver, answer: None, settled: false }
    }

    /// Looks for the answer for a moment without sleeping, letting other tasks run in between. Only who
    /// asks alone does: to be woken takes as long as the disk does, and nobody else needs the core.
    async fn look_out(&mut self) -> Option<Answer> {
        if !self.alone {
            return None;
        }
        let begin = Instant::now();
        while self.inbox.is_asked_by_one() && begin.elapsed() < LOOKOUT {
            match self.receiver.try_recv() {
                Ok(answer) => return Some(answer),
                Err(TryRecvError::Closed) => return None,
                Err(TryRecvError::Empty) => tokio::task::yield_now().await,
            }
        }
        None
    }

    /// The replies, with all their bodies; `None` when the loop is no more.
    pub async fn replies(mut self, store: &dyn Store) -> Option<Vec<Result<Reply>>> {
        let answer = match self.look_out().await {
            Some(answer) => Some(answer),
            None => (&mut self.receiver).await.ok(),
        };
        self.settled = true;
        let answer = self.answer.insert(answer?);
        if !answer.unloaded.is_empty() {
            let keys = answer.unloaded.iter().map(|place| place.key).collect();
            let loaded = load(self.inbox, store, keys).await;
            self.inbox.give_back(answer.complete(loaded));
        }
        self.answer.take().map(|answer| answer.replies)
    }
}

/// Reads bodies, unless the store may not be asked any more.
async fn load(inbox: &Inbox, store: &dyn Store, keys: Vec<BodyKey>) -> Vec<Result<Option<Body>>> {
    if inbox.is_alive() {
        store.load(keys).await
    } else {
        vec![Err(Error::ShuttingDown); keys.len()]
    }
}

impl Drop for Receipt<'_> {
    fn drop(&mut self) {
        if !self.waits {
            self.inbox.end_asking();
        }
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

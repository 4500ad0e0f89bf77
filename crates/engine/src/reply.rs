//! Delivers the replies of a job to its caller, and returns taken tasks that no caller received.

use std::time::{Duration, Instant};

use taskyard_core::{
    Body, Command, Error, Finish, FinishItem, Holder, Reply, Result, Span, Task, TubeName,
};
use taskyard_store::{BodyKey, Store, Unloaded, fill};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use crate::inbox::{Inbox, Submitted};
use crate::request::{JobId, OneOrMany};

/// How long a caller spins for its reply before it sleeps: slightly more than a sync of a good
/// disk.
const SPIN_MAX: Duration = Duration::from_micros(150);

/// The replies of one job.
#[derive(Debug)]
pub(crate) struct JobReply {
    /// A reply for each command, in order.
    pub replies: OneOrMany<Result<Reply>>,
    /// The index and the tube of each take.
    pub takes: OneOrMany<(usize, TubeName)>,
    /// Bodies that are still on disk.
    pub unloaded: Vec<Unloaded>,
}

/// The error of commands submitted after the loop has ended.
pub(crate) fn engine_stopped() -> Error {
    Error::Store("the engine stopped".into())
}

/// The error of commands that were accepted and not answered before the loop failed: the store may
/// have executed them.
pub(crate) fn unanswered() -> Error {
    Error::OutcomeUnknown(
        "the engine stopped before it replied; the command may or may not have been executed"
            .into(),
    )
}

impl JobReply {
    /// The commands that return the taken tasks of a reply that no caller received. Such a delivery
    /// does not count as an attempt.
    pub fn returns(&self) -> Vec<Command> {
        let replies = self.replies.as_slice();
        let taken =
            self.takes.as_slice().iter().filter_map(|(index, tube)| match replies.get(*index) {
                Some(Ok(Reply::Taken(tasks))) => finish(tube, tasks, RETURNED),
                _ => None,
            });
        taken.collect()
    }

    /// Puts the loaded bodies into the replies. A task whose body cannot be loaded is removed from
    /// its reply; a reply that becomes empty is replaced by the error. Returns the commands that
    /// end the deliveries of such tasks: a task whose body is lost is buried, because no consumer
    /// could process it; the others are released.
    fn fill_bodies(&mut self, loaded: Vec<Result<Option<Body>>>) -> Vec<Command> {
        let (mut bodies, mut failed) = (Vec::with_capacity(loaded.len()), Vec::new());
        for (missing, body) in self.unloaded.iter().zip(loaded) {
            bodies.push(body.unwrap_or_else(|error| {
                failed.push((*missing, error));
                None
            }));
        }
        let ends = failed
            .iter()
            .filter_map(|(missing, error)| self.end_delivery(missing, error))
            .collect();
        fill(self.replies.as_mut_slice(), &self.unloaded, bodies);
        for (missing, error) in failed {
            let reply = &mut self.replies.as_mut_slice()[missing.reply];
            let shows_tasks =
                matches!(reply, Ok(Reply::Taken(_) | Reply::Tasks(_) | Reply::Found(_)));
            if shows_tasks && reply.as_ref().is_ok_and(|reply| reply.shown().is_empty()) {
                *reply = Err(error);
            }
        }
        ends
    }

    /// The command that ends the delivery of a task whose body could not be loaded, if it was a
    /// delivery.
    fn end_delivery(&self, missing: &Unloaded, error: &Error) -> Option<Command> {
        let (_, tube) = self.takes.as_slice().iter().find(|take| take.0 == missing.reply)?;
        let Ok(Reply::Taken(tasks)) = &self.replies.as_slice()[missing.reply] else { return None };
        let task = tasks.get(missing.item)?;
        if !matches!(error, Error::Store(_)) {
            return finish(tube, [task], RETURNED);
        }
        tracing::error!(%tube, task = %task.id, %error, "buried a task because its payload cannot be read");
        finish(tube, [task], Finish::Bury)
    }
}

/// How a delivery ends that no caller received.
const RETURNED: Finish = Finish::Release { delay: Span::ZERO, counted: false };

fn finish<'a>(
    tube: &TubeName,
    tasks: impl IntoIterator<Item = &'a Task>,
    finish: Finish,
) -> Option<Command> {
    let items: Vec<_> = tasks
        .into_iter()
        .filter_map(|task| {
            let holder = Holder::Lease(task.lease?);
            Some(FinishItem { id: task.id, holder, finish: finish.clone() })
        })
        .collect();
    (!items.is_empty()).then(|| Command::Finish { tube: tube.clone(), items, show: false })
}

/// A caller's side of a submitted job. If it is dropped early, the tasks taken for it are returned.
pub(crate) struct PendingReply<'a> {
    inbox: &'a Inbox,
    job: JobId,
    /// Whether the job may wait in the loop, so that the loop must learn when the caller is gone.
    waits: bool,
    /// Whether jobs come one after the other, as from a single caller.
    alone: bool,
    receiver: oneshot::Receiver<JobReply>,
    /// The reply, while bodies are missing. In a box, because that is rare and every request is as large as its largest part.
    answer: Option<Box<JobReply>>,
    received: bool,
}

impl<'a> PendingReply<'a> {
    /// Waits for the reply of this job.
    pub fn new(inbox: &'a Inbox, submitted: Submitted, waits: bool) -> Self {
        let Submitted { id: job, receiver, alone } = submitted;
        PendingReply { inbox, job, waits, alone, receiver, answer: None, received: false }
    }

    /// Waits for the reply; `None` when the loop has ended. A single caller spins for it for a moment before it sleeps, letting
    /// other tasks run in between: a wake-up takes as long as the disk, and the core is free.
    async fn receive(&mut self) -> Option<JobReply> {
        if self.alone {
            let begin = Instant::now();
            while self.inbox.has_single_caller() && begin.elapsed() < SPIN_MAX {
                match self.receiver.try_recv() {
                    Ok(answer) => return Some(answer),
                    Err(TryRecvError::Closed) => return None,
                    Err(TryRecvError::Empty) => tokio::task::yield_now().await,
                }
            }
        }
        (&mut self.receiver).await.ok()
    }

    /// The replies with all their bodies; `None` when the loop has ended.
    pub async fn replies(mut self, store: &dyn Store) -> Option<Vec<Result<Reply>>> {
        let answer = self.receive().await;
        self.received = true;
        let answer = answer?;
        if answer.unloaded.is_empty() {
            return Some(answer.replies.into_vec());
        }
        let answer = self.answer.insert(Box::new(answer));
        let keys = answer.unloaded.iter().map(|missing| missing.key).collect();
        let loaded = load(self.inbox, store, keys).await;
        self.inbox.give_back(answer.fill_bodies(loaded));
        self.answer.take().map(|answer| answer.replies.into_vec())
    }
}

/// Loads bodies, unless the store may not be used any more.
async fn load(inbox: &Inbox, store: &dyn Store, keys: Vec<BodyKey>) -> Vec<Result<Option<Body>>> {
    if inbox.is_alive() {
        store.load(keys).await
    } else {
        vec![Err(Error::ShuttingDown); keys.len()]
    }
}

impl Drop for PendingReply<'_> {
    fn drop(&mut self) {
        if !self.received {
            // Closing first decides the race with the loop: either the reply is here already, or
            // the loop finds the channel closed.
            self.receiver.close();
            match self.receiver.try_recv() {
                Ok(answer) => self.answer = Some(Box::new(answer)),
                Err(_) if self.waits => self.inbox.cancel(self.job),
                Err(_) => {}
            }
        }
        if let Some(answer) = self.answer.take() {
            self.inbox.give_back(answer.returns());
        }
    }
}

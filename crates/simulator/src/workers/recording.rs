//! The queue of a worker: records its commands and replies, and plants faults of a worker above that.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use taskyard_core::{
    AfterFailure, Command, EventKind, Execute, Finish, FinishItem, Outcome, Reply, Result,
    SemaphoreReply, Span,
};

use crate::history::{CallReply, OperationNumber, SharedHistory};
use crate::planted::PlantedFault;

/// The number of the first worker among those of clients.
pub const FIRST_WORKER: u32 = 1_000_000;
/// The number of the first manager among those of clients.
pub const FIRST_MANAGER: u32 = 2_000_000;

/// The number of the consumers of a semaphore among those of clients.
pub const FIRST_CONSUMER: u32 = 3_000_000;

/// The worker of an operation, if it is one of a worker.
pub fn worker_of(operation: OperationNumber) -> Option<usize> {
    let is_worker = (FIRST_WORKER..FIRST_MANAGER).contains(&operation.0);
    is_worker.then(|| (operation.0 - FIRST_WORKER) as usize)
}

/// A planted fault happens to every n-th finish.
const EVERY: u32 = 5;

/// What a worker or a manager executes commands on.
pub struct RecordingQueue {
    client: taskyard::Client,
    history: SharedHistory,
    /// Its number among those of clients.
    number: u32,
    server: usize,
    name: Arc<str>,
    /// The calls of all processes of the worker.
    calls: Arc<AtomicU32>,
    planted: Option<PlantedFault>,
}

impl RecordingQueue {
    /// The queue of a process of a worker or a manager.
    pub fn new(
        client: taskyard::Client,
        history: SharedHistory,
        (number, server): (u32, usize),
        calls: Arc<AtomicU32>,
        planted: Option<PlantedFault>,
    ) -> Self {
        let name = format!("worker {number}").into();
        RecordingQueue { client, history, number, server, name, calls, planted }
    }

    /// Replaces what differs between two runs of a seed.
    fn make_repeatable(&self, command: &mut Command) {
        match command {
            // The name of the product has the number of the process.
            Command::Take(take) => take.worker = Some(self.name.clone()),
            Command::Finish { items, .. } => {
                for item in items {
                    if let Finish::Fail(fail) = &mut item.finish
                        && let AfterFailure::Policy { seed, .. } = &mut fail.then
                    {
                        let calls = self.calls.load(Ordering::Relaxed);
                        *seed = self.number.wrapping_add(calls).wrapping_mul(0x9e37_79b9);
                    }
                }
            }
            _ => {}
        }
    }

    /// Executes commands and records them.
    async fn record(&self, commands: Vec<Command>) -> Vec<Result<Reply>> {
        let operation = (self.number, self.calls.fetch_add(1, Ordering::Relaxed));
        let begin = |command: &Command| {
            self.history.borrow_mut().begin(operation, self.server, command.clone())
        };
        let calls: Vec<usize> = commands.iter().map(begin).collect();
        let replies = self.client.execute(commands).await;
        for (call, reply) in calls.into_iter().zip(&replies) {
            let reply = CallReply::from_result(reply.clone());
            self.history.borrow_mut().end(call, reply, Some(0));
        }
        replies
    }

    /// Whether the fault happens at this chance.
    fn happens(&self) -> bool {
        self.calls.load(Ordering::Relaxed).is_multiple_of(EVERY)
    }

    /// Changes what a worker sends; the reply of a command that is not sent.
    async fn change(&self, command: &mut Command) -> Option<Reply> {
        match (self.planted?, command) {
            (PlantedFault::DropHeartbeats, Command::Finish { items, .. }) if is_touch(items) => {
                Some(all_done(items))
            }
            (PlantedFault::DropWorkerAck, command @ Command::Finish { .. }) => {
                let Command::Finish { items, .. } = &*command else { return None };
                let is_dropped = items.iter().all(is_ack) && self.happens();
                let reply = is_dropped.then(|| all_done(items))?;
                let operation = (self.number, self.calls.fetch_add(1, Ordering::Relaxed));
                let mut history = self.history.borrow_mut();
                let call = history.begin(operation, self.server, command.clone());
                history.end(call, CallReply::Replied(reply.clone()), Some(0));
                Some(reply)
            }
            (PlantedFault::HideFailures, Command::Finish { items, .. }) => {
                let failed = items.iter_mut().filter(|item| matches!(item.finish, Finish::Fail(_)));
                failed.for_each(|item| item.finish = Finish::Ack);
                None
            }
            (PlantedFault::ReleaseBeforeAck, Command::Finish { tube, items, show })
                if items.iter().all(is_ack) && self.happens() =>
            {
                let mut items = items.clone();
                let release = Finish::Release { delay: Span::ZERO, counted: true };
                items.iter_mut().for_each(|item| item.finish = release.clone());
                self.record(vec![Command::Finish { tube: tube.clone(), items, show: *show }]).await;
                None
            }
            (PlantedFault::IgnorePlans, Command::Deliveries { .. }) => {
                Some(Reply::Tasks(Vec::new()))
            }
            _ => None,
        }
    }

    /// Changes what a worker believes of the reply to a command.
    fn believe(&self, command: &Command, reply: &mut Result<Reply>) {
        if let (Some(PlantedFault::BelieveLostLease), Command::Finish { items, .. }) =
            (self.planted, command)
            && is_touch(items)
        {
            *reply = Ok(all_done(items));
        }
        if let (
            Some(PlantedFault::LosePreemption),
            Ok(Reply::Semaphore(SemaphoreReply::Events(events))),
        ) = (self.planted, reply)
        {
            events.retain(|event| event.kind != EventKind::TryRelease);
        }
    }
}

impl Execute for RecordingQueue {
    async fn execute(&self, mut commands: Vec<Command>) -> Vec<Result<Reply>> {
        commands.iter_mut().for_each(|command| self.make_repeatable(command));
        let is_manager = (FIRST_MANAGER..FIRST_CONSUMER).contains(&self.number);
        if self.planted.is_none() || is_manager {
            return self.record(commands).await;
        }
        let mut replies = Vec::with_capacity(commands.len());
        for mut command in commands {
            let mut reply = match self.change(&mut command).await {
                Some(reply) => Ok(reply),
                None => self.record(vec![command.clone()]).await.pop().unwrap_or_else(unanswered),
            };
            self.believe(&command, &mut reply);
            replies.push(reply);
        }
        replies
    }

    fn may_lose_replies(&self) -> bool {
        true
    }
}

fn unanswered() -> Result<Reply> {
    Err(taskyard_core::Error::ShuttingDown)
}

fn is_touch(items: &[FinishItem]) -> bool {
    items.iter().all(|item| matches!(item.finish, Finish::Touch(_)))
}

fn is_ack(item: &FinishItem) -> bool {
    matches!(item.finish, Finish::Ack | Finish::AckWithResult(_))
}

fn all_done(items: &[FinishItem]) -> Reply {
    Reply::Finished(vec![Outcome::Done(None); items.len()])
}

//! Handlers of the reference contract that do what a test wants, and remember what they were given.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use taskyard::Client;
use taskyard::worker::kit::{Kit, KitQueue};
use taskyard::worker::{
    Builder, Context, HandlerResult, HandlerStats, PutOptions, Retry, Store, TypedTask,
};
use taskyard_core::{Execute, TaskId};
use tokio::sync::Semaphore;

use super::queues::{EmailsHandler, EmailsTask, Handlers, NotificationsHandler, NotificationsTask};

/// What a handler does with a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Act {
    Done,
    Fail,
    Panic,
    Forget,
    RetryIn(Duration),
    /// Waits at the gate, then acks.
    Wait,
    /// The same, but ends at once without ack when it is cancelled.
    WaitUntilCancelled,
    /// Says that it did more than it was given.
    Boast,
}

/// The queue of a batch, and its e-mails.
type Given = (u32, Vec<EmailsTask>);

/// A handler and what it saw.
#[derive(Clone)]
pub struct Post {
    act: Arc<Mutex<Act>>,
    batches: Arc<Mutex<Vec<Given>>>,
    pub gate: Arc<Semaphore>,
    /// One permit for each batch that has begun.
    pub begun: Arc<Semaphore>,
}

impl Post {
    pub fn new(act: Act) -> Self {
        Post {
            act: Arc::new(Mutex::new(act)),
            batches: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
            begun: Arc::new(Semaphore::new(0)),
        }
    }

    pub fn now(&self, act: Act) {
        *self.act.lock().unwrap() = act;
    }

    pub fn handlers(&self) -> Handlers {
        Handlers::default().on_emails(self.clone()).on_notifications(self.clone())
    }

    pub fn worker(&self, kit: &Kit) -> Builder<KitQueue> {
        kit.worker(self.handlers())
    }

    /// The e-mails of all batches.
    pub fn mails(&self) -> Vec<EmailsTask> {
        let batches = self.batches.lock().unwrap();
        batches.iter().flat_map(|(_, mails)| mails.clone()).collect()
    }

    pub fn receivers(&self) -> Vec<String> {
        self.mails().into_iter().map(|mail| mail.to).collect()
    }

    /// The queues of all batches, by number.
    pub fn visits(&self) -> Vec<u32> {
        self.batches.lock().unwrap().iter().map(|(queue, _)| *queue).collect()
    }

    /// Waits until another batch has begun.
    pub async fn begun(&self) {
        self.begun.acquire().await.unwrap().forget();
    }

    async fn handle(&self, ctx: &Context, store: &Store, ids: Vec<u64>) -> HandlerResult {
        self.begun.add_permits(1);
        let count = ids.len();
        let act = *self.act.lock().unwrap();
        match act {
            Act::Done => {}
            Act::Fail => return Err("no network".into()),
            Act::Panic => panic!("a handler that panics on purpose"),
            Act::Forget => return Ok(HandlerStats::default()),
            Act::Boast => {
                store.done(&ids).await?;
                return Ok(HandlerStats { processed: 1000, ..HandlerStats::default() });
            }
            Act::RetryIn(delay) => {
                let retries: Vec<_> =
                    ids.iter().map(|id| Retry::after(store, *id, delay)).collect();
                store.retry(&retries).await?;
                return Ok(HandlerStats { retried: count, ..HandlerStats::default() });
            }
            Act::Wait => self.gate.acquire().await.unwrap().forget(),
            Act::WaitUntilCancelled => {
                tokio::select! {
                    permit = self.gate.acquire() => permit.unwrap().forget(),
                    () = ctx.cancelled() => return Err("cancelled".into()),
                }
            }
        }
        store.done(&ids).await?;
        Ok(HandlerStats { processed: count, ..HandlerStats::default() })
    }
}

impl EmailsHandler for Post {
    async fn handle_emails(
        &self,
        ctx: &Context,
        store: &Store,
        tasks: Vec<EmailsTask>,
    ) -> HandlerResult {
        let ids = tasks.iter().map(|task| task.task_id).collect();
        self.batches.lock().unwrap().push((ctx.queue_num(), tasks));
        self.handle(ctx, store, ids).await
    }
}

impl NotificationsHandler for Post {
    async fn handle_notifications(
        &self,
        ctx: &Context,
        store: &Store,
        tasks: Vec<NotificationsTask>,
    ) -> HandlerResult {
        let ids = tasks.iter().map(|task| task.task_id).collect();
        self.batches.lock().unwrap().push((ctx.queue_num(), Vec::new()));
        self.handle(ctx, store, ids).await
    }
}

pub fn mail(to: &str) -> EmailsTask {
    EmailsTask { to: to.into(), subject: "hello".into(), ..EmailsTask::default() }
}

pub async fn put(queue: &impl Execute, to: &str) -> TaskId {
    mail(to).put(queue, PutOptions::default()).await.unwrap()
}

pub async fn notify(queue: &impl Execute, message: &str) -> TaskId {
    let task = NotificationsTask { message: message.into(), ..NotificationsTask::default() };
    task.put(queue, PutOptions::default()).await.unwrap()
}

/// Puts something that is not an e-mail into their queue.
pub async fn put_poison(kit: &Kit) {
    Client::new(kit.queue().clone()).put("emails", &("a", 7)).await.unwrap();
}

/// The value of a counter or gauge.
pub fn metric(text: &str, name: &str) -> f64 {
    let line = text.lines().find(|line| line.starts_with(name) && !line.starts_with('#'));
    let line = line.unwrap_or_else(|| panic!("{name} is not in\n{text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

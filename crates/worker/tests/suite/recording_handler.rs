//! A handler of the reference contract that acts as a test demands and records its batches.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use taskyard::Client;
use taskyard_core::{Execute, TaskId};
use taskyard_worker::testing::TestKit;
use taskyard_worker::{
    Context, HandlerResult, HandlerStats, PutOptions, Retry, Store, TypedTask, WorkerBuilder,
};
use tokio::sync::Semaphore;

use crate::queues::{EmailsHandler, EmailsTask, Handlers, NotificationsHandler, NotificationsTask};

/// What a handler does with a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Act {
    Done,
    Fail,
    Panic,
    LeaveUnsettled,
    RetryIn(Duration),
    /// Waits for a permit of the gate, then acks.
    Wait,
    /// Waits for a permit, then acks; ends without ack when it is cancelled.
    WaitUntilCancelled,
    /// Acks, and reports more tasks than it was given.
    Overreport,
}

/// The queue number of a batch, and its e-mails.
type RecordedBatch = (u32, Vec<EmailsTask>);

/// A handler that records its batches.
#[derive(Clone)]
pub struct RecordingHandler {
    act: Arc<Mutex<Act>>,
    batches: Arc<Mutex<Vec<RecordedBatch>>>,
    pub gate: Arc<Semaphore>,
    /// One permit for each batch that has started.
    pub started: Arc<Semaphore>,
}

impl RecordingHandler {
    pub fn new(act: Act) -> Self {
        RecordingHandler {
            act: Arc::new(Mutex::new(act)),
            batches: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
            started: Arc::new(Semaphore::new(0)),
        }
    }

    pub fn set_act(&self, act: Act) {
        *self.act.lock().unwrap() = act;
    }

    pub fn handlers(&self) -> Handlers {
        Handlers::default().on_emails(self.clone()).on_notifications(self.clone())
    }

    pub fn worker(&self, kit: &TestKit) -> WorkerBuilder {
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

    /// The queue numbers of all batches.
    pub fn queue_nums_served(&self) -> Vec<u32> {
        self.batches.lock().unwrap().iter().map(|(queue, _)| *queue).collect()
    }

    /// Waits until another batch has started.
    pub async fn started(&self) {
        self.started.acquire().await.unwrap().forget();
    }

    async fn handle(&self, ctx: &Context, store: &Store, ids: Vec<u64>) -> HandlerResult {
        self.started.add_permits(1);
        let count = ids.len();
        let act = *self.act.lock().unwrap();
        match act {
            Act::Done => {}
            Act::Fail => return Err("no network".into()),
            Act::Panic => panic!("a handler that panics on purpose"),
            Act::LeaveUnsettled => return Ok(HandlerStats::default()),
            Act::Overreport => {
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

impl EmailsHandler for RecordingHandler {
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

impl NotificationsHandler for RecordingHandler {
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

/// Puts a task that is not an e-mail into the queue of e-mails.
pub async fn put_poison(kit: &TestKit) {
    client(kit).put("emails", &("a", 7)).await.unwrap();
}

/// The value of a counter or gauge.
pub fn metric(text: &str, name: &str) -> f64 {
    let line = text.lines().find(|line| line.starts_with(name) && !line.starts_with('#'));
    let line = line.unwrap_or_else(|| panic!("{name} is not in\n{text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// A client of the queue of a kit.
pub fn client(kit: &TestKit) -> Client {
    Client::new(kit.queue().clone())
}

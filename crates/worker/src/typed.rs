//! Typed tasks: the traits that generated code implements for a queue, and the put of its tasks.

use std::time::Duration;

use taskyard_core::limits::TASK_ID_MAX;
use taskyard_core::{
    Body, Command, Error, Execute, HeldKey, Key, KeyRequest, NewTask, OnConflict, Reply, Result,
    Span, TaskId, Timestamp, TubeName,
};
use taskyard_iproto::fields::FieldError;
use tracing::Instrument;
use tracing::field::{Empty, display};

use crate::store::unexpected;
use crate::trace_context::TraceContext;

/// A queue of a contract: the tube with its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Its permanent number in the contract.
    pub num: u32,
    /// The name of its tube.
    pub name: &'static str,
    /// Earlier names: a tube with such a name is renamed.
    pub was: &'static [&'static str],
}

/// What the queue knows about a taken task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivery {
    /// The number of the task, unique in the store.
    pub task_id: u64,
    /// How often the task was returned to the queue before.
    pub attempts: u32,
    /// When the task became ready for the previous attempt.
    pub prev_start_time: Option<Timestamp>,
    /// When the task became ready for this attempt, if the queue reports it.
    pub due: Option<Timestamp>,
}

impl Delivery {
    /// The id of the task in its tube, which all other interfaces use.
    pub fn id(&self) -> TaskId {
        TaskId(self.task_id & TASK_ID_MAX)
    }
}

/// A task of one queue of a contract. Generated code implements this trait.
pub trait TypedTask: Send + Sized + 'static {
    /// The queue of such tasks.
    const QUEUE: Queue;

    /// Encodes the payload: one MessagePack list.
    fn encode(&self) -> Vec<u8>;

    /// Decodes a payload.
    fn decode(delivery: Delivery, payload: &[u8]) -> Result<Self, FieldError>;

    /// Puts the task into its queue; returns its id in the tube.
    fn put<E: Execute>(
        &self,
        queue: &E,
        options: PutOptions,
    ) -> impl Future<Output = Result<TaskId>> + Send
    where
        Self: Sync,
    {
        put(queue, self, options)
    }
}

/// The start time, priority, key, attempts and trace context of a put.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PutOptions {
    /// The earliest start; excludes `delay`.
    pub start_time: Option<Timestamp>,
    /// The delay before the earliest start; excludes `start_time`.
    pub delay: Option<Duration>,
    /// The priority; smaller values are delivered first.
    pub pri: Option<u64>,
    /// The key of the task, unique in its queue: while another task holds it, the put adds nothing and returns the id of
    /// that task.
    pub key: Option<Key>,
    /// For how long the key stays held after the task has ended.
    pub unique_for: Duration,
    /// What the put does if the key is held.
    pub on_conflict: OnConflict,
    /// After how many failed attempts the task is buried, instead of the number of its queue.
    pub attempts_max: Option<u32>,
    /// The trace that the task belongs to. Without one the put starts a new trace if a subscriber records its span.
    pub trace: Option<TraceContext>,
}

impl PutOptions {
    /// Delays the task by this time.
    pub fn after(delay: Duration) -> Self {
        PutOptions { delay: Some(delay), ..PutOptions::default() }
    }

    /// Delays the task until this moment.
    pub fn at(start_time: Timestamp) -> Self {
        PutOptions { start_time: Some(start_time), ..PutOptions::default() }
    }

    /// Gives the task a key; refused unless it has 1 to 128 bytes without control characters.
    pub fn keyed(key: &str) -> Result<Self> {
        Ok(PutOptions { key: Some(Key::new(key)?), ..PutOptions::default() })
    }

    fn key_request(&self) -> Result<Option<Box<KeyRequest>>> {
        let (unique_for, on_conflict) = (self.unique_for.into(), self.on_conflict);
        match self.key.clone() {
            Some(key) => {
                let held = HeldKey { key, unique_for };
                Ok(Some(Box::new(KeyRequest { held, on_conflict })))
            }
            None if unique_for.is_zero() && on_conflict == OnConflict::Keep => Ok(None),
            None => {
                let message = "unique_for and on_conflict need a key; set one or leave them out";
                Err(Error::Invalid(message.into()))
            }
        }
    }
}

async fn put<T: TypedTask, E: Execute>(queue: &E, task: &T, options: PutOptions) -> Result<TaskId> {
    if options.start_time.is_some() && options.delay.is_some() {
        let message = "start_time and delay are both set; set one of them, not both";
        return Err(Error::Invalid(message.into()));
    }
    let span = tracing::info_span!("put", queue = T::QUEUE.name, trace = Empty);
    let recorded = !span.is_disabled();
    let trace = options.trace.or_else(|| recorded.then(TraceContext::new_root));
    let meta = trace.map(TraceContext::to_meta).unwrap_or_default();
    if let Some(trace) = trace {
        span.record("trace", display(trace));
    }
    let task = NewTask {
        at: options.start_time,
        delay: options.delay.map(Span::from),
        pri: options.pri,
        key: options.key_request()?,
        attempts_max: options.attempts_max,
        ..NewTask::new(Body::with_meta(&task.encode(), &meta))
    };
    let tube = TubeName::new(T::QUEUE.name)?;
    let put = Command::Put { tube, tasks: vec![task], wait: Span::ZERO };
    match queue.execute(vec![put]).instrument(span).await.pop() {
        Some(Ok(Reply::Put(placed))) if placed.len() == 1 => Ok(placed[0].id),
        Some(Err(refusal)) => Err(refusal),
        _ => Err(unexpected("put")),
    }
}

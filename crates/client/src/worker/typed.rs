//! Typed tasks: what generated code says about a queue, and how its tasks are put.

use std::time::Duration;

use taskyard_core::limits::TASK_ID_MAX;
use taskyard_core::{
    Body, Command, Error as Refusal, Execute, NewTask, Reply, Span, TaskId, Timestamp, TubeName,
};
use taskyard_wire::fields::FieldError;

use tracing::Instrument;
use tracing::field::{Empty, display};

use crate::client::unexpected;
use crate::error::Result;

use super::trace::Trace;

/// A queue of a contract: the tube of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Its permanent number in the contract.
    pub num: u32,
    /// The name of its tube.
    pub name: &'static str,
    /// What it was called before: a tube of such a name gets the new one.
    pub was: &'static [&'static str],
}

/// What the queue knows of a task that was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivery {
    /// Its number, unique in the store.
    pub task_id: u64,
    /// How often it was given back before.
    pub attempts: u32,
    /// When the task had become ready for the attempt before this one.
    pub prev_start_time: Option<Timestamp>,
    /// When it became ready for this one, if the queue tells.
    pub due: Option<Timestamp>,
}

impl Delivery {
    /// Its number in its tube, by which everybody but workers knows it.
    pub fn id(&self) -> TaskId {
        TaskId(self.task_id & TASK_ID_MAX)
    }
}

/// A task of one queue of a contract. Generated code implements it.
pub trait TypedTask: Send + Sized + 'static {
    /// Where such tasks are.
    const QUEUE: Queue;

    /// The payload: one MessagePack list.
    fn encode(&self) -> Vec<u8>;

    /// Reads a payload.
    fn decode(delivery: Delivery, payload: &[u8]) -> Result<Self, FieldError>;

    /// Puts the task into its queue; answers its number in the tube.
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

/// When and how urgently a task is to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PutOptions {
    /// Not before this moment; not together with `delay`.
    pub start_time: Option<Timestamp>,
    /// Not before this time has passed.
    pub delay: Option<Duration>,
    /// Smaller goes first.
    pub pri: Option<u64>,
    /// The trace that the task belongs to; without one it begins its own, if somebody listens.
    pub trace: Option<Trace>,
}

impl PutOptions {
    /// A task that waits this long before it may run.
    pub fn after(delay: Duration) -> Self {
        PutOptions { delay: Some(delay), ..PutOptions::default() }
    }

    /// A task that may run from this moment on.
    pub fn at(start_time: Timestamp) -> Self {
        PutOptions { start_time: Some(start_time), ..PutOptions::default() }
    }
}

async fn put<T: TypedTask, E: Execute>(queue: &E, task: &T, options: PutOptions) -> Result<TaskId> {
    if options.start_time.is_some() && options.delay.is_some() {
        let message = "a task has a start time or a delay, not both";
        return Err(Refusal::Invalid(message.into()).into());
    }
    let span = tracing::info_span!("put", queue = T::QUEUE.name, trace = Empty);
    let listened = !span.is_disabled();
    let trace = options.trace.or_else(|| listened.then(Trace::begin));
    let meta = trace.map(Trace::to_meta).unwrap_or_default();
    if let Some(trace) = trace {
        span.record("trace", display(trace));
    }
    let task = NewTask {
        at: options.start_time,
        delay: options.delay.map(Span::from),
        pri: options.pri,
        ..NewTask::new(Body::with_meta(&task.encode(), &meta))
    };
    let tube = TubeName::new(T::QUEUE.name)?;
    let put = Command::Put { tube, tasks: vec![task], wait: Span::ZERO };
    match queue.execute(vec![put]).instrument(span).await.pop() {
        Some(Ok(Reply::Put(placed))) if placed.len() == 1 => Ok(placed[0].id),
        Some(Err(refusal)) => Err(refusal.into()),
        _ => Err(unexpected("put").into()),
    }
}

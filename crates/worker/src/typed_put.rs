//! Puts typed tasks: their options, and one request for any number of tasks.

use std::sync::Arc;
use std::time::Duration;

use taskyard_core::{
    Body, Command, Error, Execute, HeldKey, Key, KeyRequest, NewTask, OnConflict, Placed, Reply,
    Result, Span, Timestamp, TubeName, refuse_subqueues,
};
use tracing::Instrument;
use tracing::field::{Empty, display};

use crate::store::unexpected;
use crate::trace_context::TraceContext;
use crate::typed::TypedTask;

/// The options of a put. What is not set is as the tube says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PutOptions {
    /// The earliest start; excludes `delay`.
    pub start_time: Option<Timestamp>,
    /// The delay before the earliest start; excludes `start_time`.
    pub delay: Option<Duration>,
    /// The priority; smaller values are delivered first.
    pub pri: Option<u64>,
    /// The time to live: the task is removed if it is not taken within this time, without reaching a handler. A delay does not
    /// count. Without it a typed task never expires.
    pub ttl: Option<Duration>,
    /// The time to run of a delivery whose take sets no lease. Workers set one, their visibility timeout.
    pub ttr: Option<Duration>,
    /// The sub-queue: of its tasks only one runs at a time. Refused if the tube has no sub-queues, which costs one more
    /// request.
    pub subqueue: Option<String>,
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

    fn new_task(&self, payload: &[u8], trace: Option<TraceContext>) -> Result<NewTask> {
        if self.start_time.is_some() && self.delay.is_some() {
            let message = "start_time and delay are both set; set one of them, not both";
            return Err(Error::Invalid(message.into()));
        }
        let meta = trace.map(TraceContext::to_meta).unwrap_or_default();
        Ok(NewTask {
            at: self.start_time,
            delay: self.delay.map(Span::from),
            pri: self.pri,
            ttl: self.ttl.map(Span::from),
            ttr: self.ttr.map(Span::from),
            subqueue: self.subqueue.as_deref().map(Arc::from),
            key: self.key_request()?,
            attempts_max: self.attempts_max,
            ..NewTask::new(Body::with_meta(payload, &meta))
        })
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

/// Puts tasks with the same options.
pub(crate) async fn put_alike<T: TypedTask + Sync, E: Execute>(
    queue: &E,
    tasks: &[T],
    options: PutOptions,
) -> Result<Vec<Placed>> {
    if options.key.is_some() && tasks.len() > 1 {
        let message = "several tasks cannot have one key; use put_each and give each task its own";
        return Err(Error::Invalid(message.into()));
    }
    put_all(queue, tasks.iter().map(|task| (task, &options)).collect()).await
}

/// Puts tasks with a single command: all or none.
pub(crate) async fn put_all<T: TypedTask + Sync, E: Execute>(
    queue: &E,
    tasks: Vec<(&T, &PutOptions)>,
) -> Result<Vec<Placed>> {
    let Some((_, first)) = tasks.first() else { return Ok(Vec::new()) };
    let count = tasks.len();
    let span = tracing::info_span!("put", queue = T::QUEUE.name, tasks = count, trace = Empty);
    // Tasks of one put without a trace of their own belong to one new trace.
    let root = (!span.is_disabled()).then(TraceContext::new_root);
    let trace_of = |options: &PutOptions| options.trace.or(root);
    let shared = trace_of(first);
    if let Some(trace) = shared
        && tasks.iter().all(|(_, options)| trace_of(options) == shared)
    {
        span.record("trace", display(trace));
    }
    let new_task =
        |(task, options): &(&T, &PutOptions)| options.new_task(&task.encode(), trace_of(options));
    let tasks = tasks.iter().map(new_task).collect::<Result<Vec<_>>>()?;
    let tube = TubeName::new(T::QUEUE.name)?;
    async {
        if tasks.iter().any(|task| task.subqueue.is_some()) {
            check_subqueues(queue, &tube).await?;
        }
        let put = Command::Put { tube, tasks, wait: Span::ZERO };
        match queue.execute(vec![put]).await.pop() {
            Some(Ok(Reply::Put(placed))) if placed.len() == count => Ok(placed),
            Some(Err(refusal)) => Err(refusal),
            _ => Err(unexpected("put")),
        }
    }
    .instrument(span)
    .await
}

/// Refuses sub-queues for a tube without them, which would ignore them.
async fn check_subqueues<E: Execute>(queue: &E, tube: &TubeName) -> Result<()> {
    match queue.execute(vec![Command::Tubes { tube: Some(tube.clone()) }]).await.pop() {
        Some(Ok(Reply::Tubes(tubes))) => {
            tubes.iter().try_for_each(|tube| refuse_subqueues(tube.options.kind))
        }
        Some(Err(Error::TubeNotFound(tube))) => Err(Error::TubeNotFound(tube)),
        // A user who may only put cannot read the tube; other errors are those of the put itself.
        _ => Ok(()),
    }
}

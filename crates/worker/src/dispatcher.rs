//! Maps queues to handlers and decodes the tasks of a batch for its handler.

use std::future::Future;
use std::sync::Arc;

use taskyard_core::Body;
use taskyard_iproto::fields::FieldError;

use crate::context::Context;
use crate::stats::HandlerResult;
use crate::store::Store;
use crate::timer::BoxFuture;
use crate::typed::{Delivery, Queue, TypedTask};

/// A task as it was taken, with its payload undecoded.
#[derive(Clone, Debug)]
pub struct RawTask {
    /// What the queue knows about it.
    pub delivery: Delivery,
    /// Its payload and metadata.
    pub body: Body,
}

/// A batch that is ready for its handler, and the tasks in it that cannot be decoded.
pub(crate) struct PreparedBatch {
    pub poison: Vec<(Delivery, FieldError)>,
    /// The number of tasks for the handler and its future; `None` when no task is left.
    pub work: Option<(usize, BoxFuture<'static, HandlerResult>)>,
}

/// A handler of the batches of one queue.
#[derive(Clone)]
pub struct Handler {
    prepare: Arc<dyn Fn(Context, Store, Vec<RawTask>) -> PreparedBatch + Send + Sync>,
}

impl Handler {
    /// A handler of typed tasks. Tasks that cannot be decoded do not reach it.
    pub fn new<T, H, F>(handle: H) -> Self
    where
        T: TypedTask,
        H: Fn(Context, Store, Vec<T>) -> F + Send + Sync + 'static,
        F: Future<Output = HandlerResult> + Send + 'static,
    {
        Handler::with_decoder(
            |task: &RawTask| T::decode(task.delivery, task.body.payload()),
            handle,
        )
    }

    /// A handler with its own decoder, for tasks whose type is known only at run time.
    pub fn with_decoder<T, D, H, F>(decode: D, handle: H) -> Self
    where
        D: Fn(&RawTask) -> Result<T, FieldError> + Send + Sync + 'static,
        H: Fn(Context, Store, Vec<T>) -> F + Send + Sync + 'static,
        F: Future<Output = HandlerResult> + Send + 'static,
    {
        Handler {
            prepare: Arc::new(move |ctx, store, raw| {
                let mut poison = Vec::new();
                let mut tasks = Vec::with_capacity(raw.len());
                for task in &raw {
                    match decode(task) {
                        Ok(task) => tasks.push(task),
                        Err(error) => poison.push((task.delivery, error)),
                    }
                }
                if tasks.is_empty() {
                    return PreparedBatch { poison, work: None };
                }
                let count = tasks.len();
                PreparedBatch { poison, work: Some((count, Box::pin(handle(ctx, store, tasks)))) }
            }),
        }
    }

    /// A handler that decodes payloads itself.
    pub fn raw<H, F>(handle: H) -> Self
    where
        H: Fn(Context, Store, Vec<RawTask>) -> F + Send + Sync + 'static,
        F: Future<Output = HandlerResult> + Send + 'static,
    {
        Handler {
            prepare: Arc::new(move |ctx, store, raw| {
                let count = raw.len();
                let work: BoxFuture<'static, HandlerResult> = Box::pin(handle(ctx, store, raw));
                PreparedBatch { poison: Vec::new(), work: Some((count, work)) }
            }),
        }
    }

    pub(crate) fn prepare(&self, ctx: Context, store: Store, raw: Vec<RawTask>) -> PreparedBatch {
        (self.prepare)(ctx, store, raw)
    }
}

/// A queue and its handler; `None` when the handler is missing.
pub(crate) struct QueueRoute {
    pub num: u32,
    /// Whether `num` identifies the tube, as that of a contract does.
    pub is_numbered: bool,
    pub name: Arc<str>,
    /// Earlier names of the queue.
    pub was: Vec<Arc<str>>,
    pub handler: Option<Handler>,
}

/// The handlers of a worker, by queue. Generated code converts its `Handlers` into it.
pub struct Dispatcher {
    pub(crate) routes: Vec<QueueRoute>,
}

impl Dispatcher {
    /// The queues of a contract and their handlers.
    pub fn new(queues: impl IntoIterator<Item = (Queue, Option<Handler>)>) -> Self {
        let routes = queues.into_iter().map(|(queue, handler)| QueueRoute {
            num: queue.num,
            is_numbered: true,
            name: queue.name.into(),
            was: queue.was.iter().map(|name| (*name).into()).collect(),
            handler,
        });
        Dispatcher { routes: routes.collect() }
    }

    /// Adds a queue whose name is known only at run time.
    pub fn with_queue(self, num: u32, name: &str, handler: Handler) -> Self {
        self.with_renamed_queue(num, name, &[], handler)
    }

    /// Adds a queue that had other names before.
    pub fn with_renamed_queue(
        mut self,
        num: u32,
        name: &str,
        was: &[String],
        handler: Handler,
    ) -> Self {
        let was = was.iter().map(|name| name.as_str().into()).collect();
        let (name, handler) = (name.into(), Some(handler));
        self.routes.push(QueueRoute { num, is_numbered: true, name, was, handler });
        self
    }

    /// One tube of any kind, without the number of a contract.
    pub(crate) fn of_tube(name: &str, handler: Handler) -> Self {
        let (name, was, handler) = (name.into(), Vec::new(), Some(handler));
        Dispatcher { routes: vec![QueueRoute { num: 0, is_numbered: false, name, was, handler }] }
    }
}

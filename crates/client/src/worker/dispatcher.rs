//! Which handler works on which queue.

use std::future::Future;
use std::sync::Arc;

use taskyard_core::Body;
use taskyard_wire::fields::FieldError;

use super::context::Context;
use super::stats::HandlerResult;
use super::store::Store;
use super::timer::Boxed;
use super::typed::{Delivery, Queue, TypedTask};

/// A task as it was taken, before anybody has read what it carries.
#[derive(Clone, Debug)]
pub struct RawTask {
    /// What the queue knows of it.
    pub delivery: Delivery,
    /// What it carries.
    pub body: Body,
}

/// A batch that is ready for its handler, and the tasks in it that nobody can read.
pub(super) struct Prepared {
    pub poison: Vec<(Delivery, FieldError)>,
    /// How many tasks the handler gets, and its work; nothing when no task is left.
    pub work: Option<(usize, Boxed<'static, HandlerResult>)>,
}

/// Works on batches of one queue.
#[derive(Clone)]
pub struct Handler {
    prepare: Arc<dyn Fn(Context, Store, Vec<RawTask>) -> Prepared + Send + Sync>,
}

impl Handler {
    /// A handler of typed tasks. Tasks that cannot be read do not reach it.
    pub fn new<T, H, F>(handle: H) -> Self
    where
        T: TypedTask,
        H: Fn(Context, Store, Vec<T>) -> F + Send + Sync + 'static,
        F: Future<Output = HandlerResult> + Send + 'static,
    {
        Handler::reading(|task: &RawTask| T::decode(task.delivery, task.body.payload()), handle)
    }

    /// The same for tasks whose type is known only when the program runs.
    pub fn reading<T, R, H, F>(read: R, handle: H) -> Self
    where
        R: Fn(&RawTask) -> Result<T, FieldError> + Send + Sync + 'static,
        H: Fn(Context, Store, Vec<T>) -> F + Send + Sync + 'static,
        F: Future<Output = HandlerResult> + Send + 'static,
    {
        Handler {
            prepare: Arc::new(move |ctx, store, raw| {
                let mut poison = Vec::new();
                let mut tasks = Vec::with_capacity(raw.len());
                for task in &raw {
                    match read(task) {
                        Ok(task) => tasks.push(task),
                        Err(error) => poison.push((task.delivery, error)),
                    }
                }
                if tasks.is_empty() {
                    return Prepared { poison, work: None };
                }
                let count = tasks.len();
                Prepared { poison, work: Some((count, Box::pin(handle(ctx, store, tasks)))) }
            }),
        }
    }

    /// A handler that reads payloads itself.
    pub fn raw<H, F>(handle: H) -> Self
    where
        H: Fn(Context, Store, Vec<RawTask>) -> F + Send + Sync + 'static,
        F: Future<Output = HandlerResult> + Send + 'static,
    {
        Handler {
            prepare: Arc::new(move |ctx, store, raw| {
                let count = raw.len();
                let work: Boxed<'static, HandlerResult> = Box::pin(handle(ctx, store, raw));
                Prepared { poison: Vec::new(), work: Some((count, work)) }
            }),
        }
    }

    pub(super) fn prepare(&self, ctx: Context, store: Store, raw: Vec<RawTask>) -> Prepared {
        (self.prepare)(ctx, store, raw)
    }
}

/// A queue and its handler, which may still be missing.
pub(super) struct Route {
    pub num: u32,
    pub name: Arc<str>,
    /// What it was called before.
    pub was: Vec<Arc<str>>,
    pub handler: Option<Handler>,
}

/// The handlers of a worker. Generated code makes it of its `Handlers`.
pub struct Dispatcher {
    pub(super) routes: Vec<Route>,
}

impl Dispatcher {
    /// The queues of a contract with their handlers.
    pub fn new(queues: impl IntoIterator<Item = (Queue, Option<Handler>)>) -> Self {
        let routes = queues.into_iter().map(|(queue, handler)| Route {
            num: queue.num,
            name: queue.name.into(),
            was: queue.was.iter().map(|name| (*name).into()).collect(),
            handler,
        });
        Dispatcher { routes: routes.collect() }
    }

    /// One more queue, whose name is known only when the program runs.
    pub fn and(self, num: u32, name: &str, handler: Handler) -> Self {
        self.and_renamed(num, name, &[], handler)
    }

    /// The same for a queue that was called something else before.
    pub fn and_renamed(mut self, num: u32, name: &str, was: &[String], handler: Handler) -> Self {
        let was = was.iter().map(|name| name.as_str().into()).collect();
        self.routes.push(Route { num, name: name.into(), was, handler: Some(handler) });
        self
    }
}

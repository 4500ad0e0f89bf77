//! Workers of Taskyard: job processors that take batches of tasks from several queues and pass them to handlers, and the
//! manager that distributes the processors over the queues.
//!
//! A worker runs on anything that executes commands ([`Execute`](taskyard_core::Execute)): a client of a server or a queue in the same
//! process. It never opens a store or a socket itself.
//!
//! Start reading at `worker` (`init`, `run`, `shutdown`, `graceful_stop`), then `processor` (one batch), `function_worker`
//! and `function_batch` (a function for each task),
//! `queue_selector` (which queue is next), `idle_take` (how a task wakes an idle worker) and `store` (how handlers
//! settle tasks).

mod batch_lease;
mod batch_outcome;
mod batch_queue;
#[cfg(feature = "config")]
mod config;
mod context;
mod delivery_registry;
mod dispatcher;
mod function_batch;
mod function_worker;
mod idle_take;
mod manager;
mod metrics;
mod metrics_server;
mod poison;
mod processor;
mod queue_report;
mod queue_selector;
mod registration;
mod reporter;
mod running_task;
mod settings;
mod signal;
mod slots;
mod state;
mod stats;
mod stop_signals;
mod store;
#[cfg(feature = "testing")]
pub mod testing;
mod timer;
mod trace_context;
mod typed;
mod typed_put;
mod worker;
mod worker_name;

pub use batch_outcome::{BatchOutcome, backoff};
#[cfg(feature = "config")]
pub use config::ConfigFile;
pub use context::{CancelReason, Context};
pub use dispatcher::{Dispatcher, Handler, RawTask};
pub use function_worker::FunctionWorker;
pub use manager::{Manager, ManagerService, Planner, QueueDemand};
pub use metrics::{Metrics, TaskEnd, TubeMetrics};
pub use metrics_server::{MetricsText, serve_metrics};
pub use queue_report::QueueReport;
pub use queue_selector::Plan;
pub use running_task::RunningTask;
pub use settings::{PoisonPolicy, Settings, SettingsError};
pub use stats::{HandlerError, HandlerResult, HandlerStats};
pub use stop_signals::RunError;
pub use store::{QueueStat, Retry, SettledCount, Store};
pub use taskyard_core::{Error, Key, OnConflict, Placed, Timestamp};
pub use taskyard_iproto::fields::{FieldError, FieldReader, FieldWriter};
pub use timer::{BoxFuture, SystemTimer, Timer};
pub use trace_context::TraceContext;
pub use typed::{Delivery, Queue, TypedTask};
pub use typed_put::PutOptions;
pub use worker::{InitError, PlanError, StillRunning, Worker, WorkerBuilder};
pub use worker_name::{host_name, worker_name};

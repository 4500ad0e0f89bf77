//! Typed workers: job processors that take batches of several queues and give them to handlers.
//!
//! Start reading at `worker` (Init, Run, Shutdown, GracefulStop), then `processor` (one batch), `roster` (which
//! queue is next), `scout` (how an empty queue wakes a worker) and `store` (what handlers do with tasks).

#[cfg(feature = "config")]
mod config;
mod context;
mod desk;
mod dispatcher;
mod enrolment;
mod hold;
mod inner;
#[cfg(feature = "embedded")]
pub mod kit;
mod ledger;
mod manager;
mod metrics;
mod processor;
mod report;
mod reporter;
mod roster;
mod scout;
mod settings;
mod stats;
mod store;
mod tally;
mod timer;
mod trace;
mod typed;
#[expect(clippy::module_inception, reason = "the worker itself, among its parts")]
mod worker;

#[cfg(feature = "config")]
pub use config::ConfigFile;
pub use context::{Cancel, Context};
pub use dispatcher::{Dispatcher, Handler, RawTask};
pub use manager::{Demand, Manager, ManagerService, Planner};
pub use metrics::{Metrics, TaskEnd, TubeMetrics};
pub use report::QueueReport;
pub use roster::Plan;
pub use settings::{Poison, Settings, SettingsError};
pub use stats::{HandlerError, HandlerResult, HandlerStats};
pub use store::{QueueStat, Retry, Settled, Store};
pub use tally::{Tally, backoff};
pub use taskyard_wire::fields::{FieldError, FieldReader, FieldWriter};
pub use timer::{Boxed, SystemTimer, Timer};
pub use trace::Trace;
pub use typed::{Delivery, PutOptions, Queue, TypedTask};
pub use worker::{Builder, InitError, PlanError, StillRunning, Worker};

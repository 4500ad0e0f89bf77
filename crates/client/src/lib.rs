//! The client of Taskyard, a task queue.
//!
//! [`Client::open`] is given the URL of a server or of a store and returns the same type for all of them. By default this
//! crate depends neither on a database nor on an HTTP server: features add the queue inside this process (`embedded`), its
//! stores (`sqlite`, `postgres`, `redis`, `tarantool`) and encrypted connections (`tls`). It never decides what a command
//! means; the queue does.
//!
//! ```
//! # async fn example() -> Result<(), taskyard::Error> {
//! use std::time::Duration;
//!
//! use serde::{Deserialize, Serialize};
//! use taskyard::Client;
//!
//! #[derive(Serialize, Deserialize)]
//! struct Mail {
//!     to: String,
//! }
//!
//! let client = Client::open("http://127.0.0.1:7070").await?;
//! client.put("mail", &Mail { to: "ann".into() }).await?;
//!
//! while let Some(task) = client.take("mail", Duration::from_secs(5)).await? {
//!     let mail: Mail = task.data()?;
//!     println!("writing to {}", mail.to);
//!     client.ack(&task).await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Start reading at `client` (the calls) and `open` (URLs), then `http` and `iproto` (the transports). Workers and handlers
//! of typed tasks are in the crate `taskyard-worker`.

mod client;
#[cfg(feature = "embedded")]
mod embedded;
mod error;
mod finish;
mod http;
mod iproto;
mod open;
mod put;
mod random_key;
mod schedule;
mod semaphore;
mod task;
#[cfg(feature = "tls")]
mod tls;
mod url;

pub use client::Client;
#[cfg(feature = "embedded")]
pub use embedded::Embedded;
pub use error::{Error, HttpError, IprotoError, Result};
pub use http::{BackupDownload, Http, HttpDialer, HttpStream};
pub use iproto::{Call, Iproto, IprotoDialer, IprotoSocket};
pub use schedule::ScheduleManager;
pub use semaphore::{EventStream, Events, Semaphore, SemaphoreManager};
pub use task::{Task, bytes_task, new_task};

pub use taskyard_worker::{
    BoxFuture, CancelReason, FunctionWorker, InitError, RunError, RunningTask, StillRunning,
    SystemTimer, Timer, host_name, worker_name,
};

pub use taskyard_core::Error as Refusal;
pub use taskyard_core::StoredSchedule as Schedule;
pub use taskyard_core::command::TubeInfo;
pub use taskyard_core::schedule::TimingRule;
pub use taskyard_core::{
    Basis, CatchUp, EnqueueItem, Estimate, EventId, EventKind, Execute, Finish, FinishItem,
    Forecast, Grant, GrantFinish, GrantItem, GrantOutcome, HeldKey, Holder, Key, KeyRequest, Kind,
    Lease, Member, MemberCursor, MemberGroup, MemberInfo, MembersPage, NewTask, NoEstimate,
    OnConflict, Outcome, Overlap, Placed, Position, Priority, Reason, ScheduleName,
    SemaphoreChange, SemaphoreEvent, SemaphoreInfo, SemaphoreKey, SemaphoreOptions, Span, State,
    Status, SubqueuePosition, Take, TaskId, Timestamp, TubeChange, TubeName, TubeOptions,
    TubeStats,
};
#[cfg(feature = "embedded")]
pub use taskyard_store::{OpenError, OpenOptions};

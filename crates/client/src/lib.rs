//! The client of Taskyard, a task queue.
//!
//! [`Client`] uses anything that executes commands: [`Http`] and [`Iproto`] send them to a server, `Embedded` (feature
//! `embedded`) executes them in a queue inside this process. By default this crate depends neither on a database nor on
//! an HTTP server. It never decides what a command means; the queue does.
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
//! let client = Client::connect("http://127.0.0.1:7070")?;
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
//! Start reading at `client` (the calls), then `http` and `iproto` (the transports). Workers and handlers of typed tasks
//! are in the crate `taskyard-worker`.

mod client;
#[cfg(feature = "embedded")]
mod embedded;
mod error;
mod finish;
mod http;
mod iproto;
mod put;
mod random_key;
mod schedule;
mod semaphore;
mod task;
mod url;
mod worker_name;

pub use client::Client;
#[cfg(feature = "embedded")]
pub use embedded::Embedded;
pub use error::{Error, HttpError, IprotoError, Result};
pub use http::Http;
pub use iproto::{Call, Iproto};
pub use schedule::ScheduleManager;
pub use semaphore::{EventStream, Events, Semaphore, SemaphoreManager};
pub use task::{Task, bytes_task, new_task};
pub use worker_name::{host_name, worker_name};

pub use taskyard_core::StoredSchedule as Schedule;
pub use taskyard_core::command::TubeInfo;
pub use taskyard_core::schedule::TimingRule;
pub use taskyard_core::{
    CatchUp, EnqueueItem, EventId, EventKind, Execute, Finish, FinishItem, Grant, GrantFinish,
    GrantItem, GrantOutcome, HeldKey, Holder, Key, KeyRequest, Kind, Lease, Member, MemberCursor,
    MemberGroup, MemberInfo, MembersPage, NewTask, OnConflict, Outcome, Overlap, Placed, Priority,
    Reason, ScheduleName, SemaphoreChange, SemaphoreEvent, SemaphoreInfo, SemaphoreKey,
    SemaphoreOptions, Span, State, Status, Take, TaskId, Timestamp, TubeChange, TubeName,
    TubeOptions, TubeStats,
};
#[cfg(feature = "embedded")]
pub use taskyard_store::{OpenError, OpenOptions};

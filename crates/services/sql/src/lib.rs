//! SQL tasks: INSERT a query into a table of PostgreSQL, and it runs.
//!
//! An external scheduler for the table of pg_task: it needs no extension, no superuser and no restart of the database. It
//! owns its table and depends on three crates of Taskyard only: `core`, which holds the rules of time, `timezone`, which finds
//! time zones by name, and `postgres`, which reads connection strings and sets up encryption.
//!
//! Start reading at `statements/claim.sql` (which tasks may start), then `leader` (the loop of round trips), `session`
//! (how a task runs) and `outcome` (how its result is written to the table).

pub mod config;
pub mod connection;
pub mod scheduler;
pub mod service;
pub mod status;
pub mod table;
pub mod task_admin;

mod clock;
mod encoding;
mod leader;
mod outcome;
mod output;
mod provision;
mod session;
mod session_pool;
mod status_report;
mod task;

pub use config::{Config, ConfigError};
pub use service::{Source, SqlTasks, StartError};
pub use task_admin::{
    AdminOutcome, LeaderStatus, ListedTask, PlannedRun, TaskAdmin, TaskAdminError, TaskSelector,
    WaitReason,
};
pub use taskyard_postgres::{Conninfo, ConninfoError, masked};

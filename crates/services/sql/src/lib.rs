//! SQL tasks: INSERT a query into a table of PostgreSQL, and it runs.
//!
//! An external scheduler for the table of pg_task: it needs no extension, no superuser and no restart. It owns its
//! table and needs no other crate of Taskyard but the core, where the rules of time are, and `postgres`, which knows how a
//! database is reached.
//!
//! Start reading at `statements/claim.sql` (who may begin), then `leader` (one round trip after another), then
//! `session` (how a task runs) and `verdict` (how its end is written down).

pub mod config;
pub mod desk;
pub mod scheduler;
pub mod service;
pub mod status;
pub mod table;
pub mod wire;
pub mod zone;

mod board;
mod clock;
mod crew;
mod encoding;
mod leader;
mod output;
mod provision;
mod session;
mod task;
mod verdict;

pub use config::{Config, ConfigError};
pub use desk::{Coming, Desk, DeskError, Leading, Listed, Told, Which, Why};
pub use service::{Source, SqlTasks, StartError};
pub use taskyard_postgres::{Conninfo, ConninfoError, masked};

//! PostgreSQL servers, databases in them, and PgBouncer before them.

mod cluster;
mod database;
mod pooler;

pub use cluster::*;
pub use database::*;
pub use pooler::*;

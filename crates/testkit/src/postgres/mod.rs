//! PostgreSQL servers, databases in them, and PgBouncer before them.

mod cluster;
mod database;
mod own_cluster;
mod pooler;

pub use cluster::*;
pub use database::*;
pub use own_cluster::*;
pub use pooler::*;

//! Tasks in a PostgreSQL database: the suite, and what only a database can get wrong.

mod suite;

mod backlog;
mod blocked;
mod crash;
mod exact;
mod functions;
mod kills;
mod lanes;
mod lost_replies;
mod migrate;
mod overtaken;
mod plain;
mod pooled;
mod races;
mod semaphore_heads;
mod semaphore_locks;
mod semaphore_news;
mod semaphore_steps;
mod semaphores;
mod servers;
mod speed;
mod tls;
mod transaction;

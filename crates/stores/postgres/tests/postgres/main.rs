//! Tests of the PostgreSQL store: the conformance suite, and what is specific to a shared database.

mod suite;

mod backlog;
mod blocked;
mod connections;
mod crash;
mod done;
mod exact;
mod firings;
mod functions;
mod health;
mod keys;
mod kills;
mod lost_replies;
mod migrate;
mod overtaken;
mod pace;
mod plain;
mod pooled;
mod positions;
mod races;
mod semaphore_effects;
mod semaphore_heads;
mod semaphore_locks;
mod semaphore_steps;
mod semaphores;
mod servers;
mod speed;
mod subqueues;
mod tls;
mod transaction;
mod workers;

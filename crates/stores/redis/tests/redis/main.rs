//! Tests of the Redis store: the conformance suite, and failures of a store behind a network.

mod suite;

mod cluster;
mod done;
mod exact;
mod failures;
mod failures_stored;
mod firings;
mod fixture;
mod format_upgrade;
mod keys;
mod kills;
mod list;
mod lost_replies;
mod lost_writes;
mod merging;
mod naming;
mod pace;
mod pipeline;
mod positions;
mod semaphores;
mod servers;
mod tls;

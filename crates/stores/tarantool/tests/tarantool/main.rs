//! Tests of the Tarantool store: the conformance suite, and failures of a store behind a network.

mod suite;

mod adapter;
mod done;
mod exact;
mod failures;
mod failures_stored;
mod firings;
mod fixture;
mod full_disk;
mod keys;
mod kills;
mod large;
mod list;
mod lost_replies;
mod pace;
mod positions;
mod raw_insert;
mod replicas;
mod schedules;
mod semaphores;
mod servers;

//! Tests of the Redis store: the conformance suite, and failures of a store behind a network.

mod suite;

mod cluster;
mod earlier;
mod exact;
mod failures;
mod fixture;
mod kills;
mod lost_replies;
mod lost_tail;
mod naming;
mod overlap;
mod semaphores;
mod servers;
mod tls;
mod together;

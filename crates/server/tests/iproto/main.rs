//! A running iproto server, tested with frames as clients of Tarantool's queue send them.
//!
//! The tests do not sleep: they ask the engine until the expected number of consumers waits, and
//! move the time by hand.

mod access;
mod audit;
mod bytes;
mod ending;
mod expressions;
mod fixture;
mod keys;
mod limits;
mod metrics;
mod native;
mod native_roles;
mod noise;
mod pipelining;
mod roles;
mod semaphores;
mod sessions;
mod spaces;
mod storm;
mod tls;
mod verbs;
mod waiting;
mod workers;

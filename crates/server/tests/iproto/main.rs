//! A live server asked by the byte, as clients of Tarantool's queue ask it.
//!
//! Nothing here sleeps: whoever must be waiting is waited for by asking the engine, and time is moved
//! by hand.

mod access;
mod bytes;
mod ending;
mod expressions;
mod limits;
mod metrics;
mod native;
mod noise;
mod pipelining;
mod rig;
mod semaphores;
mod sessions;
mod spaces;
mod storm;
mod tls;
mod verbs;
mod waiting;

//! A live server over the memory store, asked by a real client over real sockets.
//!
//! Nothing here sleeps: whoever must be waiting is waited for by asking the engine.

mod access;
mod documents;
mod ending;
mod health;
mod internal;
mod limits;
mod refusals;
mod rig;
mod semaphores;
mod slow;
mod socket;
mod starting;
mod verbs;
mod waiting;

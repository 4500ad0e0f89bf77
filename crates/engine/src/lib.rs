//! The one running loop of Taskyard: it gathers commands, stamps the time, runs them in batches on
//! a store, wakes those who wait and lets time do what is due.
//!
//! It knows no bytes and no sockets, and it never decides what a command means: that is the store's
//! part. One thread owns everything that is under way; callers talk to it by messages.
//!
//! Start reading at `engine` (what callers see), then `running` (one turn of the loop).

mod admit;
mod answer;
mod clock;
mod engine;
mod flight;
mod inbox;
mod jobs;
mod listeners;
mod running;
mod serve;
mod shutdown;
mod tick;
mod timeline;
mod waiters;

pub use clock::{Clock, HandClock, SystemClock};
pub use engine::{Engine, Settings};
pub use taskyard_store::StoreHealth;
pub use waiters::{Side, Waiting, WaitingCount};

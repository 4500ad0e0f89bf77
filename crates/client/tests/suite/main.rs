//! The client against live servers, and the embedded queue.

mod conformance;
mod embedded;
mod rig;
mod server;
mod typed;

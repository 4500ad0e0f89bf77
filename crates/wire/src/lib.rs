//! The HTTP/JSON requests and answers of Taskyard, and the list of error and exit codes.
//!
//! The crate opens no socket and knows no store. It checks everything that comes from outside: a
//! wrong request becomes a [`taskyard_core::Error`] that says what to do, never a panic.
//!
//! Start reading at [`http`] (a file for each verb), then [`payload`] (JSON in HTTP, MessagePack
//! inside), then [`codes`]. The binary protocol is in `taskyard-iproto`.

pub mod codes;
pub mod http;
pub mod payload;
mod retry;

pub use codes::{Code, Exit};
pub use payload::{Packed, Payload, PayloadError, json_to_msgpack, msgpack_to_json};
pub use retry::{draw_seeds, fail_by_policy};

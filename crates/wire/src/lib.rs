//! Bytes to typed requests and answers: what travels between a server and its clients.
//!
//! Nothing here opens a socket or knows a store. What comes from outside is checked here: a wrong
//! request becomes an [`taskyard_core::Error`] that says what to do, never a panic.
//!
//! Start reading at [`http`] (the shapes, a file for each verb) and [`iproto`] (what Tarantool's
//! queue clients speak), then [`payload`] (JSON at the edge, MessagePack inside) and [`fields`] (what
//! typed tasks carry), then [`codes`] (the one list of error codes and exit codes).

pub mod codes;
pub mod fields;
pub mod http;
pub mod iproto;
pub mod payload;

pub use codes::{Code, Exit};
pub use payload::{Packed, Payload, PayloadError, check_msgpack, json_to_msgpack, msgpack_to_json};

//! The Tarantool driver: URLs, connections, calls of procedures and their answers.
//!
//! It knows no task and no store. `taskyard-iproto` encodes and decodes the bytes; its types are
//! re-exported here, so that the store needs no other crate. Start reading at `connection.rs`.

mod connection;
mod url;

pub use connection::{ANSWER_MAX, Connection, Failure, Requests};
pub use taskyard_iproto::Fault;
pub use taskyard_iproto::procedures::{
    ArgumentWriter, BatchReply, ExecutedBatch, LuaValue, decode_batch, decode_value,
};
pub use url::{Address, TarantoolUrl};

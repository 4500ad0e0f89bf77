//! How a Tarantool is reached: addresses, one connection, calls of procedures and their answers.
//!
//! It knows no task and no store. Bytes become values in `taskyard-wire`, whose layouts are passed on here, so that a store
//! whose rules run in Tarantool needs to know no wire. Start reading at `connection.rs`.

mod connection;
mod place;

pub use connection::{ANSWER_MAX, Connection, Failure, Requests};
pub use place::{Address, Place};
pub use taskyard_wire::iproto::Fault;
pub use taskyard_wire::iproto::procedures::{
    Args, Batch, Decided, Word, decode_batch, decode_word,
};

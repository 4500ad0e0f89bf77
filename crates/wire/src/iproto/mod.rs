//! The binary protocol of Tarantool, as far as queue clients speak it, and our own calls inside it.
//!
//! Bytes come in through [`frame`] and [`request`]; a call becomes an [`Ask`] in [`call`] or
//! [`eval`]; what was found goes out through [`answer`] and [`reply`]. Nothing here waits or
//! decides: a server keeps the sockets, a queue keeps the rules.

pub mod answer;
pub mod auth;
pub mod call;
pub mod eval;
pub mod faults;
pub mod frame;
pub mod greeting;
pub mod native;
pub mod procedures;
pub mod reply;
pub mod request;
pub mod rows;

mod args;
mod identify;
mod intern;
mod options;
mod pack;
mod reader;
mod schema;
mod semaphores;

pub use answer::{Answer, write_answer};
pub use call::{
    Ask, BOX_INFO, RecentTubes, parse_call, parse_call_with, parse_method, parse_method_of,
};
pub use eval::{Eval, EvalAsk, parse_eval};
pub use faults::fault_of;
pub use frame::{BadFrame, Frame, next_frame};
pub use greeting::{Greeting, VERSION};
pub use identify::{identify_args, reply_session};
pub use native::{
    EXECUTE, decode_commands, decode_executed, decode_replies, encode_commands, encode_execute,
    encode_replies,
};
pub use reply::{
    Fault, ReplyFrame, Shape, parse_reply, write_empty, write_fault, write_id, write_ok,
};
pub use request::{BadRequest, Operation, Request, encode_request, parse_request};
pub use rows::{ConsumerRow, Query, Rows, Space, TakenKey, TakenRow, write_rows};

/// Why bytes from a server cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IprotoError {
    /// The first bytes are no greeting of this protocol.
    #[error("no Tarantool greeting: {0}; is this the iproto port?")]
    Greeting(&'static str),
    /// A reply is not well-formed.
    #[error("the server's reply is malformed: {0}")]
    Malformed(&'static str),
    /// The server refused.
    #[error("the server refused: {} (code {})", .0.text, .0.code)]
    Refused(Fault),
}

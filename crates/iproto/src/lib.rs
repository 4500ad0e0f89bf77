//! The binary protocol of Tarantool, as far as queue clients use it, and Taskyard's own calls in it.
//!
//! The crate opens no socket, waits for nothing and decides nothing: the server, the client and the
//! Tarantool driver have the connections, the store has the rules. It depends on no serde.
//!
//! Bytes are read by [`frame`] and [`request`]; [`call`] and [`eval`] parse calls into commands;
//! [`answer`] and [`reply`] write answers; [`native`] encodes commands and replies as they are.
//! [`msgpack`] checks MessagePack values, [`fields`] encodes the payloads of typed tasks.

pub mod answer;
pub mod auth;
pub mod call;
mod call_names;
pub mod eval;
pub mod faults;
pub mod fields;
pub mod frame;
pub mod greeting;
pub mod msgpack;
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
    BOX_INFO, Call, CallAction, CallContext, RecentTubes, ReplyForm, parse_call, parse_call_with,
    parse_method, parse_method_of,
};
pub use call_names::function_names;
pub use eval::{Eval, EvalAction, parse_eval};
pub use faults::fault_of;
pub use frame::{BadFrame, Frame, next_frame};
pub use greeting::{Greeting, VERSION};
pub use identify::{identify_args, reply_session, version_args};
pub use intern::intern;
pub use msgpack::{MsgpackError, check_msgpack};
pub use native::{
    EXECUTE, RUN_SCHEDULE, decode_commands, decode_executed, decode_replies, encode_commands,
    encode_execute, encode_executed, encode_replies, encode_run_schedule,
};
pub use reply::{
    Fault, ReplyFrame, Shape, parse_reply, write_empty, write_fault, write_id, write_ok,
};
pub use request::{BadRequest, Operation, Request, encode_request, parse_request};
pub use rows::{ConsumerRow, Query, Rows, Space, TakenKey, TakenRow, write_rows};

/// Why bytes from a server cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IprotoError {
    /// The first bytes are not a greeting of this protocol.
    #[error("no Tarantool greeting: {0}; is this the iproto port?")]
    Greeting(&'static str),
    /// A reply is not well-formed.
    #[error("the server's reply is malformed: {0}")]
    Malformed(&'static str),
    /// The server refused the request.
    #[error("the server refused: {} (code {})", .0.text, .0.code)]
    Refused(Fault),
}

//! The frames that clients and the gateway exchange.
//!
//! A text frame is a verb, a space and a JSON object; `input`, `output` and `result` are followed by
//! one binary frame. The plain HTTP variant has one JSON object as request and one as response.

mod incoming;
mod names;
mod outgoing;
mod plain;

pub use incoming::{FrameError, IncomingFrame, InputHead, Options, StartHead};
pub use names::{NameError, check_name};
pub use outgoing::{MissingFile, OutgoingFrame, QueuePosition, Stream};
pub use plain::{PlainAnswer, PlainFile, PlainOutput, PlainRequest, PlainResult};

//! What clients and the gateway say to each other.
//!
//! A text frame is a verb, a space and a JSON object; `input`, `output` and `result` are followed by
//! one binary frame. The plain variant has everything in one JSON object and one answer.

mod incoming;
mod names;
mod outgoing;
mod plain;

pub use incoming::{Frame, FrameError, InputHead, Options, StartHead};
pub use names::{NameError, check_name};
pub use outgoing::{MissingFile, Outgoing, QueueNews, Stream};
pub use plain::{PlainAnswer, PlainFile, PlainOutput, PlainRequest, PlainResult};

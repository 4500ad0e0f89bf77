//! Traces: what passed through a queue, in a file without payloads and names of users, and its replay with other numbers
//! of consumers, limits, rates, priorities and duration classes.
//!
//! The replay runs the rules of the core on a virtual clock: no store, no engine, no network. Nothing here knows a server.
//!
//! Start reading at `event` (what a trace contains), then `file` (how it is written), `reader` and `replay`.

mod buffer;
mod codec;
mod consumer_count;
mod event;
mod figures;
mod file;
mod reader;
mod recorder;
mod replay;
mod tasks;
mod trace_builder;
mod tube_codec;

pub use event::{EndReason, Ending, Event, PutFacts, TakeFacts};
pub use figures::{WaitCurve, WaitFigures};
pub use file::{CreateError, TraceFile, TraceWriter};
pub use reader::{ReadError, ReadLimits, read, read_file};
pub use recorder::{EventSink, Recorder};
pub use replay::{
    ConsumerRule, PriorityChange, Replayed, ReplayedTube, Scenario, ScenarioError, replay,
};
pub use tasks::{RecordedTube, Trace};

//! The event loop of Taskyard: gathers commands, stamps the time, runs them in batches on a store,
//! wakes waiting commands, triggers what becomes due and fires schedules.
//!
//! It handles no bytes and no sockets, and it does not implement the commands: the store does. It
//! knows only as much about a command as it needs to keep the order of waiting takes and puts, to
//! bound batches, to return tasks whose caller is gone, to check puts against a contract, to
//! compute the next time of a schedule that is set, and to observe what happens: for time series, the
//! list of workers, estimates and traces. The state of the loop belongs to one thread, to which callers send messages, or to a task that its
//! owner polls (`start_stepped`); time series and workers are read beside it.
//!
//! Start reading at `engine` (the public handle), then `event_loop` (one turn of the loop).

mod admit;
mod clock;
mod engine;
mod estimates;
mod event_loop;
mod held_schedules;
mod inbox;
mod jobs;
mod listeners;
mod loop_waits;
mod pipeline;
mod reply;
mod request;
mod schedules;
mod series;
mod shutdown;
mod tick;
mod timeline;
mod trace_notes;
mod waiters;
mod wake;
mod workers;

pub use clock::{Clock, ManualClock, SystemClock};
pub use engine::{Engine, PutCheck, Settings};
pub use loop_waits::EngineTask;
pub use schedules::{ScheduleCounts, ScheduleNotes, read_timing};
pub use series::{
    CommandCounts, Depth, Latency, Percentiles, Series, SeriesPoint, SeriesRequest, SeriesStart,
    Step, TUBE_SERIES_BYTES_MAX, TubeFigures, TubeLatency,
};
pub use taskyard_store::{BackupPart, Capabilities, StoreBackup, StoreHealth};
pub use waiters::{Side, Waiting, WaitingCount};
pub use workers::{WORKER_DELIVERIES_MAX, WORKER_KEPT, WORKER_TUBES_MAX, WORKERS_MAX, WorkerInfo};

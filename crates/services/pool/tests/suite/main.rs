//! A pool with real programs, tested through its own sockets.
//!
//! No test sleeps: tests wait for frames, or poll the pool until it is in the required state.

mod fixture;

mod asymptote;
mod attacks;
mod disconnects;
mod final_frames;
mod frames;
mod hostile;
mod interactive;
mod limits;
mod lost_runs;
mod no_sandbox;
mod page;
mod plain;
mod queue;
mod redis;
mod sandbox_end;
mod sandboxes;
mod scheduler_state;
mod short_tasks;
mod socket;
mod storm;

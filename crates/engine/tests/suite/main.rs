//! The engine on a store: what callers can rely on.
//!
//! No test sleeps. Time moves by a manual clock; a query to the engine is answered after everything
//! that was submitted before it, so its reply shows that the loop has reached that point.

mod batches;
mod bodies;
mod estimates;
mod events;
mod fixture;
mod keys;
mod pipelining;
mod producers;
mod put_check;
mod schedules;
mod series;
mod several_engines;
mod shutdown;
mod stepped;
mod storm;
mod time;
mod trace;
mod waiting;
mod wall_clock;
mod workers;

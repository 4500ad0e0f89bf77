//! The engine with a store underneath: what callers can rely on.
//!
//! Nothing here sleeps. Time moves by a hand clock; a question to the engine is answered after
//! everything that was asked before it, and so tells when the loop has come that far.

mod batches;
mod bodies;
mod elsewhere;
mod ending;
mod events;
mod overlap;
mod producers;
mod rig;
mod storm;
mod time;
mod waiting;
mod wall;

//! Properties of the machine, tested from outside.
//!
//! `model` has the rules in their simplest form, `random` generates commands, `shrink` finds the
//! shortest run that breaks a property. The rest are properties: `compare` compares the machine
//! with the model, `history` follows each task through the table of states, `disk` stores batches
//! and restores them, `bodies` leaves payloads on disk, `limits` tests limits, `cost` tests costs.

mod model;
mod random;
mod shrink;

mod bodies;
mod classes;
mod compare;
mod cost;
mod disk;
mod documented;
mod history;
mod limits;
mod pace;
mod state_picture;

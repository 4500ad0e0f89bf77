//! What the machine must do, seen from outside.
//!
//! `model` has the rules in their plainest form, `random` draws commands, `shrink` finds the
//! shortest run that breaks a property. The rest are properties: `compare` holds the machine against
//! the model, `history` follows each task through the table of states, `disk` writes batches down and
//! comes back from them, `bodies` leaves payloads on disk, `limits` asks for too much, `cost` for much.

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

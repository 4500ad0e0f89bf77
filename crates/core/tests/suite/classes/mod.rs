//! What duration classes promise.
//!
//! `world` plays a pool with random tasks on a clock of its own and checks each decision; `promises`
//! runs it in several ways. `seed` holds three classes against the wording they come from, `prefix`
//! compares runs with and without later tasks, `rules` has the smaller rules one by one.

mod world;

mod prefix;
mod promises;
mod rules;
mod seed;

//! The guarantees of duration classes.
//!
//! `world` simulates a pool with random tasks and checks each decision; `promises` runs it in
//! several variants. `seed` compares three classes with the specification they come from, `prefix`
//! compares runs with and without later tasks, `rules` tests single rules, `likely_starts` what is
//! learned from runs.

mod world;

mod likely_starts;
mod prefix;
mod promises;
mod rules;
mod seed;

//! The pool over a real Redis: its parts as tasks of this process, or as processes that are killed and frozen.

mod fixture;
mod process;

mod audit;
mod cluster;
mod data_loss;
mod failures;
mod fake_runner;
mod forged_messages;
mod kills;
mod lost_messages;
mod storm;
mod task_path;
mod tls;

//! Workers: the failure matrix, order and fairness, leases, stopping, transports, the manager.

mod bulk_puts;
mod config;
mod crash_recovery;
#[rustfmt::skip]
mod every_type;
mod failures;
mod fairness;
mod faulty_queue;
mod function_workers;
mod generated;
mod handler_puts;
mod init;
mod leases;
mod malformed_payloads;
mod manager;
mod permissions;
mod plans;
#[rustfmt::skip]
mod queues;
mod recording_handler;
mod renamed_queues;
mod retry_policy;
mod run_max;
mod spans;
mod stopping;
mod task_outcomes;
mod transports;

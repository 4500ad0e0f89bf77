//! The options of a task that `put` and `schedule add` share.

use std::sync::Arc;

use clap::Args;
use taskyard_core::{Body, NewTask, Priority, Span};

use crate::failure::UsageError;
use crate::units;

/// The options of a task.
#[derive(Debug, Args)]
pub struct NewTaskArgs {
    /// Priority: smaller numbers are delivered first.
    #[arg(long, value_name = "N", value_parser = units::pri, allow_negative_numbers = true)]
    pri: Option<u64>,
    /// Remove the task if it is not taken within this time.
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    ttl: Option<Span>,
    /// Return the task to the tube if it is taken and not acknowledged within this time.
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    ttr: Option<Span>,
    /// Make the task ready after this time.
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    delay: Option<Span>,
    /// Bury the task after this many failed deliveries, instead of the tube's number.
    #[arg(long, value_name = "N")]
    attempts_max: Option<u32>,
    /// The sub-queue, in tubes of kind utube and utubettl: one task of each sub-queue runs at a time.
    #[arg(long, value_name = "NAME")]
    subqueue: Option<String>,
    /// Priority for the semaphore of the tube, instead of --pri: larger numbers go first.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    semaphore_priority: Option<f64>,
    /// A small JSON object that is stored with the task.
    #[arg(long, value_name = "JSON")]
    meta: Option<String>,
}

impl NewTaskArgs {
    /// A task with these options and this payload.
    pub fn task(&self, payload: &[u8]) -> anyhow::Result<NewTask> {
        let meta = match &self.meta {
            Some(text) => taskyard_wire::json_to_msgpack(text)
                .map_err(|error| UsageError(format!("--meta is {error}; write a JSON object")))?,
            None => Vec::new(),
        };
        Ok(NewTask {
            attempts_max: self.attempts_max,
            pri: self.pri,
            ttl: self.ttl,
            ttr: self.ttr,
            delay: self.delay,
            subqueue: self.subqueue.as_deref().map(Arc::from),
            semaphore_priority: self.semaphore_priority.map(Priority::new).transpose()?,
            ..NewTask::new(Body::with_meta(payload, &meta))
        })
    }
}

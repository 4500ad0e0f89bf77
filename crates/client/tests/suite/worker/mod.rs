//! Typed workers: every row of the failure matrix, order and fairness, stopping, and every way to the queue.

mod beginning;
mod config;
mod fair;
mod generated;
mod matrix;
mod planned;
mod post;
#[rustfmt::skip]
mod queues;
mod settled;
mod stopping;
mod ways;
#[rustfmt::skip]
mod words;

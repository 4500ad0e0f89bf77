//! Typed workers: every row of the failure matrix, order and fairness, stopping, and every way to the queue.

mod beginning;
mod config;
mod everywhere;
mod fair;
mod generated;
mod granted;
mod hostile;
mod kept;
mod managed;
mod matrix;
mod overrun;
mod planned;
mod post;
#[rustfmt::skip]
mod queues;
mod renamed;
mod rough;
mod settled;
mod stopping;
mod traced;
mod ways;
#[rustfmt::skip]
mod words;

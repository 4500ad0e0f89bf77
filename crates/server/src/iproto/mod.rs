//! The iproto server for clients of Tarantool's queue, on a port of its own.
//!
//! A connection is one asynchronous task. `connection` moves bytes, `input_buffer` keeps incomplete
//! frames, and `protocol_session` turns frames into commands: all that arrive with one read are
//! sent to the engine together, and their replies leave in one write. Commands that may wait are
//! sent alone (`inflight`, `waiting_take`), so replies come in any order. `calls` serves calls and
//! expressions, `replies` writes the replies of the engine, and `expected_replies` limits the
//! requests in flight by the expected size of their replies.

mod access;
mod audit;
mod batch;
mod calls;
mod config;
mod connection;
mod counters;
mod expected_replies;
mod goodbye;
mod inflight;
mod input_buffer;
mod keyed_put;
mod leave_retries;
mod list_page;
mod protocol_session;
mod repeatable_take;
mod replies;
mod run_schedule;
mod select;
mod server;
mod service;
mod session_worker;
mod sessions;
mod waiting_take;

pub use config::{IprotoConfig, RandomSource};
pub use service::IprotoService;

pub(crate) use connection::serve;
pub(crate) use counters::Counters;
pub(crate) use goodbye::refuse_connection;
pub(crate) use server::IprotoServer;

//! Sockets, authentication and the page: Taskyard over HTTP and for clients of Tarantool's queue.
//!
//! It is given an engine and turns requests into commands for it. It names no database driver and
//! decides nothing about tasks: a handler decodes, asks the engine, encodes.
//!
//! Start reading at `server` (accept, serve, stop), then `http` (one file for each group of verbs),
//! then `guard` and `auth` (who may ask at all). The binary protocol of Tarantool is in `iproto`.

mod answers;
mod app;
mod auth;
mod auth_throttle;
mod body;
mod config;
mod connections;
mod dashboard;
mod document;
mod forward;
mod guard;
mod http;
mod iproto;
mod metrics;
#[cfg(test)]
mod openapi;
mod server;
mod slow_reader;
mod stalled;
mod starting;
mod tube_quota;
mod tube_rows;

pub use auth::{Token, TokenError};
pub use config::{BindError, Config, Guests};
pub use iproto::{Grant, Grants, IprotoConfig, Tls, TlsError, User, Users, Verb};
pub use server::{Listeners, Server};

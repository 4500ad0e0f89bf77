//! Sockets, authentication and the dashboard: serves Taskyard over HTTP and to clients of
//! Tarantool's queue.
//!
//! It gets an engine and turns requests into commands for it. It names no database driver and makes
//! no decisions about tasks: a handler decodes, runs a command on the engine, encodes.
//!
//! Start reading at `server` (accept, serve, stop), then `http` (one file for each group of
//! endpoints), then `guard` and `users` (access control). The binary protocol of Tarantool is in
//! `iproto`.

mod app;
mod audit;
mod auth;
mod auth_throttle;
mod clock_guard;
mod config;
mod connections;
mod dashboard;
mod document;
mod event_forwarding;
mod guard;
mod handshake_limit;
mod head_timer;
mod http;
mod http_service;
mod iproto;
mod metrics;
#[cfg(test)]
mod openapi;
mod page_sessions;
mod peer_servers;
mod request_reader;
mod response_budget;
mod semaphore_monitor;
mod server;
mod server_stream;
mod session_cookie;
mod slow_reader;
mod startup;
mod tls_listener;
mod tube_owners;
mod tube_quota;
mod tube_rows;
mod users;
mod worker_origins;

pub use audit::{AuditFile, AuditFileError, AuditHandle};
pub use auth::{Token, TokenError};
pub use config::{BindError, Config, ExtraRoutes, HTTP_PROTOCOL};
pub use http_service::HttpService;
pub use iproto::{IprotoConfig, IprotoService, RandomSource};
pub use page_sessions::PageSessionConfig;
pub use peer_servers::{PeerFuture, PeerServer};
pub use server::{Listeners, Server};
pub use server_stream::ByteStream;
pub use taskyard_tls::{ServerFiles, ServerTls, TlsError};
pub use tls_listener::HandshakeLimits;
pub use users::{Grant, Grants, NewSecret, User, Users, UsersChange, UsersHandle, Verb};

//! The client against live servers, and the embedded queue.

mod conformance;
mod embedded;
mod function_fixture;
mod functions;
mod http_proxy;
mod idempotent_puts;
mod iproto;
mod iproto_conformance;
mod keys;
mod killed;
mod live;
mod older_server;
mod readme;
mod schedules;
mod semaphores;
mod server;
mod tls;
mod typed;

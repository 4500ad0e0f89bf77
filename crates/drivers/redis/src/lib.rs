//! The Redis driver: URLs, TLS, connections, the nodes of a cluster and function libraries.
//!
//! A caller must know whether a failed request may have been executed, so the connections are our
//! own: [`Failure`] distinguishes a connection that was found broken before anything was sent from
//! one that broke afterwards, and nothing is repeated that may have been executed. The driver knows
//! no tube and no task.
//!
//! The crate `redis` is not used: a batch is sent behind another only if that is known to be safe,
//! so its multiplexing would not be used, and its cluster client repeats requests by itself, which
//! is wrong for a put.
//!
//! Start reading at `url`, then `connection` and `link`.

pub mod resp;

mod connection;
mod dialer;
mod library;
mod link;
mod slots;
mod url;

pub use connection::{Client, Connection, Failure};
pub use dialer::{ByteStream, DialedStream, Dialing, RedisDialer, TcpDialer};
pub use library::Library;
pub use link::{Answer, Call, Connector, Link, NodeFailure, SentCalls};
pub use resp::Value;
pub use slots::slot;
pub use url::{Address, RedisUrl};
